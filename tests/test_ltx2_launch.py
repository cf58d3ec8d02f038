"""Runs of the LTX-2 workload in processes of their own: what they give back, and how they end when a rank fails."""

import _thread
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import ltx2_forked
from dutyfree._linux import Process
from dutyfree.workloads.ltx2 import Sizes, launch, rank_state
from dutyfree.workloads.ltx2.__main__ import app
from dutyfree.workloads.ltx2.job import Job
from dutyfree.workloads.ltx2.launch import Run, run
from dutyfree.workloads.ltx2.layout import Layout
from dutyfree.workloads.ltx2.pace import Pace
from ltx2_forked import SIZES, STEPS, outcome

# Far more than a test takes: those that hang are seen by a clock that is put forward.
TIMEOUT = 100.0
# Steps that no test waits for.
ENDLESS = 10**6


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a run puts its files, which its processes' arguments name. None of them outlives its test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert not processes_of(tmp_path)
    assert not list(tmp_path.glob("dutyfree-ltx2-*"))
    assert not list(tmp_path.glob("torchelastic_*"))


def processes_of(folder: Path) -> list[str]:
    """Arguments of the processes that have the folder among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in arguments:
            found.append(arguments)
    return found


def started(**given: Any) -> Run:
    options = {"steps": STEPS, "processes": 2, "sizes": SIZES, "timeout": TIMEOUT, **given}
    return run("dutyfree", tuning=ltx2_forked.tuning_path(ltx2_forked.results()), **options)


# --- results ----------------------------------------------------------------------------------------------------------


def test_one_process_is_the_loop_bit_by_bit() -> None:
    found = started(processes=1)
    expected = outcome("alone")
    assert (found.registration, found.processes, found.guidance, found.ulysses) == ("dutyfree", 1, 1, 1)
    assert torch.equal(found.video, expected.video[0])
    assert torch.equal(found.audio, expected.audio[0])


def test_two_processes_split_guidance() -> None:
    said: list[str] = []
    found = started(progress=said.append)
    expected = outcome("guidance 2")
    assert (found.processes, found.guidance, found.ulysses) == (2, 2, 1)
    assert torch.equal(found.video, expected.video[0])
    assert torch.equal(found.audio, expected.audio[0])
    assert found.calls == expected.calls[0]
    assert len(found.step_seconds) == STEPS
    assert all(seconds > 0 for seconds in found.step_seconds)


def test_the_command_is_the_loop_bit_by_bit(tmp_path: Path) -> None:
    latents = tmp_path / "latents.pt"
    command = [sys.executable, "-m", "dutyfree.workloads.ltx2", "--registration", "plain", "--steps", str(STEPS)]
    command += ["--sizes", json.dumps({"blocks": SIZES.blocks}), "--save", str(latents)]
    command += ["--tuning", str(ltx2_forked.tuning_path(ltx2_forked.results()))]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    assert f"plain, 1 process (guidance 1 × ulysses 1), {STEPS} steps" in finished.stdout
    assert f"{SIZES.linears} calls of trtllm::nvfp4_gemm a step" in finished.stdout
    assert torch.equal(torch.load(latents)["video"], outcome("alone").video[0])


# --- what is refused before anything is started -----------------------------------------------------------------------


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch.subprocess, "Popen", refuse)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"processes": 0}, "processes=0: a run has at least one process"),
        ({"processes": 3}, "ulysses=3, of 3 processes, does not divide the 4 heads"),
        ({"ulysses": 3}, "ulysses=3 with 2 processes: .* 1 or 2 is accepted"),
        ({"ulysses": 2, "sizes": Sizes(heads=3)}, "ulysses=2, of 2 processes, does not divide the 3 heads"),
        ({"ulysses": 2, "sizes": Sizes(frames=1, height=1, width=3)}, "does not divide the 3 video tokens"),
        ({"registration": "unknown"}, "'unknown' is no registration: there are plain, custom_op, library"),
        ({"steps": 0}, "steps=0: a number from 1 is expected"),
        ({"threads": 0}, "threads=0: a number from 1 is expected"),
        ({"timeout": 0.0}, "timeout=0.0: a number of seconds above 0, and up to"),
        ({"timeout": float("nan")}, "timeout=nan: a number of seconds above 0"),
        ({"timeout": 1e14}, r"timeout=100000000000000.0: a number of seconds above 0, and up to 1e\+09"),
        ({"seed": 10**23}, "seed=10{23}: a number of 64 bits is expected"),
    ],
)
def test_wrong_values_start_nothing(given: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"registration": "dutyfree", "steps": 1, "processes": 2, **given}
    with pytest.raises(ValueError, match=message):
        run(options.pop("registration"), **options)


@pytest.mark.usefixtures("nothing_starts")
def test_a_missing_tuning_cache_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file; `dutyfree tune` makes one"):
        run("dutyfree", steps=1, processes=2, tuning=tmp_path / "missing.json")


@pytest.mark.usefixtures("nothing_starts")
def test_another_diffusers_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1")
    with pytest.raises(ImportError, match=r"written for diffusers 0\.42\.1, and 0\.1 is installed"):
        run("dutyfree", steps=1, processes=2)


@pytest.mark.usefixtures("nothing_starts")
def test_pytorch_without_distributed_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"built without torch\.distributed.*processes=1 runs without it"):
        run("dutyfree", steps=1, processes=2)


@pytest.mark.usefixtures("nothing_starts")
def test_more_processes_than_gpus_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ValueError, match="processes=2: each takes a GPU, and PyTorch sees 1"):
        run("dutyfree", steps=1, processes=2)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("arguments", "world", "message"),
    [
        (["--registration", "unknown"], None, "is no registration"),
        (["--registration", "plain", "--sizes", '{"blocks": 2, "depth": 1}'], None, "a JSON object with numbers"),
        (["--registration", "plain", "--sizes", '{"blocks": NaN}'], None, "blocks must be whole numbers"),
        (["--registration", "plain", "--sizes", '{"blocks": true}'], None, "blocks must be whole numbers"),
        (["--registration", "plain", "--save", "/no folder/x.pt"], None, "there is no folder /no folder"),
        (["--registration", "plain", "--processes", "2"], "4", "torchrun has started 4"),
        (["--registration", "plain"], "four", "WORLD_SIZE='four'; torchrun sets it to a number"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str], world: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
        monkeypatch.setenv("RANK", "0")
    finished = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert finished.exit_code == 2
    assert message in finished.output


@pytest.mark.usefixtures("nothing_starts")
def test_the_command_takes_no_world_without_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    finished = CliRunner().invoke(app, ["--registration", "plain"], env={"COLUMNS": "400"})
    assert finished.exit_code == 2
    assert "WORLD_SIZE, but no RANK" in finished.output


# --- ranks that fail --------------------------------------------------------------------------------------------------


class Clock:
    """``time``. Once it ``leaps``, it is later by more than the timeout at each look."""

    def __init__(self) -> None:
        self.leaps = False
        self.sleep = time.sleep
        self._ahead = 0.0

    def monotonic(self) -> float:
        if self.leaps:
            self._ahead += 2 * TIMEOUT
        return time.monotonic() + self._ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(launch, "time", made)
    return made


def rank_1(folder: Path, wanted: Callable[[dict[str, Any]], bool], then: Callable[[int], None]) -> threading.Thread:
    """A thread that waits until what rank 1 wrote is as wanted, and then acts on its process."""

    def watch() -> None:
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            for path in folder.glob("dutyfree-ltx2-*/rank1.json"):
                state = json.loads(path.read_text())
                if wanted(state):
                    then(state["pid"])
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not there() and time.monotonic() < end:
        time.sleep(0.2)


def waits_in_torch_distributed(folder: Path, rank: int) -> bool:
    """Whether a rank does, by the stack that it wrote last; and has it write another one."""
    (run_folder,) = folder.glob("dutyfree-ltx2-*")
    state = rank_state.states(run_folder, 2).get(rank)
    if state is None:
        return False
    stack = rank_state.stack_of(run_folder, rank)
    os.kill(state.pid, rank_state.STACK_SIGNAL)
    return bool(stack) and "torch/distributed/" in stack[0]


def stepping(state: dict[str, Any]) -> bool:
    return (state["steps"] or 0) >= 1


def test_a_killed_rank_ends_the_run(folder: Path) -> None:
    watcher = rank_1(folder, stepping, lambda pid: os.kill(pid, signal.SIGKILL))
    with pytest.raises(RuntimeError, match="rank 1 was killed by SIGKILL, as the kernel does when memory runs out"):
        started(steps=ENDLESS)
    watcher.join()


SUMMARY = """
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 11)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 12)
"""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-15, "rank 1 was killed by SIGTERM"),
        (-11, "rank 1 was killed by SIGSEGV"),
        (3, "rank 1 ended with exit code 3. The last lines of its output:"),
    ],
)
def test_the_first_rank_to_fail_is_named_by_how_it_ended(code: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "output").write_text(SUMMARY.format(code=code))
    told = launch._failure({}, tmp_path, Job("dutyfree", 1, layout=Layout(2, 1)))
    assert f"the run of 'dutyfree' over 2 processes ended: {message}" in told


def test_a_rank_that_only_ends_is_named_before_those_that_lose_it(tmp_path: Path) -> None:
    raised = rank_state.State(1, "step 2", 2, "RuntimeError: Connection closed by peer", "Traceback", 5.0)
    silent = rank_state.State(2, "step 2", 2)
    job = Job("dutyfree", 3, layout=Layout(2, 1))
    # With 0, torchrun sees nothing wrong in it.
    (tmp_path / "output").write_text(SUMMARY.format(code=1).replace("rank      : 1", "rank      : 0"))
    told = launch._failure({0: raised, 1: silent}, tmp_path, job, 1)
    assert "rank 1 ended with exit code 0, but too early: after step 2." in told
    (tmp_path / "output").write_text(SUMMARY.format(code=5).replace("-15", "1"))
    assert "rank 1 ended with exit code 5." in launch._failure({0: raised, 1: silent}, tmp_path, job, 1)
    # Of two that raised, the first is the one.
    first = rank_state.State(2, "step 2", 2, "ValueError: its own", "Traceback", 4.0)
    assert "rank 1 raised ValueError: its own" in launch._failure({0: raised, 1: first}, tmp_path, job, 1)


def test_torchrun_that_was_killed_is_named(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("starting\n")
    told = launch._failure({}, tmp_path, Job("dutyfree", 1, layout=Layout(2, 1)), -9)
    assert "torchrun was killed by SIGKILL" in told


def test_a_stopped_rank_ends_the_run_after_the_timeout(folder: Path, clock: Clock) -> None:
    def stop(pid: int) -> None:
        process = Process.of(pid)
        assert process is not None
        os.kill(pid, signal.SIGSTOP)
        until(lambda: process.state == "T")
        clock.leaps = True

    watcher = rank_1(folder, stepping, stop)
    with pytest.raises(
        RuntimeError, match=r"nothing happened for 100 s .*: rank 1 is stopped, as by SIGSTOP, after step"
    ):
        started(steps=ENDLESS)
    watcher.join()


@pytest.fixture
def rank_1_in_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a statement run in rank 1 in place of register()."""

    def replace(statement: str) -> None:
        source = f"""
import os
if os.environ.get("RANK") == "1":
    from dutyfree.workloads.ltx2 import registrations
    def register(registration):
        {statement}
    registrations.register = register
"""
        (tmp_path / "sitecustomize.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return replace


def test_a_rank_that_raises_ends_the_run(rank_1_in_register: Callable[[str], None]) -> None:
    rank_1_in_register("raise ZeroDivisionError('on purpose')")
    with pytest.raises(RuntimeError, match="rank 1 raised ZeroDivisionError: on purpose") as caught:
        started()
    assert "sitecustomize.py" in str(caught.value), "the rank's traceback"


def test_a_rank_that_hangs_ends_the_run_after_the_timeout(
    rank_1_in_register: Callable[[str], None], folder: Path, clock: Clock
) -> None:
    rank_1_in_register("while True: pass")

    def wait(pid: int) -> None:
        until(lambda: waits_in_torch_distributed(folder, 0))
        clock.leaps = True

    watcher = rank_1(folder, lambda state: True, wait)
    with pytest.raises(RuntimeError, match=r"100 s .*: rank 1 hangs after it was started at .*sitecustomize\.py"):
        started()
    watcher.join()


def test_ctrl_c_ends_the_ranks(folder: Path) -> None:
    # Where the tests were started in the background, their process ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        watcher = rank_1(folder, lambda state: True, lambda pid: _thread.interrupt_main())
        with pytest.raises(KeyboardInterrupt):
            started(steps=ENDLESS)
        watcher.join()
    finally:
        signal.signal(signal.SIGINT, before)


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_said_in_runs_of_more_than_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("dutyfree.workloads.ltx2.pace.time.monotonic", lambda: now)
    said: list[str] = []
    pace = Pace(40, said.append)
    for step in range(41):
        pace.reached(step)
        pace.reached(step)
        now += 0.75
    assert said[0] == "step 4 of 40, 27 s left"
    assert len(said) == 18, "not more often than once a second"
    assert said[-1].startswith("step 38 of 40")

    said.clear()
    quick = Pace(40, said.append)
    for step in range(41):
        quick.reached(step)
        now += 0.05
    assert not said
