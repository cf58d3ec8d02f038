"""The benchmark of an LTX-2 step: what it times and checks, what it derives, shows and draws, and what it refuses."""

from __future__ import annotations

import dataclasses
import io
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import render
from dutyfree.bench.baseline import BaselineError, Gate
from dutyfree.bench.errors import BenchmarkError
from dutyfree.bench.ltx2 import cases as ltx2_cases
from dutyfree.bench.ltx2 import model as ltx2_model
from dutyfree.bench.ltx2 import plots as ltx2_plots
from dutyfree.bench.ltx2 import published
from dutyfree.bench.ltx2 import ranks as ltx2_ranks
from dutyfree.bench.ltx2 import report as ltx2_report
from dutyfree.bench.ltx2 import run as ltx2_run
from dutyfree.bench.ltx2 import worker as ltx2_worker
from dutyfree.bench.ltx2.cases import TIMED
from dutyfree.bench.ltx2.model import Mode
from dutyfree.bench.process import Worker, WorkerError
from dutyfree.bench.results import Results, Row, load
from dutyfree.bench.run import Job
from dutyfree.cli import app
from dutyfree.workloads.ltx2 import PLAIN, REGISTRATIONS, Sizes
from dutyfree.workloads.ltx2.diffusers_parts import VERSION

SIZES = Sizes(blocks=1)
SHARED = ltx2_cases.processes_case(2)


