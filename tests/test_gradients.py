"""Calls that record a gradient: the node, its context, and what setup_context sees."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradients_alike import (
    alike,
    done,
    gradient_of,
    needing_grad,
    product,
    refused,
    three,
    through_factors,
    to_first,
    with_factors,
    with_formula,
)
from parity import Side, call, pair_of

# The node


def test_the_nodes_names_and_neighbours_are_custom_ops() -> None:
    def node(side: Side) -> Any:
        x, y = needing_grad(), needing_grad() * 2
        result = side.op(x, y)
        found = result.grad_fn
        kind = type(found)
        return {
            "names": (found.name(), kind.__name__, kind.__qualname__, kind.__module__, repr(found)),
            "bases": [base.__name__ for base in kind.__mro__[1:]],
            "next": [(type(n).__name__, index) for n, index in found.next_functions],
            "leaf": found.next_functions[0][0].variable is x,
            "metadata": found.metadata,
            "saved": found.saved_tensors,
            "raw": len(found._raw_saved_tensors),
            "same": found.saved_tensors[0] is x,
            "needs": found.needs_input_grad,
            "other": (found.dirty_tensors, found.non_differentiable, found.to_save, found.requires_grad),
            "state": sorted(vars(found)),
            "public": [name for name in dir(found) if not name.startswith("_")],
        }

    alike(with_factors(), node)
    alike(pair_of(product), lambda side: vars(side.op(needing_grad(), torch.ones(2)).grad_fn))


def test_sequence_numbers_grow_by_the_same_steps() -> None:
    def steps(side: Side) -> Any:
        x = needing_grad()
        numbers = [(x * 1).grad_fn._sequence_nr()]
        for _ in range(3):
            x = side.op(x, torch.ones(2))
            numbers.append(x.grad_fn._sequence_nr())
        numbers.append((x * 1).grad_fn._sequence_nr())
        return [number - numbers[0] for number in numbers]

    alike(with_factors(), steps)


def test_the_context_in_setup_context_is_the_node_of_the_result() -> None:
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append((ctx, ctx.needs_input_grad, type(inputs), inputs, output.requires_grad, torch.is_grad_enabled()))
        ctx.note = "kept"

    def backward(ctx: Any, grad: Tensor) -> Any:
        seen.append((ctx, ctx.needs_input_grad, ctx.note, torch.is_grad_enabled(), grad.tolist()))
        return grad, None

    def run(side: Side) -> Any:
        seen.clear()
        x, y = needing_grad(), torch.ones(2)
        result = side.op(x, y)
        node = result.grad_fn
        result.sum().backward()
        assert seen[0][0] is seen[1][0] is node
        return [entry[1:] for entry in seen], seen[0][3][0] is x, seen[0][3][1] is y, node.needs_input_grad, node.note

    alike(with_formula(product, backward, setup_context), run)


@pytest.mark.parametrize(
    "scale", [(), (2.0,), (2,), (3.0,), (True,)], ids=["omitted", "equal", "an equal int", "other", "a bool"]
)
def test_needs_input_grad_has_an_entry_for_each_input_that_the_dispatcher_passes(scale: Any) -> None:
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append((ctx.needs_input_grad, inputs[2:]))

    def backward(ctx: Any, grad: Tensor) -> Any:
        seen.append(ctx.needs_input_grad)
        return to_first(ctx, grad)

    def run(side: Side) -> Any:
        seen.clear()
        side.op(torch.ones(2), needing_grad(), *scale).sum().backward()
        return seen

    paths = {"pytorch" if scale == (True,) else "autograd"}
    alike(with_formula(product, backward, setup_context), run, paths=paths)


def test_needs_input_grad_is_the_functions_own_again_after_backward_raised() -> None:
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.needs_input_grad = "changed"
        raise KeyError("backward")

    def run(side: Side) -> Any:
        result = side.op(needing_grad(), torch.ones(2), 3.0)
        with pytest.raises(KeyError):
            result.sum().backward()
        return result.grad_fn.needs_input_grad

    alike(with_formula(product, backward), run)


def test_a_needs_input_grad_that_setup_context_sets_is_what_backward_sees() -> None:
    seen: list[Any] = []

    for value in ((True, "x", False), [1, 2, 3], ()):

        def setup_context(ctx: Any, inputs: Any, output: Any, value: Any = value) -> None:
            ctx.needs_input_grad = value

        def backward(ctx: Any, grad: Tensor) -> Any:
            seen.append(ctx.needs_input_grad)
            return grad, None, None

        def run(side: Side) -> Any:
            seen.clear()
            result = side.op(needing_grad(), torch.ones(2), 3.0)
            result.sum().backward()
            return seen, result.grad_fn.needs_input_grad

        alike(with_formula(product, backward, setup_context), run)


def test_saved_values_may_be_inputs_outputs_intermediates_and_none() -> None:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], None, output, inputs[0] + 1)

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, nothing, output, more = ctx.saved_tensors
        assert nothing is None
        return grad * x * output * more, None

    def run(side: Side) -> Any:
        x = needing_grad()
        result = side.op(x, torch.ones(2))
        saved = result.grad_fn.saved_tensors
        grads = torch.autograd.grad(result.sum(), x, create_graph=True)
        return saved, saved[0] is x, saved[2] is result, grads, torch.autograd.grad(grads[0].sum(), x)

    alike(with_formula(product, backward, setup_context), run)


def test_what_may_not_be_saved_is_refused_alike() -> None:
    for value in (3, [torch.ones(1)], "text"):

        def setup_context(ctx: Any, inputs: Any, output: Any, value: Any = value) -> None:
            ctx.save_for_backward(value)

        pair = with_formula(product, through_factors, setup_context)
        refused(pair, lambda side: side.op(needing_grad(), torch.ones(2)))


@pytest.mark.parametrize("materialize", [True, False])
def test_an_unused_output_has_zeros_or_none_for_gradient(materialize: bool) -> None:
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(materialize)

    def backward(ctx: Any, *grads: Any) -> Any:
        seen.append(grads)
        return sum(grad for grad in grads if grad is not None and grad.is_floating_point()), None

    def run(side: Side) -> Any:
        found = []
        for used in (0, 2):
            seen.clear()
            x = needing_grad()
            side.op(x, 3)[used].sum().backward()
            found.append((list(seen), x.grad))
        return found

    alike(with_formula(three, backward, setup_context), run)


def test_outputs_may_be_marked_as_not_differentiable() -> None:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[2])

    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2 + grads[2], None

    def run(side: Side) -> Any:
        x = needing_grad()
        results = side.op(x, 3)
        results[0].sum().backward()
        return results, x.grad, [result.grad_fn is results[0].grad_fn for result in results]

    alike(with_formula(three, backward, setup_context), run)


def test_marks_that_make_no_sense_are_treated_alike() -> None:
    def marks(kind: str, which: str) -> Callable[..., None]:
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            value = {"input": inputs[0], "output": output, "stranger": torch.ones(2), "number": 3, "none": None}[which]
            getattr(ctx, kind)(value)

        return setup_context

    for kind in ("mark_dirty", "mark_non_differentiable", "mark_shared_storage", "set_materialize_grads"):
        for which in ("input", "output", "stranger", "number", "none"):
            pair = with_formula(product, through_factors, marks(kind, which))
            alike(pair, lambda side: side.op(needing_grad() * 1, torch.ones(2)), may_raise=True)
            alike(pair, lambda side: side.op(needing_grad(), torch.ones(2)), may_raise=True)


def test_what_setup_context_returns_and_saves_in_the_context_changes_nothing_else() -> None:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.output = output  # a leak in PyTorch, and seen in backward
        ctx._pt_metadata = "mine"
        return "ignored"

    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * len(ctx._pt_metadata) + ctx.output.detach(), None

    alike(with_formula(product, backward, setup_context), lambda side: gradient_of(side, torch.ones(2)))


# setup_context's inputs


def test_setup_context_sees_every_default_as_the_schema_has_it() -> None:
    def many(
        x: Tensor,
        other: Tensor | None = None,
        count: int = 2,
        scale: float = 2,
        flag: bool = True,
        text: str = "a",
        dtype: torch.dtype = torch.float32,
        device: torch.device = torch.device("cpu"),  # noqa: B008
        sizes: list[int] | None = None,
        *,
        key: int = 3,
        key_dtype: torch.dtype | None = torch.float64,
        key_scale: float | None = None,
        layout: str = "b",
    ) -> Tensor:
        return x * scale

    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        seen.append((inputs[1:], type(inputs), keyword_only_inputs, list(keyword_only_inputs)))
        keyword_only_inputs.clear()

    def backward(ctx: Any, grad: Tensor) -> Any:
        seen.append(ctx.needs_input_grad)
        return to_first(ctx, grad)

    pair = with_formula(many, backward, setup_context)
    for given in (
        call(),
        call(None),
        call(None, 2, 2.0, True, "a", torch.float32, torch.device("cpu"), None),
        call(None, 2, 2.0, True, "a", torch.float32, torch.device("cpu", 0)),
        call(None, 3, 2.0, True, "a", torch.float64),
        call(None, 2, 2.0, False, key=3),
        call(flag=False, key=4, layout="c"),
        call(dtype=torch.int64, key_dtype=torch.float64),
        call(device=torch.device("cpu"), key_dtype=None),
        call(device=torch.device("meta"), key_dtype=None),
        call(sizes=[1, 2], key_dtype=torch.float16, key_scale=1.0),
        call(sizes=[]),
        call(sizes=(3,), scale=3),
        call(torch.ones(2), text="b", key_scale=2),
    ):

        def run(side: Side, given: Any = given) -> Any:
            seen.clear()
            side.op(needing_grad(), *given.args, **given.kwargs).sum().backward()
            return seen

        alike(pair, run)


def test_list_defaults_and_list_arguments_are_setup_contexts_own() -> None:
    def sized(x: Tensor, sizes: list[int], weights: list[float], names: list[int], flags: list[bool]) -> Tensor:
        sizes.append(9)
        names.clear()
        return x * 2

    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append([list(value) for value in inputs[1:]])
        for value in inputs[1:]:
            value.append(1)
        ctx.inputs = inputs

    def backward(ctx: Any, grad: Tensor) -> Any:
        seen.append((ctx.needs_input_grad, ctx.inputs[1:]))
        return to_first(ctx, grad)

    def run(side: Side) -> Any:
        seen.clear()
        lists = [1, 2], [1.0, 2.5], [5], [True]
        side.op(needing_grad(), *lists).sum().backward()
        return seen, lists

    alike(with_formula(sized, backward, setup_context), run)
    alike(with_formula(sized, backward, setup_context), run)


def test_the_nodes_own_methods_may_be_called() -> None:
    def run(side: Side, use: Callable[[Any], Any]) -> Any:
        return use(side.op(needing_grad(), needing_grad(), 3.0).grad_fn)

    pair = with_factors()
    ones = torch.ones(2)
    refused(pair, lambda side: run(side, lambda node: node(ones)))
    alike(pair, lambda side: run(side, lambda node: node.apply(ones)))
    alike(pair, lambda side: run(side, lambda node: [node._input_metadata, node._sequence_nr() >= 0]))
    refused(pair, lambda side: run(side, lambda node: node.apply()))
    refused(pair, lambda side: run(side, lambda node: node.apply(ones, ones)))
    alike(pair, lambda side: run(side, lambda node: node._forward_cls.backward(node, ones)))
    wrong = [
        lambda node: node.save_for_backward(ones),
        lambda node: node.apply_jvp(ones),
        lambda node: node.does_not_exist,
    ]
    for use in wrong:
        alike(pair, lambda side, use=use: run(side, use), may_raise=True)


def test_dual_and_inference_tensors_that_meet_a_gradient_act_as_in_pytorch() -> None:
    from torch.autograd import forward_ad

    def dual(side: Side) -> Any:
        with forward_ad.dual_level():
            x = needing_grad()
            result = side.op(forward_ad.make_dual(x, torch.ones(2)), torch.ones(2))
            tangent = forward_ad.unpack_dual(result).tangent
            result.sum().backward()
            return result, tangent, x.grad

    pair = with_factors()
    expected, actual = (done(dual, side) for side in pair.sides())
    assert actual == expected
    with torch.inference_mode():
        inference = torch.ones(2)
    assert "nference" in refused(pair, lambda side: side.op(needing_grad(), inference))
    alike(pair_of(product, record=False), lambda side: side.op(needing_grad(), inference))
