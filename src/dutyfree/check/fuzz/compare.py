"""Runs a case's source on two sides, step by step, and says where they differ.

One side is ``torch.library.custom_op``. The other is ``fast_custom_op``, or a second operator of ``custom_op`` that is
accelerated.
"""

import contextlib
import functools
import gc
import itertools
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import dutyfree
from dutyfree.check.fuzz.sides import Define, FuzzSide, Happened, Step, accelerated_custom_op

SIDES = ("fast", "accelerated")

_numbers = itertools.count()


@dataclass
class Compared:
    """One step on both sides."""

    number: int
    reference: Happened
    ours: Happened
    ways: list[Any] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return self.reference == self.ours


@contextlib.contextmanager
def both_sides(side: str) -> Iterator[tuple[FuzzSide, FuzzSide]]:
    """A side for custom_op and the one named, in namespaces of equal length that nothing else uses."""
    number = next(_numbers)
    kernels: list[Any] = []
    sides = (
        FuzzSide(f"fuzz_ref_{number:08}", torch.library.custom_op),
        # Looked up here, so that a test may put a fault in its place.
        FuzzSide(f"fuzz_our_{number:08}", dutyfree.fast_custom_op if side == "fast" else accelerated_custom_op),
    )
    try:
        with _noting_kernels(kernels):
            yield sides
    finally:
        for one in sides:
            one.close()
        _empty(kernels)


@contextlib.contextmanager
def _noting_kernels(kernels: list[Any]) -> Iterator[None]:
    """Collect every function that is registered for a dispatch key inside the block.

    ``Library.impl`` is another function for the whole process meanwhile, so nothing else should register beside a case.
    """
    library: Any = torch.library.Library
    impl = library.impl

    @functools.wraps(impl)
    def noting(self: Any, name: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        kernels.append(function)
        return impl(self, name, function, *args, **kwargs)

    library.impl = noting
    try:
        yield
    finally:
        library.impl = impl


def _empty(kernels: list[Any]) -> None:
    """Take away what the functions of a destroyed library close over.

    PyTorch 2.13 never lets go of such a function itself, and it holds the CustomOpDef, the autograd.Function and more:
    110 KB for the two operators of a case, a gigabyte in a run of 100,000 calls.
    """
    for kernel in kernels:
        for cell in getattr(kernel, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # it is empty already
                del cell.cell_contents


def compare(define: Define, steps: list[Step], side: str = "fast") -> Generator[Compared, None, None]:
    """Define the operator and take the steps, each with custom_op and on ``side``. Number -1 is the definition."""
    with both_sides(side) as sides, _no_vmap_warning():
        for number, step in enumerate([define, *steps], start=-1):
            reference, ours = (one.run(step) for one in sides)
            yield Compared(number, reference, ours, sides[1].counts)
            if any("step raised" in happened for happened in (reference, ours)) and number == -1:
                return  # there is no operator to call


@contextlib.contextmanager
def _no_vmap_warning() -> Iterator[None]:
    """Turn off the one warning that goes past Python's, straight to the terminal.

    PyTorch does not tell whether it is on. It is unless someone turns it off.
    """
    enable: Any = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """Where two nested values differ, a line each."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in [*expected, *(name for name in actual if name not in expected)]:
            yield from differences(expected.get(name, "nothing"), actual.get(name, "nothing"), f"{path}[{name!r}]")
    elif (
        isinstance(expected, (list, tuple))
        and isinstance(actual, (list, tuple))
        and len(expected) == len(actual)
        and type(expected) is type(actual)
    ):
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(expected, list) and isinstance(actual, list):
        for index, (one, other) in enumerate(itertools.zip_longest(expected, actual, fillvalue="nothing")):
            yield from differences(one, other, f"{path}[{index}]")
    elif expected != actual:
        yield f"{path}\n    custom_op: {expected}\n    dutyfree:  {actual}"


def main(define: Define, steps: list[Step], side: str) -> None:
    """What a saved script does: prints where the two sides differ, and exits with 1 if they do."""
    differ = False
    for compared in compare(define, steps, side):
        if not compared.same:
            differ = True
            print("the definition" if compared.number < 0 else f"step_{compared.number}")
            for line in differences(compared.reference, compared.ours):
                print(f"  {line}")
    print("They differ." if differ else "No difference.")
    gc.collect()  # so that what crashes at the end crashes here
    sys.exit(differ)
