"""No output may share storage with an input or another output, checked on every call."""

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import call, check, pair_of


def returns_input(x: Tensor) -> Tensor:
    return x


def returns_view(x: Tensor) -> Tensor:
    return x.view(-1)[1:]


def returns_detached(x: Tensor) -> Tensor:
    return x.detach()


def returns_base(x: Tensor) -> Tensor:
    return x._base if x._base is not None else x.clone()


def is_refused(body: Callable[..., Any], *make: Callable[[], Any], **options: Any) -> None:
    outcome = check(pair_of(body, **options), lambda: call(*(each() for each in make)))
    assert outcome.raised is not None
    assert "may not alias any inputs" in outcome.raised[1]


@pytest.mark.parametrize("body", [returns_input, returns_view, returns_detached], ids=lambda body: body.__name__)
def test_an_output_that_shares_an_inputs_storage_is_refused(body: Callable[..., Any]) -> None:
    is_refused(body, lambda: torch.ones(4))


def test_an_output_that_is_the_base_of_an_input_is_refused() -> None:
    is_refused(returns_base, lambda: torch.ones(4)[:2])


def test_an_empty_output_that_shares_storage_is_refused_as_in_pytorch() -> None:
    check(pair_of(returns_input), lambda: call(torch.empty(0)))
    check(pair_of(returns_input), lambda: call(torch.empty(0, 4)[:, :2]))
    check(pair_of(returns_input), lambda: call(torch.ones(0).expand(3, 0)))


def test_two_outputs_that_share_storage_are_refused() -> None:
    def same(x: Tensor) -> tuple[Tensor, Tensor]:
        result = x + 1
        return result, result

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        result = x + 1
        return result[:2], result[2:]

    is_refused(same, lambda: torch.ones(4))
    is_refused(halves, lambda: torch.ones(4))


def test_elements_of_lists_are_checked() -> None:
    def element(tensors: list[Tensor]) -> Tensor:
        return tensors[1]

    def optional_element(tensors: list[Tensor | None]) -> Tensor:
        return tensors[-1]  # type: ignore[return-value]

    def listed(x: Tensor) -> list[Tensor]:
        return [x + 1, x]

    def repeated(x: Tensor) -> list[Tensor]:
        result = x + 1
        return [result, x + 2, result[1:]]

    def across(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        result = x + 1
        return result, [result]

    is_refused(element, lambda: [torch.ones(2), torch.ones(2)])
    is_refused(element, lambda: (torch.ones(2), torch.ones(2)))
    is_refused(optional_element, lambda: [None, torch.ones(2)])
    is_refused(listed, lambda: torch.ones(2))
    is_refused(repeated, lambda: torch.ones(2))
    is_refused(across, lambda: torch.ones(2))


def test_optional_keyword_and_mutated_inputs_are_checked() -> None:
    def optional(x: Tensor, y: Tensor | None = None) -> Tensor:
        return x.clone() if y is None else y

    def mutated(x: Tensor, y: Tensor) -> Tensor:
        x.zero_()
        return x

    def several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), y.view(-1)

    is_refused(optional, lambda: torch.ones(2), lambda: torch.ones(2))
    check(pair_of(optional), lambda: call(torch.ones(2), y=torch.ones(2)))
    check(pair_of(optional), lambda: call(torch.ones(2)))
    is_refused(mutated, lambda: torch.ones(2), lambda: torch.ones(2), mutates_args={"x"})
    is_refused(several, lambda: torch.ones(2), lambda: torch.ones(2))


