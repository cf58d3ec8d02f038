"""docs/packages.md says how many operators there are, and what became of them."""

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import diffusers
import pytest
import test_custom_op_db
import test_transformers
import test_vllm_pattern
import torchao
import torchao_cases
import transformers
import vllm_pattern
from before_and_after import Case, accelerated, by_path
from diffusers.models import attention_dispatch  # noqa: F401  (registers an operator)
from registrations import named_in_sources
from torch.testing._internal import custom_op_db

PAGE = Path(__file__).resolve().parents[2] / "docs" / "packages.md"


def running(cases: Iterable[Case]) -> int:
    return sum(case.raises is None for case in cases)


@pytest.mark.parametrize(
    ("title", "package", "named", "run"),
    [
        (f"transformers {transformers.__version__}", transformers, None, running(test_transformers.CASES)),
        (f"torchao {torchao.__version__}", torchao, None, running(torchao_cases.CASES)),
        (f"diffusers {diffusers.__version__}", diffusers, None, 0),
        ("torch's `custom_op_db`", custom_op_db, 17, len(custom_op_db.custom_op_db) + len(test_custom_op_db.CLONES)),
        ("`tests/packages/vllm_pattern`", vllm_pattern, 6, running(test_vllm_pattern.CASES)),
    ],
)
def test_the_counts_are_those_of_the_package(title: str, package: ModuleType, named: int | None, run: int) -> None:
    names = len(named_in_sources(package)) if named is None else named
    with accelerated(package) as report:
        paths = by_path(report)
    counts = names, len(report), paths.get("direct", 0), paths.get("boxed", 0), run
    assert f"| {title} | " + " | ".join(map(str, counts)) + " |" in PAGE.read_text()


@pytest.mark.parametrize("package", [transformers, torchao, diffusers], ids=lambda package: package.__name__)
def test_every_registered_operator_is_named_in_the_sources(package: ModuleType) -> None:
    """So that the search of the sources misses none of those that can be compared."""
    with accelerated(package) as report:
        assert set(report.names) <= named_in_sources(package)
