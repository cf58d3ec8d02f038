"""What a backward through a recorded call does: gradients, errors, hooks, the engine's functions."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

from dutyfree.check.outcome import warned_as
from gradients_alike import (
    alike,
    gradient_of,
    needing_grad,
    plain,
    product,
    records,
    refused,
    save_factors,
    through_factors,
    with_factors,
    with_formula,
)
from parity import Side, call, check, pair_of

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
    alike(pair, lambda side: gradient_of(side, torch.ones(2)), may_raise=True)


def test_a_second_backward_is_refused_and_a_retained_graph_is_not() -> None:
    def twice(side: Side, retain: bool) -> Any:
        x = needing_grad()
        result = side.op(x, torch.ones(2))
        loss = result.sum()
        loss.backward(retain_graph=retain)
        loss.backward()
        return x.grad

    pair = with_factors()
    assert "second time" in refused(pair, lambda side: twice(side, False))
    alike(pair, lambda side: twice(side, True))

    def saved_after(side: Side) -> Any:
        result = side.op(needing_grad(), torch.ones(2))
        result.sum().backward()
        return result.grad_fn.saved_tensors

    assert "second time" in refused(pair, saved_after)


def test_a_saved_input_that_was_written_to_is_refused_in_backward() -> None:
    def written(side: Side) -> Any:
        x, y = needing_grad(), torch.ones(2)
        result = side.op(x, y)
        y.add_(1)
        result.sum().backward()

    assert "modified by an inplace operation" in refused(with_factors(), written)


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
        refused(with_formula(product, backward, setup), lambda side: gradient_of(side, torch.ones(2)))


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
            except (RuntimeError, ValueError) as error:
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
    refused(wrong, lambda side: torch.autograd.gradcheck(side.op, (x, y)))


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
    refused(pair, unused)
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
        grads = torch.autograd.grad(edge, [torch.autograd.graph.get_gradient_edge(x)], torch.ones(2))
        torch.autograd.graph.register_multi_grad_hook((x, y), lambda grads: seen.append(plain(grads, side)))
        torch.autograd.graph.register_multi_grad_hook((x, y), lambda grad: seen.append(plain(grad, side)), mode="any")
        side.op(x, y).sum().backward()
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

    refused(with_factors(), failing)

    def disabled(side: Side) -> Any:
        with disable_saved_tensors_hooks("not here"), save_on_cpu():
            return side.op(needing_grad(), torch.ones(2))

    refused(with_factors(), disabled, paths=set())


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
        alike(pair, lambda side, register=register: run(side, register), may_raise=True)


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
