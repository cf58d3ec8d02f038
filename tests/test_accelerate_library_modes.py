"""Accelerated operators of Library.define and Library.impl: modes, tracing, transforms and tensor subclasses."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import dutyfree
from accelerated import (
    BELOW_AUTOGRAD,
    KEYS,
    Answering,
    Seeing,
    SeeingFunctions,
    both,
    check,
    doubled,
    library_twins,
    ones,
    restored,
)
from dutyfree.check.outcome import Side, call

__all__ = ["restored"]  # a fixture for every test here


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("mode", [Seeing, SeeingFunctions])
def test_modes_see_the_operator(key: str, mode: type[Any]) -> None:
    twins = library_twins("(Tensor x, float f=2.0, *, bool b=False) -> Tensor", lambda x, f=2.0, b=False: x * f, key)
    code = "dispatch-mode" if mode is Seeing else "torch-function-mode"

    def under(side: Side) -> Any:
        with mode() as active:
            result = side.overload(torch.ones(2), 3, b=True), side.packet(torch.ones(2), 2.0)
        return [member.tolist() for member in result], side.text(active.seen)

    values, seen = both(twins, under)
    assert values == [[3.0, 3.0], [2.0, 2.0]]
    assert ("NAMESPACE.op.default" in seen) == (mode is SeeingFunctions or key in BELOW_AUTOGRAD)
    with mode():
        plan = dutyfree.explain(twins.accelerated.overload, torch.ones(2))
        assert plan.code == code
        assert plan.path == ("boxed" if mode is Seeing else "pytorch")


def test_fake_tensors_of_an_operator_with_a_fake_kernel() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)

    def faked(side: Side) -> Any:
        with FakeTensorMode() as mode:
            inside = side.overload(mode.from_tensor(torch.ones(2)))
        outside = side.packet(mode.from_tensor(torch.ones(2)))
        return [(type(result).__name__, tuple(result.shape)) for result in (inside, outside)]

    assert both(twins, faked)[0] == "UnsupportedOperatorException"
    twins.each(lambda side: torch.library.register_fake(side.qualname, lambda x: x.new_empty(5)))
    assert both(twins, faked) == [("FakeTensor", (5,))] * 2
    check(twins, ones)
    check(twins, lambda: call(torch.ones(2, device="meta")), None)


@pytest.mark.parametrize("key", KEYS)
def test_compiled_without_a_graph_break(key: str) -> None:
    def above_all(x: Tensor) -> Tensor:
        return x * 2

    twins = library_twins("(Tensor x) -> Tensor", above_all, key, record=False)
    if key == "CPU":
        twins.each(lambda side: torch.library.register_fake(side.qualname, lambda x: torch.empty_like(x)))

    def compiled(side: Side) -> Any:
        graphs: list[str] = []

        def backend(module: Any, inputs: Any) -> Any:
            graphs.append(side.text(module.code))
            return module

        torch._dynamo.reset()
        function = torch.compile(lambda x: side.packet(x + 1) + side.overload(x), fullgraph=True, backend=backend)
        return function(torch.ones(2)).tolist(), graphs

    values, graphs = both(twins, compiled)
    assert values == [6.0, 6.0]
    assert len(graphs) == 1


def test_compiled_functions_stay_compiled_when_the_operator_is_accelerated_later() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, "CompositeExplicitAutograd", record=False)
    overload = twins.reference.overload
    function = torch.compile(lambda x: overload(x) + 1, fullgraph=True, backend="aot_eager")
    assert function(torch.ones(2)).tolist() == [3.0, 3.0]
    dutyfree.accelerate(twins.reference.qualname)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert function(torch.ones(2)).tolist() == [3.0, 3.0]
    dutyfree.restore(twins.reference.qualname)
    assert function(torch.ones(2)).tolist() == [3.0, 3.0]


def test_make_fx_gives_the_same_graph() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", doubled, key, record=False)
        if key in BELOW_AUTOGRAD:
            twins.each(lambda side: torch.library.register_fake(side.qualname, lambda x: torch.empty_like(x)))
        for tracing in ("real", "fake", "symbolic"):
            both(
                twins,
                lambda side, tracing=tracing: side.text(
                    make_fx(lambda x: side.packet(x) + side.overload(x), tracing_mode=tracing)(torch.ones(2)).code
                ),
            )


def test_jit_trace_gives_the_same_graph() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, record=False)
    both(twins, lambda side: side.text(torch.jit.trace(side.overload, torch.ones(2)).graph))


def test_vmap_with_and_without_a_rule() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", lambda x: x.sum(), key, record=False)
        both(twins, lambda side: torch.vmap(side.packet)(torch.ones(4, 2)).tolist())
        if key != "CompositeImplicitAutograd" and key:
            twins.each(
                lambda side: torch.library.register_vmap(side.qualname, lambda info, dims, x: (torch.zeros(4), 0))
            )
            assert both(twins, lambda side: torch.vmap(side.overload)(torch.ones(4, 2)).tolist()) == [0.0] * 4
        check(twins, ones, None)


def test_functorch_gradients() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", doubled, key, record=False)
        both(twins, lambda side: torch.func.grad(lambda x: side.overload(x).sum())(torch.ones(2)).tolist())
        both(twins, lambda side: [t.tolist() for t in torch.func.jvp(side.packet, (torch.ones(2),), (torch.ones(2),))])
        both(twins, lambda side: torch.func.functionalize(side.overload)(torch.ones(2)).tolist())


def test_forward_mode_tangents() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", doubled, key, record=False)

        def tangent(side: Side) -> Any:
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
                result = torch.autograd.forward_ad.unpack_dual(side.overload(dual))
                return result.primal.tolist(), None if result.tangent is None else result.tangent.tolist()

        both(twins, tangent)


class Bare(Tensor):
    pass


class Wrapper(Tensor):
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        made: Wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, requires_grad=inner.requires_grad)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
        return Wrapper(func(*unwrapped, **(kwargs or {})))


class Plain(Wrapper):
    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("key", KEYS)
def test_tensor_subclasses(key: str) -> None:
    twins = library_twins("(Tensor x, Tensor? y=None) -> Tensor", lambda x, y=None: x * 2, key, record=False)
    both(twins, lambda side: [(type(r), r.tolist()) for r in [side.overload(torch.ones(2).as_subclass(Bare))]])
    assert both(twins, lambda side: side.text(side.packet(torch.ones(2).as_subclass(Answering)))) == (
        "('NAMESPACE.op', 1, [])"
    )
    both(twins, lambda side: side.text(side.overload(torch.ones(2), torch.ones(2).as_subclass(Answering))))
    for cls in (Wrapper, Plain):

        def wrapped(side: Side, cls: Any = cls) -> Any:
            result = side.overload(cls(torch.ones(2)))
            return type(result).__name__, result.inner.tolist()

        assert both(twins, wrapped) == ("Wrapper", [2.0, 2.0])
    assert dutyfree.explain(twins.accelerated.overload, Plain(torch.ones(2))).path == "boxed"


@pytest.mark.parametrize("key", KEYS)
def test_what_the_default_torch_function_does_to_results_and_state(key: str) -> None:
    states: list[bool] = []

    def body(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        states.append(torch._C._is_torch_function_enabled())
        return torch.ones(1), [torch.ones(2)]

    twins = library_twins("(Tensor x) -> (Tensor, Tensor[])", body, key, record=False)

    class Unwrapping(Wrapper):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            states.append(torch._C._is_torch_function_enabled())
            return torch.ones(1), [torch.ones(2)]

    def types_of(side: Side) -> Any:
        kinds = []
        for x in (torch.ones(2).as_subclass(Bare), Unwrapping(torch.ones(2)), torch.ones(2)):
            states.clear()
            first, (second,) = side.overload(x)
            kinds.append((type(first).__name__, type(second).__name__, list(states)))
        return kinds

    both(twins, types_of)


def test_objects_with_a_torch_function_for_other_arguments() -> None:
    class Number:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "answered", len(args)

    twins = library_twins("(Tensor x, float f=1.0, Tensor[]? xs=None) -> Tensor", lambda x, f=1.0, xs=(): x * f)
    for given in (call(Number()), call(torch.ones(1), Number()), call(torch.ones(1), xs=[Number()])):
        both(twins, lambda side, given=given: side.overload(*given.args, **given.kwargs))
