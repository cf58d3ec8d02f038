#!/usr/bin/env python3
"""Writes the README's tables from benchmarks/results/*.json, each between the markers that carry its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dutyfree.bench import training

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"

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

Rows = dict[tuple[str, str], dict[str, Any]]


def rows_of(results: dict[str, Any]) -> Rows:
    """The rows for CPU tensors by case and candidate."""
    return {(row["case"], row["candidate"]): row for row in results["rows"] if row["device"] == "cpu"}


def header(columns: list[str]) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "|---|" + "--:|" * (len(columns) - 1)]


def note(results: dict[str, Any], *more: str) -> list[str]:
    """The line that says where the results are from."""
    environment = results["environment"]
    sentences = [
        (
            f"{environment['cpu']}, Python {environment['python']}, torch {environment['torch']}, "
            f"{environment['threads']} thread, CPU tensors, {environment['date']}. Minimum over interleaved rounds."
        ),
        *more,
    ]
    if results["warnings"]:
        sentences.append(f"The run counted as unreliable ({len(results['warnings'])} warnings in the results file).")
    return ["", " ".join(sentences)]


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


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {"calls": calls_table, "training": training_table}


def markers(name: str) -> tuple[str, str]:
    return f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"


def load(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return results


def render(readme: str, name: str, results: dict[str, Any]) -> str:
    """The README's text with one table replaced."""
    begin_marker, end_marker = markers(name)
    before, begin, rest = readme.partition(begin_marker)
    _, end, after = rest.partition(end_marker)
    if not begin or not end:
        raise ValueError(f"README.md has no {begin_marker} … {end_marker} section to put the table into")
    return f"{before}{begin_marker}\n{TABLES[name](results)}\n{end_marker}{after}"


def main() -> None:
    readme = README.read_text()
    for name in TABLES:
        readme = render(readme, name, load(name))
    README.write_text(readme)


if __name__ == "__main__":
    main()
