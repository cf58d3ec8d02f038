"""What one process of ``dutyfree bench ltx2`` does: the LTX-2 model with one registration, stepped when it is asked to.

``Stepper`` lives in a worker (:mod:`dutyfree.bench.process`), since a process can have one registration only. Its
methods take and return what can be pickled. What imports :mod:`dutyfree.ops` is imported in them, after ``register``.
"""

import contextlib
import gc
import io
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

import dutyfree
from dutyfree.workloads.ltx2 import Sizes, register
from dutyfree.workloads.ltx2.registrations import NAMES, NAMESPACE, kernels

# The registration of the worker whose operators return results that are there already.
ABSENT = "absent"
OPERATORS = dict(zip(("quantize", "gemm"), NAMES, strict=True))
# Of those that dutyfree is in front of every call has to be direct, and of the others it has to see none.
DIRECT = ("accelerated", "dutyfree")


@dataclass(frozen=True)
class Steps:
    """Some steps in a row.

    Attributes:
        host_us: Of each step, until it returns; on CUDA its work may still be queued then.
        seconds: Of all, the device's work included.
        cpu_share: The part of that in which this process had a processor.
    """

    host_us: list[float]
    seconds: float
    cpu_share: float


@dataclass(frozen=True)
class Counted:
    """One step's calls.

    Attributes:
        calls: By operator, "quantize" and "gemm".
        paths: Those that dutyfree was in front of, by path.
    """

    calls: dict[str, int]
    paths: dict[str, int]


