"""Calls that record a gradient: the node, its context, and what a backward through it does."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

from gradients_alike import alike, done, needing_grad, plain, raised, records
from parity import Pair, Side, call, check, pair_of, warned_as


def product(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    return x * y * scale


def three(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    return x * 2, (x > 1).long(), x * count


def save_factors(ctx: Any, inputs: Any, output: Any) -> None:
    x, y, scale = inputs
    ctx.save_for_backward(x, y)
    ctx.scale = scale


def through_factors(ctx: Any, grad: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return grad * y * ctx.scale, grad * x * ctx.scale, None


def with_factors(*, record: bool = False) -> Pair:
    return with_formula(product, through_factors, save_factors, record=record)


def with_formula(
    body: Callable[..., Any],
    backward: Callable[..., Any],
    setup_context: Callable[..., Any] | None = None,
    *,
    record: bool = False,
) -> Pair:
    pair = pair_of(body, record=record)
    pair.each(lambda op: op.register_autograd(backward, setup_context=setup_context))
    return pair


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
            "materialize": found.materialize_grads,
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
        return grad, grad

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
        raised(alike(pair, lambda side: side.op(needing_grad(), torch.ones(2))))


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
            alike(pair, lambda side: side.op(needing_grad() * 1, torch.ones(2)))
            alike(pair, lambda side: side.op(needing_grad(), torch.ones(2)))


def test_what_setup_context_returns_and_saves_in_the_context_changes_nothing_else() -> None:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.output = output  # a leak in PyTorch, and seen in backward
        ctx._pt_metadata = "mine"
        return "ignored"

    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * len(ctx._pt_metadata) + ctx.output.detach(), None

    alike(with_formula(product, backward, setup_context), lambda side: gradient_of(side, torch.ones(2)))


def gradient_of(side: Side, *rest: Any, **keywords: Any) -> Any:
    x = needing_grad()
    result = side.op(x, *rest, **keywords)
    results = result if isinstance(result, (list, tuple)) else [result]
    sum(r.sum() for r in results if isinstance(r, Tensor) and r.requires_grad).backward()
    return result, x.grad


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
        return (grad,)

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
        return (grad,)

    def run(side: Side) -> Any:
        seen.clear()
        lists = [1, 2], [1.0, 2.5], [5], [True]
        side.op(needing_grad(), *lists).sum().backward()
        return seen, lists

    alike(with_formula(sized, backward, setup_context), run)
    alike(with_formula(sized, backward, setup_context), run)


# Backward


@pytest.mark.parametrize(
    "gradients",
    [
        lambda grad: grad,
        lambda grad: (grad,),
        lambda grad: (grad, grad),
        lambda grad: (grad, grad, None),
        lambda grad: (grad, grad, None, None, None),
        lambda grad: (grad, grad, None, grad),
        lambda grad: (grad, None, grad),
        lambda grad: None,
        lambda grad: (None, grad),
        lambda grad: (None, None, None),
        lambda grad: (),
        lambda grad: [grad, grad, None],
        lambda grad: torch.Size((1, 2)),
        lambda grad: 3.0,
        lambda grad: ("text", grad),
        lambda grad: (grad.sum(), grad),
        lambda grad: (torch.ones(3), grad),
        lambda grad: (grad.expand(3, 2), grad),
        lambda grad: (grad.double(), grad.half()),
        lambda grad: (grad.long(), grad),
        lambda grad: (grad.to("meta"), grad),
        lambda grad: (grad.to_sparse(), grad),
        lambda grad: ([grad], grad),
        lambda grad: ((grad,), grad),
        lambda grad: {"x": grad},
    ],
)
def test_whatever_backward_returns_is_taken_or_refused_alike(gradients: Callable[[Tensor], Any]) -> None:
    pair = with_formula(product, lambda ctx, grad: gradients(grad))

    def both(side: Side, *rest: Any) -> Any:
        x, y = needing_grad(), needing_grad()
        try:
            side.op(x, y, *rest).sum().backward()
        except Exception as error:
            return type(error).__name__, str(error), x.grad, y.grad
        return x.grad, y.grad

    alike(pair, both)
    alike(pair, lambda side: both(side, 3.0))
    alike(pair, lambda side: gradient_of(side, torch.ones(2)))


def test_a_second_backward_is_refused_and_a_retained_graph_is_not() -> None:
    def twice(side: Side, retain: bool) -> Any:
        x = needing_grad()
        result = side.op(x, torch.ones(2))
        loss = result.sum()
        loss.backward(retain_graph=retain)
        loss.backward()
        return x.grad

    pair = with_factors()
    assert "second time" in raised(alike(pair, lambda side: twice(side, False)))
    alike(pair, lambda side: twice(side, True))

    def saved_after(side: Side) -> Any:
        result = side.op(needing_grad(), torch.ones(2))
        result.sum().backward()
        return result.grad_fn.saved_tensors

    assert "second time" in raised(alike(pair, saved_after))


def test_a_saved_input_that_was_written_to_is_refused_in_backward() -> None:
    def written(side: Side) -> Any:
        x, y = needing_grad(), torch.ones(2)
        result = side.op(x, y)
        y.add_(1)
        result.sum().backward()

    assert "modified by an inplace operation" in raised(alike(with_factors(), written))


def test_exceptions_of_formula_and_context_pass_through_and_leave_the_operator_usable() -> None:
    class OwnError(Exception):
        pass

    state = {"setup": True}

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        if state["setup"]:
            raise OwnError("setup_context")

    def backward(ctx: Any, grad: Tensor) -> Any:
        raise OwnError("backward")

    def run(side: Side) -> Any:
        state["setup"] = True
        x = needing_grad()
        errors: list[str] = []
        for attempt in range(2):
            try:
                side.op(x, torch.ones(2)).sum().backward()
            except OwnError as error:
                errors.append(str(error))
            state["setup"] = False
            errors.append(str((attempt, torch.is_grad_enabled(), torch._C._dispatch_tls_local_exclude_set())))
        return errors

    alike(with_formula(product, backward, setup_context), run)


def test_bad_signatures_of_formula_and_context_raise_alike() -> None:
    for backward, setup in (
        (lambda ctx: None, None),
        (lambda ctx, a, b: None, None),
        (lambda ctx, *, grad: None, None),
        (through_factors, lambda ctx, inputs: None),
        (through_factors, lambda context, inputs, output: None),
        (through_factors, lambda ctx, inputs, output, more: None),
        (through_factors, lambda *args: None),
    ):
        raised(alike(with_formula(product, backward, setup), lambda side: gradient_of(side, torch.ones(2))))


def test_the_body_runs_in_the_state_that_pytorch_gives_it_while_recording() -> None:
    pair = with_factors(record=True)
    outcome = check(pair, lambda: call(needing_grad(), torch.ones(2)), reason="requires-grad")
    assert outcome.received[0]["state"]["grad"] is False
    assert records(pair, needing_grad(), torch.ones(2))
    with torch.no_grad():
        check(pair, lambda: call(needing_grad(), torch.ones(2)))
    with torch.inference_mode():
        check(pair, lambda: call(needing_grad(), torch.ones(2)))
    check(pair, lambda: call(torch.ones(2), torch.ones(2)))


def test_a_body_or_context_that_leaves_grad_mode_changed_does_so_alike() -> None:
    def body(x: Tensor) -> Tensor:
        torch.set_grad_enabled(True)
        return x * 2

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        torch.set_grad_enabled(False)

    def run(side: Side) -> Any:
        with torch.enable_grad():
            result = side.op(needing_grad())
            return torch.is_grad_enabled(), result

    alike(with_formula(body, lambda ctx, grad: grad), run)
    alike(with_formula(body, lambda ctx, grad: grad, setup_context), run)


def test_a_formula_may_come_go_and_change_at_any_time() -> None:
    def run(side: Side) -> Any:
        op = side.op
        op._backward_fn = op._setup_context_fn = None
        found: list[Any] = []

        def backward(result: Tensor, x: Tensor) -> None:
            try:
                found.append(torch.autograd.grad(result.sum(), x, retain_graph=True))
            except RuntimeError as error:
                found.append(side.text(error))

        x = needing_grad()
        result = op(x, torch.ones(2))
        backward(result, x)
        op.register_autograd(lambda ctx, grad: (grad * 5, None))
        backward(result, x)  # the node of before
        op.register_autograd(through_factors, setup_context=save_factors)
        backward(result, x)  # nothing was saved
        later = op(x, torch.ones(2))
        backward(later, x)
        op._backward_fn = None
        backward(later, x)
        backward(op(x, torch.ones(2)), x)
        op.register_autograd(lambda ctx, grad: (grad * 7, None))
        backward(later, x)
        return found, vars(op(x, torch.ones(2)).grad_fn)

    alike(pair_of(product), run)


def test_kernels_that_change_between_calls_keep_the_formula() -> None:
    def run(side: Side) -> Any:
        found = [gradient_of(side, torch.ones(2))]
        side.op.register_kernel("cpu", lambda x, y, scale=3.0: x * y * scale + 1)
        found.append(gradient_of(side, torch.ones(2)))
        with side.op.set_kernel_enabled("cpu", False):
            found.append(gradient_of(side, torch.ones(2)))
        found.append(gradient_of(side, torch.ones(2)))
        return found

    alike(with_factors(), run)


# The engine, hooks


def test_gradcheck_and_gradgradcheck_pass_for_several_inputs() -> None:
    pair = with_factors()
    x, y = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    alike(pair, lambda side: torch.autograd.gradcheck(side.op, (x, y, 3.0)))
    alike(pair, lambda side: torch.autograd.gradgradcheck(side.op, (x, y, 3.0)))
    alike(pair, lambda side: torch.autograd.gradcheck(side.op, (x, y), check_batched_grad=True))
    wrong = with_formula(product, lambda ctx, grad: (grad, grad, None))
    raised(alike(wrong, lambda side: torch.autograd.gradcheck(side.op, (x, y))))


def test_autograd_functions_of_torch_give_the_same() -> None:
    pair = with_factors()

    def inputs() -> tuple[Tensor, Tensor]:
        return needing_grad(3), needing_grad(3)

    def grad(side: Side, **options: Any) -> Any:
        x, y = inputs()
        return torch.autograd.grad(side.op(x, y), (x, y), torch.ones(3), **options)

    def batched(side: Side) -> Any:
        x, y = inputs()
        return torch.autograd.grad(side.op(x, y), (x, y), torch.eye(3), is_grads_batched=True)

    def unused(side: Side, **options: Any) -> Any:
        x, y = inputs()
        return torch.autograd.grad(side.op(x, torch.ones(3)).sum(), (x, y), **options)

    alike(pair, grad)
    alike(pair, lambda side: grad(side, create_graph=True))
    alike(pair, batched)
    alike(pair, unused)
    alike(pair, lambda side: unused(side, allow_unused=True))
    alike(pair, lambda side: unused(side, materialize_grads=True))
    for name in ("jacobian", "hessian", "vjp", "hvp", "vhp", "jvp"):
        more = (torch.ones(3),) if name in ("hvp", "vhp", "jvp") else ()
        alike(
            pair,
            lambda side, name=name, more=more: getattr(torch.autograd.functional, name)(
                lambda x: side.op(x, x * 2, 3.0).sum(), needing_grad(3), *more
            ),
        )


def test_double_backward_records_through_the_formula() -> None:
    def run(side: Side) -> Any:
        x, y = needing_grad(), needing_grad()
        (first,) = torch.autograd.grad(side.op(x, y).pow(2).sum(), x, create_graph=True)
        first.sum().backward()
        return first, x.grad, y.grad

    alike(with_factors(), run)


def test_hooks_run_as_often_in_the_same_order() -> None:
    def run(side: Side) -> Any:
        seen: list[Any] = []
        x = needing_grad()
        x.register_post_accumulate_grad_hook(lambda t: seen.append(("accumulated", t.grad.tolist())))
        x.register_hook(lambda grad: seen.append(("input", grad.tolist())))
        result = side.op(x, torch.ones(2))
        node = result.grad_fn
        node.register_prehook(lambda grads: seen.append(("prehook", plain(grads, side))))
        node.register_hook(lambda grads, outs: seen.append(("hook", plain(grads, side), plain(outs, side))))
        handle = node.register_hook(lambda grads, outs: seen.append("removed"))
        handle.remove()
        node.register_hook(lambda grads, outs: tuple(None if g is None else g * 2 for g in grads))
        result.register_hook(lambda grad: grad + 1)
        result.retain_grad()
        result.sum().backward()
        return seen, x.grad, result.grad

    alike(with_factors(), run)


def test_graph_utilities_walk_through_the_node() -> None:
    def run(side: Side) -> Any:
        seen: list[Any] = []
        x, y = needing_grad(), needing_grad()
        result = side.op(x, y)
        edge = torch.autograd.graph.get_gradient_edge(result)
        torch.autograd.graph.register_multi_grad_hook((x, y), lambda grads: seen.append(plain(grads, side)))
        torch.autograd.graph.register_multi_grad_hook((x, y), lambda grad: seen.append(plain(grad, side)), mode="any")
        grads = torch.autograd.grad(edge, [torch.autograd.graph.get_gradient_edge(x)], torch.ones(2))
        torch.autograd.backward(side.op(x, y).sum(), inputs=[x])
        return seen, edge.output_nr, edge.node is result.grad_fn, grads, x.grad, y.grad

    alike(with_factors(), run)


def test_saved_tensor_hooks_see_each_saved_tensor_in_order() -> None:
    def run(side: Side) -> Any:
        seen: list[Any] = []

        def pack(tensor: Tensor) -> Any:
            seen.append(("pack", tensor.tolist(), torch.is_grad_enabled()))
            return len(seen), tensor

        def unpack(packed: Any) -> Any:
            seen.append(("unpack", packed[0]))
            return packed[1]

        x, y = needing_grad(), needing_grad()
        with saved_tensors_hooks(pack, unpack):
            result = side.op(x, y)
            made = len(seen)
        saved = result.grad_fn.saved_tensors
        result.sum().backward()
        with save_on_cpu():
            side.op(x, y).sum().backward()
        return seen, made, saved, x.grad

    alike(with_factors(), run)
    broken = saved_tensors_hooks(lambda tensor: 1 / 0, lambda packed: packed)

    def failing(side: Side) -> Any:
        with broken:
            return side.op(needing_grad(), torch.ones(2))

    raised(alike(with_factors(), failing))

    def disabled(side: Side) -> Any:
        with disable_saved_tensors_hooks("not here"), save_on_cpu():
            return side.op(needing_grad(), torch.ones(2))

    raised(alike(with_factors(), disabled, paths=set()))


@pytest.mark.parametrize("formula", [True, False])
def test_anomaly_mode_names_the_node_and_the_call(formula: bool) -> None:
    def run(side: Side) -> Any:
        with warned_as() as warned, torch.autograd.detect_anomaly():
            result = side.op(torch.zeros(2, requires_grad=True), torch.ones(2))
            traceback = "".join(result.grad_fn.metadata["traceback_"])
            with pytest.raises(RuntimeError) as error:
                result.sum().backward()
        messages = [str(warning.message) for warning in warned]
        named = ["side.op(torch.zeros" in text for text in (traceback, *messages)]
        return (
            sorted(result.grad_fn.metadata),
            named,
            [text.split("Traceback of")[0] for text in messages],
            str(error.value),
        )

    def to_nan(ctx: Any, grad: Tensor) -> Any:
        return grad * float("nan"), None

    outcome = alike(with_formula(product, to_nan) if formula else pair_of(product), run)
    assert ("nan" in str(outcome)) is formula


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_runs_the_operator_again(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def run(side: Side) -> Any:
        side.received.clear()
        x, y = needing_grad(), needing_grad()
        loss = checkpoint(lambda a, b: side.op(a, b).sin(), x, y, use_reentrant=reentrant).sum()
        loss.backward()
        calls = len(side.received)
        side.received.clear()
        return x.grad, y.grad, calls

    alike(with_factors(record=True), run, paths={"direct", "autograd"} if reentrant else None)


def test_training_moves_the_parameters_alike() -> None:
    class Model(torch.nn.Module):
        def __init__(self, side: Side) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("offset", torch.ones(2))
            self.op = side.op

        def forward(self, x: Tensor) -> Tensor:
            return self.op(self.weight, x) + self.op(x, self.weight, 3.0) + self.offset  # type: ignore[no-any-return]

    def run(side: Side) -> Any:
        model = Model(side)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        for step in range(3):
            optimizer.zero_grad(set_to_none=step != 1)
            model(torch.tensor([1.0, -0.5])).pow(2).sum().backward()
            optimizer.step()
        return model.weight, model.weight.grad

    alike(with_factors(), run)


def test_forward_and_backward_may_run_in_different_threads() -> None:
    def in_thread(run: Callable[[], Any]) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(run()))
        thread.start()
        thread.join()
        return found[0]

    def run(side: Side) -> Any:
        x, y = needing_grad(), needing_grad()
        result = in_thread(lambda: side.op(x, y))
        in_thread(lambda: result.sum().backward())
        return result, x.grad, y.grad

    alike(with_factors(), run)


def test_the_operator_may_be_called_in_its_own_body_context_and_formula() -> None:
    sides: dict[str, Side] = {}
    current: list[Side] = []

    def body(x: Tensor, depth: int) -> Tensor:
        inner = needing_grad()
        if depth:
            result = current[-1].op(x, depth - 1) * 2
            more = current[-1].op(inner, depth - 1)
            assert not result.requires_grad
            assert not more.requires_grad
            return result
        return x * 3

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.depth = inputs[1]
        if inputs[1]:
            with torch.enable_grad():
                ctx.more = current[-1].op(needing_grad(), inputs[1] - 1).requires_grad

    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.depth:
            with torch.enable_grad():
                x = needing_grad()
                (inner,) = torch.autograd.grad(current[-1].op(x, ctx.depth - 1).sum(), x)
            return grad * inner * (2 if ctx.more else 5), None
        return grad * 3, None

    def run(side: Side) -> Any:
        current.append(side)
        return gradient_of(side, 2)

    assert not sides
    alike(with_formula(body, backward, setup_context), run, paths={"direct", "autograd"})


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


def test_results_of_a_wrong_kind_are_refused_alike_while_recording() -> None:
    def one(x: Tensor, kind: str) -> Tensor:
        values = {"none": None, "number": 3, "tuple": (x * 1,), "list": [x * 1], "text": "a", "same": x, "view": x[:]}
        return values[kind]  # type: ignore[return-value]

    def two(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        y = x * 1
        values = {"none": None, "one": y, "single": (y,), "list": [y, x * 2], "same": (x, y), "twice": (y, y)}
        values |= {"views": (y, y[:1]), "wrong": (y, 3), "missing": (y, None)}
        return values[kind]  # type: ignore[return-value]

    setup: Any
    for setup in (None, lambda ctx, inputs, output: None):
        for body, kinds in (
            (one, ("none", "number", "tuple", "list", "text", "same", "view")),
            (two, ("none", "one", "single", "list", "same", "twice", "views", "wrong", "missing")),
        ):
            pair = with_formula(body, lambda ctx, *grads: (grads[0], None), setup)
            for kind in kinds:
                alike(pair, lambda side, kind=kind: side.op(needing_grad(), kind))
                alike(pair, lambda side, kind=kind: side.op(needing_grad() * 1, kind))


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
    alike(pair, lambda side: side.op.register_autograd(lambda ctx, grad: (None, grad)), paths=set())

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
        alike(out, lambda side, x=x, into=into: side.op(x, out=into), paths={"pytorch"})


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


def test_gradients_share_memory_as_in_pytorch() -> None:
    seen: list[Any] = []

    def backward(ctx: Any, grad: Tensor) -> Any:
        first = grad * 2
        seen.append(first.data_ptr())
        return first, first if ctx.needs_input_grad[1] else None

    def run(side: Side) -> Any:
        found = []
        for second in (needing_grad(), torch.ones(2)):
            seen.clear()
            x = needing_grad()
            side.op(x, second).sum().backward()
            same = second.grad is not None and second.grad.data_ptr() == x.grad.data_ptr()  # type: ignore[union-attr]
            found.append((x.grad.data_ptr() == seen[0], same))  # type: ignore[union-attr]
        return found

    alike(with_formula(product, backward), run)


def test_many_outputs_have_a_gradient_each() -> None:
    def body(x: Tensor) -> tuple[
        Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
        Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
    ]:  # fmt: skip
        return tuple(x * index for index in range(18))  # type: ignore[return-value]

    pair = with_formula(body, lambda ctx, *grads: sum(index * grad for index, grad in enumerate(grads)))
    alike(pair, gradient_of)


def test_the_nodes_own_methods_may_be_called() -> None:
    def run(side: Side, use: Callable[[Any], Any]) -> Any:
        return use(side.op(needing_grad(), needing_grad(), 3.0).grad_fn)

    pair = with_factors()
    ones = torch.ones(2)
    alike(pair, lambda side: run(side, lambda node: node(ones)))
    alike(pair, lambda side: run(side, lambda node: node.apply(ones)))
    alike(pair, lambda side: run(side, lambda node: [node._input_metadata, node._sequence_nr() >= 0]))
    raised(alike(pair, lambda side: run(side, lambda node: node.apply())))
    raised(alike(pair, lambda side: run(side, lambda node: node.apply(ones, ones))))
    alike(pair, lambda side: run(side, lambda node: node._forward_cls.backward(node, ones)))
    wrong = [
        lambda node: node.save_for_backward(ones),
        lambda node: node.apply_jvp(ones),
        lambda node: node.does_not_exist,
    ]
    for use in wrong:
        alike(pair, lambda side, use=use: run(side, use))


def test_hooks_that_raise_or_return_nonsense_do_so_alike() -> None:
    def run(side: Side, register: Callable[[Any, Any], Any]) -> Any:
        x = needing_grad()
        result = side.op(x, torch.ones(2))
        register(result.grad_fn, result)
        result.sum().backward()
        return x.grad

    pair = with_factors()
    for register in (
        lambda node, result: node.register_hook(lambda grads, outs: 1 / 0),
        lambda node, result: node.register_hook(lambda grads, outs: (None,)),
        lambda node, result: node.register_hook(lambda grads, outs: 3),
        lambda node, result: node.register_prehook(lambda grads: 1 / 0),
        lambda node, result: node.register_prehook(lambda grads: (None,)),
        lambda node, result: node.register_prehook(lambda grads: ()),
        lambda node, result: result.register_hook(lambda grad: torch.ones(3)),
    ):
        alike(pair, lambda side, register=register: run(side, register))


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
    assert "nference" in raised(alike(pair, lambda side: side.op(needing_grad(), inference)))
    alike(pair_of(product, record=False), lambda side: side.op(needing_grad(), inference))


def test_base_exceptions_pass_through_and_leave_the_state_as_it_was() -> None:
    def stop(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    def state() -> str:
        return str((torch.is_grad_enabled(), torch._C._dispatch_tls_local_exclude_set()))

    before = state()
    for pair in (
        with_formula(product, stop),
        with_formula(product, through_factors, stop),
        with_formula(lambda_stop, through_factors),
    ):
        for side in pair.sides():
            with pytest.raises(KeyboardInterrupt):
                side.op(needing_grad(), torch.ones(2)).sum().backward()
            assert state() == before


def lambda_stop(x: Tensor, y: Tensor) -> Tensor:
    raise KeyboardInterrupt


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

    pair = with_formula(product, lambda ctx, grad: 1 / 0)
    before = calls(100)
    after = calls(10_000)
    assert after - before < 20
    for _ in range(100):
        with pytest.raises(ZeroDivisionError):
            pair.fast.op(x, y).sum().backward()
