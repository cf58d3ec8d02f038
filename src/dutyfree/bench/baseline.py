"""Holds a benchmark's results to earlier ones, and says what became slower than a threshold allows.

Interference only ever adds time. So a case with a slow row is measured in further passes, and the minimum of all
counts: what is still slow then is slow.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dutyfree.bench import environment
from dutyfree.bench.results import Results, Row, load

DEFAULT_THRESHOLD = "3%"
FURTHER_PASSES = 2
# No row takes three years; an integer of JSON may be larger than a float.
LONGEST_US = 1e14
# Another value of one of these makes times that can't be compared.
SAME = ("cpu", "gpu", "python", "torch", "threads")
# What shows how the machine moved, where it is among a case's candidates.
REFERENCES = ("plain", "function", "before", "python")

Key = tuple[str, str, str]


class BaselineError(ValueError):
    """A baseline, or a threshold, that results can't be held to."""


@dataclass(frozen=True)
class Slower:
    """A row that takes longer than the threshold allows.

    Attributes:
        key: Case, candidate and device.
        before_us: The baseline's.
        us: This run's.
        reference: The candidate that shows how the machine moved, or None where the case has none.
        reference_change: How much longer that took: 0.01 is one percent.
    """

    key: Key
    before_us: float
    us: float
    reference: str | None
    reference_change: float

    @property
    def change(self) -> float:
        return self.us / self.before_us - 1


class Gate:
    """A baseline and how much slower than it a row may be.

    Args:
        path: Of the baseline, a results file of the same benchmark.
        threshold: "3%", "3" or "0.5%".
        threads: That the benchmark runs with.

    Raises:
        BaselineError: The threshold is no percentage; the file can't be read, is no results file, or is of another
            machine or of other versions.
    """

    def __init__(self, path: Path, threshold: str = DEFAULT_THRESHOLD, *, threads: int = 1) -> None:
        self.path, self.threshold = path, parse_threshold(threshold)
        self.baseline = load_baseline(path)
        require_comparable(path, self.baseline.environment, environment.describe() | {"threads": threads})

    def require_settings(self, settings: dict[str, Any]) -> None:
        """BaselineError where the baseline was measured with other settings, which are among the facts."""
        earlier = self.baseline.facts.get("settings", {})
        other = _differences(earlier, settings, settings)
        if other:
            raise BaselineError(f"the baseline {self.path} was measured with other settings: {other}")

    def require(self, keys: Iterable[Key]) -> None:
        """BaselineError where the baseline has no row for what is going to be measured."""
        missing = [key for key in keys if self.baseline.find(*key) is None]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise BaselineError(
                f"the baseline {self.path} has no row for {', '.join(' '.join(key) for key in missing[:3])}{more}; "
                "measure one with the same options: --json FILE"
            )

    def slower(self, rows: Iterable[Row]) -> list[Slower]:
        """The rows that take more than the threshold longer than the baseline's."""
        by_key = {(row.case, row.candidate, row.device): row for row in rows}
        found = []
        for key, row in by_key.items():
            before = self.baseline.find(*key)
            if before is None or row.us <= before.us * (1 + self.threshold):
                continue
            case, _, device = key
            reference = next((name for name in REFERENCES if (case, name, device) in by_key), None)
            change = 0.0
            if reference is not None:
                earlier = self.baseline.find(case, reference, device)
                change = by_key[case, reference, device].us / earlier.us - 1 if earlier else 0.0
            found.append(Slower(key, before.us, row.us, reference, change))
        return found

    def slow_cases(self, rows: Iterable[Row]) -> set[str]:
        """Those to measure again."""
        return {slower.key[0] for slower in self.slower(rows)}


def parse_threshold(text: str) -> float:
    """The fraction that a text such as "3%", "3" or "0.5 %" means: percent. BaselineError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%?\s*", text)
    if found is None:
        raise BaselineError(f"the threshold {text!r} is no percentage; 3%, 3 or 0.5% are expected")
    return float(found[1]) / 100


def load_baseline(path: Path) -> Results:
    """The results in a file. BaselineError, with what is wrong, where there are none."""
    try:
        results = load(path)
    except OSError as error:
        raise BaselineError(f"the baseline {path} can't be read: {error.strerror or error}") from None
    # Not JSON, not text, nested too deep, or without what load() takes.
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BaselineError(f"the baseline {path} is no results file of `dutyfree bench --json`: {error}") from None
    for row in results.rows:
        names = (row.case, row.candidate, row.device)
        if not all(isinstance(name, str) for name in names) or not _is_time(row.us):
            raise BaselineError(f"the baseline {path} has a row that is none: {row}")
    objects = (results.environment, results.facts)
    if not results.rows or not all(isinstance(each, dict) for each in objects):
        raise BaselineError(f"the baseline {path} has no rows, or does not say where it was measured")
    if not isinstance(results.facts.get("settings", {}), dict):
        raise BaselineError(f"the baseline {path} has settings that are none: {results.facts['settings']!r}")
    return results


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < LONGEST_US


def require_comparable(path: Path, before: environment.Environment, now: environment.Environment) -> None:
    """BaselineError where a result depends on something that differs."""
    other = _differences(before, now, SAME)
    if other:
        raise BaselineError(
            f"the baseline {path} is of another machine or other versions ({other}), whose times can't be "
            "compared with this one's"
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> str:
    """Those of two settings, as text; empty where there are none."""
    odd = [name for name in names if before.get(name) != now.get(name)]
    return "; ".join(f"{name}: {before.get(name)!r}, now {now.get(name)!r}" for name in odd)
