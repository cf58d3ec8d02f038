"""Prints the results of ``dutyfree bench ltx2``: tables in the layout of the published ones, theirs beside ours."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from dutyfree.bench.ltx2 import published
from dutyfree.bench.ltx2.cases import EAGER, OPTIONS, REGISTRATION_TITLES, TIMED, TRACE, title_of
from dutyfree.bench.report import print_environment, print_warnings
from dutyfree.bench.results import Results
from dutyfree.workloads.ltx2.trace import GEMM_CALLS, QUANTIZE_CALLS

TITLES = {name: title.replace("`", "") for name, title in REGISTRATION_TITLES.items()}


def print_ltx2_report(results: Results, console: Console) -> None:
    print_environment(results, console)
    for device in results.devices():
        if results.find(TRACE, "plain", device) is not None:
            console.print(tax_table(results, device))
    cases = model_cases(results)
    if cases:
        console.print(mode_table(results))
        for case in cases:
            console.print(run_table(results, case))
    print_warnings(results, console)


def model_cases(results: Results) -> list[str]:
    """The modes, and runs of several processes, that were measured."""
    return [case for case in dict.fromkeys(row.case for row in results.rows) if case != TRACE]


def device_of(results: Results, case: str) -> str:
    return next(row.device for row in results.rows if row.case == case)


def tax_table(results: Results, device: str) -> Table:
    """The call trace: the tax of a call, and of a step."""
    calls = sum(results.facts["calls"].values())
    table = _table(
        f"Tax of a step's {calls:,} calls beyond plain functions; empty kernels, {device} tensors.\n"
        f"Theirs: a body of x.clone(), {published.SOURCE}; in our row their fast_custom_op.",
        "registration",
        "µs a call: theirs",
        "ours",
        "ms a step: theirs",
        "ours",
    )
    for name in TIMED:
        row = results.find(TRACE, name, device)
        if row is None:
            continue
        theirs = published.TAX_US.get(name)
        table.add_row(
            TITLES[name],
            "" if theirs is None else f"{theirs:.2f}",
            f"{row.tax_us / calls:.2f}" if name != "plain" else "",
            "" if theirs is None else f"{theirs * published.CALLS / 1000:.1f}",
            f"{row.tax_us / 1000:.2f}" if name != "plain" else "",
        )
    return table


def mode_table(results: Results) -> Table:
    """A step's host time, and the share of it that the operators take."""
    table = _table(
        "A step of the model: host time, and the operators' calls in it.\n"
        f"Theirs: calls of custom_op's, {published.SOURCE}. On a CPU the kernels' work is in them.",
        "mode",
        "registration",
        "ms a step",
        "calls x µs",
        "share",
        "tax's share",
    )
    for case in [case for case in model_cases(results) if case in (EAGER, *OPTIONS)]:
        theirs = published.HOST_TIMES[case]
        table.add_row(
            f"[bold]{title_of(case)}[/bold]",
            "theirs",
            f"{theirs.host_ms:.0f}",
            f"{published.CALLS:,} x {published.OPERATOR_US:.0f}",
            f"{theirs.share:.1%}",
            "",
        )
        facts, device = results.facts[case], device_of(results, case)
        for name in TIMED:
            row = results.find(case, name, device)
            if row is None:
                continue
            calls = sum(results.facts[EAGER]["calls"][name].values())
            each = (row.us - facts["absent_us"]) / calls
            table.add_row(
                "",
                name,
                f"{row.us / 1000:.1f}",
                f"{calls:,} x {each:.2f}",
                f"{facts['share'][name]:.1%}",
                f"{row.tax_us / row.us:+.1%}" if name != "plain" else "",
            )
        table.add_section()
    return table


def run_table(results: Results, case: str) -> Table:
    """A run of the denoising loop from end to end."""
    facts, device = results.facts[case], device_of(results, case)
    theirs = published_run(case)
    beside = f" Theirs: {published.STEPS} steps, {theirs.gpus} x {published.SOURCE}." if theirs else ""
    table = _table(
        f"A run of {results.facts['steps']} steps, {title_of(case)}, {device}. Change: from custom_op.{beside}",
        "registration",
        "s/run",
        "ms/step",
        "spread",
        "calls",
        "change",
        "latents",
    )
    baseline = facts["seconds_a_run"]["custom_op"]
    for name in TIMED:
        row = results.find(case, name, device)
        if row is None:
            continue
        calls = facts.get("calls", results.facts[EAGER]["calls"])[name]
        change = facts["seconds_a_run"][name] / baseline - 1
        difference = facts.get("difference", {}).get(name)
        table.add_row(
            TITLES[name],
            f"{facts['seconds_a_run'][name]:.2f}",
            f"{row.us / 1000:.1f}",
            f"{row.spread_us / 1000:.1f}",
            "+".join(f"{calls[operator]:,}" for operator in ("quantize", "gemm")),
            f"{change:+.1%}" if name != "custom_op" else "",
            "equal" if difference is None else f"±{difference['largest']:.2g}",
        )
    if theirs is not None:
        table.add_section()
        calls = f"{QUANTIZE_CALLS:,}+{GEMM_CALLS:,}"
        for name, seconds in (("custom_op", theirs.before_s), ("fast_custom_op", theirs.after_s)):
            table.add_row(
                f"theirs: {name}",
                f"{seconds:.2f}",
                f"{seconds / published.STEPS * 1000:.1f}",
                "",
                calls,
                f"{theirs.change:+.1%}" if name != "custom_op" else "",
            )
    return table


def published_run(case: str) -> published.EndToEnd | None:
    """Theirs that goes beside a case: one GPU's beside one process, eight GPUs' beside several."""
    if case in OPTIONS:
        return None  # in which mode theirs ran is not known
    return published.RUNS[1 if case == EAGER else 8]


def _table(title: str, *columns: str) -> Table:
    first, *others = columns
    right = [Column(name, justify="left" if name == "registration" else "right", no_wrap=True) for name in others]
    return Table(
        Column(first, no_wrap=True),
        *right,
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
