"""The README shows what the committed results say."""

from __future__ import annotations

import importlib.util
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


@pytest.mark.parametrize("name", ["calls", "training"])
def test_readme_shows_the_committed_results(renderer: ModuleType, name: str) -> None:
    readme = renderer.README.read_text()
    assert renderer.render(readme, name, renderer.load(name)) == readme, "run `python benchmarks/render.py`"


@pytest.mark.parametrize("name", ["calls", "training"])
def test_rendering_twice_changes_nothing(renderer: ModuleType, name: str) -> None:
    begin, end = renderer.markers(name)
    once = renderer.render(f"a\n{begin}\nold\n{end}\nb\n", name, renderer.load(name))
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert renderer.render(once, name, renderer.load(name)) == once


@pytest.mark.parametrize("name", ["calls", "training"])
def test_a_changed_number_changes_the_table(renderer: ModuleType, name: str) -> None:
    changed = renderer.load(name)
    changed["rows"][1]["tax_us"] += 1
    changed["rows"][1]["us"] += 1
    assert renderer.TABLES[name](changed) != renderer.TABLES[name](renderer.load(name))


def test_missing_markers_are_an_error(renderer: ModuleType) -> None:
    with pytest.raises(ValueError, match="no <!-- bench:calls -->"):
        renderer.render("no table here", "calls", renderer.load("calls"))


def test_committed_results_are_complete(renderer: ModuleType) -> None:
    results = renderer.load("calls")
    assert results["schema"] == 1
    pairs = set(renderer.rows_of(results))
    assert {(case, candidate) for case in renderer.CALLS for candidate in ["plain", *renderer.CALLS_COLUMNS]} <= pairs


def test_committed_training_results_are_complete(renderer: ModuleType) -> None:
    pairs = set(renderer.rows_of(renderer.load("training")))
    cases = [f"{case}, {step}" for case in renderer.TRAINING for step in renderer.STEPS]
    assert {(case, name) for case in cases for name in ["function", *renderer.TRAINING_COLUMNS]} <= pairs
