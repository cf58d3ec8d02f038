#!/usr/bin/env python3
"""Writes the README's table from benchmarks/results/calls.json, between its `bench:calls` markers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "calls.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- bench:calls -->", "<!-- /bench:calls -->"

CALLS = {
    "clone": "1 tensor, `x.clone()`",
    "list_result": "4 arguments, two tensors returned in a list",
    "gemm": "`nvfp4_gemm`'s 10 arguments, 8 given",
    "gemm_keyword": "the same, one by keyword",
    "mutate": "mutating, two tensors, empty body",
    "args14": "14 arguments",
    "args51": "51 arguments",
}
COLUMNS = {
    "custom_op": "`custom_op`",
    "library": "`Library`",
    "dutyfree.object": "dutyfree: `op`",
    "dutyfree.packet": "`torch.ops.ns.op`",
    "dutyfree.overload": "`.default`",
}


def table(results: dict[str, Any]) -> str:
    """The tax of each call in microseconds, for CPU tensors, with the line that says where it was measured."""
    rows = {(row["case"], row["candidate"]): row for row in results["rows"] if row["device"] == "cpu"}
    environment = results["environment"]
    lines = [
        "| tax in µs: call − plain function | plain takes | " + " | ".join(COLUMNS.values()) + " |",
        "|---|--:|" + "--:|" * len(COLUMNS),
    ]
    for case, title in CALLS.items():
        taxes = (f"{rows[case, candidate]['tax_us']:.2f}" for candidate in COLUMNS)
        lines.append(f"| {title} | {rows[case, 'plain']['us']:.2f} | " + " | ".join(taxes) + " |")
    notes = [
        (
            f"{environment['cpu']}, Python {environment['python']}, torch {environment['torch']}, "
            f"{environment['threads']} thread, CPU tensors, {environment['date']}. Minimum over interleaved rounds."
        ),
    ]
    if any(rows[case, candidate]["tax_us"] < 0 for case in CALLS for candidate in COLUMNS):
        notes.append("Below zero: the body runs below autograd's dispatch keys, which its own calls gain from.")
    if results["warnings"]:
        notes.append(f"The run counted as unreliable ({len(results['warnings'])} warnings in the results file).")
    lines += ["", " ".join(notes)]
    return "\n".join(lines)


def render(readme: str, results: dict[str, Any]) -> str:
    """The README's text with the table replaced."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no {BEGIN} … {END} section to put the table into")
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def main() -> None:
    README.write_text(render(README.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