def test_inputs_may_share_storage_with_each_other() -> None:
    def body(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def shared() -> Any:
        x = torch.ones(4)
        return call(x, x[:1])

    assert check(pair_of(body), shared).raised is None


def test_an_operator_that_aliases_for_some_shapes_is_caught_when_it_does() -> None:
    def body(x: Tensor) -> Tensor:
        return x.contiguous()

    pair = pair_of(body)
    assert check(pair, lambda: call(torch.ones(2, 3).t())).raised is None
    assert check(pair, lambda: call(torch.ones(2, 3))).raised is not None
    assert check(pair, lambda: call(torch.ones(2, 3).t())).raised is None
    assert check(pair, lambda: call(torch.ones(2, 1).t())).raised is not None


def test_an_output_that_shares_storage_with_a_captured_tensor_is_allowed() -> None:
    captured = torch.ones(2)

    def body(x: Tensor) -> Tensor:
        return captured

    assert check(pair_of(body), lambda: call(torch.ones(2))).raised is None


def test_the_result_is_kept_for_the_next_call_by_a_body_that_caches_it() -> None:
    cache: dict[int, Tensor] = {}

    def body(x: Tensor) -> Tensor:
        return cache.setdefault(x.numel(), x * 2)

    pair = pair_of(body)
    check(pair, lambda: call(torch.ones(2)))
    check(pair, lambda: call(torch.zeros(2)))
    for side in pair.sides():
        assert side.op(torch.ones(2)) is side.op(torch.ones(2))


def test_the_text_names_the_operator_and_its_module() -> None:
    outcome = check(pair_of(returns_input), lambda: call(torch.ones(2)))
    assert outcome.raised is not None
    kind, text = outcome.raised
    assert kind == "RuntimeError"
    assert text.startswith("op (with implementation in ")


def test_the_text_names_the_module_of_the_kernel_that_ran() -> None:
    pair = pair_of(lambda_clone)
    kernel = types.FunctionType(returns_input.__code__, {"__name__": "elsewhere"}, "kernel")
    kernel.__module__ = "json"
    pair.each(lambda op: op.register_kernel("cpu", kernel))
    assert check(pair, lambda: call(torch.ones(2))).raised is not None


def lambda_clone(x: Tensor) -> Tensor:
    return x.clone()


def test_an_alias_is_found_before_a_wrong_type_as_in_pytorch() -> None:
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, 5  # type: ignore[return-value]

    def too_few(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x,)  # type: ignore[return-value]

    def bare(x: Tensor) -> tuple[Tensor, Tensor]:
        return x  # type: ignore[return-value]

    def a_list(x: Tensor) -> tuple[Tensor, Tensor]:
        return [x, x + 1]  # type: ignore[return-value]

    def nothing(x: Tensor) -> None:
        return x  # type: ignore[return-value]

    for each in (body, too_few, bare, a_list, nothing):
        check(pair_of(each), lambda: call(torch.ones(2)))


def test_aliases_in_generators_and_nested_values_are_treated_as_in_pytorch() -> None:
    def nested(x: Tensor) -> list[Tensor]:
        return [[x]]  # type: ignore[list-item]

    def generated(x: Tensor) -> list[Tensor]:
        return (each for each in [x])  # type: ignore[return-value]

    def a_tuple(x: Tensor) -> list[Tensor]:
        return (x, x + 1)  # type: ignore[return-value]

    for each in (nested, generated, a_tuple):
        check(pair_of(each), lambda: call(torch.ones(2)))


def test_a_tensor_that_the_body_dropped_from_its_list_is_still_treated_as_in_pytorch() -> None:
    def popped(tensors: list[Tensor]) -> Tensor:
        return tensors.pop()

    def replaced(tensors: list[Tensor]) -> Tensor:
        result = torch.ones(3)
        tensors[:] = [result]
        return result

    check(pair_of(popped), lambda: call([torch.ones(2), torch.ones(1)]))
    check(pair_of(replaced), lambda: call([torch.ones(2), torch.ones(1)]))


def test_tensors_without_storage_are_no_aliases_of_each_other() -> None:
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to_sparse(), x.to_sparse()

    check(pair_of(body), lambda: call(torch.eye(2)))


def test_the_same_tensor_without_storage_is_treated_as_in_pytorch() -> None:
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        result = x.to_sparse()
        return result, result

    check(pair_of(body), lambda: call(torch.eye(2)))


def test_meta_outputs_without_memory_are_no_aliases_of_each_other() -> None:
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty(2, device="meta"), torch.empty(2, device="meta")

    check(pair_of(body), lambda: call(torch.ones(2)))


def test_an_input_that_the_body_gives_another_storage_is_treated_as_in_pytorch() -> None:
    def before(x: Tensor) -> Tensor:
        result = x.view(-1)
        x.set_(torch.zeros(2))  # type: ignore[call-overload]
        return result

    def after(x: Tensor) -> Tensor:
        result = torch.zeros(2)
        x.set_(result)  # type: ignore[call-overload]
        return result

    for body in (before, after):
        check(pair_of(body, mutates_args={"x"}), lambda: call(torch.ones(2)))
