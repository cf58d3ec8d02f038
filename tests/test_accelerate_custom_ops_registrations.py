"""Accelerated operators of torch.library.custom_op: devices, kernels and formulas from before and later, restore."""

import inspect
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import Library

import dutyfree
from accelerated import (
    AUTOGRAD,
    DIRECT,
    Formula,
    Twins,
    both,
    check,
    custom_twins,
    doubled,
    gives,
    ones,
    ones_with_grad,
    product,
    refused,
    registered_twice,
    restored,
    spellings_of,
    took,
    tripled,
)
from dutyfree.check.outcome import Side, call, outcome_of

__all__ = ["product", "restored"]  # fixtures, the last for every test here


# Devices and later registrations


def test_device_types() -> None:
    for devices in ("cpu", ["cpu", "cuda"], "cuda"):
        twins = custom_twins(doubled, device_types=devices)
        check(twins, ones, None)
        check(twins, ones_with_grad, None)
        twins.each(lambda side: side.op.register_kernel("cpu", tripled))
        # Where it was registered for several devices, PyTorch goes on with the function of the last.
        gives(twins, [2.0, 2.0] if devices == ["cpu", "cuda"] else [3.0, 3.0])

    def sized(n: int, device: torch.device) -> Tensor:
        return torch.ones(n)

    for devices in (None, "cpu"):
        twins = custom_twins(sized, device_types=devices)
        check(twins, lambda: call(3), None)
        check(twins, lambda: call(3, "cpu"), None)
        check(twins, lambda: call(3, device=torch.device("meta")), None)


def test_a_later_kernel_for_several_devices_belongs_to_the_last() -> None:
    twins = custom_twins(doubled)
    twins.each(lambda side: side.op.register_kernel(["cpu", "cuda"], tripled))
    gives(twins, [3.0, 3.0])
    twins.each(lambda side: side.op.register_kernel("cpu", doubled))
    gives(twins, [3.0, 3.0])


def test_results_of_a_later_kernel_for_several_devices_are_checked() -> None:
    twins = custom_twins(doubled)
    twins.each(lambda side: side.op.register_kernel(["cpu", "cuda"], lambda x: x))
    assert "may not alias any inputs" in refused(check(twins, ones))[1]


def test_kernels_that_are_registered_later_and_disabled() -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])
    twins.each(lambda side: side.op.register_kernel("cpu", tripled))
    gives(twins, [3.0, 3.0])
    with (
        twins.reference.op.set_kernel_enabled("cpu", False),
        twins.accelerated.op.set_kernel_enabled("cpu", False),
    ):
        gives(twins, [2.0, 2.0])
    gives(twins, [3.0, 3.0])
    twins.each(lambda side: torch.library.register_kernel(side.qualname, "cpu", lambda x: x * 4))
    gives(twins, [4.0, 4.0])


@pytest.mark.parametrize("kernel_first", [True, False])
def test_kernels_and_formulas_from_before_the_operator_was_accelerated(kernel_first: bool) -> None:
    def register(namespace: str) -> Any:
        op = torch.library.custom_op(f"{namespace}::op", doubled_annotated, mutates_args=())
        if kernel_first:
            op.register_kernel("cpu", tripled)
        op.register_autograd(lambda ctx, gradient: gradient * 5)
        op.register_fake(lambda x: torch.empty_like(x))
        return op

    twins = registered_twice(register)
    gives(twins, [3.0, 3.0] if kernel_first else [2.0, 2.0])
    check(twins, ones_with_grad, AUTOGRAD)

    def gradient(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        side.op(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    assert both(twins, gradient) == [5.0, 5.0]


def doubled_annotated(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    "key", ["CPU", "AutogradCPU", "Autograd", "ADInplaceOrView", "CompositeExplicitAutograd", "BackendSelect"]
)
@pytest.mark.parametrize("with_keyset", [False, True])
def test_another_librarys_impl_and_its_removal(key: str, with_keyset: bool) -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])
    function = (lambda keyset, x: torch.full((1,), 3.0)) if with_keyset else (lambda x: torch.full((1,), 3.0))
    remove = twins.override(function, key, allow_override=True, with_keyset=with_keyset)
    check(twins, ones, None)
    check(twins, ones_with_grad, None)
    remove()
    gives(twins, [2.0, 2.0])
    check(twins, ones_with_grad, AUTOGRAD)


