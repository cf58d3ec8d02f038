"""For each mistake that the core can be told to make (csrc/seeded_fault.h): one call that it spoils.

``python fault_checks.py NAME`` makes that call and ends with an AssertionError where the result is wrong. It proves
that a fault that the other checks don't find is theirs to find, and not one that never happens. ``make faults`` and
``make sanitize`` run it in a process of its own for each fault.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from parity import Outcome, Pair, call, check, outcome_of, pair_of

CHECKS: dict[str, Callable[[], object]] = {}


def spoiled_by(fault: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(function: Callable[[], object]) -> Callable[[], object]:
        CHECKS[fault] = function
        return function

    return add


def clone(x: Tensor) -> Tensor:
    return x.clone()


def first_of(tensors: list[Tensor]) -> Tensor:
    return tensors[0].clone()


def writes(x: Tensor) -> None:
    x.fill_(3.0)


def same(pair: Pair, *args: Any, **kwargs: Any) -> Outcome:
    return check(pair, lambda: call(*args, **kwargs), reason=None)


def gradient_seen(body: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """What setup_context and backward are shown, for both operators."""
    pair = pair_of(body)
    seen: dict[str, list[Any]] = {}
    for side in pair.sides():
        events = seen.setdefault(side.namespace, [])

        def setup_context(ctx: Any, inputs: Any, output: Any, events: list[Any] = events) -> None:
            with torch.enable_grad():
                below = not (torch.ones(1, requires_grad=True) * 2).requires_grad
            events.append((str(inputs), below))

        def backward(ctx: Any, grad: Tensor, events: list[Any] = events, count: int = len(args)) -> Any:
            events.append(ctx.needs_input_grad)
            return (None,) * count if count > 1 else None

        side.op.register_autograd(backward, setup_context=setup_context)
        side.op(*args, **kwargs).sum().backward()
    reference, fast = seen.values()
    assert reference == fast


def clears_its_list(x: Tensor, numbers: list[int]) -> Tensor:
    numbers.clear()
    return x.clone()


def with_dtype(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    return x.clone()


@spoiled_by("context-list-shared")
def setup_context_sees_the_list_as_it_was() -> None:
    gradient_seen(clears_its_list, torch.ones(2, requires_grad=True), [1, 2])


@spoiled_by("context-default-converted")
def setup_context_sees_the_schema_s_default() -> None:
    gradient_seen(with_dtype, torch.ones(2, requires_grad=True))


@spoiled_by("context-not-below-autograd")
def setup_context_records_no_gradient() -> None:
    gradient_seen(clone, torch.ones(2, requires_grad=True))


@spoiled_by("needs-input-grad-whole")
def backward_sees_one_flag_an_input() -> None:
    gradient_seen(clone, torch.ones(2, requires_grad=True))


@spoiled_by("included-key-ignored")
def a_trace_shows_the_operator() -> None:
    op = pair_of(clone).fast.op
    graph = str(torch.jit.trace(lambda x: op(x), (torch.ones(2),)).graph)
    assert op._qualname in graph


@spoiled_by("excluded-key-ignored")
def an_autocast_rule_is_followed() -> None:
    pair = pair_of(clone)
    pair.each(lambda op: op.register_autocast("cpu", torch.bfloat16))
    with torch.autocast("cpu", torch.bfloat16):
        same(pair, torch.ones(2))


@spoiled_by("function-mode-ignored")
def a_function_mode_sees_the_call() -> None:
    class Answer(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.full((1,), 7.0) if "parity" in str(func) else func(*args, **(kwargs or {}))

    pair = pair_of(clone)
    arguments = [call(torch.ones(2)) for _ in pair.sides()]
    with Answer():
        seen = [outcome_of(side, "object", given) for side, given in zip(pair.sides(), arguments, strict=True)]
    assert seen[0] == seen[1]


@spoiled_by("replaced-kernel-ignored")
def an_override_counts_at_once() -> None:
    pair = pair_of(clone)
    same(pair, torch.ones(2))
    libraries = []
    for side in pair.sides():
        library = torch.library.Library(side.namespace, "IMPL")
        library.impl(side.name, lambda x: torch.full((1,), 7.0), "CPU", allow_override=True)
        libraries.append(library)
    same(pair, torch.ones(2))


@spoiled_by("disabled-kernel-ignored")
def a_disabled_kernel_does_not_run() -> None:
    pair = pair_of(clone)
    pair.each(lambda op: op.register_kernel("cpu", lambda x: torch.full((1,), 7.0)))
    same(pair, torch.ones(2))
    for side in pair.sides():
        with side.op.set_kernel_enabled("cpu", False):
            assert side.op(torch.ones(2)).tolist() == [1.0, 1.0]


@spoiled_by("list-gradient-ignored")
def a_gradient_of_a_list_element_is_recorded() -> None:
    same(pair_of(first_of), [torch.ones(2, requires_grad=True)])


@spoiled_by("inference-mutation-allowed")
def a_tensor_without_a_version_counter_is_not_mutated() -> None:
    """Its keys are an ordinary tensor's: `.data` of one was assigned to an inference tensor."""

    def ignores(x: Tensor) -> None:
        pass

    with torch.inference_mode():
        x = torch.ones(2)
    x.data = torch.ones(2)
    pair = pair_of(ignores, record=False, mutates_args={"x"})
    raised = []
    for side in pair.sides():
        try:
            raised.append(side.op(x))
        except RuntimeError as error:
            raised.append(str(error))
    assert raised[0] == raised[1]


