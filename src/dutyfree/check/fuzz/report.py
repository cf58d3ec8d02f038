"""What a run did, as counts: a run that hardly took the direct path has proved nothing."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass
class Report:
    """Counts of a run.

    Attributes:
        cases: Steps compared: calls and later registrations.
        calls: The calls among them.
        operators: Operators made, and different ones among them by their definition's source.
        sides: Cases by what was compared with custom_op.
        paths: Calls of dutyfree's operator by its side and by path, as its own counters count them.
        reasons: Those that left the direct path, by reason.
        labels: Calls by what was special about them: "state: …", "tensor: …", "type: …", …
        documented: Documented differences, by rule.
    """

    cases: int = 0
    calls: int = 0
    operators: int = 0
    raised: int = 0
    definitions: set[int] = field(default_factory=set)
    sides: Counter[str] = field(default_factory=Counter)
    paths: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reasons: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    documented: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def share(self, side: str, path: str) -> float:
        """The share of a path among the calls of a side that were counted."""
        return self.paths[side][path] / max(1, self.paths[side].total())

    def group(self, name: str) -> dict[str, int]:
        """The labels that begin with ``name``, most frequent first."""
        prefix = f"{name}: "
        return {
            label.removeprefix(prefix): count for label, count in self.labels.most_common() if label.startswith(prefix)
        }

    def print(self, console: Console) -> None:
        """Print all counts."""
        console.print(
            f"{self.cases:,} cases compared in {self.seconds:.0f} s "
            f"({self.cases / max(self.seconds, 1e-9):.0f} a second): "
            f"{self.calls:,} calls, {self.raised:,} of which raised, of {self.operators:,} operators, "
            f"{len(self.definitions):,} of them different"
        )
        table = Table("what", "counts", show_header=False, box=None, pad_edge=False)
        for title, counts in self._rows():
            table.add_row(title, ", ".join(f"{name or 'direct'} {count:,}" for name, count in counts.items()) or "none")
        console.print(table)

    def _rows(self) -> Iterator[tuple[str, dict[str, int]]]:
        yield "cases by side", dict(self.sides.most_common())
        for side, paths in sorted(self.paths.items()):
            yield f"{side}: paths", dict(paths.most_common())
            yield f"{side}: paths, %", {path: round(100 * self.share(side, path)) for path, _ in paths.most_common()}
        yield "reasons", dict(self.reasons.most_common())
        for name in ("state", "transform", "later", "tensor", "mood", "wrong", "spelling", "backward", "formula"):
            yield name, self.group(name)
        yield "documented differences", dict(self.documented.most_common())
