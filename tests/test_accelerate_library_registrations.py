"""Accelerated operators of Library.define and Library.impl: what is registered, overridden and taken away later."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import Library

import dutyfree
from accelerated import (
    BOXED_FOR_KERNEL,
    DIRECT,
    KEYS,
    Twins,
    both,
    check,
    doubled,
    library_twins,
    ones,
    ones_with_grad,
    refused,
    registered_twice,
    restored,
    tripled,
)
from dutyfree.check.outcome import Arguments, Side, call
from isolated import run_isolated

__all__ = ["restored"]  # a fixture for every test here


def test_the_functions_of_torch_library_register_operators_that_run_directly() -> None:
    def decorated(namespace: str) -> None:
        torch.library.define(f"{namespace}::op", "(Tensor x) -> Tensor")
        torch.library.impl(f"{namespace}::op", "cpu")(doubled)

    def passed(namespace: str) -> None:
        torch.library.define(f"{namespace}::op", "(Tensor x) -> Tensor")
        torch.library.impl(f"{namespace}::op", "default", doubled)

    def registered(namespace: str) -> None:
        torch.library.define(f"{namespace}::op", "(Tensor x) -> Tensor")
        torch.library.register_kernel(f"{namespace}::op", "cpu", doubled)

    for register in (decorated, passed, registered):
        twins = registered_twice(register)
        assert check(twins, ones).value["values"] == "[2.0, 2.0]"
        check(twins, ones_with_grad, None)


def direct_register_custom_op(
    library: Library, name: str, function: Callable[..., Any], mutates_args: list[str], fake: Callable[..., Any]
) -> None:
    """As vLLM, SGLang and their like have it."""
    library.define(name + torch.library.infer_schema(function, mutates_args=mutates_args))
    library.impl(name, function, dispatch_key="CPU")
    library._register_fake(name, fake)


def attend(q: Tensor, kv: list[Tensor], out: Tensor, scale: float, window: int | None = None) -> None:
    out.copy_(q * scale + sum(kv) + (window or 0))


def attend_fake(q: Tensor, kv: list[Tensor], out: Tensor, scale: float, window: int | None = None) -> None:
    return


@pytest.fixture
def attention() -> Twins:
    def register(namespace: str) -> Library:
        library = Library(namespace, "FRAGMENT")
        direct_register_custom_op(library, "op", attend, ["out"], attend_fake)
        return library

    return registered_twice(register)


def attention_arguments() -> Arguments:
    return call(torch.ones(2), [torch.ones(2), torch.ones(2)], torch.zeros(2), 0.5, window=3)


def test_a_helper_like_vllms(attention: Twins) -> None:
    outcome = check(attention, attention_arguments)
    assert outcome.inputs_after["args"][2]["values"] == "[5.5, 5.5]"


def test_a_helper_like_vllms_compiled(attention: Twins) -> None:
    def compiled(side: Side) -> Any:
        def function(q: Tensor, kv: Tensor) -> Tensor:
            out = torch.empty_like(q)
            side.packet(q + 1, [kv, kv], out, 0.5)
            return out + 1

        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="aot_eager")(torch.ones(2), torch.ones(2)).tolist()

    assert both(attention, compiled) == [4.0, 4.0]


def test_a_kernel_that_takes_the_keyset_is_boxed() -> None:
    def keyed(keyset: torch.DispatchKeySet, x: Tensor) -> Tensor:
        assert keyset.has(torch._C.DispatchKey.CPU)
        return x * 2

    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", keyed, key, record=False, with_keyset=True)
        assert check(twins, ones, None).value["values"] == "[2.0, 2.0]"
        plan = dutyfree.explain(twins.accelerated.overload, torch.ones(2))
        assert plan.path == "boxed"
        assert plan.reason != "its kernels are C++"


def test_an_autograd_kernel_with_keyset_above_a_plain_one() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    check(twins, ones)
    libraries = []
    for side in twins.sides():

        def above(keyset: Any, x: Tensor, side: Side = side) -> Any:
            return side.overload.redispatch(keyset & torch._C._after_autograd_keyset, x) + 10

        library = Library(side.namespace, "IMPL")
        library.impl("op", above, "Autograd", with_keyset=True)
        libraries.append(library)
    assert check(twins, ones, BOXED_FOR_KERNEL).value["values"] == "[12.0, 12.0]"
    for library in libraries:
        library._destroy()
    check(twins, ones)


@pytest.mark.parametrize("key", ["CPU", "AutogradCPU", "Autograd", "ADInplaceOrView", "BackendSelect", "Meta"])
@pytest.mark.parametrize("base", ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_a_later_impl_and_its_removal(base: str, key: str) -> None:
    if (base, key) == ("CompositeImplicitAutograd", "Meta"):
        base = "CPU"  # PyTorch refuses that pair
    twins = library_twins("(Tensor x) -> Tensor", doubled, base)
    check(twins, ones)
    remove = twins.override(tripled, key, allow_override=True)
    check(twins, ones, None)
    check(twins, ones_with_grad, None)
    remove()
    check(twins, ones)
    check(twins, ones_with_grad, None)


def test_a_later_impl_is_direct_too() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, "CompositeExplicitAutograd")
    check(twins, ones)
    twins.override(tripled, "CPU")
    assert check(twins, ones, DIRECT).value["values"] == "[3.0, 3.0]"


def test_overrides_on_top_of_each_other_and_their_removal_in_any_order() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    first = twins.override(tripled, "CPU", allow_override=True)
    assert check(twins, ones).value["values"] == "[3.0, 3.0]"
    second = twins.override(lambda x: x * 4, "CPU", allow_override=True)
    assert check(twins, ones).value["values"] == "[4.0, 4.0]"
    first()
    assert check(twins, ones).value["values"] == "[4.0, 4.0]"
    second()
    assert check(twins, ones).value["values"] == "[2.0, 2.0]"


def test_many_overrides_in_turn() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    for factor in range(50):
        remove = twins.override(lambda x, factor=factor: x * factor, "CPU", allow_override=True)
        assert check(twins, ones, None).value["values"] == str([float(factor)] * 2)
        remove()
    assert check(twins, ones).value["values"] == "[2.0, 2.0]"


def test_a_body_comes_and_goes_where_there_was_none() -> None:
    twins = library_twins("(Tensor x) -> Tensor", None)
    error, text = refused(check(twins, ones, None))
    assert error == "NotImplementedError"
    assert "Could not run 'NAMESPACE::op'" in text
    remove = twins.override(doubled, "CPU")
    assert check(twins, ones).value["values"] == "[2.0, 2.0]"
    remove()
    assert check(twins, ones, None).raised == (error, text)


def test_a_fallthrough_kernel_is_passed_by() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    remove = twins.override(torch.library.fallthrough_kernel, "AutogradCPU")
    check(twins, ones, None)
    check(twins, ones_with_grad, None)
    remove()
    check(twins, ones)


def call_a_dead_operator() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    side = twins.accelerated
    kept = side.packet, side.overload
    for operator in kept:
        operator(torch.ones(2))
    twins.libraries[1]._destroy()
    for operator in kept:
        try:
            operator(torch.ones(2))
        except Exception as error:
            print(type(error).__name__)


def test_an_operator_that_is_gone_with_its_library_raises() -> None:
    # PyTorch reads freed memory here, so there is nothing to compare with.
    assert len(run_isolated(call_a_dead_operator).split()) == 2


def test_the_operator_is_defined_again_after_its_library_is_gone() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    kept = {side.namespace: (side.packet, side.overload) for side in twins.sides()}
    check(twins, ones)
    for library in twins.libraries:
        library._destroy()
    again = []
    for side in twins.sides():
        library = Library(side.namespace, "FRAGMENT")
        library.define("op(Tensor x) -> Tensor")
        library.impl("op", tripled, "CPU")
        again.append(library)

    def values(side: Side) -> Any:
        return side.packet(torch.ones(2)).tolist(), side.overload(torch.ones(2)).tolist()

    assert both(twins, values) == ([3.0, 3.0], [3.0, 3.0])
    both(twins, lambda side: kept[side.namespace][0](torch.ones(2)).tolist())


def test_a_python_kernel_under_the_autograd_of_an_aten_operator_is_boxed() -> None:
    name = "aten::logaddexp2"
    x = torch.ones(2)
    expected = torch.logaddexp2(x, x).tolist()
    dutyfree.accelerate(name)
    overload: Any = torch.ops.aten.logaddexp2.default
    assert overload(x, x).tolist() == expected
    library = Library("aten", "IMPL")
    library.impl("logaddexp2", lambda x, y: x * 7, "CPU", allow_override=True)
    try:
        plan = dutyfree.explain(overload, x, x)
        assert (plan.path, plan.code) == BOXED_FOR_KERNEL
        dutyfree.reset_stats()
        assert overload(x, x).tolist() == [7.0, 7.0]
        assert torch.ops.aten.logaddexp2(x, x).tolist() == [7.0, 7.0]
        assert dutyfree.stats()[name].calls["boxed"] == 2
        assert torch.logaddexp2(x, x).tolist() == [7.0, 7.0]
        assert overload(x.clone().requires_grad_(), x).requires_grad
    finally:
        library._destroy()
    assert overload(x, x).tolist() == expected
    assert overload(x.clone().requires_grad_(), x).requires_grad


def test_a_python_kernel_in_place_of_a_cpp_one_without_autograd_is_direct() -> None:
    name = "quantization::_FloatToBfloat16Quantized"
    x = torch.ones(1, 2)
    overload: Any = torch.ops.quantization._FloatToBfloat16Quantized.default
    expected = overload(x).tolist()
    assert dutyfree.accelerate(name)[name].path == "boxed"
    assert overload(x).tolist() == expected
    library = Library("quantization", "IMPL")
    library.impl("_FloatToBfloat16Quantized", lambda x: x * 7, "CPU", allow_override=True)
    try:
        assert dutyfree.accelerate(name)[name].path == "direct"
        dutyfree.reset_stats()
        assert overload(x).tolist() == [[7.0, 7.0]]
        assert torch.ops.quantization._FloatToBfloat16Quantized(x).tolist() == [[7.0, 7.0]]
        assert dutyfree.stats()[name].calls["direct"] == 2
    finally:
        library._destroy()
    assert overload(x).tolist() == expected
    assert dutyfree.explain(overload, x).path == "boxed"


def test_an_autocast_rule_that_is_registered_later() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(twins, ones, None).value["dtype"] is torch.float32
        twins.each(lambda side: torch.library.register_autocast(side.qualname, "cpu", torch.bfloat16))
        assert check(twins, ones, None).value["dtype"] is torch.bfloat16
    assert check(twins, ones, None).value["dtype"] is torch.float32
