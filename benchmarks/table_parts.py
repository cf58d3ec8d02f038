"""What every table has: rows by case and candidate, a header, and the line that says where the results are from."""

from __future__ import annotations

from typing import Any

Rows = dict[tuple[str, str], dict[str, Any]]


def rows_of(results: dict[str, Any]) -> Rows:
    """The rows for CPU tensors by case and candidate."""
    return {(row["case"], row["candidate"]): row for row in results["rows"] if row["device"] == "cpu"}


def header(columns: list[str]) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "|---|" + "--:|" * (len(columns) - 1)]


def note(results: dict[str, Any], *more: str) -> list[str]:
    """The line that says where the results are from."""
    environment = results["environment"]
    threads = f"{environment['threads']} thread{'' if environment['threads'] == 1 else 's'}"
    sentences = [
        (
            f"{environment['cpu']}, Python {environment['python']}, torch {environment['torch']}, "
            f"{threads}, CPU tensors, {environment['date']}. Minimum over interleaved rounds."
        ),
        *more,
    ]
    if results["warnings"]:
        sentences.append(f"The run counted as unreliable ({len(results['warnings'])} warnings in the results file).")
    return ["", " ".join(sentences)]
