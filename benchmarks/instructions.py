"""Counts the instructions of one call, by callgrind: what a timing can't tell from noise, a count shows exactly.

``python benchmarks/instructions.py --record`` (`make instructions`) writes ``benchmarks/results/instructions.json``;
``tests/test_instructions.py`` compares with it. The bodies are empty, so that what is counted is the call. Each
operator is counted beside its plain function, made and called in the same way; their difference is what being an
operator costs. Calls that record a gradient are counted beside a hand-written ``torch.autograd.Function``.
"""

import argparse
import datetime
import gc
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dutyfree
from dutyfree import _core
from dutyfree.bench import calls, training
from dutyfree.bench.measure import Block, Call, timed_block

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "benchmarks" / "results" / "instructions.json"
VALGRIND = ROOT / "build" / "valgrind" / "valgrind"
REQUESTS = ROOT / "build" / "dev" / "tests" / "cpp"

# The difference of two numbers of calls has no fixed cost in it.
FEWER, MORE = 1000, 2000
# CPython has specialised the loop and the body for what they see by then.
WARM_UP = 200

# What the bodies return: kept, so that no tensor is made.
KEPT = {"RESULT": torch.ones(4), "FIRST": torch.ones(4), "SECOND": torch.ones(1)}


@dataclass(frozen=True)
class Shape:
    """One kind of call: the function whose signature it has, what the body returns instead, and the arguments."""

    name: str
    function: Callable[..., Any]
    result: str
    call: Call
    mutates: tuple[str, ...] = ()
    spelling: str = "object"


def lists(tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
    return [KEPT["FIRST"], KEPT["SECOND"]]


def shapes() -> Iterator[Shape]:
    cpu = torch.device("cpu")
    x = torch.ones(4)
    yield Shape("one tensor", calls.clone_function(), "RESULT", Call((x,), {}))
    yield Shape("one tensor, by overload", calls.clone_function(), "RESULT", Call((x,), {}), spelling="overload")
    yield Shape("gemm", calls.gemm_function(), "RESULT", calls.gemm_call(cpu))
    yield Shape("gemm, a keyword", calls.gemm_function(), "RESULT", calls.gemm_keyword_call(cpu))
    yield Shape("two tensors mutated", calls.mutate_function(), "None", calls.mutate_call(cpu), ("x", "y"))
    yield Shape("lists", lists, "[FIRST, SECOND]", Call(([x, x], [1, 2, 3]), {}))
    yield Shape("51 arguments", calls.long_function(51)(), "RESULT", calls.long_call(51)(cpu))


def with_empty_body(shape: Shape) -> Callable[..., Any]:
    """A function with the signature of the shape's, that only returns."""
    signature = inspect.signature(shape.function)
    defaults = {f"default_{name}": parameter.default for name, parameter in signature.parameters.items()}
    parameters = ", ".join(
        name if parameter.default is parameter.empty else f"{name}=default_{name}"
        for name, parameter in signature.parameters.items()
    )
    namespace: dict[str, Any] = {**KEPT, **defaults}
    exec(f"def body({parameters}):\n    return {shape.result}\n", namespace)
    body: Callable[..., Any] = namespace["body"]
    return body


def blocks() -> Iterator[tuple[str, str, Block]]:
    """What is counted: the name of the call, "operator" or "plain", and the loop around it."""
    for number, shape in enumerate(shapes()):
        body = with_empty_body(shape)
        yield shape.name, "plain", timed_block(body, shape.call)
        schema = torch.library.infer_schema(shape.function, mutates_args=shape.mutates)
        op = dutyfree.fast_custom_op(f"counted::op{number}", body, mutates_args=shape.mutates, schema=schema)
        spelled: Any = op._opoverload if shape.spelling == "overload" else op
        plan = dutyfree.explain(spelled, *shape.call.args, **shape.call.kwargs)
        assert plan.path == "direct", f"{shape.name}: {plan}"
        yield shape.name, "operator", timed_block(spelled, shape.call)
    for case in training.CASES:
        by_candidate = training.blocks(case, training.FORWARD)
        key = training.key_of(case, training.FORWARD)
        yield gradient(case), "plain", by_candidate[key, training.BASELINE]
        yield gradient(case), "operator", by_candidate[key, "dutyfree.object"]


def gradient(case: training.TrainingCase) -> str:
    return f"gradient: {case.title}"


def names() -> list[str]:
    return [shape.name for shape in shapes()] + [gradient(case) for case in training.CASES]


def run_under_callgrind() -> None:
    """The program that is measured; ``count`` reads what callgrind writes for it."""
    sys.path.insert(0, str(REQUESTS))
    import dutyfree_callgrind

    prepared = list(blocks())
    for _, _, block in prepared:
        block(WARM_UP)
    gc.collect()
    gc.disable()
    dutyfree_callgrind.start()
    for shape, kind, block in prepared:
        for number in (WARM_UP, FEWER, MORE):
            dutyfree_callgrind.zero()
            block(number)
            dutyfree_callgrind.dump(f"{shape}/{kind}/{number}")


def count() -> dict[str, dict[str, int]]:
    """Instructions per call, by name: of the operator ("operator") and of what it is counted beside ("plain")."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(str(VALGRIND), "--tool=callgrind", "--instr-atstart=no", "--quiet"),
                f"--callgrind-out-file={folder}/counts",
                *(sys.executable, __file__, "--measured"),
            ],
            # Hash seeds change the order of dicts' look-ups, threads whatever they meet.
            env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            check=True,
        )
        totals = {}
        for file in Path(folder).iterdir():
            text = file.read_text()
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
            total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
            if name is not None and total is not None:
                totals[name[1]] = int(total[1])
    counts: dict[str, dict[str, int]] = {}
    for name in names():
        counts[name] = {
            kind: round((totals[f"{name}/{kind}/{MORE}"] - totals[f"{name}/{kind}/{FEWER}"]) / (MORE - FEWER))
            for kind in ("operator", "plain")
        }
    return counts


def environment() -> dict[str, str]:
    """What the counts depend on. Others than these can't be compared with the recorded ones."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return {
        "architecture": platform.machine(),
        "torch": torch.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "python built with": " ".join(
            [
                platform.python_compiler().split("(")[0].strip(),
                sysconfig.get_config_var("OPT") or "",
                *(word for word in ("--enable-optimizations", "--with-lto", "--enable-shared") if word in options),
            ]
        ),
        "compiler": core_compiler().partition(".")[0],
    }


def core_compiler() -> str:
    """The compiler of the core, as it signs what it makes: "GCC 12.2.0"."""
    signed = re.search(rb"(GCC): \([^)]*\) ([\d.]+)|(clang) version ([\d.]+)", Path(_core.__file__).read_bytes())
    return "unknown" if signed is None else " ".join(part.decode() for part in signed.groups() if part is not None)


def record() -> None:
    versions = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "compiler": core_compiler(),
        "valgrind": subprocess.run([VALGRIND, "--version"], capture_output=True, text=True, check=True).stdout.strip(),
    }
    document = {"schema": 1, "environment": environment(), "recorded with": versions, "instructions per call": count()}
    RECORDED.write_text(json.dumps(document, indent=2) + "\n")
    for shape, counts in document["instructions per call"].items():
        print(f"{shape:48} {counts['operator']:6} an operator's call, {counts['plain']:6} the plain one")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.relative_to(ROOT)}")
    parser.add_argument("--measured", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measured:
        run_under_callgrind()
    elif options.record:
        record()
    else:
        print(json.dumps(count(), indent=2))
