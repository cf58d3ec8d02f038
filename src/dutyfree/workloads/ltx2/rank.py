"""One process of a run: its part of the denoising loop, from the registration to the final latents."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import dutyfree
from dutyfree.workloads.ltx2.job import Job
from dutyfree.workloads.ltx2.parallel import ALONE, Parallel, Split
from dutyfree.workloads.ltx2.registrations import NAMES, NAMESPACE, register


@dataclass(frozen=True)
class Part:
    """What one rank has at the end.

    Attributes:
        step_seconds: Of each step, until every rank is through.
        video: The final latents, whole on every rank; (1, video tokens, channels), float32.
        audio: The same of audio.
        calls: Of the two operators in a step on this rank.
    """

    step_seconds: list[float]
    video: Tensor
    audio: Tensor
    calls: dict[str, int]


# Called with what is through, and the number of finished steps, None before the first begins.
Reached = Callable[[str, int | None], None]


def run_part(job: Job, reached: Reached = lambda what, steps: None) -> Part:
    """This process's part of a run; torchrun's environment variables say which rank it is.

    Args:
        job: The same on every rank.
        reached: Called at each stage on the way, and with the number of finished steps, first with 0.

    Raises:
        RuntimeError: This process has operators of another registration; the tuning cache can't be used; another rank
            is gone or did not come within the timeout; or ranks ended with different latents.
    """
    register(job.registration)
    # They import dutyfree.ops, which register() comes before.
    from dutyfree.workloads.ltx2.denoise import Denoising
    from dutyfree.workloads.ltx2.model import compile_blocks, make_model

    torch.set_num_threads(job.threads)
    with _ranks(job) as parallel:
        model = make_model(job.sizes, job.seed, _device())
        parallel.prepare(model)
        reached("the model was made", None)

        def fresh() -> Denoising:
            return Denoising(model, job.sizes, job.steps, seed=job.seed, parallel=parallel)

        with _tactics(job), _counted() as calls:
            fresh().step()
        reached("an untimed step", None)
        if job.compiled:
            compile_blocks(model)
            fresh().step()
            reached("compiling", None)
        denoising = fresh()
        parallel.wait()
        reached("all ranks were ready", 0)
        seconds = []
        while not denoising.done:
            begin = time.perf_counter()
            denoising.step()
            parallel.wait()
            seconds.append(time.perf_counter() - begin)
            reached(f"step {len(seconds)}", len(seconds))
        video, audio = denoising.latents()
        parallel.check_equal(video=video, audio=audio)
    return Part(seconds, video.cpu(), audio.cpu(), calls)


@contextlib.contextmanager
def _ranks(job: Job) -> Iterator[Parallel]:
    """This rank's part, with torch.distributed set up where there are several."""
    if job.layout.processes == 1:
        yield ALONE
        return
    device = _device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=timedelta(seconds=job.timeout),
        device_id=device if device.type == "cuda" else None,
    )
    yield Split(job.layout, job.timeout)
    # Only at the end of what went well: it waits for the others, which may be gone.
    dist.destroy_process_group()


def _device() -> torch.device:
    """This rank's, on its machine; the CPU where PyTorch sees no GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= count:
        raise RuntimeError(f"the process is number {index} on this machine, counted from 0, which has {count} GPUs.")
    return torch.device("cuda", index)


@contextlib.contextmanager
def _tactics(job: Job) -> Iterator[None]:
    """A step inside chooses the tactics, the same on all ranks."""
    if job.tuning is None:
        with dutyfree.autotune(repeats=3, warmup=1) as tuner:
            yield
        if job.layout.processes > 1:
            tuner.agree()
        return
    refused = dutyfree.AutoTuner.get().load(job.tuning, rank=0)
    if refused is not None:
        raise RuntimeError(f"the tuning cache can't be used: {refused}")
    yield


@contextlib.contextmanager
def _counted() -> Iterator[dict[str, int]]:
    """How often NVFP4Linear calls the operators inside. After register(), which comes before dutyfree.ops."""
    from dutyfree import ops

    calls = {f"{NAMESPACE}::{name}": 0 for name in NAMES}
    originals = {name: getattr(ops, name) for name in NAMES}

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[f"{NAMESPACE}::{name}"] += 1
            return original(*args, **kwargs)

        return call

    for name, original in originals.items():
        setattr(ops, name, counting(name, original))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(ops, name, original)
