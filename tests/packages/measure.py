"""Times calls of packages' operators before and after ``dutyfree.accelerate``, into benchmarks/results/packages.json.

A case's two candidates are the same call: accelerate and restore run between the blocks, untimed, so that both are
measured round by round. A third is the function behind the operator, without PyTorch's dispatcher; the tax is what a
call takes beyond it. A step of a model has no such function.
"""

import argparse
import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import test_diffusers
import test_transformers
import torch
import torchao_cases
import transformers
import vllm_pattern
from before_and_after import paths_taken, registered
from torch import Tensor
from torch._library import custom_ops
from torch.testing._internal import custom_op_db
from torchao import quantization
from torchao.quantization import quant_primitives
from transformers.integrations import moe
from vllm_pattern import layers, ops

import dutyfree
from dutyfree.bench import environment
from dutyfree.bench.accelerated import AFTER, BEFORE
from dutyfree.bench.measure import Block, Call, load_warning, measure, reliability_warnings, timed_block
from dutyfree.bench.results import Results, Row
from dutyfree.check.outcome import Arguments

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "packages.json"
PLAIN, AGAIN = "plain", "again"
ROUNDS, QUICK_ROUNDS = 200, 3


@dataclass(frozen=True)
class Timed:
    """A call to time.

    Attributes:
        package: Whose it is.
        title: What is called.
        target: For ``accelerate``.
        run: The call.
        plain: The function behind the operator, with the same arguments; None for more than one operator.
        takes: The paths that the operators of one accelerated call take.
    """

    package: str
    title: str
    target: Any
    run: Callable[..., Any]
    call: Call
    plain: Callable[..., Any] | None
    takes: dict[str, dict[str, int]]

    @property
    def name(self) -> str:
        return f"{self.package}: {self.title}"


def as_call(arguments: Arguments) -> Call:
    return Call(arguments.args, arguments.kwargs)


def operator(package: str, name: str, arguments: Arguments, plain: Callable[..., Any], *, title: str = "") -> Timed:
    """A call through ``torch.ops.ns.op``, as packages write it."""
    namespace, _, rest = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), rest)
    takes = {name: {"direct": 1}}
    return Timed(package, title or f"`{rest}`", namespace, packet, as_call(arguments), plain, takes)


def transformers_cases() -> Iterator[Timed]:
    version = f"transformers {transformers.__version__}"
    forward, backward = test_transformers.FORWARD, test_transformers.BACKWARD
    yield operator(version, forward, test_transformers.grouped(), moe._grouped_mm_fallback)

    given = test_transformers.grouped()
    for tensor in given.args:
        tensor.requires_grad_()
    grad = torch.ones(5, 6)

    def step(x: Tensor, weight: Tensor, offs: Tensor) -> None:
        torch.autograd.backward(torch.ops.transformers.grouped_mm_fallback(x, weight, offs), grad)

    takes = {forward: {"autograd": 1}, backward: {"direct": 1}}
    title = "the same, forward + backward"
    yield Timed(version, title, "transformers", step, Call((*given.args, given.kwargs["offs"]), {}), None, takes)

    model = test_transformers.tiny_model()

    def infer(tokens: Tensor) -> Any:
        with torch.no_grad():
            return model(tokens)

    def train(tokens: Tensor) -> None:
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()

    call, calls = Call((test_transformers.TOKENS,), {}), test_transformers.CALLS
    title = f"a tiny Qwen3-MoE, forward ({calls} calls)"
    yield Timed(version, title, "transformers", infer, call, None, {forward: {"direct": calls}})
    takes = {forward: {"autograd": calls}, backward: {"direct": calls}}
    title = f"the same, forward + backward ({calls} + {calls} calls)"
    yield Timed(version, title, "transformers", train, call, None, takes)


