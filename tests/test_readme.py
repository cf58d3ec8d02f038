"""The README shows what the committed results say."""

from __future__ import annotations

import pytest

import render
from dutyfree.bench import training


@pytest.mark.parametrize("name", ["calls", "training"])
def test_readme_shows_the_committed_results(name: str) -> None:
    readme = render.README.read_text()
    assert render.render(readme, name, render.load(name)) == readme, "run `python benchmarks/render.py`"


@pytest.mark.parametrize("name", ["calls", "training"])
def test_rendering_twice_changes_nothing(name: str) -> None:
    begin, end = render.markers(name)
    once = render.render(f"a\n{begin}\nold\n{end}\nb\n", name, render.load(name))
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert render.render(once, name, render.load(name)) == once


@pytest.mark.parametrize("name", ["calls", "training"])
def test_a_changed_number_changes_the_table(name: str) -> None:
    changed = render.load(name)
    changed["rows"][1]["tax_us"] += 1
    changed["rows"][1]["us"] += 1
    assert render.TABLES[name](changed) != render.TABLES[name](render.load(name))


def test_missing_markers_are_an_error() -> None:
    with pytest.raises(ValueError, match="no <!-- bench:calls -->"):
        render.render("no table here", "calls", render.load("calls"))


def test_committed_results_are_complete() -> None:
    results = render.load("calls")
    assert results["schema"] == 1
    pairs = set(render.rows_of(results))
    assert {(case, candidate) for case in render.CALLS for candidate in ["plain", *render.CALLS_COLUMNS]} <= pairs


def test_committed_training_results_are_complete() -> None:
    pairs = set(render.rows_of(render.load("training")))
    keys = [training.key_of(case, step) for case in training.CASES for step in training.STEPS]
    assert {(key, name) for key in keys for name in training.CANDIDATES} <= pairs
