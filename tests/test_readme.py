"""The README and the pages in docs/ show what the committed results say."""

from __future__ import annotations

import pytest

import render
from dutyfree.bench import training
from dutyfree.bench.accelerated import AFTER, BEFORE, PYTHON_CASES, aten_calls
from table_parts import rows_of


@pytest.mark.parametrize("name", render.TABLES)
def test_pages_show_the_committed_results(name: str) -> None:
    page = render.TABLES[name].path.read_text()
    assert render.render(page, name, render.load(name)) == page, "run `python benchmarks/render.py`"


@pytest.mark.parametrize("name", render.TABLES)
def test_rendering_twice_changes_nothing(name: str) -> None:
    begin, end = render.markers(name)
    once = render.render(f"a\n{begin}\nold\n{end}\nb\n", name, render.load(name))
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert render.render(once, name, render.load(name)) == once


@pytest.mark.parametrize("name", render.TABLES)
def test_a_changed_number_changes_the_table(name: str) -> None:
    changed = render.load(name)
    for row in changed["rows"]:
        if row["candidate"] not in ("plain", BEFORE):
            # More than rounding hides of a call's microsecond, and of a step's hundred milliseconds.
            row["tax_us"] += 1 + 0.1 * row["us"]
            row["us"] += 1 + 0.1 * row["us"]
    assert render.TABLES[name].make(changed) != render.TABLES[name].make(render.load(name))


@pytest.mark.parametrize("name", render.FIGURES)
def test_figures_show_the_committed_results(name: str) -> None:
    figure = render.FIGURES[name]
    assert figure.make(render.load(name)) == figure.path.read_text(), "run `python benchmarks/render.py`"


@pytest.mark.parametrize("name", render.FIGURES)
def test_a_changed_number_changes_the_figure(name: str) -> None:
    changed = render.load(name)
    for row in changed["rows"]:
        row["us"] *= 1.1
        row["tax_us"] *= 1.1
    assert render.FIGURES[name].make(changed) != render.FIGURES[name].make(render.load(name))


def test_missing_markers_are_an_error() -> None:
    with pytest.raises(ValueError, match="no <!-- bench:calls -->"):
        render.render("no table here", "calls", render.load("calls"))


def test_committed_results_are_complete() -> None:
    results = render.load("calls")
    assert results["schema"] == 1
    pairs = set(rows_of(results))
    assert {(case, candidate) for case in render.CALLS for candidate in ["plain", *render.CALLS_COLUMNS]} <= pairs


def test_committed_training_results_are_complete() -> None:
    pairs = set(rows_of(render.load("training")))
    keys = [training.key_of(case, step) for case in training.CASES for step in training.STEPS]
    assert {(key, name) for key in keys for name in training.CANDIDATES} <= pairs


def test_committed_accelerated_results_are_complete() -> None:
    pairs = set(rows_of(render.load("accelerated")))
    assert {(case.name, name) for case in PYTHON_CASES for name in ["plain", *render.ACCELERATED_COLUMNS]} <= pairs
    assert {(f"aten::{name}", candidate) for name in aten_calls() for candidate in (BEFORE, AFTER)} <= pairs
    assert len(aten_calls()) == 50


def test_no_operator_of_pytorchs_own_became_slower() -> None:
    rows = rows_of(render.load("accelerated"))
    slower = [name for name in aten_calls() if rows[f"aten::{name}", AFTER]["us"] > rows[f"aten::{name}", BEFORE]["us"]]
    assert not slower


def test_committed_results_of_packages_are_complete() -> None:
    rows = rows_of(render.load("packages"))
    cases = {case for case, _ in rows}
    assert {case.partition(" ")[0] for case in cases} == {"transformers", "torchao", "torch's", "diffusers", "vLLM's"}
    assert {(case, name) for case in cases for name in (BEFORE, AFTER)} <= set(rows)
