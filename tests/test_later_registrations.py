"""Whatever is registered after the first call takes effect at the next one."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from parity import Pair, Side, call, check, pair_of


def ones(x: Tensor) -> Tensor:
    return torch.ones(1)


def twos(x: Tensor) -> Tensor:
    return torch.full((1,), 2.0)


def threes(x: Tensor) -> Tensor:
    return torch.full((1,), 3.0)


def warm(pair: Pair) -> None:
    """Calls both operators, so that anything that could be remembered is."""
    for _ in range(3):
        assert check(pair, lambda: call(torch.ones(2))).value["values"] == "[1.0]"


def gives(pair: Pair, values: str, reason: str | tuple[str, ...] = "") -> None:
    assert check(pair, lambda: call(torch.ones(2)), reason=reason).value["values"] == values


@pytest.fixture
def pair() -> Pair:
    pair = pair_of(ones)
    warm(pair)
    return pair


def test_a_kernel_for_the_device(pair: Pair) -> None:
    pair.each(lambda op: op.register_kernel("cpu", twos))
    gives(pair, "[2.0]")


def test_a_second_kernel_for_the_same_device(pair: Pair) -> None:
    pair.each(lambda op: op.register_kernel("cpu", twos))
    gives(pair, "[2.0]")
    pair.each(lambda op: op.register_kernel("cpu", threes))
    gives(pair, "[3.0]")


def test_a_second_default_kernel(pair: Pair) -> None:
    pair.each(lambda op: op.register_kernel(None, twos))
    gives(pair, "[2.0]")


def test_a_kernel_for_several_devices_or_another_device(pair: Pair) -> None:
    pair.each(lambda op: op.register_kernel("cuda", threes))
    gives(pair, "[1.0]")
    pair.each(lambda op: op.register_kernel(["cpu", "cuda"], twos))
    gives(pair, "[2.0]")


def test_kernels_registered_through_torch_library(pair: Pair) -> None:
    for side in pair.sides():
        torch.library.register_kernel(side.qualname, "cpu", twos)
    gives(pair, "[2.0]")


def test_a_kernel_that_is_disabled_for_a_while(pair: Pair) -> None:
    pair.each(lambda op: op.register_kernel("cpu", twos))
    gives(pair, "[2.0]")
    with pair.reference.op.set_kernel_enabled("cpu", False), pair.fast.op.set_kernel_enabled("cpu", False):
        gives(pair, "[1.0]")
        with pair.reference.op.set_kernel_enabled("cpu", True), pair.fast.op.set_kernel_enabled("cpu", True):
            gives(pair, "[2.0]")
        gives(pair, "[1.0]")
    gives(pair, "[2.0]")


def test_a_kernel_registered_while_it_is_disabled(pair: Pair) -> None:
    with pair.reference.op.set_kernel_enabled("cpu", False), pair.fast.op.set_kernel_enabled("cpu", False):
        pair.each(lambda op: op.register_kernel("cpu", twos))
        gives(pair, "[1.0]")
    gives(pair, "[2.0]")


def test_a_gradient_formula(pair: Pair) -> None:
    outcome = check(pair, lambda: call(torch.ones(2, requires_grad=True)), reason="requires-grad")
    assert outcome.value["requires grad"] is True
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: grad.expand(2) * 5))
    for side in pair.sides():
        x = torch.ones(2, requires_grad=True)
        side.op(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [5.0, 5.0]
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: grad.expand(2) * 6))
    for side in pair.sides():
        x = torch.ones(2, requires_grad=True)
        side.overload(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [6.0, 6.0]


def test_a_vmap_rule(pair: Pair) -> None:
    def batched(side: Side) -> Any:
        try:
            return torch.vmap(side.op)(torch.ones(4, 2)).tolist()
        except Exception as error:
            return type(error).__name__, side.text(error)

    assert batched(pair.reference) == batched(pair.fast)
    pair.each(lambda op: op.register_vmap(lambda info, in_dims, x: (torch.full((4, 1), 9.0), 0)))
    assert batched(pair.reference) == batched(pair.fast) == [[9.0]] * 4
    gives(pair, "[1.0]")


def test_an_autocast_rule(pair: Pair) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(pair, lambda: call(torch.ones(2))).received[0]["arguments"]["args"][0]["dtype"] is torch.float32
        pair.each(lambda op: op.register_autocast("cpu", torch.bfloat16))
        outcome = check(pair, lambda: call(torch.ones(2)), reason="kernel")
    assert outcome.received[0]["arguments"]["args"][0]["dtype"] is torch.bfloat16


def test_a_fake(pair: Pair) -> None:
    def faked(side: Side) -> Any:
        with FakeTensorMode() as mode:
            try:
                return tuple(side.op(mode.from_tensor(torch.ones(2))).shape)
            except Exception as error:
                return type(error).__name__, side.text(error)

    assert faked(pair.reference) == faked(pair.fast)
    pair.each(lambda op: op.register_fake(lambda x: x.new_empty(5)))
    assert faked(pair.reference) == faked(pair.fast) == (5,)
    pair.each(lambda op: op.register_fake(lambda x: x.new_empty(6)))
    assert faked(pair.reference) == faked(pair.fast) == (6,)
    gives(pair, "[1.0]")


def test_a_torch_dispatch_rule_for_a_mode(pair: Pair) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def under_mode(side: Side) -> Any:
        with Mode():
            return side.op(torch.ones(2)).tolist()

    assert under_mode(pair.reference) == under_mode(pair.fast) == [1.0]
    pair.each(lambda op: op.register_torch_dispatch(Mode, lambda mode, func, types, args, kwargs: torch.zeros(1)))
    assert under_mode(pair.reference) == under_mode(pair.fast) == [0.0]
    pair.each(lambda op: op.register_torch_dispatch(Mode, lambda mode, func, types, args, kwargs: torch.ones(1) * 4))
    assert under_mode(pair.reference) == under_mode(pair.fast) == [4.0]
    gives(pair, "[1.0]")


def test_a_torch_dispatch_rule_for_a_subclass(pair: Pair) -> None:
    class Wrapper(Tensor):
        @staticmethod
        def __new__(cls, inner: Tensor) -> "Wrapper":
            return Tensor._make_wrapper_subclass(cls, inner.shape)  # type: ignore[no-any-return]

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.full((1,), 7.0)

    def on_subclass(side: Side) -> Any:
        return side.op(Wrapper(torch.ones(2))).tolist()

    assert on_subclass(pair.reference) == on_subclass(pair.fast) == [7.0]
    pair.each(lambda op: op.register_torch_dispatch(Wrapper, lambda cls, func, types, args, kwargs: torch.zeros(1)))
    assert on_subclass(pair.reference) == on_subclass(pair.fast) == [0.0]


KEYS = ["CPU", "AutogradCPU", "Autograd", "ADInplaceOrView", "CompositeExplicitAutograd", "BackendSelect"]


@pytest.mark.parametrize("key", KEYS)
def test_another_librarys_impl_and_its_removal(pair: Pair, key: str) -> None:
    libraries = []
    for side in pair.sides():
        library = torch.library.Library(side.namespace, "IMPL")
        library.impl(side.name, twos, key, allow_override=True)
        libraries.append(library)
    reached = outcome_values(pair)
    gives(pair, reached, ("", "kernel") if reached == "[1.0]" else "kernel")
    for library in libraries:
        library._destroy()
    gives(pair, "[1.0]")


def outcome_values(pair: Pair) -> str:
    return str(pair.reference.op(torch.ones(2)).tolist())


@pytest.mark.parametrize("key", ["CPU", "AutogradCPU"])
def test_another_librarys_impl_wins_for_an_input_that_requires_grad_too(pair: Pair, key: str) -> None:
    libraries = []
    for side in pair.sides():
        library = torch.library.Library(side.namespace, "IMPL")
        library.impl(side.name, twos, key)
        libraries.append(library)
    reason = ("kernel", "requires-grad")
    assert check(pair, lambda: call(torch.ones(2, requires_grad=True)), reason=reason).value["values"] == "[2.0]"
    for library in libraries:
        library._destroy()
    assert check(pair, lambda: call(torch.ones(2, requires_grad=True)), reason=reason).value["values"] == "[1.0]"


def test_two_overrides_on_top_of_each_other_and_their_removal_in_any_order(pair: Pair) -> None:
    stacks = []
    for side in pair.sides():
        first = torch.library.Library(side.namespace, "IMPL")
        first.impl(side.name, twos, "CPU")
        second = torch.library.Library(side.namespace, "IMPL")
        second.impl(side.name, threes, "CPU", allow_override=True)
        stacks.append((first, second))
    gives(pair, "[3.0]", "kernel")
    for first, _ in stacks:
        first._destroy()
    gives(pair, "[3.0]", "kernel")
    for _, second in stacks:
        second._destroy()
    gives(pair, "[1.0]")


def test_an_override_that_calls_the_operator_below_itself(pair: Pair) -> None:
    libraries = []
    for side in pair.sides():

        def override(keyset: Any, x: Tensor, side: Side = side) -> Any:
            below = keyset & torch._C._after_autograd_keyset
            return side.overload.redispatch(below, x) + 10

        library = torch.library.Library(side.namespace, "IMPL")
        library.impl(side.name, override, "AutogradCPU", with_keyset=True)
        libraries.append(library)
    gives(pair, "[11.0]", "kernel")
    for library in libraries:
        library._destroy()
    gives(pair, "[1.0]")


def test_a_kernel_registered_for_the_device_after_an_override_was_removed(pair: Pair) -> None:
    for side in pair.sides():
        library = torch.library.Library(side.namespace, "IMPL")
        library.impl(side.name, twos, "CPU")
        library._destroy()
    gives(pair, "[1.0]")
    pair.each(lambda op: op.register_kernel("cpu", threes))
    gives(pair, "[3.0]")


def test_a_fallthrough_changes_which_kernel_runs(pair: Pair) -> None:
    libraries = []
    for side in pair.sides():
        library = torch.library.Library(side.namespace, "IMPL")
        library.impl(side.name, torch.library.fallthrough_kernel, "AutogradCPU")
        libraries.append(library)
    outcome = check(pair, lambda: call(torch.ones(2)))
    assert outcome.value["values"] == "[1.0]"
    check(pair, lambda: call(torch.ones(2, requires_grad=True)))
    for library in libraries:
        library._destroy()
    gives(pair, "[1.0]")


def test_a_decomposition_for_composite_implicit_is_treated_as_in_pytorch(pair: Pair) -> None:
    for side in pair.sides():
        side.overload.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(lambda x: torch.full((1,), 8.0))
    gives(pair, outcome_values(pair))


def ones_like_x(x: Tensor) -> Tensor:
    return x.clone()


def test_a_disabled_kernel_of_several_devices_is_told_apart_as_in_pytorch() -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    pair = pair_of(ones_like_x, device_types=["cuda", "cpu"])
    seen = []
    for side in pair.sides():
        side.op.register_kernel(["cpu", "xpu"], doubled)
        for device in ("cpu", "xpu", "cuda"):
            with side.op.set_kernel_enabled(device, enabled=False):
                seen.append((device, side.op(torch.ones(1)).item()))
    assert seen[:3] == seen[3:]


def test_an_optional_list_of_tensors_does_not_choose_the_kernel() -> None:
    def default(ys: Any = None) -> Tensor:
        return torch.ones(1)

    pair = pair_of(default, record=False, schema="(Tensor[]? ys=None) -> Tensor")
    for side in pair.sides():
        side.op.register_kernel("cpu")(lambda ys=None: torch.full((1,), 2.0))
    check(pair, lambda: call([torch.ones(2)]))


def test_threads_may_register_kernels_of_one_operator() -> None:
    op = pair_of(ones_like_x).fast.op
    failures: list[Exception] = []

    def register() -> None:
        try:
            for _ in range(100):
                op.register_kernel("cpu")(ones_like_x)
                op(torch.ones(1))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