@spoiled_by("keyword-misplaced")
def a_keyword_lands_in_its_own_place() -> None:
    def two_counts(x: Tensor, first: int = 1, second: int = 2) -> Tensor:
        return torch.tensor([first, second])

    same(pair_of(two_counts), torch.ones(2), first=5)


@spoiled_by("none-accepted")
def none_for_a_required_tensor_is_refused() -> None:
    def ones(x: Tensor) -> Tensor:
        return torch.ones(1)

    same(pair_of(ones), None)


@spoiled_by("int-unconverted")
def an_int_for_a_float_becomes_a_float() -> None:
    def scale(x: Tensor, factor: float) -> Tensor:
        return x * factor

    same(pair_of(scale), torch.ones(2), 3)


@spoiled_by("list-uncopied")
def a_body_has_a_list_of_its_own() -> None:
    def empties(tensors: list[Tensor]) -> Tensor:
        return tensors.pop().clone()

    for side in (pair := pair_of(empties)).sides():
        given = [torch.ones(2)]
        side.op(given)
        assert len(given) == 1
    check(pair, lambda: call([torch.ones(2)]), reason=None)


@spoiled_by("defaults-passed")
def a_default_is_the_bodys_own() -> None:
    pair = pair_of(lambda x, count=1: torch.tensor([count]), schema="(Tensor x, int count=1) -> Tensor")
    pair.each(lambda op: op.register_kernel("cpu", lambda x, count=9: torch.tensor([count])))
    same(pair, torch.ones(2))


@spoiled_by("version-bump-skipped")
def a_mutated_argument_gets_a_new_version() -> None:
    pair = pair_of(writes, mutates_args={"x"})
    check(pair, lambda: call(torch.ones(2)), reason=None)


@spoiled_by("body-not-below-autograd")
def a_body_leaves_no_graph() -> None:
    weight = torch.ones(2, requires_grad=True)

    def scale(x: Tensor) -> Tensor:
        return x * weight

    same(pair_of(scale), torch.ones(2))


@spoiled_by("exception-keeps-keys")
def an_exception_restores_the_thread() -> None:
    def raises(x: Tensor) -> Tensor:
        raise ValueError("from the body")

    same(pair_of(raises), torch.ones(2))


@spoiled_by("input-alias-unchecked")
def an_input_may_not_be_the_output() -> None:
    def identity(x: Tensor) -> Tensor:
        return x

    same(pair_of(identity), torch.ones(2))


@spoiled_by("output-alias-unchecked")
def two_outputs_may_not_share_storage() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        result = x.clone()
        return result, result

    same(pair_of(twice), torch.ones(2))


@spoiled_by("returned-argument-unchecked")
def an_inplace_operator_returns_its_argument() -> None:
    pair = pair_of(
        lambda x: x.clone(), schema="(Tensor(a!) x) -> Tensor(a!)", mutates_args={"x"}, tags=(torch.Tag.inplace,)
    )
    check(pair, lambda: call(torch.ones(2)), reason=None)


@spoiled_by("tuple-kept")
def a_tuple_for_a_list_becomes_a_list() -> None:
    def pieces(x: Tensor) -> list[Tensor]:
        return (x.clone(), x.clone())  # type: ignore[return-value]

    same(pair_of(pieces), torch.ones(2))


@spoiled_by("result-list-shared")
def a_list_that_the_body_keeps_is_copied() -> None:
    kept = [torch.ones(2)]

    def hands_out(x: Tensor) -> list[Tensor]:
        return kept

    for side in pair_of(hands_out).sides():
        assert side.op(torch.ones(2)) is not kept


@spoiled_by("list-read-past-end")
def the_elements_of_a_list_are_read() -> None:
    same(pair_of(first_of), [torch.ones(2), torch.ones(2)])


@spoiled_by("kernel-unheld")
def a_kernel_is_forgotten_while_its_body_runs() -> None:
    """What a redefinition of the operator does; the result then needs PyTorch's own check."""

    def forgets(x: Tensor) -> Tensor:
        op._operator.forget()
        return x

    op: Any = pair_of(forgets, record=False).fast.op
    try:
        op(torch.ones(2))
    except RuntimeError as error:
        assert "alias" in str(error)
    else:
        raise AssertionError("the alias was not seen")


@spoiled_by("shift-too-far")
def a_copied_list_is_owned_by_the_call() -> None:
    same(pair_of(first_of), [torch.ones(2)])


if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
