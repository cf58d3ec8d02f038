"""A benchmark's results and their JSON form, the same for every benchmark."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dutyfree.bench.environment import Environment

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One candidate of one case. Microseconds per call; the tax is what the call costs beyond the plain function."""

    case: str
    candidate: str
    us: float
    tax_us: float
    spread_us: float
    device: str = "cpu"


@dataclass
class Results:
    environment: Environment
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    # What a benchmark found out beyond times, or derived from them.
    facts: dict[str, Any] = field(default_factory=dict)

    def find(self, case: str, candidate: str, device: str = "cpu") -> Row | None:
        for row in self.rows:
            if (row.case, row.candidate, row.device) == (case, candidate, device):
                return row
        return None

    def devices(self) -> list[str]:
        return list(dict.fromkeys(row.device for row in self.rows))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "environment": self.environment,
            "warnings": self.warnings,
            **({"facts": self.facts} if self.facts else {}),
            "rows": [
                {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(row).items()}
                for row in self.rows
            ],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Results":
        """What ``to_json`` returned."""
        rows = [Row(**row) for row in content["rows"]]
        return cls(content["environment"], rows, content["warnings"], content.get("facts", {}))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")


def load(path: Path) -> Results:
    """Read what ``save`` wrote. ValueError for a file of another kind, or of another schema."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or "schema" not in content:
        raise ValueError(f"{path}: not the results of a benchmark")
    if content["schema"] != SCHEMA:
        raise ValueError(
            f"{path}: schema {content.get('schema')!r}, this version reads {SCHEMA}; run the benchmark again"
        )
    return Results.from_json(content)
