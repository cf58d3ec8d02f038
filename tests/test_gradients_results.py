"""Results of recorded calls, operators that mutate, and that nothing is left behind."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradients_alike import alike, gradient_of, needing_grad, product, refused, with_factors, with_formula
from parity import Side, pair_of

# Results


def test_numbers_and_integer_tensors_among_the_results_have_no_gradient() -> None:
    def mixed(x: Tensor) -> tuple[Tensor, int, float, bool, Tensor]:
        return x * 2, 3, 4, True, x > 1  # type: ignore[return-value]

    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append((type(output).__name__, [type(value).__name__ for value in output]))

    def backward(ctx: Any, *grads: Any) -> Any:
        seen.append([None if grad is None else grad.tolist() for grad in grads])
        return grads[0]

    def run(side: Side) -> Any:
        seen.clear()
        return gradient_of(side), seen

    alike(with_formula(mixed, backward, setup_context), run)


def one_result(x: Tensor, kind: str) -> Tensor:
    values = {"none": None, "number": 3, "tuple": (x * 1,), "list": [x * 1], "text": "a", "same": x, "view": x[:]}
    return values[kind]  # type: ignore[return-value]


def two_results(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    y = x * 1
    values = {"none": None, "one": y, "single": (y,), "list": [y, x * 2], "same": (x, y), "twice": (y, y)}
    values |= {"views": (y, y[:1]), "wrong": (y, 3), "missing": (y, None)}
    return values[kind]  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["none", "number", "tuple", "list", "text", "same", "view"])
def test_one_result_of_a_wrong_kind_is_refused_alike_while_recording(kind: str) -> None:
    wrong_results_act_alike(one_result, kind)


@pytest.mark.parametrize("kind", ["none", "one", "single", "list", "same", "twice", "views", "wrong", "missing"])
def test_two_results_of_a_wrong_kind_are_refused_alike_while_recording(kind: str) -> None:
    wrong_results_act_alike(two_results, kind)


def wrong_results_act_alike(body: Callable[..., Any], kind: str) -> None:
    for setup in (None, lambda ctx, inputs, output: None):
        pair = with_formula(body, lambda ctx, *grads: (grads[0], None), setup)
        alike(pair, lambda side: side.op(needing_grad(), kind), may_raise=True)
        alike(pair, lambda side: side.op(needing_grad() * 1, kind), may_raise=True)


def test_operators_that_mutate_and_return_nothing_record_nothing() -> None:
    def add_(x: Tensor, y: Tensor) -> None:
        x.add_(y)

    def run(side: Side, x: Tensor, y: Tensor) -> Any:
        version = x._version
        return side.op(x, y), x, x._version - version, y.grad

    for pair in (
        pair_of(add_, mutates_args={"x"}),
        pair_of(add_, mutates_args={"x"}, record=False),
    ):
        alike(pair, lambda side: run(side, torch.ones(2), needing_grad()))
        alike(pair, lambda side: run(side, needing_grad(), torch.ones(2)))
        alike(pair, lambda side: run(side, needing_grad() * 1, needing_grad() * 1))
        alike(pair, lambda side: run(side, needing_grad().detach(), needing_grad()[:]))


def test_operators_that_mutate_and_return_something_record_alike() -> None:
    def add_(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return y * 2

    pair = pair_of(add_, mutates_args={"x"})
    refused(pair, lambda side: side.op.register_autograd(lambda ctx, grad: (None, grad)), paths=set())

    def run(side: Side, x: Tensor) -> Any:
        y = needing_grad()
        before = x * 3
        result = side.op(x, y)
        try:
            (result.sum() + before.sum()).backward()
        except RuntimeError as error:
            return side.text(error), x, x._version
        return result, x, y.grad, x._version

    alike(pair, lambda side: run(side, torch.ones(2)))
    alike(pair, lambda side: run(side, needing_grad()))


def test_inplace_and_out_operators_record_or_refuse_alike() -> None:
    def add_(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y)

    def add_out(x: Tensor, *, out: Tensor) -> Tensor:
        return torch.add(x, 1, out=out)

    in_place = pair_of(add_, mutates_args={"x"}, tags=torch.Tag.inplace, record=False)
    for target in (lambda: torch.ones(2), needing_grad, lambda: needing_grad() * 1, lambda: torch.ones(4)[::2]):

        def run(side: Side, target: Any = target) -> Any:
            x, y = target(), needing_grad()
            result = side.op(x, y)
            found = [result, x, result is x, x._version, result._version, result._is_view(), x._is_view()]
            try:
                result.sum().backward()
            except RuntimeError as error:
                found.append(side.text(error))
            return found

        alike(in_place, run)
    out = pair_of(add_out, mutates_args={"out"}, tags=torch.Tag.out, record=False)
    for x, into in ((needing_grad(), torch.ones(2)), (torch.ones(2), needing_grad())):
        refused(out, lambda side, x=x, into=into: side.op(x, out=into), paths={"pytorch"})


def test_a_result_that_the_body_keeps_is_the_one_that_the_caller_gets() -> None:
    kept: list[Tensor] = []

    def body(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return kept[-1]

    def run(side: Side) -> Any:
        result = side.op(needing_grad())
        return result is kept[-1], kept[-1].grad_fn is result.grad_fn, kept[-1]

    alike(with_formula(body, lambda ctx, grad: grad), run)


def test_a_result_that_was_written_to_is_refused_if_it_was_saved() -> None:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    def run(side: Side, body_clones: bool) -> Any:
        result = side.op(needing_grad(), body_clones)
        version = result._version
        result.mul_(2)
        try:
            result.sum().backward()
        except RuntimeError as error:
            return version, result, side.text(error)

    def body(x: Tensor, clones: bool) -> Tensor:
        return x.clone() if clones else x * 2

    pair = with_formula(body, lambda ctx, grad: (grad * ctx.saved_tensors[0], None), setup_context)
    for clones in (True, False):
        assert "GeneratedBackwardFor" in str(alike(pair, lambda side, clones=clones: run(side, clones)))


# What stays behind


def test_nothing_stays_alive_after_backward() -> None:
    def run(side: Side) -> Any:
        x, y = needing_grad(), needing_grad()
        result = side.op(x, y)
        node = result.grad_fn
        node.canary = canary = type("Canary", (), {})()
        references = [weakref.ref(value) for value in (x, y, result, canary)]
        result.sum().backward()
        del x, y, result, node, canary
        gc.collect()
        return [reference() is None for reference in references]

    assert "False" not in str(alike(with_factors(), run))
    assert "False" not in str(alike(pair_of(product, record=False), lambda side: dies_without_backward(side)))


def dies_without_backward(side: Side) -> Any:
    x = needing_grad()
    result = side.op(x, torch.ones(2))
    references = [weakref.ref(value) for value in (x, result)]
    del x, result
    gc.collect()
    return [reference() is None for reference in references]


def test_many_calls_leave_no_objects_behind() -> None:
    op = with_factors().fast.op
    x, y = needing_grad(), needing_grad()

    def calls(count: int) -> int:
        for _ in range(count):
            torch.autograd.grad(op(x, y, 3.0).sum(), (x, y))
        gc.collect()
        return len(gc.get_objects())

    before = calls(100)
    assert calls(10_000) - before < 20


def test_backward_functions_that_raise_leave_no_objects_behind() -> None:
    op = with_formula(product, lambda ctx, grad: 1 / 0).fast.op
    x, y = needing_grad(), needing_grad()

    def calls(count: int) -> int:
        for _ in range(count):
            with pytest.raises(ZeroDivisionError):
                op(x, y).sum().backward()
        gc.collect()
        return len(gc.get_objects())

    before = calls(10)
    assert calls(500) - before < 20