class Stepper:
    """The model and a run of its denoising loop.

    Args:
        registration: One of the workload's, or ``ABSENT``.
        sizes: Of the model.
        device: "cpu" or "cuda".
    """

    def __init__(self, registration: str, sizes: Sizes, device: str) -> None:
        torch.set_num_threads(1)
        self._absent = registration == ABSENT
        self._registration, self._sizes, self._device = registration, sizes, device
        # dutyfree's operators cost least, so that with compiled code, which calls operators, the least remains.
        self._operators = register("dutyfree" if self._absent else registration)
        from dutyfree.workloads.ltx2.model import make_model

        self._model = make_model(sizes, device=device)
        self._denoising: Any = None
        self._compiled = False
        # What happens before each step, untimed.
        self._before_step: list[Callable[[], object]] = []
        # What operators return that are left out of compiled code.
        self._kept: list[Tensor] = []
        gc.collect()
        gc.freeze()  # else each collection between steps would go through all of torch and diffusers

    def tune(self, path: str) -> None:
        """Choose nvfp4_gemm's tactics in one step, and save them."""
        with dutyfree.autotune(cache=path, repeats=3, warmup=1):
            self._one_step()

    def load(self, path: str) -> None:
        """Use another worker's choices: with other tactics results would be rounded in another way."""
        if os.path.exists(path):  # noqa: PTH110  (where no operator is tuned there is none)
            refused = dutyfree.AutoTuner.get().load(path)
            if refused is not None:
                raise RuntimeError(f"{self._registration}: another worker's tactics can't be used: {refused}")

    def begin(self, steps: int) -> None:
        """Start a run of the loop."""
        from dutyfree.workloads.ltx2.denoise import Denoising

        self._denoising = Denoising(self._model, self._sizes, steps)

    def step(self, count: int) -> Steps:
        """Run some steps and time them, without the garbage collector, whose turn comes between."""
        gc.collect()
        gc.disable()
        try:
            host_ns = []
            cpu_start, start = time.process_time_ns(), time.perf_counter_ns()
            for _ in range(count):
                for prepare in self._before_step:
                    prepare()
                before = time.perf_counter_ns()
                self._denoising.step()
                host_ns.append(time.perf_counter_ns() - before)
                self._wait()  # else the queue of launches would fill, and the host's time be the device's
            elapsed, cpu_ns = time.perf_counter_ns() - start, time.process_time_ns() - cpu_start
        finally:
            gc.enable()
        return Steps([ns / 1000 for ns in host_ns], elapsed / 1e9, cpu_ns / elapsed)

    def latents(self) -> bytes:
        """The video's and the audio's; :func:`tensors` reads them."""
        content = io.BytesIO()
        torch.save([latents.cpu() for latents in self._denoising.latents()], content)
        return content.getvalue()

    def count(self) -> Counted:
        """The calls of a step that is not timed. RuntimeError where a call would take another path than it should."""
        dutyfree.reset_stats()
        with _operators_replaced(_counting) as counters:
            self._one_step()
        calls = {name: next(counter) for name, counter in counters.items()}
        paths = dict.fromkeys(("direct", "autograd", "boxed", "pytorch"), 0)
        seen = {name: stats for name, stats in dutyfree.stats().items() if name.startswith(f"{NAMESPACE}::")}
        for stats in seen.values():
            for path, number in stats.calls.items():
                paths[path] += number
        taken = {path: number for path, number in paths.items() if number}
        expected = {"direct": sum(calls.values())} if self._registration in DIRECT else {}
        if taken != expected:
            reasons = ", ".join(f"{name}: {stats.reasons}" for name, stats in seen.items() if stats.reasons)
            raise RuntimeError(
                f"benchmark ltx2: of {self._registration}'s {sum(calls.values())} calls a step dutyfree saw "
                f"{taken or 'none'}, and {expected or 'none'} were expected {reasons}. Does the environment set "
                "DUTYFREE or DUTYFREE_AUTO?"
            )
        return Counted(calls, taken)

    def leave_out(self) -> None:
        """Have the operators return what they returned in one step, each call in its turn: what is left is the rest.

        Before ``compile`` Python functions stand in their place; after it, since compiled code calls operators, kernels
        that do the same, below dutyfree's operators. Results of one shape and dtype share a tensor, as the allocator
        would give them memory that is in a cache; so the step's own results mean nothing, only its time does. Compiled
        code writes over results that it does not need any more, so that they are written anew before each step.

        What was kept for compiled code is kept when that is compiled anew: CUDA graphs, whose replays run no Python and
        so show no results, are recorded of the kernels that return it, and have the rest of a step without launches
        for the operators. They need an earlier ``compile`` without graphs, followed by this.

        Raises:
            RuntimeError: Nothing was returned in a step; or results became numbers with which arithmetic may take other
                times.
        """
        if not self._absent:
            raise RuntimeError(f"the worker is {self._registration}'s, whose operators are timed.")
        if not self._compiled:
            from dutyfree import ops

            with _operators_replaced(_recording) as recorded:
                self._one_step()
            for name, results in recorded.items():
                setattr(ops, OPERATORS[name], _replaying(results))
            return
        if not self._kept:
            real = {name: getattr(kernels, name) for name in OPERATORS}
            records = {}
            for name, kernel in real.items():
                function, records[name] = _recording(kernel)
                setattr(kernels, name, function)
            self._one_step()
            for name, results in records.items():
                setattr(kernels, name, _except_fake(_replaying(results), real[name]))
            self._kept = _distinct(result for results in records.values() for result in results)
            self._before_step.append(_rewriting(self._kept))
        self._one_step()
        if not all(map(_usual, self._kept)):
            raise RuntimeError("results of operators that were left out became infinite, NaN or subnormal in a step.")

    def compile(self, options: dict[str, Any]) -> list[str]:
        """Compile the blocks, and the step that makes it happen.

        Returns:
            What a block's graph calls, as torch.compile hands it to a backend, in order.
        """
        import torch._inductor.config as inductor  # it takes a second, and a run without compiled code needs none

        from dutyfree import ops
        from dutyfree.workloads.ltx2.model import compile_blocks

        # No processes that outlive this one.
        inductor.compile_threads = 1
        if self._absent and not self._compiled:
            for name, attribute in OPERATORS.items():
                setattr(ops, attribute, getattr(self._operators, name))
        graphs: list[list[str]] = []

        def capture(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
            graphs.append([_name(node.target) for node in graph.graph.nodes if node.op.startswith("call")])
            return graph

        torch._dynamo.reset()
        compile_blocks(self._model, backend=capture)
        self._one_step()
        if len(graphs) != 1:
            raise RuntimeError(
                f"{self._registration}: torch.compile made {len(graphs)} graphs of the {self._sizes.blocks} blocks; "
                "one for all was expected."
            )
        torch._dynamo.reset()
        self._compiled = True
        if options.get("mode") == "reduce-overhead":
            self._before_step.append(torch.compiler.cudagraph_mark_step_begin)
        compile_blocks(self._model, **options)
        for _ in range(3):  # CUDA graphs warm up, record, and then replay
            self._one_step()
        return graphs[0]

    def _one_step(self) -> None:
        self.begin(1)
        for prepare in self._before_step:
            prepare()
        self._denoising.step()
        self._wait()

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def tensors(latents: bytes) -> tuple[Tensor, Tensor]:
    """What ``Stepper.latents`` returned."""
    video, audio = torch.load(io.BytesIO(latents), weights_only=True)
    return video, audio


@contextlib.contextmanager
def _operators_replaced(
    replaced: Callable[[Callable[..., Any]], tuple[Callable[..., Any], Any]],
) -> Iterator[dict[str, Any]]:
    """Something around the two operators that NVFP4Linear calls, and what it counts or keeps, by operator."""
    from dutyfree import ops

    real = {name: getattr(ops, attribute) for name, attribute in OPERATORS.items()}
    kept = {}
    for name, operator in real.items():
        function, kept[name] = replaced(operator)
        setattr(ops, OPERATORS[name], function)
    try:
        yield kept
    finally:
        for name, operator in real.items():
            setattr(ops, OPERATORS[name], operator)


def _counting(operator: Callable[..., Any]) -> tuple[Callable[..., Any], Iterator[int]]:
    counter = itertools.count()

    def count(*args: Any, **kwargs: Any) -> Any:
        next(counter)
        return operator(*args, **kwargs)

    return count, counter


def _recording(operator: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    results: list[Any] = []
    by_form: dict[Any, Any] = {}

    def record(*args: Any, **kwargs: Any) -> Any:
        result = operator(*args, **kwargs)
        parts = result if isinstance(result, list) else [result]
        form = tuple((part.shape, part.dtype) for part in parts)
        results.append(by_form.setdefault(form, result))
        return result

    return record, results


def _distinct(results: Iterable[Any]) -> list[Tensor]:
    """The tensors in operators' results, each once."""
    parts = (part for result in results for part in (result if isinstance(result, list) else [result]))
    return list({id(part): part for part in parts}.values())


def _rewriting(results: list[Tensor]) -> Callable[[], None]:
    """A function that gives tensors the values that they have now."""
    pairs = [(result, result.clone()) for result in results]

    @torch.inference_mode()
    def rewrite() -> None:
        for result, values in pairs:
            result.copy_(values)

    return rewrite


def _usual(x: Tensor) -> bool:
    if not x.is_floating_point():
        return True
    size = x.abs()
    return bool((torch.isfinite(x) & ((size == 0) | (size >= torch.finfo(x.dtype).tiny))).all())


def _replaying(results: list[Any]) -> Callable[..., Any]:
    if not results:
        raise RuntimeError(
            "an operator that is to be left out returned nothing in a step: it is not called by Python, as in a replay "
            "of a CUDA graph. Blocks have to be compiled without CUDA graphs first, and the operators left out then."
        )
    following = itertools.cycle(results)

    def replay(*args: Any, **kwargs: Any) -> Any:
        return next(following)

    return replay


def _except_fake(function: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Has torch.compile see the real kernel, which knows the shapes of fake tensors, when it compiles anew."""

    def call(first: Tensor, *args: Any) -> Any:
        return real(first, *args) if isinstance(first, FakeTensor) else function(first, *args)

    return call


def _name(target: Any) -> str:
    """The same in every process: no addresses."""
    if isinstance(target, (str, torch._ops.OpOverload)):
        return str(target)
    return f"{getattr(target, '__module__', None) or 'builtins'}.{getattr(target, '__name__', type(target).__name__)}"
