"""A run of the workload in processes of its own, started by torchrun and watched until all have ended."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dutyfree import _linux
from dutyfree.workloads.ltx2 import rank_state
from dutyfree.workloads.ltx2.job import Job
from dutyfree.workloads.ltx2.layout import Layout
from dutyfree.workloads.ltx2.pace import Pace
from dutyfree.workloads.ltx2.rank import Part
from dutyfree.workloads.ltx2.sizes import Sizes

MODULE = "dutyfree.workloads.ltx2"
# Seconds between two looks at the ranks.
POLL = 0.05
# Seconds that an exchange waits longer than this process does: it can only tell who hangs while all still live.
LATER = 15.0
# Seconds in which torchrun ends the other ranks once one has failed; this process does it afterwards.
AFTER_FAILURE = 3.0
# Seconds in which a rank that runs writes its stack.
FOR_STACKS = 0.5
# Lines of the ranks' output that an error ends with.
LAST_LINES = 15
# torchrun's summary of the ranks that failed, whose last entry is the one that it saw first.
_EXIT = re.compile(r"rank\s*: (\d+) \(local_rank.*\n\s*exitcode\s*: (-?\d+)")


@dataclass(frozen=True)
class Run:
    """What a run gives back.

    Attributes:
        registration: Of the two operators.
        processes: ``guidance * ulysses``.
        guidance: Halves that classifier-free guidance is split into, or 1.
        ulysses: Ranks that share the video tokens.
        step_seconds: Of each step on rank 0, from its begin until every rank is through.
        video: Final latents (1, video tokens, channels), float32.
        audio: The same of audio; equal on all ranks, as the video is.
        calls: How often rank 0 calls each operator in a step.
    """

    registration: str
    processes: int
    guidance: int
    ulysses: int
    step_seconds: list[float]
    video: Tensor
    audio: Tensor
    calls: dict[str, int]


def run(
    registration: str,
    *,
    steps: int,
    processes: int,
    ulysses: int | None = None,
    sizes: Sizes | None = None,
    seed: int = 0,
    tuning: str | os.PathLike[str] | None = None,
    threads: int = 1,
    compiled: bool = False,
    timeout: float = 120.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Run:
    """Run the denoising loop over several processes on this machine, GPUs where PyTorch sees any.

    Args:
        registration: One of ``REGISTRATIONS``, or ``PLAIN``.
        steps: Of the scheduler; all are timed, after one that is not.
        processes: 2 split classifier-free guidance; more split the video tokens, too.
        ulysses: Ranks that share the video tokens, ``processes`` or half of them. By default guidance is split where
            ``processes`` is even.
        sizes: Of the model; by default the real number of blocks with narrow widths.
        seed: Of weights, latents and text embeddings.
        tuning: A tuning cache that every rank loads the same choices from. By default they are measured first.
        threads: Of each process.
        compiled: Compile the blocks.
        timeout: Seconds without progress until the run is given up. Progress is a step that a rank finished, or before
            the first one the imports with the model, an untimed step, and compiling.
        progress: Called with words like "step 3 of 40, 12 s left" in a run of more than a few seconds.

    Raises:
        ValueError, FileNotFoundError, ImportError, RuntimeError: As :meth:`.job.Job.check` says, before a process is
            started. ValueError also where PyTorch sees GPUs, but fewer than processes.
        RuntimeError: A rank raised, was killed or hangs; it says which and why. No process is left.
    """
    job = Job(
        registration,
        steps,
        sizes or Sizes(),
        seed,
        Layout.of(processes, ulysses),
        None if tuning is None else Path(tuning),
        threads,
        compiled,
        timeout,
    )
    job.check()
    part = run_job(job, progress)
    return Run(registration, processes, job.layout.guidance, job.layout.ulysses, **vars(part))


def run_job(job: Job, progress: Callable[[str], None]) -> Part:
    """What rank 0 of a run has at the end; :func:`run` says the rest.

    Args:
        job: Already checked.
        progress: Called with words.
    """
    check_devices(job.layout.processes)
    with tempfile.TemporaryDirectory(prefix="dutyfree-ltx2-") as name:
        folder = Path(name)
        rank_state.begin(folder)
        with (folder / "output").open("wb") as output:
            agent = subprocess.Popen(
                _command(job, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": str(job.threads)},
                # A ctrl-C is this process's; what follows from it comes below.
                start_new_session=True,
            )
        try:
            _watch(agent, folder, job, Pace(job.steps, progress))
        finally:
            _linux.end(agent)
        return Part(**torch.load(rank_state.result_path(folder)))


def check_devices(processes: int) -> None:
    """ValueError where PyTorch sees GPUs, but fewer than processes, each of which takes one."""
    if torch.cuda.is_available() and torch.cuda.device_count() < processes:
        raise ValueError(
            f"processes={processes}: each takes a GPU, and PyTorch sees {torch.cuda.device_count()}. With "
            "CUDA_VISIBLE_DEVICES='' they run on the CPU."
        )


def _command(job: Job, folder: Path) -> list[str]:
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node {job.layout.processes} --max-restarts 0"
    options = (
        f"-m {MODULE} --registration {job.registration} --steps {job.steps} --seed {job.seed} "
        f"--ulysses {job.layout.ulysses} --threads {job.threads} --timeout {job.timeout + LATER}"
    )
    # torchrun leaves its folder for logs behind, also where it writes none.
    command = [sys.executable, *torchrun.split(), "--log-dir", str(folder / "logs"), *options.split()]
    command += ["--report", str(folder), "--sizes", job.sizes_as_json()]
    if job.compiled:
        command.append("--compile")
    if job.tuning is not None:
        command += ["--tuning", str(job.tuning.absolute())]
    return command


def _watch(agent: "subprocess.Popen[bytes]", folder: Path, job: Job, pace: Pace) -> None:
    """Returns when all ranks have ended well. RuntimeError otherwise; some may live then."""
    known: dict[int, rank_state.State] = {}
    changed = time.monotonic()
    while (code := agent.poll()) is None:
        states = rank_state.states(folder, job.layout.processes)
        if states != known:
            known, changed = states, time.monotonic()
        if 0 in known and (steps := known[0].steps) is not None:
            pace.reached(steps)
        waited = time.monotonic() - changed
        if any(state.error for state in known.values()):
            if waited > AFTER_FAILURE:
                break
        elif waited > job.timeout:
            raise RuntimeError(_hanging(known, folder, job))
        time.sleep(POLL)
    if code != 0:
        raise RuntimeError(_failure(rank_state.states(folder, job.layout.processes), folder, job, code))


def _failure(states: dict[int, rank_state.State], folder: Path, job: Job, code: int | None = None) -> str:
    """What went wrong first; ``code`` is torchrun's. Ranks that raise because another one is gone are not it."""
    output = (folder / "output").read_text(errors="replace")
    exits = [(int(rank), int(code)) for rank, code in _EXIT.findall(output)]
    # torchrun ends the others with SIGTERM, but not the first.
    killed = [(rank, code) for rank, code in exits if code < 0 and code != -signal.SIGTERM]
    killed = killed or [(rank, code) for rank, code in exits[-1:] if code < 0]
    raised = sorted((rank for rank in states if states[rank].error), key=lambda rank: states[rank].at)
    where = f"the run of {job.registration!r} over {job.layout.processes} processes"
    if killed:
        rank, code = killed[0]
        name = _signal_name(-code)
        hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
        return f"{where} ended: rank {rank} was killed by {name}{hint}."
    last = "\n".join(output.splitlines()[-LAST_LINES:])
    # The first that torchrun saw is the last that it names.
    silent = [(rank, code) for rank, code in exits if code > 0 and rank not in raised]
    if silent:
        rank, code = silent[-1]
        return f"{where} ended: rank {rank} ended with exit code {code}. The last lines of its output:\n{last}"
    left = set(states) - {rank for rank, _ in exits} - set(raised)
    gone = [rank for rank in sorted(left) if states[rank].what != rank_state.THE_END]
    if raised and gone:
        return f"{where} ended: rank {gone[0]} ended with exit code 0, but too early: after {states[gone[0]].what}."
    if raised:
        state = states[raised[0]]
        return f"{where} ended: rank {raised[0]} raised {state.error}\n\n{state.traceback}"
    return f"{where} ended: torchrun {_ending(code)}. The last lines of its output:\n{last}"