def torchao_timed() -> Iterator[Timed]:
    version = f"torchao {importlib.metadata.version('torchao')}"
    # What torchao's decorator returned is the operator; the functions themselves are those that PyTorch has as kernels.
    functions = {
        "torchao::quantize_affine": plain_quantize_affine,
        "torchao::quantize_affine_float8_non_decomposed": quant_primitives._quantize_affine_float8,
        "blocksparse::bsr_to_dense": custom_ops.OPDEFS["blocksparse::bsr_to_dense"]._init_fn,
    }
    for case in torchao_cases.RUNNING:
        if case.operator in functions:
            yield operator(version, case.operator, case.arguments(), functions[case.operator])

    model = torch.nn.Linear(64, 64)
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())

    def infer(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    takes = {"torchao::choose_qparams_affine": {"direct": 1}, "torchao::quantize_affine": {"direct": 1}}
    title = "a linear layer with 8-bit weights and activations (2 calls)"
    yield Timed(version, title, "torchao", infer, Call((torchao_cases.normal(4, 64),), {}), None, takes)


def plain_quantize_affine(
    x: Tensor, block_size: list[int], scale: Tensor, zero_point: Tensor, dtype: torch.dtype, low: int, high: int
) -> Tensor:
    """What torchao's kernel of that name does."""
    low, high = quant_primitives._get_and_check_qmin_qmax(dtype, low, high)
    return quant_primitives._quantize_affine_no_dtype_cast(x, block_size, scale, zero_point, low, high).to(dtype)


def custom_op_db_cases() -> Iterator[Timed]:
    for name in ("numpy_cube", "numpy_mul", "numpy_split_copy"):
        info = next(info for info in custom_op_db.custom_op_db if name in str(info.op))
        sample = next(iter(info.sample_inputs("cpu", torch.float32)))
        definition = getattr(custom_op_db, name)
        arguments = Arguments((sample.input, *sample.args), dict(sample.kwargs))
        yield operator("torch's custom_op_db", definition._qualname, arguments, definition._init_fn)


def diffusers_cases() -> Iterator[Timed]:
    """With a kernel for the CPU, of which nothing remains to be timed but the call."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return torch.empty_like(q), torch.empty_like(k)

    library = torch.library.Library(test_diffusers.NAMESPACE, "IMPL")
    library.impl("_flash_attn_forward", kernel, "CPU")
    _keep.append(library)

    def plain(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool) -> tuple[Tensor, Tensor]:
        return torch.empty_like(q), torch.empty_like(k)

    version = f"diffusers {diffusers.__version__}"
    title = "`_flash_attn_forward`, 15 arguments, 5 by keyword, an empty kernel of ours for the CPU"
    yield operator(version, test_diffusers.OPERATOR, test_diffusers.attention(), plain, title=title)


_keep: list[torch.library.Library] = []


def vllm_cases() -> Iterator[Timed]:
    package = "vLLM's pattern"
    normal = torchao_cases.normal
    yield operator(package, "vllm_pattern::rms_norm", Arguments((normal(3, 6), normal(6)), {}), ops.rms_norm)
    parts = Arguments(([normal(3, 6)], "group"), {})
    yield operator(package, "vllm_pattern::sum_parts", parts, ops.sum_parts, title="`sum_parts`, one part")

    decoder = vllm_pattern.Decoder()

    def decode(tokens: Tensor) -> Tensor:
        layers.reset()
        with torch.no_grad():
            return decoder(tokens)  # type: ignore[no-any-return]

    blocks = len(decoder.blocks)
    takes = {
        name: {"direct": 1 if name.endswith(("rms_norm", "quantize_rows")) else blocks}
        for name in registered("vllm_pattern")
    }
    title = f"a decoder of {blocks} blocks, one token ({sum(calls['direct'] for calls in takes.values())} calls)"
    yield Timed(package, title, "vllm_pattern", decode, Call((torch.tensor([1]),), {}), None, takes)


def all_cases() -> list[Timed]:
    return [
        *transformers_cases(),
        *torchao_timed(),
        *custom_op_db_cases(),
        *diffusers_cases(),
        *vllm_cases(),
    ]


def require_paths(case: Timed) -> None:
    """Raises where an accelerated call does not go the way that the case says: its time would be another thing's."""
    dutyfree.accelerate(case.target)
    dutyfree.reset_stats()
    case.run(*case.call.args, **case.call.kwargs)
    taken = paths_taken()
    dutyfree.restore()
    if taken != case.takes:
        raise RuntimeError(f"{case.name} took {taken}, expected {case.takes}")


def blocks_of(case: Timed) -> dict[str, Block]:
    def before() -> None:
        dutyfree.restore()

    def under() -> None:
        dutyfree.accelerate(case.target)

    blocks = {
        name: prepared(timed_block(case.run, case.call), prepare, case)
        for name, prepare in ((BEFORE, before), (AFTER, under))
    }
    # The baseline, and the same once more: what they differ by, no other difference can be told from.
    if case.plain is not None:
        blocks |= {name: timed_block(case.plain, case.call) for name in (PLAIN, AGAIN)}
    else:
        blocks[AGAIN] = prepared(timed_block(case.run, case.call), before, case)
    return blocks


def prepared(block: Block, prepare: Callable[[], None], case: Timed) -> Block:
    """The block after ``prepare`` and a call, both untimed."""

    def run(count: int) -> int:
        prepare()
        case.run(*case.call.args, **case.call.kwargs)
        return block(count)

    return run


def measure_all(rounds: int) -> Results:
    torch.set_num_threads(1)
    results = Results(environment.describe())
    busy = load_warning()
    if busy is not None:
        results.warnings.append(busy)
    # As where grouped_mm can't be used.
    moe._can_use_grouped_mm = lambda *_: False
    for case in all_cases():
        require_paths(case)
        measurement = measure(blocks_of(case), rounds)
        dutyfree.restore()
        timings = measurement.timings()
        baseline = PLAIN if case.plain is not None else BEFORE
        results.warnings += reliability_warnings(case.name, measurement, pair=(baseline, AGAIN))
        for name, timing in timings.items():
            if name != AGAIN:
                tax = timing.us - timings[PLAIN].us if case.plain is not None else 0.0
                results.rows.append(Row(case.name, name, timing.us, tax, timing.spread_us))
        print(f"{case.name}: {timings[BEFORE].us:.2f} -> {timings[AFTER].us:.2f} µs", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds, and no file: shows that every case runs")
    quick = parser.parse_args().quick
    results = measure_all(QUICK_ROUNDS if quick else ROUNDS)
    for warning in results.warnings:
        print(f"unreliable: {warning}")
    if not quick:
        results.save(RESULTS)


if __name__ == "__main__":
    main()
