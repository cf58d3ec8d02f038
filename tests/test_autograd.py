"""Gradients: what an operator records, what it refuses, and that its body always runs below autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import Pair, Side, call, check, observe, pair_of, took


def sine(x: Tensor) -> Tensor:
    return x.sin()


def scaled_sum(x: Tensor, y: Tensor | None, others: list[Tensor], scale: float = 2.0) -> Tensor:
    total = x * scale
    for other in [*others, *([] if y is None else [y])]:
        total = total + other
    return total


def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, (x > 0).long()


def listed(x: Tensor) -> list[Tensor]:
    return [x * 2, x.long()]


def needing_grad(*shape: int) -> Tensor:
    return torch.ones(shape or (2,), requires_grad=True)


def with_formula(body: Callable[..., Any] = sine) -> Pair:
    pair = pair_of(body)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0].cos()

    pair.each(lambda op: op.register_autograd(backward, setup_context=setup_context))
    return pair


def same_for_both(pair: Pair, run: Callable[[Side], Any]) -> Any:
    """Runs something on each operator and asserts the same result or error; returns it."""
    seen = []
    for side in pair.sides():
        side.received.clear()
        try:
            seen.append(run(side))
        except Exception as error:
            seen.append((type(error).__name__, side.text(error)))
    assert seen[1] == seen[0]
    return seen[1]


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: call(needing_grad(), None, []),
        lambda: call(torch.ones(2), needing_grad(), []),
        lambda: call(torch.ones(2), None, [torch.ones(2), needing_grad()]),
        lambda: call(torch.ones(2), None, (needing_grad(),)),
        lambda: call(torch.ones(2), y=needing_grad(), others=[]),
        lambda: call(torch.ones(2), None, [needing_grad() * 2], scale=3.0),
        lambda: call(torch.nn.Parameter(torch.ones(2)), None, []),
    ],
    ids=["first", "optional", "list", "tuple", "keyword", "no leaf", "parameter"],
)
def test_an_input_that_needs_a_gradient_gives_an_output_that_needs_one(arguments: Callable[[], Any]) -> None:
    outcome = check(pair_of(scaled_sum), arguments, reason="requires-grad")
    assert outcome.value["requires grad"] is True
    assert outcome.value["grad_fn"][0] == "GeneratedBackwardFor_NAMESPACE_op_defaultBackward"


def test_backward_without_a_formula_raises_the_message_that_names_register_autograd() -> None:
    def backward(side: Side) -> Any:
        return side.op(needing_grad()).sum().backward()

    kind, text = same_for_both(pair_of(sine), backward)
    assert kind == "RuntimeError"
    assert "register_autograd" in text


def test_integer_outputs_never_need_a_gradient() -> None:
    for body in (parts, listed):
        outcome = check(pair_of(body), lambda: call(needing_grad()), reason="requires-grad")
        assert [member["requires grad"] for member in outcome.value["members"]] == [True, False]


def test_an_operator_without_result_records_nothing() -> None:
    def body(x: Tensor) -> None:
        pass

    check(pair_of(body), lambda: call(needing_grad()), reason="requires-grad")


def test_numbers_beside_tensors_are_returned_while_recording() -> None:
    def body(x: Tensor) -> tuple[Tensor, int, float]:
        return x.clone(), 3, 2.5

    check(pair_of(body), lambda: call(needing_grad()), reason="requires-grad")


def test_without_an_input_that_needs_a_gradient_nothing_is_recorded() -> None:
    outcome = check(with_formula(), lambda: call(torch.ones(2)))
    assert outcome.value["grad_fn"] is None


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_without_grad_mode_nothing_is_recorded(context: Callable[[], Any]) -> None:
    for pair in (pair_of(sine), with_formula()):
        x = needing_grad()
        with context():
            outcome = check(pair, lambda x=x: call(x))  # type: ignore[misc]
        assert outcome.value["requires grad"] is False


def test_inference_tensors_outside_inference_mode_reach_the_body_as_in_pytorch() -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    outcome = check(pair_of(sine), lambda: call(inference))
    # Such a tensor has no autograd key, so that nothing is excluded while the body runs.
    assert "AutogradOther" not in outcome.received[0]["state"]["excluded"]
    check(pair_of(scaled_sum), lambda: call(torch.ones(2), inference, [inference]))
    check(pair_of(scaled_sum), lambda: call(needing_grad(), inference, []), reason="requires-grad")


def test_ordinary_tensors_in_inference_mode_give_inference_tensors() -> None:
    x = torch.ones(2)
    with torch.inference_mode():
        outcome = check(pair_of(sine), lambda: call(x))
        assert outcome.value["inference"] is True


def test_a_formula_gives_gradients() -> None:
    def gradient(side: Side) -> Any:
        x = torch.tensor([0.5, 1.5], requires_grad=True)
        (side.op(x) * torch.tensor([1.0, 2.0])).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    pair = with_formula()
    with took(pair.fast, "requires-grad"):
        found = same_for_both(pair, gradient)
    assert found == (torch.tensor([0.5, 1.5]).cos() * torch.tensor([1.0, 2.0])).tolist()


def test_gradcheck_and_gradgradcheck_pass() -> None:
    op = with_formula().fast.op
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, (x,))
    assert torch.autograd.gradgradcheck(op, (x,))


def test_saved_tensor_hooks_fire_once() -> None:
    def hooked(side: Side) -> Any:
        packed: list[int] = []
        unpacked: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            packed.append(tensor.numel())
            return tensor

        def unpack(tensor: Tensor) -> Tensor:
            unpacked.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            result = side.op(needing_grad(3))
        result.sum().backward()
        return packed, unpacked

    assert same_for_both(with_formula(), hooked) == ([3], [3])


def test_needs_input_grad_has_one_entry_an_input() -> None:
    pair = pair_of(scaled_sum)
    seen: list[Any] = []

    def backward(ctx: Any, grad: Tensor) -> Any:
        seen.append(ctx.needs_input_grad)
        return grad * 2, None, [grad, None], None

    pair.each(lambda op: op.register_autograd(backward))
    for side in pair.sides():
        side.op(needing_grad(), None, [needing_grad(), torch.ones(2)], 3.0).sum().backward()
    assert seen[0] == seen[1]
    assert list(seen[0]) == [True, False, [True, False], False]


def test_an_omitted_default_has_no_gradient_of_its_own_beside_a_list() -> None:
    pair = pair_of(scaled_sum)
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: (grad * 2, None, [grad], None)))
    # The reference passes its autograd function only what it passes the body.
    for scale, accepted in (((3.0,), True), ((), False)):
        raised = same_for_both(
            pair, lambda side, s=scale: side.op(needing_grad(), None, [needing_grad()], *s).sum().backward()
        )
        assert (raised is None) is accepted


def test_a_formula_that_returns_the_wrong_number_of_gradients_raises_as_in_pytorch() -> None:
    pair = pair_of(sine)
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: (grad, grad, grad)))
    kind, _ = same_for_both(pair, lambda side: side.op(needing_grad()).sum().backward())
    assert kind == "RuntimeError"


def test_a_formula_and_setup_context_that_raise_do_so_as_in_pytorch() -> None:
    def broken(ctx: Any, inputs: Any, output: Any) -> None:
        raise KeyError("setup_context")

    def backward(ctx: Any, grad: Tensor) -> Any:
        raise KeyError("backward")

    pair = pair_of(sine)
    pair.each(lambda op: op.register_autograd(backward))
    assert same_for_both(pair, lambda side: side.op(needing_grad()).sum().backward())[0] == "KeyError"
    pair.each(lambda op: op.register_autograd(backward, setup_context=broken))
    outcome = check(pair, lambda: call(needing_grad()), reason="requires-grad")
    assert outcome.raised == ("KeyError", "'setup_context'")


def test_a_captured_parameter_leaves_no_graph() -> None:
    weight = torch.nn.Parameter(torch.ones(2))

    def body(x: Tensor) -> Tensor:
        result = x * weight
        assert not result.requires_grad
        return result

    outcome = check(pair_of(body), lambda: call(torch.ones(2)))
    assert outcome.value["grad_fn"] is None


def test_autograd_inside_the_body_finds_no_graph() -> None:
    def body(x: Tensor) -> Tensor:
        inner = torch.ones(2, requires_grad=True)
        return torch.autograd.grad((inner * x).sum(), inner)[0]

    outcome = check(pair_of(body), lambda: call(torch.ones(2)))
    assert outcome.raised is not None
    assert "does not require grad" in outcome.raised[1]


def test_grad_mode_inside_the_body_is_the_callers() -> None:
    pair = pair_of(sine)
    outcome = check(pair, lambda: call(torch.ones(2)))
    assert outcome.received[0]["state"]["grad"] is True
    with torch.no_grad():
        outcome = check(pair, lambda: call(torch.ones(2)))
    assert outcome.received[0]["state"]["grad"] is False


def test_the_bodys_state_excludes_autograd_and_keeps_adinplaceorview() -> None:
    state = check(pair_of(sine), lambda: call(torch.ones(2))).received[0]["state"]
    assert "AutogradOther" in state["excluded"]
    assert "ADInplaceOrView" not in state["excluded"]


def test_a_clone_made_by_the_body_has_version_one() -> None:
    def body(x: Tensor) -> Tensor:
        return x.clone()

    outcome = check(pair_of(body), lambda: call(torch.ones(2)))
    assert outcome.value["version"] == 1
    with torch.no_grad():
        assert check(pair_of(body), lambda: call(torch.ones(2))).value["version"] == 1


def test_a_body_that_enables_grad_still_records_nothing() -> None:
    def body(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x.detach().clone().requires_grad_() * 2

    check(pair_of(body), lambda: call(torch.ones(2)))
    with torch.no_grad():
        check(pair_of(body), lambda: call(torch.ones(2)))


def test_an_output_that_requires_grad_by_itself_is_returned_as_in_pytorch() -> None:
    def body(x: Tensor) -> Tensor:
        return torch.ones(2, requires_grad=True)

    check(pair_of(body), lambda: call(torch.ones(2)))
    check(pair_of(body), lambda: call(needing_grad()), reason="requires-grad")


def test_forward_mode_tangents_are_treated_as_in_pytorch() -> None:
    def tangent(side: Side) -> Any:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
            result = side.op(dual)
            unpacked = torch.autograd.forward_ad.unpack_dual(result)
            return unpacked.primal.tolist(), None if unpacked.tangent is None else unpacked.tangent.tolist()

    same_for_both(pair_of(sine), tangent)
    same_for_both(with_formula(), tangent)


def test_retained_graphs_and_hooks_on_the_output_work() -> None:
    def hooked(side: Side) -> Any:
        seen: list[Any] = []
        x = needing_grad()
        result = side.op(x)
        result.register_hook(lambda grad: seen.append(grad.tolist()))
        result.retain_grad()
        result.sum().backward(retain_graph=True)
        result.sum().backward()
        assert x.grad is not None
        return seen, x.grad.tolist(), result.grad.tolist()

    same_for_both(with_formula(), hooked)


def test_checkpointing_calls_the_operator_again_in_backward() -> None:
    def checkpointed(side: Side) -> Any:
        x = needing_grad()
        torch.utils.checkpoint.checkpoint(side.op, x, use_reentrant=False).sum().backward()
        assert x.grad is not None
        return x.grad.tolist(), len(side.received)

    import torch.utils.checkpoint

    assert same_for_both(with_formula(), checkpointed)[1] == 2


def test_the_direct_path_returns_as_soon_as_no_gradient_is_needed() -> None:
    pair = with_formula()
    check(pair, lambda: call(needing_grad()), reason="requires-grad")
    check(pair, lambda: call(torch.ones(2)))
    arguments = call(torch.ones(2))
    assert observe(pair.fast, lambda: pair.fast.op(*arguments.args), arguments).value["grad_fn"] is None