def shared_run(step_seconds: Callable[[str], list[float]], latents: Callable[[str], Any]) -> Any:
    """What stands for a run of several processes, by registration."""

    def run(registration: str, *, processes: int, **options: Any) -> Any:
        assert options["tuning"] is None or options["tuning"].exists()
        video, audio = latents(registration)
        return SimpleNamespace(
            step_seconds=step_seconds(registration),
            video=video,
            audio=audio,
            calls={"trtllm::tunable_fp4_quantize": 28, "trtllm::nvfp4_gemm": 28},
            guidance=2,
            ulysses=processes // 2,
        )

    return run


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A quick run with a model of one block, through JSON; the run of two processes is made up."""
    with pytest.MonkeyPatch.context() as patch:
        eager: list[Any] = []
        made = ltx2_model.ModelRun.eager
        patch.setattr(ltx2_model.ModelRun, "eager", lambda self, runs: eager.append(self) or made(self, runs))
        patch.setattr(
            ltx2_run.launch, "run", shared_run(lambda name: [0.02, 0.01, 0.03, 0.04], lambda _: eager[0].eager_latents)
        )
        progress: list[str] = []
        results = ltx2_run.run_ltx2(
            ltx2_run.Plan(quick=True, steps=6, sizes=SIZES, processes=2), progress=progress.append
        )
    assert "model, run 1 of 1, step 1 of 6" in progress
    assert any(text.startswith("model, run 1 of 1, step 5 of 6, about ") for text in progress)
    path = tmp_path_factory.mktemp("bench") / "ltx2.json"
    results.save(path)
    return load(path)


@pytest.mark.timeout(600)  # six processes import torch and diffusers
def test_every_case_is_timed_with_every_registration(measured: Results) -> None:
    cases = [ltx2_cases.TRACE, ltx2_cases.EAGER, SHARED]
    rows = [row for row in measured.rows if row.device == "cpu"]
    assert [(row.case, row.candidate) for row in rows] == list(itertools.product(cases, (PLAIN, *REGISTRATIONS)))
    for row in rows:
        plain = measured.find(row.case, PLAIN)
        assert plain is not None
        assert row.us > 0
        assert row.spread_us >= 0
        assert row.tax_us == pytest.approx(row.us - plain.us, abs=1e-3)


def test_a_step_of_the_trace_costs_a_fraction_of_custom_ops(measured: Results) -> None:
    us = {name: row.us for name in TIMED if (row := measured.find(ltx2_cases.TRACE, name))}
    assert us["dutyfree"] < us["custom_op"] / 5
    assert us["accelerated"] < us["custom_op"] / 5
    assert us[PLAIN] < us["library"] < us["custom_op"]
    assert measured.facts["calls"] == {"quantize": 1260, "gemm": 840}


def test_every_call_is_counted_and_dutyfrees_are_direct(measured: Results) -> None:
    facts = measured.facts["model"]
    assert facts["calls"] == {key: {"quantize": SIZES.linears, "gemm": SIZES.linears} for key in TIMED}
    direct = {"direct": 2 * SIZES.linears}
    assert facts["paths"] == {key: {} for key in TIMED} | {"accelerated": direct, "dutyfree": direct}


def test_latents_are_bitwise_equal(measured: Results) -> None:
    hashes = measured.facts["model"]["latents_sha256"]
    assert hashes.keys() == set(TIMED)
    [one] = set(hashes.values())
    assert len(one) == 64
    assert measured.facts[SHARED]["latents_sha256"] == hashes
    assert measured.facts[SHARED]["difference"] == {key: {"largest": 0.0, "relative": 0.0} for key in TIMED}


def test_facts_follow_from_the_steps(measured: Results) -> None:
    facts = measured.facts["model"]
    assert measured.facts["settings"]["sizes"] == dataclasses.asdict(SIZES)
    assert (measured.facts["steps"], measured.facts["runs"]) == (6, 1)
    for name in TIMED:
        row = measured.find("model", name)
        assert row is not None
        assert facts["share"][name] == pytest.approx(1 - facts["absent_us"] / row.us, abs=1e-3)
        assert facts["seconds_a_run"][name] >= 6 * row.us / 1e6 * 0.999
        slowest = [facts["expected_max_us"][name][str(ranks)] for ranks in ltx2_ranks.RANKS]
        assert slowest == sorted(slowest)
        assert slowest[0] >= row.us * 0.999
    # Made up: the first, 0.01 s, is the fastest, and 0.025 s the median.
    assert measured.facts[SHARED]["calls"][PLAIN] == {"quantize": 28, "gemm": 28}
    assert measured.facts[SHARED]["seconds_a_run"] == dict.fromkeys(TIMED, pytest.approx(6 * 0.025))
    assert measured.find(SHARED, PLAIN).us == pytest.approx(10_000)  # type: ignore[union-attr]


def printed(results: Results) -> str:
    text = io.StringIO()
    ltx2_report.print_ltx2_report(results, Console(file=text, width=80))
    return text.getvalue()


def test_the_report_puts_theirs_beside_ours(measured: Results) -> None:
    text = printed(measured)
    for expected in (
        "2,100",
        "7.02",
        "14.7",
        "1007",
        "848.8",
        "33.61",
        "-1.0%",
        "10.21",
        "-5.3%",
        "eager, 2 processes",
    ):
        assert expected in text
    assert "…" not in text  # every cell fits a terminal of 80 columns
    for name in TIMED:
        assert ltx2_report.TITLES[name] in text
    row = measured.find(ltx2_cases.TRACE, "custom_op")
    assert row is not None
    assert f"{row.tax_us / 2100:.2f}" in text


def with_compiled(results: Results) -> Results:
    """As if it had also been measured with compiled blocks."""
    cases = {"model_compiled": 0.6, "model_cuda_graphs": 0.3}
    rows = [
        dataclasses.replace(row, case=case, us=row.us * scale, tax_us=row.tax_us * scale)
        for case, scale in cases.items()
        for row in results.rows
        if row.case == "model"
    ]
    facts = dict(results.facts)
    for case in cases:
        difference = {key: {"largest": 0.25, "relative": 0.1} for key in TIMED}
        facts[case] = results.facts["model"] | {"difference": difference}
        del facts[case]["calls"]
    return Results(results.environment, [*results.rows, *rows], results.warnings, facts)


def test_the_report_has_a_table_for_each_mode(measured: Results) -> None:
    text = printed(with_compiled(measured))
    for expected in ("torch.compile", "548", "4.6%", "with CUDA graphs", "193", "13.0%", "±0.25"):
        assert expected in text


def test_plots_are_written_the_same_each_time(measured: Results, tmp_path: Path) -> None:
    results = with_compiled(measured)
    files = ltx2_plots.save_plots(results, tmp_path / "plots")
    assert [path.name for path in files] == ["ltx2_shares.svg", "ltx2_taxes.svg"]
    for path in files:
        text = path.read_text()
        assert text.startswith("<?xml")
        assert "Matplotlib v" not in text
        assert text == ltx2_plots.PLOTS[path.stem](results)
    assert "torch.compile: dutyfree" in files[0].read_text()


def test_tables_and_figures_of_the_page_can_be_made(measured: Results) -> None:
    content = with_compiled(measured).to_json()
    tables = {name: table.make(content) for name, table in render.TABLES.items() if table.results == "ltx2"}
    assert tables.keys() == {"ltx2_tax", "ltx2_modes", "ltx2_runs", "ltx2_ranks"}
    assert "| `torch.library.custom_op` | 7.02 |" in tables["ltx2_tax"]
    assert "**torch.compile**, theirs: `custom_op` | 548 |" in tables["ltx2_modes"]
    assert "theirs, 8 × B200: `fast_custom_op` | 9.67 |" in tables["ltx2_runs"]
    assert "| 8 | 1.42 | 255 | -3.3% | -5.3% | -5.3% |" in tables["ltx2_ranks"]
    for name, figure in render.FIGURES.items():
        if figure.results == "ltx2":
            assert figure.make(content) == ltx2_plots.PLOTS[name](Results.from_json(content))


def test_the_page_has_a_place_for_each_table() -> None:
    page = render.LTX2.read_text()
    for name, table in render.TABLES.items():
        if table.results == "ltx2":
            for marker in render.markers(name):
                assert page.count(marker) == 1


def test_the_committed_results_are_complete() -> None:
    results = Results.from_json(render.load("ltx2_tax"))
    cases = [ltx2_cases.TRACE, *ltx2_report.model_cases(results)]
    assert {ltx2_cases.TRACE, ltx2_cases.EAGER, ltx2_cases.COMPILED} <= set(cases)
    for case, name in itertools.product(cases, TIMED):
        assert results.find(case, name, ltx2_report.device_of(results, case)) is not None
    assert results.facts["settings"]["sizes"] == dataclasses.asdict(Sizes())


# What the parts do.


def test_the_mean_of_the_largest_of_some_draws() -> None:
    samples = [3.0, 1.0, 2.0, 10.0]
    for count in (1, 2, 3):
        draws = itertools.product(samples, repeat=count)
        assert ltx2_model.expected_max(samples, count) == pytest.approx(statistics.mean(map(max, draws)))


def test_the_mean_of_the_largest_normal_value() -> None:
    # 1/sqrt(pi), 1.5/sqrt(pi), and tables of normal order statistics.
    for count, expected in ((1, 0.0), (2, 0.5641896), (3, 0.8462844), (4, 1.0293754), (8, 1.4236003)):
        assert ltx2_ranks.expected_max_normal(count) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="count is 0"):
        ltx2_ranks.expected_max_normal(0)


def test_the_model_of_ranks_goes_through_the_published_runs() -> None:
    model = ltx2_ranks.fitted()
    for gpus, run in published.RUNS.items():
        assert model.step_ms(gpus) == pytest.approx(run.step_ms)
        assert model.change(gpus) == pytest.approx(run.change)
    without = model.change(8, waiting=False)
    assert published.RUNS[8].change < without < published.RUNS[1].change


def test_operators_that_are_left_out_return_what_they_returned_in_turn() -> None:
    def operator(rows: int, *, lists: bool = False) -> Any:
        made = torch.full((rows, 2), float(rows))
        return [made, made.clone()] if lists else made

    record, results = ltx2_worker._recording(operator)
    first, second, third = record(1), record(2), record(1)
    record(1, lists=True)
    assert first is not third
    replay = ltx2_worker._replaying(results)
    turn = [replay("anything", at=1) for _ in range(5)]
    assert turn[0] is turn[2] is turn[4] is first
    assert turn[1] is second
    assert [part.shape for part in turn[3]] == [(1, 2), (1, 2)]


def test_what_is_written_into_results_that_are_returned_again_is_undone() -> None:
    results = [[torch.ones(2, dtype=torch.uint8), torch.zeros(3)], torch.ones(2)]
    tensors = ltx2_worker._distinct([*results, results[1]])
    assert len(tensors) == 3
    rewrite = ltx2_worker._rewriting(tensors)
    for tensor in tensors:
        tensor.fill_(7)
    rewrite()
    assert [tensor.tolist() for tensor in tensors] == [[1, 1], [0, 0, 0], [1, 1]]


@pytest.mark.parametrize(("value", "usual"), [(0.0, True), (-2.0, True), (1e-39, False), (float("inf"), False)])
def test_results_with_numbers_that_take_other_times_are_known(value: float, usual: bool) -> None:
    assert ltx2_worker._usual(torch.tensor([1.0, value], dtype=torch.bfloat16)) == usual


def test_graphs_that_differ_are_refused() -> None:
    graph = ["trtllm.tunable_fp4_quantize.default", "_operator.add", "trtllm.nvfp4_gemm.default", "_operator.add"]
    found = ltx2_model._require_same_graph(dict.fromkeys(REGISTRATIONS, graph))
    assert found == {
        "calls": 4,
        "operators": {"trtllm.tunable_fp4_quantize.default": 1, "trtllm.nvfp4_gemm.default": 1},
    }
    for other in ([*graph[:3], "_operator.mul"], graph[:3]):
        with pytest.raises(BenchmarkError, match=r"another graph from dutyfree than from custom_op: .* number 3"):
            ltx2_model._require_same_graph({"custom_op": graph, "dutyfree": other})


def test_latents_that_are_not_alike_are_refused() -> None:
    ltx2_model.require_alike("case", {"library": {"largest": 3.0, "relative": 0.4}})
    for relative in (0.6, float("nan")):
        with pytest.raises(BenchmarkError, match="case: library's latents differ"):
            ltx2_model.require_alike("case", {"library": {"largest": 0.0, "relative": relative}})


def test_a_mode_that_was_disturbed_is_unreliable() -> None:
    steady = Mode("model", {PLAIN: [100.0, 100.2] * 4}, cpu_share=0.99)
    assert list(ltx2_model.warnings_of(steady)) == []
    disturbed = Mode("model", {PLAIN: [100.0, 130.0, 140.0, 150.0]}, cpu_share=0.5)
    assert len(list(ltx2_model.warnings_of(disturbed))) == 3


def test_turns_begin_with_another_registration_each() -> None:
    assert [ltx2_model.in_turn(["a", "b", "c"], turn) for turn in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


# Compiled.


@pytest.mark.timeout(600)  # a process imports torch and diffusers and compiles a block twice
def test_a_stepper_compiles_and_leaves_operators_out_also_when_it_compiles_again(tmp_path: Path) -> None:
    absent = ltx2_worker.ABSENT
    with Worker(absent, ltx2_worker.Stepper, absent, SIZES, "cpu") as worker:
        worker.ask("tune", str(tmp_path / "tactics.json"))
        graphs, latents = [], []
        for _ in range(2):
            graphs.append(worker.ask("compile", {"backend": "aot_eager"}))
            worker.ask("leave_out")
            worker.ask("begin", 2)
            steps = worker.ask("step", 2)
            assert len(steps.host_us) == 2
            latents.append(worker.ask("latents"))
    assert graphs[0] == graphs[1]
    for operator in ltx2_worker.OPERATORS.values():
        assert graphs[0].count(f"trtllm.{operator}.default") == SIZES.linears
    # The same results were returned in the same turn.
    assert latents[0] == latents[1]


def test_operators_that_return_nothing_cannot_be_left_out() -> None:
    with pytest.raises(RuntimeError, match="compiled without CUDA graphs first"):
        ltx2_worker._replaying([])


class ToldWorker:
    """Stands for a process; notes what it is asked."""

    asked: ClassVar[list[tuple[str, str]]] = []
    graphs: ClassVar[dict[str, list[str]]] = {}
    compiled_latents: ClassVar[dict[str, float]] = {}

    def __init__(self, title: str, *_: Any, **__: Any) -> None:
        self.title, self.value = title, 1.0

    def __enter__(self) -> ToldWorker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, method: str, *args: Any) -> Any:
        self.asked.append((self.title, method))
        if method == "count":
            return ltx2_worker.Counted({"quantize": 2, "gemm": 2}, {})
        if method == "compile":
            self.value = self.compiled_latents.get(self.title, 1.1)
            return self.graphs.get(self.title, ["trtllm.nvfp4_gemm.default"])
        if method == "step":
            return ltx2_worker.Steps([100.0] * args[0], args[0] / 1e4, 1.0)
        if method == "latents":
            content = io.BytesIO()
            torch.save([torch.full([1], self.value)] * 2, content)
            return content.getvalue()
        return None

    def start(self, method: str, *args: Any) -> None:
        self.ask(method, *args)

    def answer(self) -> None:
        pass


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> type[ToldWorker]:
    monkeypatch.setattr(ltx2_model, "Worker", ToldWorker)
    for name in ("asked", "graphs", "compiled_latents"):
        monkeypatch.setattr(ToldWorker, name, type(getattr(ToldWorker, name))())
    return ToldWorker


def compiled_mode() -> Mode:
    with ltx2_model.ModelRun(SIZES, 6, "cpu", lambda _: None) as run:
        run.eager(1)
        return run.compiled(ltx2_cases.COMPILED, 2)


def test_every_process_compiles_and_one_leaves_the_operators_out(workers: type[ToldWorker]) -> None:
    # Plain functions may be compiled to other code.
    workers.compiled_latents = {PLAIN: 1.05}
    mode = compiled_mode()
    for name in (*TIMED, ltx2_worker.ABSENT):
        asked = [method for title, method in workers.asked if title == name]
        after = asked[asked.index("compile") :]
        assert ("leave_out" in after) == (name == ltx2_worker.ABSENT)
        assert after.count("step") == 4  # two runs in turns of four steps and of two
    assert mode.facts["graph"] == {"calls": 1, "operators": {"trtllm.nvfp4_gemm.default": 1}}
    assert len(mode.host_us["dutyfree"]) == 12
    relative = {name: values["relative"] for name, values in mode.facts["difference"].items()}
    assert relative == {name: pytest.approx(0.05 if name == PLAIN else 0.1) for name in TIMED}


def test_compiled_registrations_that_are_not_alike_are_refused(workers: type[ToldWorker]) -> None:
    workers.compiled_latents = {"library": 1.11}
    with pytest.raises(BenchmarkError, match="model_compiled: the registrations' latents differ"):
        compiled_mode()
    workers.graphs = {"accelerated": []}
    with pytest.raises(BenchmarkError, match="another graph from accelerated than from custom_op"):
        compiled_mode()


# Held to a baseline, with a model that takes what it is told.


class ToldRun:
    """Stands for ModelRun: plain takes 100 ms, custom_op 130; the first measurement of dutyfree is disturbed."""

    measured = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.tactics = Path("none")
        self.eager_latents = torch.ones(1), torch.ones(1)

    def __enter__(self) -> ToldRun:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def eager(self, runs: int) -> Mode:
        mode = Mode("model", facts={"calls": {}})
        self.measure(mode, runs)
        return mode

    def measure(self, mode: Mode, runs: int) -> None:
        type(self).measured += 1
        for name in (*TIMED, ltx2_worker.ABSENT):
            us = 130e3 if name == "custom_op" else 160e3 if (name, self.measured) == ("dutyfree", 1) else 100e3
            mode.add(name, ltx2_worker.Steps([us] * runs, us * runs / 1e6, 1.0))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> type[ToldRun]:
    def jobs() -> list[Job]:
        blocks = {(ltx2_cases.TRACE, name): lambda count: count * 10**6 for name in TIMED}
        return [Job(ltx2_cases.TRACE, torch.device("cpu"), blocks, (ltx2_cases.TRACE, PLAIN))]

    monkeypatch.setattr(ltx2_run, "trace_jobs", jobs)
    monkeypatch.setattr(ltx2_model, "ModelRun", ToldRun)
    monkeypatch.setattr(ToldRun, "measured", 0)
    shared = shared_run(lambda name: [0.1], lambda _: (torch.ones(1), torch.ones(1)))
    monkeypatch.setattr(ltx2_run.launch, "run", shared)
    return ToldRun


def baseline(path: Path, model_us: dict[str, float], sizes: Sizes = SIZES, **given: int) -> Path:
    rows = [Row(ltx2_cases.TRACE, name, 1000.0, 0.0, 0.0) for name in TIMED]
    rows += [Row(case, name, model_us.get(name, 100e3), 0.0, 0.0) for case in ("model", SHARED) for name in TIMED]
    from dutyfree.bench import environment

    facts = {"settings": ltx2_run.Plan(**PLAN | {"sizes": sizes} | given).settings()}  # type: ignore[arg-type]
    Results(environment.describe() | {"threads": 1}, rows, [], facts).save(path)
    return path


@pytest.mark.parametrize("odd", [PLAIN, "dutyfree"])
def test_runs_of_several_processes_with_other_latents_are_refused(
    monkeypatch: pytest.MonkeyPatch, told: type[ToldRun], odd: str
) -> None:
    def latents(registration: str) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full([1], 1.0 + 2**-20 * (registration == odd)), torch.ones(1)

    monkeypatch.setattr(ltx2_run.launch, "run", shared_run(lambda _: [0.1], latents))
    with pytest.raises(BenchmarkError, match="model_processes2: the registrations' latents differ"):
        ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN))  # type: ignore[arg-type]


def test_two_runs_of_several_processes_with_other_latents_are_refused(
    monkeypatch: pytest.MonkeyPatch, told: type[ToldRun]
) -> None:
    seen: list[str] = []

    def latents(registration: str) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(registration)
        return torch.full([1], 1.0 + 2**-20 * (len(seen) > len(TIMED))), torch.ones(1)

    monkeypatch.setattr(ltx2_run, "QUICK_RUNS", 2)
    monkeypatch.setattr(ltx2_run.launch, "run", shared_run(lambda _: [0.1], latents))
    with pytest.raises(BenchmarkError, match="model_processes2: two runs of custom_op with one seed"):
        ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN))  # type: ignore[arg-type]


def test_runs_that_are_far_from_one_processs_are_refused(monkeypatch: pytest.MonkeyPatch, told: type[ToldRun]) -> None:
    far = shared_run(lambda _: [0.1], lambda _: (torch.full([1], 2.0), torch.ones(1)))
    monkeypatch.setattr(ltx2_run.launch, "run", far)
    with pytest.raises(BenchmarkError, match="plain's latents differ from the eager run's by 1"):
        ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN))  # type: ignore[arg-type]


PLAN = {"quick": True, "sizes": SIZES, "processes": 2}


def test_a_slow_mode_is_measured_again(tmp_path: Path, told: type[ToldRun]) -> None:
    gate = Gate(baseline(tmp_path / "b.json", {"custom_op": 130e3}))
    results = ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN), gate=gate)  # type: ignore[arg-type]
    assert told.measured == 2
    assert gate.slower(results.rows) == []


def test_what_stays_slow_is_reported(tmp_path: Path, told: type[ToldRun]) -> None:
    gate = Gate(baseline(tmp_path / "b.json", {"custom_op": 110e3, "dutyfree": 90e3}))
    progress: list[str] = []
    results = ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN), gate=gate, progress=progress.append)  # type: ignore[arg-type]
    assert told.measured == 3
    again = [text for text in progress if text.startswith(f"{SHARED}, ") and "again" in text]
    assert len(again) == 2 * len(TIMED)
    for number in (1, 2):
        assert sum(f"which was slower than the baseline, again {number} of 2" in text for text in again) == len(TIMED)
    keys = [slower.key for slower in gate.slower(results.rows)]
    assert keys == [("model", "custom_op", "cpu"), ("model", "dutyfree", "cpu"), (SHARED, "dutyfree", "cpu")]


def test_a_baseline_of_another_model_or_without_a_mode_is_refused(tmp_path: Path, told: type[ToldRun]) -> None:
    gate = Gate(baseline(tmp_path / "b.json", {}, Sizes(blocks=2)))
    with pytest.raises(BaselineError, match="other settings: sizes"):
        ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN), gate=gate)  # type: ignore[arg-type]
    gate = Gate(baseline(tmp_path / "b.json", {}, steps=5))
    with pytest.raises(BaselineError, match="other settings: steps: 5, now 2"):
        ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN), gate=gate)  # type: ignore[arg-type]
    gate = Gate(baseline(tmp_path / "b.json", {}, ulysses=2))
    with pytest.raises(BaselineError, match="other settings: ulysses: 2, now None"):
        ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN), gate=gate)  # type: ignore[arg-type]
    gate = Gate(baseline(tmp_path / "b.json", {}))
    with pytest.raises(BaselineError, match="no row for model_compiled plain"):
        ltx2_run.run_ltx2(ltx2_run.Plan(**PLAN, compiled=True), gate=gate)  # type: ignore[arg-type]
    assert told.measured == 0


# The command.


def invoke(*options: str) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *options])


def test_the_trace_alone_needs_no_diffusers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", version_of_diffusers(None))
    outcome = invoke(
        "ltx2", "--trace-only", "--quick", "--json", str(tmp_path / "r.json"), "--plots", str(tmp_path / "plots")
    )
    assert outcome.exit_code == 0, outcome.output
    results = load(tmp_path / "r.json")
    assert {row.case for row in results.rows} == {ltx2_cases.TRACE}
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["ltx2_taxes.svg"]


def version_of_diffusers(version: str | None) -> Callable[[str], str]:
    import importlib.metadata

    real = importlib.metadata.version

    def find(name: str) -> str:
        if name != "diffusers":
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    return find


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("ltx2", "--steps", "0"), "steps is 0; at least 1 is expected"),
        (("ltx2", "--processes", "-1"), "processes is -1"),
        (("ltx2", "--processes", "4", "--ulysses", "3"), "ulysses=3 with 4 processes"),
        (("ltx2", "--processes", "6"), "does not divide the 4 heads"),
        (("ltx2", "--ulysses", "2"), "ulysses divides processes, of which there is 1"),
        (("ltx2", "--trace-only", "--compile"), "the trace alone has no model"),
        (("calls", "--processes", "2"), "--processes is an option of ltx2, not of calls"),
        (("training", "--compile"), "--compile is an option of calls and ltx2, not of training"),
        (("nvfp4", "--plots", "plots"), "--plots is an option of ltx2"),
        (("cpp", "--trace-only"), "--trace-only is an option of ltx2"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: tuple[str, ...], complaint: str) -> None:
    outcome = invoke(*options)
    assert outcome.exit_code == 2
    assert complaint in " ".join(outcome.output.replace("│", " ").split())


def test_more_processes_than_gpus_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    outcome = invoke("ltx2", "--processes", "4")
    assert outcome.exit_code == 2
    assert "each takes a GPU, and PyTorch sees 2" in " ".join(outcome.output.replace("│", " ").split())


@pytest.mark.parametrize(("version", "complaint"), [(None, "is not installed"), ("0.1.0", "0.1.0 is installed")])
def test_without_the_right_diffusers_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, version: str | None, complaint: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", version_of_diffusers(version))
    monkeypatch.setattr(ltx2_model, "Worker", None)
    outcome = invoke("ltx2", "--quick")
    assert outcome.exit_code == 2
    assert complaint in " ".join(outcome.output.replace("│", " ").split())
    assert VERSION in outcome.output


def test_plots_without_matplotlib_are_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    outcome = invoke("ltx2", "--trace-only", "--plots", str(tmp_path))
    assert outcome.exit_code == 2
    assert "dutyfree[render]" in outcome.output


@pytest.mark.parametrize(
    "error",
    [
        WorkerError("the worker library was killed by signal 9 (SIGKILL) in step."),
        BenchmarkError("benchmark ltx2, model: the registrations' latents differ"),
    ],
)
def test_what_ends_the_benchmark_is_an_error_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, error: BenchmarkError
) -> None:
    def fail(plan: Any, **_: Any) -> Results:
        raise error

    monkeypatch.setattr(ltx2_run, "run_ltx2", fail)
    outcome = invoke("ltx2")
    assert outcome.exit_code == 1
    assert str(error) in outcome.output
    assert "Traceback" not in outcome.output
