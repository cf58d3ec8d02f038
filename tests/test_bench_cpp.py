"""The benchmark of C++ functions: every binding is measured, and dutyfree's calls cost less than the others'."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dutyfree.bench import cpp
from dutyfree.cli import app

EVERYTHING = {"python", *cpp.DUTYFREE, *cpp.BINDINGS, "torch.ops"}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("bench") / "cpp.json"
    outcome = CliRunner().invoke(app, ["bench", "cpp", "--quick", "--json", str(path)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return json.loads(path.read_text())


def microseconds(content: dict, case: str, candidate: str) -> float:
    [row] = [row for row in content["rows"] if (row["case"], row["candidate"]) == (case, candidate)]
    return row["us"]


# With nothing compiled yet it takes most of a minute.
@pytest.mark.timeout(300)
def test_every_binding_is_measured(content: dict) -> None:
    assert {row["candidate"] for row in content["rows"] if row["case"] == cpp.CASE} == EVERYTHING
    assert not [warning for warning in content["warnings"] if "not installed" in warning]


def test_dutyfree_costs_less_than_pybind11_and_that_less_than_the_dispatcher(content: dict) -> None:
    pybind11 = microseconds(content, cpp.CASE, "pybind11")
    for candidate in cpp.DUTYFREE:
        assert microseconds(content, cpp.CASE, candidate) < 0.75 * pybind11
    assert pybind11 < microseconds(content, cpp.CASE, "torch.ops")


def test_a_tensor_more_costs_less_than_a_tenth_of_a_call_with_three(content: dict) -> None:
    fewest, most = (
        microseconds(content, cpp.TENSORS.format(tensors), "dutyfree.object") for tensors in (cpp.FEWEST, cpp.MOST)
    )
    each = (most - fewest) / (cpp.MOST - cpp.FEWEST)
    assert each < 0.1 * microseconds(content, cpp.CASE, "dutyfree.object")


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert len(cpp.missing()) == len(cpp.PACKAGES)


def test_the_committed_results_have_every_binding() -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "results" / "cpp.json"
    committed = json.loads(path.read_text())
    assert {row["candidate"] for row in committed["rows"] if row["case"] == cpp.CASE} == EVERYTHING