def _ending(code: int | None) -> str:
    return f"was killed by {_signal_name(-code)}" if code is not None and code < 0 else "failed"


def _hanging(states: dict[int, rank_state.State], folder: Path, job: Job) -> str:
    """Which ranks hang: those that are stopped, or else that do not wait for others in torch.distributed."""
    where = f"nothing happened for {job.timeout:g} s in the run of {job.registration!r}"
    missing = [rank for rank in range(job.layout.processes) if rank not in states]
    if missing:
        last = "\n".join((folder / "output").read_text(errors="replace").splitlines()[-LAST_LINES:])
        return f"{where}: rank {missing[0]} did not come up. The last lines of its output:\n{last}"
    found = {rank: _linux.Process.of(state.pid) for rank, state in states.items()}
    stopped = [rank for rank, process in found.items() if process is not None and process.state == "T"]
    if stopped:
        return f"{where}: rank {stopped[0]} is stopped, as by SIGSTOP, after {states[stopped[0]].what}."
    # A number may be another program's by now, which the signal would end.
    for pid in {process.pid for process in _linux.descendants(os.getpid())} & {state.pid for state in states.values()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, rank_state.STACK_SIGNAL)
    time.sleep(FOR_STACKS)
    stacks = {rank: rank_state.stack_of(folder, rank) for rank in states}
    busy = [rank for rank, stack in stacks.items() if not (stack and "torch/distributed/" in stack[0])]
    ranks = busy if busy else list(stacks)
    told = "; ".join(f"rank {rank} hangs after {states[rank].what} at {_place(stacks[rank])}" for rank in ranks)
    return f"{where}: {told}."


def _place(stack: list[str]) -> str:
    return stack[0].removeprefix("File ") if stack else "an unknown place"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
