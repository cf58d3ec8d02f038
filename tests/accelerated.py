"""Compares an operator that ``dutyfree.accelerate`` took with the same operator that it did not take.

Both are registered in this process, in the same way and with the same body, in namespaces whose names have the same
length. ``check`` compares calls of the two as ``parity.check`` does, and asserts which path the accelerated one took,
both as ``explain`` foretells it and as ``stats`` counts it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import Library
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dutyfree
from dutyfree.check.outcome import Arguments, Outcome, Side, call, outcome_of, recording
from parity import unique_namespaces

Way = tuple[str, str]

# Where Library.impl may put a body; under "" it is the composite one. Those that autograd's fallback lies above.
KEYS = ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", ""]
BELOW_AUTOGRAD = ["CPU", "CompositeExplicitAutograd"]

DIRECT: Way = ("direct", "")
AUTOGRAD: Way = ("autograd", "requires-grad")
BOXED_FOR_GRADIENT: Way = ("boxed", "requires-grad")
BOXED_FOR_KERNEL: Way = ("boxed", "kernel")


@dataclass
class Twins:
    """The same operator, registered twice and accelerated once."""

    reference: Side
    accelerated: Side
    libraries: list[Library] = field(default_factory=list)

    def sides(self) -> tuple[Side, Side]:
        return self.reference, self.accelerated

    def each(self, change: Callable[[Side], object]) -> None:
        """Applies a later registration to both operators."""
        for side in self.sides():
            change(side)

    def override(self, function: Callable[..., Any], key: str, **options: Any) -> Callable[[], None]:
        """Registers ``function`` for both operators in libraries of its own; returns what destroys these."""
        libraries = []
        for side in self.sides():
            library = Library(side.namespace, "IMPL")
            library.impl(side.name, function, key, **options)
            libraries.append(library)
        self.libraries += libraries

        def remove() -> None:
            for library in libraries:
                library._destroy()

        return remove


def registered_twice(register: Callable[[str], Any], *, name: str = "op") -> Twins:
    """Calls ``register`` with two namespaces and accelerates the operator ``name`` of the second.

    What ``register`` returns is the ``op`` of the side; where that is None, it is the packet.
    """
    sides, libraries = [], []
    for namespace in unique_namespaces():
        made = register(namespace)
        if isinstance(made, Library):
            libraries.append(made)
            made = None
        packet = getattr(getattr(torch.ops, namespace), name)
        sides.append(Side(namespace, name, packet if made is None else made))
    dutyfree.accelerate(sides[1].qualname)
    return Twins(*sides, libraries)


def library_twins(
    schema: str, body: Callable[..., Any] | None, key: str = "CPU", *, record: bool = True, **options: Any
) -> Twins:
    """An operator ``op`` of ``Library.define`` and ``Library.impl``; ``options`` go to the latter."""
    received: list[list[Any]] = []

    def register(namespace: str) -> Library:
        received.append([])
        library = Library(namespace, "FRAGMENT")
        library.define(f"op{schema}")
        if body is not None:
            library.impl("op", recording(body, received[-1]) if record else body, key, **options)
        return library

    twins = registered_twice(register)
    twins.reference.received, twins.accelerated.received = received
    return twins


def custom_twins(body: Callable[..., Any], *, record: bool = True, **options: Any) -> Twins:
    """An operator ``op`` of torch.library.custom_op; ``mutates_args`` may be left out where it mutates nothing."""
    options.setdefault("mutates_args", ())
    received: list[list[Any]] = []

    def register(namespace: str) -> Any:
        received.append([])
        function = recording(body, received[-1]) if record else body
        return torch.library.custom_op(f"{namespace}::op", function, **options)

    twins = registered_twice(register)
    twins.reference.received, twins.accelerated.received = received
    return twins


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """A module's tests start, and leave, with nothing accelerated where it imports this."""
    dutyfree.restore()
    yield
    dutyfree.restore()