def test_an_override_does_not_get_the_checks_of_custom_op() -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])
    remove = twins.override(lambda x: x, "CPU")
    assert check(twins, ones, None).value["is input"] == 0
    remove()
    gives(twins, [2.0, 2.0])


def test_a_formula_that_is_registered_later() -> None:
    twins = custom_twins(doubled)

    def gradient(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        side.packet(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    error, text = both(twins, gradient)
    assert error == "RuntimeError"
    assert "no autograd formula was registered" in text
    for factor in (5.0, 6.0):
        twins.each(lambda side, factor=factor: side.op.register_autograd(lambda ctx, g, factor=factor: g * factor))
        assert both(twins, gradient) == [factor] * 2


def test_the_name_is_defined_again() -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])
    old = twins.accelerated.op, twins.accelerated.packet, twins.accelerated.overload

    def again(side: Side) -> None:
        side.op = torch.library.custom_op(side.qualname, tripled, mutates_args=())

    twins.each(again)

    def values(side: Side) -> Any:
        return [side.spelled(spelling)(torch.ones(2)).tolist() for spelling in spellings_of(side)]

    assert both(twins, values) == [[3.0, 3.0]] * 3
    with took(twins.accelerated, DIRECT):
        assert both(twins, values) == [[3.0, 3.0]] * 3
    # PyTorch itself may read freed memory here (docs/differences.md), so it is no reference.
    assert [op(torch.ones(2)).tolist() for op in old] == [[3.0, 3.0]] * 3
    dutyfree.accelerate(twins.accelerated.qualname)
    gives(twins, [3.0, 3.0])


def test_the_name_is_defined_again_with_another_schema() -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])

    def scaled(x: Tensor, f: float) -> Tensor:
        return x * f

    def again(side: Side) -> None:
        side.op = torch.library.custom_op(side.qualname, scaled, mutates_args=())

    twins.each(again)
    for _ in range(2):
        both(twins, lambda side: [op(torch.ones(2), 3).tolist() for op in (side.op, side.packet, side.overload)])
        both(twins, lambda side: side.op(torch.ones(2)))


# Exceptions, threads, restoring


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, RecursionError, StopIteration])
def test_an_exception_of_the_body_reaches_the_caller_as_it_is(error: type[BaseException]) -> None:
    raised = error("no")

    def fails(x: Tensor) -> Tensor:
        raise raised

    twins = custom_twins(fails, record=False)
    for spelling in ("object", "packet", "overload"):
        for arguments in (ones(), ones_with_grad()):
            for side in twins.sides():
                with pytest.raises(error) as caught:
                    side.spelled(spelling)(*arguments.args)
                assert caught.value is raised
                assert caught.traceback[-1].name == "fails"


def test_a_body_may_call_its_own_operator() -> None:
    def register(namespace: str) -> Any:
        def recursive(x: Tensor, n: int) -> Tensor:
            return x.clone() if n == 0 else getattr(torch.ops, namespace).op(x, n - 1) + 1

        return torch.library.custom_op(f"{namespace}::op", recursive, mutates_args=())

    twins = registered_twice(register)
    assert check(twins, lambda: call(torch.zeros(1), 30)).value["values"] == "[30.0]"
    check(twins, lambda: call(torch.zeros(1, requires_grad=True), 30), AUTOGRAD)


