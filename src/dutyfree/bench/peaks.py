"""What the machine can do at most: operations on registers, and bytes copied."""

import functools

import torch

from dutyfree.bench.cpp import SOURCES
from dutyfree.bench.environment import last_level_cache
from dutyfree.bench.measure import Block, Call, timed_block
from dutyfree.cpp import CppOp
from dutyfree.cpp_build import build

# By the names that the results have for them, in C++: cpp_sources/peaks.cpp.
INSTRUCTIONS = {"fp32": "fma", "bf16": "vdpbf16ps", "int8": "vpdpbusd"}
# Some milliseconds, beside which starting the threads does not count.
INSTRUCTION_ROUNDS = 1_000_000


@functools.cache
def _run() -> CppOp:
    operators = build("dutyfree_bench_peaks", SOURCES / "peaks.cpp", extra_cflags=["-pthread"])
    return operators.run


def operations() -> dict[str, int]:
    """How many operations a call of each block does, of the instructions that this machine has."""
    sinks = torch.zeros(torch.get_num_threads())
    counts = {name: _run()(sinks, instruction, 1) for name, instruction in INSTRUCTIONS.items()}
    return {name: count * INSTRUCTION_ROUNDS for name, count in counts.items() if count}


def blocks(case: str) -> dict[tuple[str, str], Block]:
    """A block for each instruction that this machine has."""
    sinks = torch.zeros(torch.get_num_threads())
    return {
        (case, name): timed_block(_run(), Call((sinks, INSTRUCTIONS[name], INSTRUCTION_ROUNDS), {}))
        for name in operations()
    }


def stream_bytes() -> int:
    """The size of an array that no cache serves a part of: four times the last level, as STREAM's rules have it."""
    return 4 * last_level_cache()


def copy_block(size: int) -> Block:
    """``copy_`` from one array of ``size`` bytes to another."""
    source, target = (torch.ones(size // 2, dtype=torch.bfloat16) for _ in range(2))
    return timed_block(target.copy_, Call((source,), {}))
