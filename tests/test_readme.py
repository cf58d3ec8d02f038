"""The README shows what the committed results say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def renderer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", ROOT / "benchmarks" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(renderer: ModuleType) -> dict:
    return json.loads(renderer.RESULTS.read_text())


def test_readme_shows_the_committed_results(renderer: ModuleType, results: dict) -> None:
    readme = renderer.README.read_text()
    assert renderer.render(readme, results) == readme, "run `python benchmarks/render.py`"


def test_rendering_twice_changes_nothing(renderer: ModuleType, results: dict) -> None:
    once = renderer.render(f"a\n{renderer.BEGIN}\nold\n{renderer.END}\nb\n", results)
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert renderer.render(once, results) == once


def test_a_changed_number_changes_the_table(renderer: ModuleType, results: dict) -> None:
    changed = json.loads(json.dumps(results))
    changed["rows"][1]["tax_us"] += 1
    assert renderer.table(changed) != renderer.table(results)


def test_missing_markers_are_an_error(renderer: ModuleType, results: dict) -> None:
    with pytest.raises(ValueError, match="no <!-- bench:calls -->"):
        renderer.render("no table here", results)


def test_committed_results_are_complete(renderer: ModuleType, results: dict) -> None:
    assert results["schema"] == 1
    pairs = {(row["case"], row["candidate"]) for row in results["rows"]}
    assert {(case, candidate) for case in renderer.CALLS for candidate in ["plain", *renderer.COLUMNS]} <= pairs
