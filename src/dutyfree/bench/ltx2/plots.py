"""The plots of ``dutyfree bench ltx2``, as SVG: what of a step is whose, and the tax of each registration."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.bench.ltx2 import published
from dutyfree.bench.ltx2.cases import EAGER, OPTIONS, TIMED, TRACE, title_of
from dutyfree.bench.ltx2.report import device_of, model_cases
from dutyfree.bench.results import Results
from dutyfree.bench.svg import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REST, OPERATORS, TAX = "#d0d0d0", "#60a8f0", "#c05000"
OURS, THEIRS = "#0060c0", "#b0b0b0"


def shares(results: Results) -> str:
    """Each mode's step by registration: the rest, the operators with plain functions, and the registration's tax."""

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot()
        at, labels = 0.0, []
        for case in (case for case in model_cases(results) if case in (EAGER, *OPTIONS)):
            device = device_of(results, case)
            plain = results.find(case, "plain", device)
            # Not above the steps that it is a part of, as chance can have it in a short run.
            steps = [row.us for row in results.rows if (row.case, row.device) == (case, device)]
            absent = min(results.facts[case]["absent_us"], *steps) / 1000
            for name in TIMED:
                row = results.find(case, name, device)
                if row is None or plain is None:
                    continue
                operators = max(0.0, min(plain.us, row.us) / 1000 - absent)
                tax = max(0.0, row.tax_us / 1000)
                axes.barh(at, absent, color=REST)
                axes.barh(at, operators, left=absent, color=OPERATORS)
                axes.barh(at, tax, left=absent + operators, color=TAX)
                share = results.facts[case]["share"][name]
                axes.annotate(
                    f"{row.us / 1000:.1f} ms: {share:.0%} in operators, {row.tax_us / row.us:.1%} tax",
                    (absent + operators + tax, at),
                    xytext=(4, -3),
                    textcoords="offset points",
                    fontsize=8,
                )
                labels.append((at, f"{title_of(case)}: {name}"))
                at += 1
            at += 0.6
        axes.set_yticks([place for place, _ in labels], [label for _, label in labels])
        axes.invert_yaxis()
        axes.set_xlim(0, axes.get_xlim()[1] * 1.5)
        axes.set_xlabel("ms of host time a step")
        for colour, label in (
            (REST, "the rest of the step"),
            (OPERATORS, "the two operators as plain functions, kernels included"),
            (TAX, "the registration's tax"),
        ):
            axes.barh(0, 0, color=colour, label=label)
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.13), ncols=3, frameon=False)
        axes.set_title(_where(results), fontsize=9)

    bars = len(TIMED) * sum(case in (EAGER, *OPTIONS) for case in model_cases(results))
    return svg(8.4, 1.4 + 0.3 * bars, draw)


def taxes(results: Results) -> str:
    """The tax of a step's 2,100 calls by registration, the published one beside ours; logarithmic."""

    def draw(figure: "Figure") -> None:
        axes = figure.add_subplot(yscale="log")
        names = [name for name in TIMED if name != "plain"]
        calls = sum(results.facts["calls"].values())
        bottom = 0.05
        for place, name in enumerate(names):
            row = results.find(TRACE, name)
            theirs = published.TAX_US.get(name)
            if theirs is not None:
                _bar(axes, place - 0.2, theirs * published.CALLS / 1000, THEIRS, bottom)
            if row is not None:
                _bar(axes, place + 0.2, row.tax_us / 1000, OURS, bottom)
        axes.set_xticks(range(len(names)), names)
        axes.set_ylim(bottom, 60)
        axes.set_ylabel(f"ms that {calls:,} calls take beyond plain functions")
        axes.bar(0, 0, color=THEIRS, label=f"published, {published.SOURCE} (dutyfree: their fast_custom_op)")
        axes.bar(0, 0, color=OURS, label="here")
        axes.legend(loc="upper right", frameon=False)
        axes.set_title(_where(results), fontsize=9)

    return svg(8.4, 3.6, draw)


def _bar(axes: "Axes", place: float, value: float, colour: str, bottom: float) -> None:
    """With its number on top; what is below the axis is said and not drawn."""
    axes.bar(place, max(value, bottom), width=0.38, color=colour)
    axes.annotate(
        f"{value:.2f}",
        (place, max(value, bottom)),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )


def _where(results: Results) -> str:
    environment = results.environment
    threads = environment["threads"]
    of = f"{environment['cpu']}, {threads} thread{'' if threads == 1 else 's'}"
    return f"{of}, torch {environment['torch']}, {environment['date']}"


PLOTS: dict[str, Callable[[Results], str]] = {"ltx2_shares": shares, "ltx2_taxes": taxes}


def save_plots(results: Results, folder: Path) -> list[Path]:
    """Write the plots that the results have what it takes for; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, plot in PLOTS.items():
        if plot is taxes or model_cases(results):
            files.append(folder / f"{name}.svg")
            files[-1].write_text(plot(results))
    return files
