"""A benchmark held to earlier results: what counts as slower, what is measured again, which baselines are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from dutyfree.bench import environment, run
from dutyfree.bench.baseline import BaselineError, Gate, parse_threshold
from dutyfree.bench.measure import Block
from dutyfree.bench.results import Results, Row
from dutyfree.bench.run import Job, run_jobs
from dutyfree.cli import app

# Microseconds a call: a machine's, not this one's, so that ratios are exact.
TIMES = {"plain": 10.0, "custom_op": 80.0, "dutyfree": 11.0}


def here(**other: Any) -> environment.Environment:
    return environment.describe() | {"threads": 1} | other


def save(path: Path, times: dict[str, float] = TIMES, case: str = "calls", **other: Any) -> Path:
    rows = [Row(case, name, us, us - times["plain"], 0.0) for name, us in times.items()]
    Results(here(**other), rows).save(path)
    return path


def block(us: Callable[[], float]) -> Block:
    return lambda count: round(us() * 1000 * count)


class Machine:
    """Jobs whose blocks take the times that they are told, and a count of the measurements."""

    def __init__(self, *passes: dict[str, float]) -> None:
        self.passes = [TIMES | changes for changes in passes]
        self.measured = 0

    def time(self, name: str) -> float:
        # The baseline's block comes first, again and again within a pass.
        return self.passes[min(self.measured, len(self.passes)) - 1][name]

    def jobs(self, *cases: str) -> list[Job]:
        machine = self

        class Counted(Job):
            def measure(self, rounds: int) -> Any:
                if next(iter(self.blocks))[0] == "calls":
                    machine.measured += 1
                return super().measure(rounds)

        def blocks(case: str) -> dict[tuple[str, str], Block]:
            return {(case, name): block(lambda name=name: self.time(name)) for name in TIMES}

        return [Counted(case, torch.device("cpu"), blocks(case), (case, "plain")) for case in cases or ("calls",)]


def measured(machine: Machine, gate: Gate, *cases: str) -> Results:
    return run_jobs(lambda: machine.jobs(*cases), True, lambda _: None, gate=gate)


def test_equal_times_pass_in_one_measurement(tmp_path: Path) -> None:
    machine, gate = Machine({}), Gate(save(tmp_path / "b.json"))
    assert gate.slower(measured(machine, gate).rows) == []
    assert machine.measured == 1


def test_a_row_slower_than_the_threshold_is_measured_twice_more_and_reported(tmp_path: Path) -> None:
    machine, gate = Machine({"custom_op": 82.5}), Gate(save(tmp_path / "b.json"), "3%")
    [slower] = gate.slower(measured(machine, gate).rows)
    assert machine.measured == 3
    assert slower.key == ("calls", "custom_op", "cpu")
    assert slower.change == pytest.approx(2.5 / 80, rel=1e-3)
    assert (slower.reference, slower.reference_change) == ("plain", pytest.approx(0, abs=1e-6))


def test_a_row_within_the_threshold_passes(tmp_path: Path) -> None:
    machine, gate = Machine({"custom_op": 82.3}), Gate(save(tmp_path / "b.json"), "3")
    assert gate.slower(measured(machine, gate).rows) == []


def test_measuring_again_clears_a_blip(tmp_path: Path) -> None:
    machine, gate = Machine({"custom_op": 120.0, "plain": 15.0}, {}), Gate(save(tmp_path / "b.json"))
    results = measured(machine, gate)
    assert machine.measured == 2
    assert gate.slower(results.rows) == []
    for name, us in TIMES.items():
        row = results.find("calls", name)
        assert row is not None
        assert (row.us, row.tax_us) == (pytest.approx(us), pytest.approx(us - TIMES["plain"]))


def test_only_the_case_that_was_slower_is_measured_again(tmp_path: Path) -> None:
    other = [Row("other", name, us * 2, 0.0, 0.0) for name, us in TIMES.items()]
    results = Results(here(), [*(Row("calls", name, us, 0.0, 0.0) for name, us in TIMES.items()), *other])
    results.save(tmp_path / "b.json")
    machine, progress = Machine({"dutyfree": 20.0}), []
    run_jobs(lambda: machine.jobs("calls", "other"), True, progress.append, gate=Gate(tmp_path / "b.json"))
    again = [text for text in progress if "again" in text]
    assert [text.partition(",")[0] for text in again] == ["calls", "calls"]


def test_how_the_machine_moved_is_told_from_the_registration(tmp_path: Path) -> None:
    machine, gate = Machine({name: us * 1.2 for name, us in TIMES.items()}), Gate(save(tmp_path / "b.json"))
    slower = gate.slower(measured(machine, gate).rows)
    assert [row.key[1] for row in slower] == list(TIMES)
    assert all(row.reference_change == pytest.approx(0.2, rel=1e-3) for row in slower)


@pytest.mark.parametrize(
    ("text", "fraction"), [("3%", 0.03), ("3", 0.03), ("0.5%", 0.005), (" .5 % ", 0.005), ("0", 0)]
)
def test_thresholds_are_percent(text: str, fraction: float) -> None:
    assert parse_threshold(text) == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["", "%", "-3%", "3%%", "three", "nan", "inf", "0x3", "1e3"])
def test_other_thresholds_are_refused(text: str) -> None:
    with pytest.raises(BaselineError, match="is no percentage"):
        parse_threshold(text)


@pytest.mark.parametrize(
    ("name", "value"), [("cpu", "another"), ("python", "3.9.1"), ("torch", "2.0.0"), ("threads", 7), ("gpu", "B200")]
)
def test_a_baseline_of_another_machine_or_version_is_refused(tmp_path: Path, name: str, value: object) -> None:
    path = save(tmp_path / "b.json", **{name: value})
    with pytest.raises(BaselineError, match=f"of another machine or other versions .{name}: {value!r}, now "):
        Gate(path)


def test_a_baseline_of_another_day_and_commit_is_accepted(tmp_path: Path) -> None:
    Gate(save(tmp_path / "b.json", date="2020-01-01", commit="0", dutyfree="0.0"))


def test_a_baseline_without_a_row_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    machine, gate = Machine({}), Gate(save(tmp_path / "b.json", case="others"))
    with pytest.raises(BaselineError, match="has no row for calls plain cpu, calls custom_op cpu, calls dutyfree cpu;"):
        measured(machine, gate)
    assert machine.measured == 0


def test_a_baseline_of_other_sizes_is_refused(tmp_path: Path) -> None:
    gate = Gate(save(tmp_path / "b.json"))
    gate.require_settings({})
    with pytest.raises(BaselineError, match="measured with other settings: sizes: None, now 3"):
        gate.require_settings({"sizes": 3})


ROW = {"case": "calls", "candidate": "plain", "us": 1.0, "tax_us": 0.0, "spread_us": 0.0, "device": "cpu"}


def content(**changes: Any) -> str:
    return json.dumps({"schema": 1, "environment": here(), "warnings": [], "rows": [ROW]} | changes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no results file"),
        ("{", "no results file"),
        ("[]", "not the results of a benchmark"),
        ('{"a": 1}', "not the results of a benchmark"),
        ('{"schema": 99}', "schema 99, this version reads 1"),
        ('{"schema": 1}', "no results file"),
        (content(rows=[]), "has no rows"),
        (content(rows=3), "no results file"),
        (content(rows=[{"case": "calls"}]), "no results file"),
        (content(rows=[ROW | {"more": 1}]), "no results file"),
        (content(rows=[ROW | {"us": "1"}]), "has a row that is none"),
        (content(rows=[ROW | {"us": 0}]), "has a row that is none"),
        (content(rows=[ROW | {"us": float("nan")}]), "has a row that is none"),
        (content(rows=[ROW | {"us": True}]), "has a row that is none"),
        (content(rows=[ROW | {"case": None}]), "has a row that is none"),
        (content(environment=None), "does not say where"),
        (content(facts=[]), "does not say where"),
        (content(facts={"settings": 3}), "has settings that are none: 3"),
        (content(rows=[ROW | {"us": 10**400}]), "has a row that is none"),
        ("[" * 100_000, "no results file"),
    ],
)
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(BaselineError, match=complaint):
        Gate(tmp_path / "b.json")


def test_bytes_that_are_no_text_and_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "b.json", tmp_path / "missing.json", tmp_path):
        with pytest.raises(BaselineError):
            Gate(path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`dutyfree bench calls` on a machine that is told what it takes."""

    def invoke(machine: Machine, *options: str) -> Result:
        def run_calls(*, progress: Any, gate: Gate | None, **_: Any) -> Results:
            return run_jobs(machine.jobs, True, progress, gate=gate)

        monkeypatch.setattr(run, "run_calls", run_calls)
        return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "calls", *options])

    return invoke


