#!/usr/bin/env python3
"""Writes the tables of the README and of docs/ from benchmarks/results/*.json, each between markers with its name, and
the figures in docs/."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dutyfree.bench import training
from dutyfree.bench.accelerated import AFTER, BEFORE, FUNCTION
from dutyfree.bench.cpp import CASE, FEWEST, MOST, TENSORS
from dutyfree.bench.results import Results
from ltx2_tables import ltx2_modes_table, ltx2_ranks_table, ltx2_runs_table, ltx2_tax_table
from nvfp4_tables import nvfp4_host_table, nvfp4_ltx2_table, nvfp4_quantize_table, nvfp4_table
from table_parts import header, note, rows_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
ACCELERATE = ROOT / "docs" / "accelerate.md"
PACKAGES = ROOT / "docs" / "packages.md"
NVFP4 = ROOT / "docs" / "nvfp4.md"
LTX2 = ROOT / "docs" / "ltx2.md"

CALLS = {
    "clone": "1 tensor, `x.clone()`",
    "list_result": "4 arguments, two tensors returned in a list",
    "gemm": "`nvfp4_gemm`'s 10 arguments, 8 given",
    "gemm_keyword": "the same, one by keyword",
    "mutate": "mutating, two tensors, empty body",
    "args14": "14 arguments",
    "args51": "51 arguments",
}
CALLS_COLUMNS = {
    "custom_op": "`custom_op`",
    "library": "`Library`",
    "dutyfree.object": "dutyfree: `op`",
    "dutyfree.packet": "`torch.ops.ns.op`",
    "dutyfree.overload": "`.default`",
}
TRAINING_COLUMNS = {candidate: title for candidate, title in CALLS_COLUMNS.items() if candidate != "library"}


def calls_table(results: dict[str, Any]) -> str:
    """The tax of each call in microseconds."""
    rows = rows_of(results)
    lines = header(["tax in µs: call − plain function", "plain takes", *CALLS_COLUMNS.values()])
    for case, title in CALLS.items():
        taxes = (f"{rows[case, candidate]['tax_us']:.2f}" for candidate in CALLS_COLUMNS)
        lines.append(f"| {title} | {rows[case, 'plain']['us']:.2f} | " + " | ".join(taxes) + " |")
    below_zero = any(rows[case, candidate]["tax_us"] < 0 for case in CALLS for candidate in CALLS_COLUMNS)
    reason = "Below zero: the body runs below autograd's dispatch keys, which its own calls gain from."
    return "\n".join(lines + note(results, *([reason] if below_zero else [])))


def training_table(results: dict[str, Any]) -> str:
    """Each call's time over that of a hand-written Function."""
    rows = rows_of(results)
    lines = header(["times a hand-written Function", "which takes, µs", *TRAINING_COLUMNS.values()])
    for case in training.CASES:
        for step in training.STEPS:
            key = training.key_of(case, step)
            function = rows[key, training.BASELINE]["us"]
            ratios = (f"{rows[key, candidate]['us'] / function:.2f}" for candidate in TRAINING_COLUMNS)
            lines.append(f"| {case.title}: {step} | {function:.2f} | " + " | ".join(ratios) + " |")
    return "\n".join(lines + note(results))


ACCELERATED_COLUMNS = {
    "custom_op": "`custom_op` before",
    "accelerated.custom_op.object": "after",
    "accelerated.custom_op.overload": "by `.default`",
    "library": "`Library` before",
    "accelerated.library.overload": "after",
    "dutyfree.object": "`fast_custom_op`",
}


def accelerated_table(results: dict[str, Any]) -> str:
    """The tax of operators with Python bodies, before and after."""
    rows = rows_of(results)
    lines = header(["tax in µs: call − plain function", *ACCELERATED_COLUMNS.values()])
    for case in dict.fromkeys(case for case, candidate in rows if candidate == "plain"):
        taxes = (f"{rows[case, candidate]['tax_us']:.2f}" for candidate in ACCELERATED_COLUMNS)
        lines.append(f"| {CALLS[case]} | " + " | ".join(taxes) + " |")
    return "\n".join(lines + note(results))


def aten_table(results: dict[str, Any]) -> str:
    """PyTorch's own operators, before and after, beside PyTorch's own functions."""
    rows = rows_of(results)
    lines = header(["operator", "`torch.ops` before, µs", "after", "after / before", "after / `torch.…`"])
    for case in dict.fromkeys(case for case, candidate in rows if candidate == BEFORE):
        before, after = rows[case, BEFORE]["us"], rows[case, AFTER]["us"]
        function = f"{after / rows[case, FUNCTION]['us']:.2f}" if (case, FUNCTION) in rows else ""
        lines.append(f"| `{case}` | {before:.2f} | {after:.2f} | {after / before:.2f} | {function} |")
    return "\n".join(lines + note(results))


