"""The benchmark of calls: what it times, when it warns, and what it saves."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dutyfree.bench import candidates, measure, report, run, training
from dutyfree.bench.calls import CASES
from dutyfree.bench.measure import Call, Measurement, Timing
from dutyfree.bench.results import Results, Row, load
from dutyfree.cli import app


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict]:
    """The command's output and its JSON."""
    path = tmp_path_factory.mktemp("bench") / "results" / "calls.json"
    outcome = CliRunner().invoke(app, ["bench", "calls", "--quick", "--json", str(path)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output, json.loads(path.read_text())


def test_every_case_is_timed_with_every_candidate(quick_run: tuple[str, dict]) -> None:
    rows = [row for row in quick_run[1]["rows"] if row["device"] == "cpu"]
    assert [(row["case"], row["candidate"]) for row in rows] == list(
        itertools.product([case.name for case in CASES], candidates.CANDIDATES)
    )


def test_training_is_timed_for_every_case_step_and_candidate(tmp_path: Path) -> None:
    path = tmp_path / "training.json"
    outcome = CliRunner().invoke(app, ["bench", "training", "--quick", "--json", str(path)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    keys = [training.key_of(case, step) for case in training.CASES for step in training.STEPS]
    results = load(path)
    assert [(row.case, row.candidate) for row in results.rows] == list(itertools.product(keys, training.CANDIDATES))
    assert all(row.tax_us == 0 for row in results.rows if row.candidate == training.BASELINE)


def test_a_call_that_records_no_gradient_is_not_timed_as_training() -> None:
    case = training.CASES[0]
    operator = training.build(case)["dutyfree.object"]
    with pytest.raises(RuntimeError, match=r"benchmark saved: dutyfree\.object would take the path 'direct'"):
        candidates.require_path("autograd", case.name, "dutyfree.object", operator, Call((torch.ones(4),), {}))


def test_json_has_schema_environment_and_numbers(quick_run: tuple[str, dict]) -> None:
    content = quick_run[1]
    assert content["schema"] == 1
    assert content["environment"]["torch"] == torch.__version__
    assert content["environment"]["threads"] == 1
    assert {"cpu", "python", "dutyfree", "commit", "date"} <= content["environment"].keys()
    plain = {row["case"]: row["us"] for row in content["rows"] if row["candidate"] == "plain"}
    for row in content["rows"]:
        assert row["us"] > 0
        assert row["spread_us"] >= 0
        if row["device"] == "cpu":
            assert row["tax_us"] == pytest.approx(row["us"] - plain[row["case"]], abs=1e-3)


def test_output_shows_environment_table_and_step(quick_run: tuple[str, dict]) -> None:
    output = quick_run[0]
    for text in (torch.__version__, "threads", "custom_op", "dutyfree.overload", "1260", "840"):
        assert text in output


def test_thread_count_is_restored(quick_run: tuple[str, dict]) -> None:
    before = torch.get_num_threads()
    run.run_calls(quick=True)
    assert torch.get_num_threads() == before


def test_a_call_that_leaves_the_direct_path_is_not_timed() -> None:
    case = next(case for case in CASES if case.name == "clone")
    operator = candidates.build(case)["dutyfree.object"]
    call = Call((torch.ones(4, requires_grad=True),), {})
    with pytest.raises(RuntimeError, match=r"benchmark clone: dutyfree\.object would take the path"):
        candidates.require_path("direct", "clone", "dutyfree.object", operator, call)


def test_block_calls_with_positional_and_keyword_arguments() -> None:
    seen = []
    block = measure.timed_block(lambda *args, **kwargs: seen.append((args, kwargs)), Call((1, "two"), {"three": 3}))
    assert block(2) > 0
    assert seen == [((1, "two"), {"three": 3})] * 2


def test_rounds_are_interleaved_and_the_minimum_counts() -> None:
    order = []

    def block(name: str, times: list[int]):
        remaining = iter(times)

        def run_block(count: int) -> int:
            order.append(name)
            return next(remaining) * count

        return run_block

    # The first two numbers of each list are the warm-up and the run that finds the block's size.
    result = measure.measure(
        {"a": block("a", [0, 10_000_000, 3000, 1000, 2000]), "b": block("b", [0, 10_000_000, 5000, 7000, 6000])},
        rounds=3,
    )
    assert order[4:] == ["a", "b", "b", "a", "a", "b"]
    assert result.timings() == {"a": Timing(1.0, 1.0), "b": Timing(5.0, 1.0)}


def test_settling_precedes_every_block() -> None:
    events = []

    def block(count: int) -> int:
        events.append("block")
        return 10_000_000

    measure.measure({"a": block}, rounds=2, settle=lambda: events.append("settle"))
    assert events[-6:] == ["settle", "block"] * 3


def test_block_size_stays_below_the_limit() -> None:
    counts = []

    def block(count: int) -> int:
        counts.append(count)
        return count

    measure.measure({"a": block}, rounds=2, max_block_calls=200)
    assert counts[-2:] == [200, 200]


STEADY = {"plain": [1.0, 1.02, 1.04], "again": [1.005, 1.02, 1.03], "custom_op": [6.0, 6.3, 6.4]}


def warnings_of(cpu_share: float = 0.999, **samples: list[float]) -> list[str]:
    return measure.reliability_warnings("clone", Measurement(STEADY | samples, cpu_share), pair=("plain", "again"))


def test_a_steady_run_gets_no_warning() -> None:
    assert warnings_of() == []


def test_a_run_that_shared_its_processor_is_unreliable() -> None:
    (warning,) = warnings_of(cpu_share=0.8)
    assert "80%" in warning


def test_the_same_function_with_two_times_is_unreliable() -> None:
    (warning,) = warnings_of(again=[1.2, 1.2, 1.2])
    assert "differs by 0.200" in warning


def test_a_plain_function_that_varies_is_unreliable() -> None:
    (warning,) = warnings_of(plain=[1.0, 1.9, 2.0])
    assert "median round took 1.90 µs per call, its fastest 1.00" in warning


def test_joined_passes_count_all_rounds_and_the_worst_share() -> None:
    joined = Measurement.joined([Measurement({"a": [3.0]}, 0.9), Measurement({"a": [1.0, 2.0]}, 1.0)])
    assert joined == Measurement({"a": [3.0, 1.0, 2.0]}, 0.9)
    assert joined.timings() == {"a": Timing(1.0, 1.0)}


def test_a_busy_machine_is_unreliable() -> None:
    assert measure.load_warning(load=1.0, cores=2) is None
    assert "load average 3.5" in (measure.load_warning(load=3.5, cores=2) or "")


def test_step_saving_weighs_the_two_calls() -> None:
    times = {"list_result": (9.0, 2.0), "gemm": (8.0, 1.0)}
    rows = [
        Row(case, candidate, us, 0.0, 0.0)
        for case, pair in times.items()
        for candidate, us in zip(("custom_op", "dutyfree.object"), pair, strict=True)
    ]
    saving = report.step_saving_ms(Results({}, rows), "cpu", "custom_op")
    assert saving == pytest.approx((1260 + 840) * 7 / 1000)


def test_saved_results_load_again(tmp_path: Path) -> None:
    results = Results({"cpu": "a"}, [Row("clone", "plain", 1.0, 0.0, 0.125)], ["clone: something"])
    results.save(tmp_path / "r.json")
    assert load(tmp_path / "r.json") == results


def test_results_of_another_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="schema 99, this version reads 1"):
        load(tmp_path / "r.json")