def test_the_command_exits_with_0_where_nothing_is_slower(tmp_path: Path, calls: Callable[..., Result]) -> None:
    outcome = calls(Machine({}), "--baseline", str(save(tmp_path / "b.json")))
    assert outcome.exit_code == 0, outcome.output
    assert "No row is more than 3.0% slower than" in outcome.output


def test_the_command_exits_with_1_and_a_table_where_something_is(tmp_path: Path, calls: Callable[..., Result]) -> None:
    saved = tmp_path / "now.json"
    options = ("--baseline", str(save(tmp_path / "b.json")), "--fail-above", "0.5%", "--json", str(saved))
    outcome = calls(Machine({"dutyfree": 22.0, "plain": 10.01}), *options)
    assert outcome.exit_code == 1
    [line] = [line for line in outcome.output.splitlines() if "calls: dutyfree (cpu)" in line]
    assert "+100.0%" in line
    assert "plain +0.1%" in line
    assert "calls: custom_op (cpu)" not in outcome.output
    assert saved.exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--fail-above", "3%"), "--fail-above needs a --baseline"),
        (("--baseline", "no such file"), "can't be read"),
        (("--baseline", "FILE", "--fail-above", "much"), "'much' is no percentage"),
    ],
)
def test_the_command_exits_with_2_before_it_measures(
    tmp_path: Path, calls: Callable[..., Result], options: tuple[str, ...], complaint: str
) -> None:
    path, machine = str(save(tmp_path / "b.json")), Machine({})
    outcome = calls(machine, *(path if option == "FILE" else option for option in options))
    assert outcome.exit_code == 2
    assert complaint in " ".join(outcome.output.replace("│", " ").split())
    assert machine.measured == 0