def doubled(x: Tensor) -> Tensor:
    return x * 2


def tripled(x: Tensor) -> Tensor:
    return x * 3


def ones() -> Arguments:
    return call(torch.ones(2))


def ones_with_grad() -> Arguments:
    return call(torch.ones(2, requires_grad=True))


class Seeing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((str(func), len(args), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


class SeeingFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((str(func), len(args), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


class Answering(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return str(func), len(args), sorted(kwargs or {})


def spellings_of(side: Side) -> tuple[str, ...]:
    return ("packet", "overload") if side.op is side.packet else ("object", "packet", "overload")


def check(twins: Twins, arguments: Callable[[], Arguments], way: Way | None = DIRECT) -> Outcome:
    """Asserts that both operators do the same with ``arguments()`` in every spelling; returns what they did.

    ``way`` is the path and the code of the accelerated one's; None allows any that ``explain`` foretold.
    """
    for spelling in spellings_of(twins.reference):
        expected = outcome_of(twins.reference, spelling, arguments())
        given = arguments()
        twins.accelerated.received.clear()
        plan = dutyfree.explain(twins.accelerated.spelled(spelling), *given.args, **given.kwargs)
        assert not twins.accelerated.received, "explain ran the body"
        with took(twins.accelerated, (plan.path, plan.code)):
            actual = outcome_of(twins.accelerated, spelling, given)
        assert actual == expected, f"{spelling} took {plan}: {actual} instead of {expected}"
        assert actual.state_kept, spelling
        if way is not None:
            assert (plan.path, plan.code) == way, plan
    return actual


@contextmanager
def took(side: Side, way: Way) -> Iterator[None]:
    """Asserts that the calls in the block went by this path, because of this code."""
    before = ways_of(side)
    yield
    after = ways_of(side)
    # One call may make others.
    assert {name for name in way if name} <= {key for key in after if after[key] > before.get(key, 0)}


def ways_of(side: Side) -> dict[str, int]:
    stats = dutyfree.stats()[side.qualname]
    return {**stats.calls, **stats.reasons}


def both(twins: Twins, run: Callable[[Side], Any]) -> Any:
    """Asserts that ``run`` gives the same, or raises the same, for both operators; returns that."""
    expected, actual = (what_came_of(side, run) for side in twins.sides())
    assert actual == expected, f"{actual!r} instead of {expected!r}"
    return actual


def what_came_of(side: Side, run: Callable[[Side], Any]) -> Any:
    try:
        return run(side)
    except Exception as error:
        return type(error).__name__, side.text(error)


def refused(outcome: Outcome) -> tuple[str, str]:
    assert outcome.raised is not None, "did not raise"
    return outcome.raised


def gives(twins: Twins, values: list[float], way: tuple[str, str] | None = DIRECT) -> None:
    assert check(twins, ones, way).value["values"] == str(values)


class Formula:
    """A formula that writes down what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def setup_context(self, ctx: Any, inputs: Any, output: Any) -> None:
        x, y, n = inputs
        self.seen.append((ctx.needs_input_grad, n, type(inputs).__name__, x._version, output.requires_grad))
        ctx.save_for_backward(x, y)
        ctx.n = n

    def backward(self, ctx: Any, gradient: Tensor) -> Any:
        x, y = ctx.saved_tensors
        self.seen.append((ctx.needs_input_grad, gradient.tolist(), torch.is_grad_enabled()))
        return gradient * y * ctx.n, gradient * x * ctx.n, None


@pytest.fixture
def product() -> tuple[Twins, Formula]:
    formula = Formula()

    def multiplied(x: Tensor, y: Tensor, n: int = 2) -> Tensor:
        return x * y * n

    twins = custom_twins(multiplied, record=False)
    twins.each(lambda side: side.op.register_autograd(formula.backward, setup_context=formula.setup_context))
    return twins, formula