CPP_TITLES = {
    "dutyfree.object": "dutyfree, by object",
    "dutyfree.overload": "dutyfree, by `torch.ops.ns.op.default`",
    "pybind11": "pybind11 with torch's caster",
    "tvm_ffi": "tvm-ffi",
    "nanobind": "nanobind with a DLPack ndarray",
    "torch.ops": "`TORCH_LIBRARY` by `torch.ops.ns.op.default`",
    "python": "a Python function",
}


def cpp_table(results: dict[str, Any]) -> str:
    """A call of an empty C++ function by each binding, and what one more tensor costs dutyfree."""
    rows = rows_of(results)
    lines = header(["an empty C++ function of three tensors and an int", "µs per call"])
    for candidate, title in CPP_TITLES.items():
        if (CASE, candidate) in rows:
            lines.append(f"| {title} | {rows[CASE, candidate]['us']:.3f} |")
    more = (
        rows[TENSORS.format(MOST), "dutyfree.object"]["us"] - rows[TENSORS.format(FEWEST), "dutyfree.object"]["us"]
    ) / (MOST - FEWEST)
    return "\n".join(lines + note(results, f"One more tensor costs dutyfree {more * 1000:.1f} ns."))


def packages_table(results: dict[str, Any]) -> str:
    """Calls of packages' operators before and after, and of the functions behind the operators."""
    rows = rows_of(results)
    lines = header(["µs per call", "before", "after", "the function itself"])
    package = ""
    for case in dict.fromkeys(case for case, _ in rows):
        of, _, title = case.partition(": ")
        if of != package:
            package = of
            lines.append(f"| **{package}** | | | |")
        times = (rows.get((case, candidate)) for candidate in (BEFORE, AFTER, "plain"))
        cells = ("" if row is None else f"{row['us']:.2f} + {row['spread_us']:.2f}" for row in times)
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines + note(results, "After the + is how far the median round was from it."))


@dataclass(frozen=True)
class Table:
    """Where a table or figure goes, the results that it is made of, and how."""

    path: Path
    results: str
    make: Callable[[dict[str, Any]], str]


TABLES = {
    "calls": Table(README, "calls", calls_table),
    "training": Table(README, "training", training_table),
    "accelerated": Table(README, "accelerated", accelerated_table),
    "cpp": Table(README, "cpp", cpp_table),
    "aten": Table(ACCELERATE, "accelerated", aten_table),
    "packages": Table(PACKAGES, "packages", packages_table),
    "nvfp4": Table(NVFP4, "nvfp4", nvfp4_table),
    "nvfp4_ltx2": Table(NVFP4, "nvfp4", nvfp4_ltx2_table),
    "nvfp4_quantize": Table(NVFP4, "nvfp4", nvfp4_quantize_table),
    "nvfp4_host": Table(NVFP4, "nvfp4", nvfp4_host_table),
    "ltx2_tax": Table(LTX2, "ltx2", ltx2_tax_table),
    "ltx2_modes": Table(LTX2, "ltx2", ltx2_modes_table),
    "ltx2_runs": Table(LTX2, "ltx2", ltx2_runs_table),
    "ltx2_ranks": Table(LTX2, "ltx2", ltx2_ranks_table),
}


def roofline(results: dict[str, Any]) -> str:
    # Here, so that what only reads the tables needs no matplotlib.
    from roofline import roofline as plot

    return plot(results)


def ltx2_plot(name: str) -> Callable[[dict[str, Any]], str]:
    def plot(results: dict[str, Any]) -> str:
        from dutyfree.bench.ltx2.plots import PLOTS

        return PLOTS[name](Results.from_json(results))

    return plot


# Whole files.
FIGURES = {"nvfp4_roofline": Table(ROOT / "docs" / "nvfp4_roofline.svg", "nvfp4", roofline)} | {
    name: Table(ROOT / "docs" / f"{name}.svg", "ltx2", ltx2_plot(name)) for name in ("ltx2_shares", "ltx2_taxes")
}


def markers(name: str) -> tuple[str, str]:
    return f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"


def load(name: str) -> dict[str, Any]:
    """The results that a table or figure is made of."""
    results: dict[str, Any] = json.loads((RESULTS / f"{(TABLES | FIGURES)[name].results}.json").read_text())
    return results


def render(text: str, name: str, results: dict[str, Any]) -> str:
    """A page's text with one table replaced."""
    begin_marker, end_marker = markers(name)
    before, begin, rest = text.partition(begin_marker)
    _, end, after = rest.partition(end_marker)
    if not begin or not end:
        raise ValueError(f"the page has no {begin_marker} … {end_marker} section to put the table into")
    return f"{before}{begin_marker}\n{TABLES[name].make(results)}\n{end_marker}{after}"


def main() -> None:
    for name, table in TABLES.items():
        table.path.write_text(render(table.path.read_text(), name, load(name)))
    for name, figure in FIGURES.items():
        figure.path.write_text(figure.make(load(name)))


if __name__ == "__main__":
    main()