def test_threads_call_while_kernels_are_registered_and_the_operator_restored() -> None:
    twins = custom_twins(doubled, record=False)
    side = twins.accelerated
    side.op.register_autograd(lambda ctx, gradient: gradient * 2)
    failures: list[object] = []
    done = threading.Event()

    def calls() -> None:
        x, y = torch.ones(2), torch.ones(2, requires_grad=True)
        try:
            while not done.is_set():
                for spelling in ("object", "packet", "overload"):
                    for given in (x, y):
                        if side.spelled(spelling)(given)[0].item() not in (2.0, 3.0):
                            failures.append(spelling)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(60):
            side.op.register_kernel("cpu", (doubled, tripled)[number % 2])
            dutyfree.restore(side.op)
            dutyfree.accelerate(side.op)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_restore_gives_back_the_same_objects_and_pytorchs_behaviour() -> None:
    twins = custom_twins(doubled)
    side = twins.reference
    holders = (side.packet, side.overload)
    pytorch = [holder._op for holder in holders]
    called = type(side.op).__call__, type(side.packet).__call__, type(side.overload).__call__
    expected = [outcome_of(side, spelling, ones()) for spelling in spellings_of(side)]
    dutyfree.accelerate(side.op)
    assert all(holder._op is not before for holder, before in zip(holders, pytorch, strict=True))
    assert (side.packet, side.overload) == holders
    with took(side, DIRECT):
        assert [outcome_of(side, spelling, ones()) for spelling in spellings_of(side)] == expected
    dutyfree.restore(side.op)
    assert all(holder._op is before for holder, before in zip(holders, pytorch, strict=True))
    assert side.qualname not in dutyfree.stats()
    assert dutyfree.explain(side.op, torch.ones(2)).path == "pytorch"
    dutyfree.restore()
    assert (type(side.op).__call__, type(side.packet).__call__, type(side.overload).__call__) == called
    assert [outcome_of(side, spelling, ones()) for spelling in spellings_of(side)] == expected
    assert side.qualname not in dutyfree.stats()


def test_restoring_one_operator_leaves_the_others() -> None:
    first, second = custom_twins(doubled), custom_twins(doubled)
    dutyfree.restore(first.accelerated.op)
    assert dutyfree.explain(first.accelerated.op, torch.ones(2)).path == "pytorch"
    gives(second, [2.0, 2.0])
    dutyfree.accelerate(first.accelerated.packet)
    gives(first, [2.0, 2.0])


def test_gradients_that_cross_a_restore(product: tuple[Twins, Formula]) -> None:
    twins, _ = product
    side = twins.accelerated
    x = torch.full((2,), 3.0, requires_grad=True)
    before = side.op(x, torch.ones(2)).sum()
    dutyfree.restore()
    after = side.op(x, torch.ones(2)).sum()
    dutyfree.accelerate(side.op)
    (before + after + side.op(x, torch.ones(2)).sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0]


def test_fast_operators_are_left_alone_by_accelerate_and_restore() -> None:
    op = dutyfree.fast_custom_op("accelerated_and_fast::op", doubled, mutates_args=())
    callable_ = op._opoverload._op
    dutyfree.accelerate(op)
    assert op._opoverload._op is callable_
    dutyfree.restore(op)
    dutyfree.restore()
    assert op._opoverload._op is callable_
    assert dutyfree.explain(op, torch.ones(2)).path == "direct"
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]


def test_descriptions_of_the_object_stay() -> None:
    twins = custom_twins(doubled, record=False)
    for describe in (repr, inspect.signature, lambda op: op.__doc__, lambda op: getattr(op, "__name__", None)):
        for spelling in ("object", "packet", "overload"):
            both(twins, lambda side, d=describe, s=spelling: side.text(d(side.spelled(s))))


def test_an_operator_whose_library_is_overridden_before_it_is_accelerated() -> None:
    def register(namespace: str) -> Any:
        op = torch.library.custom_op(f"{namespace}::op", doubled_annotated, mutates_args=())
        libraries.append(Library(namespace, "IMPL"))
        libraries[-1].impl("op", tripled, "CPU")
        return op

    libraries: list[Library] = []
    twins = registered_twice(register)
    gives(twins, [3.0, 3.0], None)
    check(twins, ones_with_grad, None)
    for library in libraries:
        library._destroy()
    gives(twins, [2.0, 2.0], None)
    check(twins, ones_with_grad, AUTOGRAD)
