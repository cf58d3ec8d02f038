"""Bad arguments raise what PyTorch raises, with the same text, in every spelling."""

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from parity import Arguments, call, check, pair_of


def gemm(x: Tensor, count: int, factor: float = 0.5, *, flag: bool = True) -> Tensor:
    return x * factor + count


def raises(arguments: Arguments, reason: str) -> str:
    """Checks that both operators refuse the arguments alike; returns the text."""
    outcome = check(pair_of(gemm), lambda: arguments, reason=reason)
    assert outcome.raised is not None
    assert not outcome.received
    return outcome.raised[1]


def test_no_arguments_at_all() -> None:
    assert "Tensor x" in raises(call(), "argument-count")


def test_too_few_arguments() -> None:
    assert "count" in raises(call(torch.ones(2)), "argument-count")


def test_too_many_positional_arguments() -> None:
    raises(call(torch.ones(2), 1, 0.5, True), "argument-count")
    raises(call(torch.ones(2), 1, 0.5, True, 5, 6), "argument-count")


def test_an_unknown_keyword() -> None:
    assert "nonsense" in raises(call(torch.ones(2), 1, nonsense=3), "argument-name")


def test_an_argument_given_twice() -> None:
    raises(call(torch.ones(2), 1, count=2), "argument-name")
    raises(call(torch.ones(2), 1, 0.5, x=torch.ones(2)), "argument-name")


def test_a_missing_argument_beside_keywords() -> None:
    raises(call(count=2), "argument-count")
    raises(call(torch.ones(2), factor=0.5), "argument-count")
    raises(call(torch.ones(2), flag=False), "argument-count")


def test_an_unknown_keyword_and_a_missing_argument() -> None:
    check(pair_of(gemm), lambda: call(torch.ones(2), nonsense=3), reason="argument-name")


@pytest.mark.parametrize("value", [1, 1.5, "text", [1.0], numpy.ones(2), object], ids=lambda v: type(v).__name__)
def test_no_tensor_where_one_is_required(value: Any) -> None:
    raises(call(value, 1), "argument-type")


def test_none_for_a_tensor_or_a_bool_is_taken_as_pytorch_takes_it() -> None:
    def body(x: Tensor, flag: bool) -> Tensor:
        return torch.full((2,), float(x is None))

    check(pair_of(body), lambda: call(None, True), reason="argument-type")
    check(pair_of(body), lambda: call(torch.ones(2), None), reason="argument-type")


@pytest.mark.parametrize("value", [None, 1.5, "1", [1], torch.ones(2), 1j, numpy.float64(1.5), object], ids=repr)
def test_no_int_where_one_is_required(value: Any) -> None:
    raises(call(torch.ones(2), value), "argument-type")
    raises(call(torch.ones(2), count=value), "argument-type")


@pytest.mark.parametrize("value", [None, "0.5", [0.5], torch.ones(2), 1j, object], ids=repr)
def test_no_float_where_one_is_required(value: Any) -> None:
    raises(call(torch.ones(2), 1, value), "argument-type")


@pytest.mark.parametrize("value", ["True", [], torch.ones(2), object], ids=repr)
def test_no_bool_where_one_is_required(value: Any) -> None:
    raises(call(torch.ones(2), 1, flag=value), "argument-type")


@pytest.mark.parametrize(
    "value",
    [None, 3, torch.ones(2), torch.ones(2, 2), "xy", [1], [None], [torch.ones(1), 3], {"a": torch.ones(1)}, {1}],
    ids=lambda value: type(value).__name__,
)
def test_no_list_of_tensors_where_one_is_required(value: Any) -> None:
    def body(tensors: list[Tensor]) -> Tensor:
        return torch.ones(len(tensors))

    check(pair_of(body), lambda: call(value), reason="argument-type")


@pytest.mark.parametrize("value", [None, "12", [1.5], [None], [[1]], ["a"], [2**70], {1: 2}, 1.5, object], ids=repr)
def test_no_list_of_ints_where_one_is_required(value: Any) -> None:
    def body(x: Tensor, sizes: list[int]) -> Tensor:
        return x.clone()

    check(pair_of(body), lambda: call(torch.ones(2), value), reason="argument-type")


@pytest.mark.parametrize("value", [None, 3, b"mean", ["m"], torch.ones(1), object], ids=repr)
def test_no_text_where_one_is_required(value: Any) -> None:
    def body(x: Tensor, mode: str) -> Tensor:
        return x.clone()

    check(pair_of(body), lambda: call(torch.ones(2), value), reason="argument-type")


@pytest.mark.parametrize("value", ["text", [1.0], torch.ones(2), object, 3], ids=repr)
def test_wrong_values_for_optional_arguments(value: Any) -> None:
    def body(x: Tensor | None = None, count: int | None = None, mode: str | None = None) -> Tensor:
        return torch.ones(2)

    pair = pair_of(body)
    allowed = ("", "argument-type")
    check(pair, lambda: call(value), reason=allowed)
    check(pair, lambda: call(None, value), reason=allowed)
    check(pair, lambda: call(mode=value), reason=allowed)


def test_the_first_of_several_errors_is_the_one_that_pytorch_names() -> None:
    check(pair_of(gemm), lambda: call("a", "b", "c", flag="d"), reason="argument-type")
    check(pair_of(gemm), lambda: call("a", 1, 2, 3, 4, nonsense=1), reason="argument-count")
    check(pair_of(gemm), lambda: call(2, "b", nonsense=1), reason="argument-name")


def test_arguments_of_an_operator_without_parameters() -> None:
    def body() -> Tensor:
        return torch.ones(2)

    pair = pair_of(body)
    check(pair, call)
    check(pair, lambda: call(1), reason="argument-count")
    check(pair, lambda: call(x=1), reason="argument-name")


def test_the_error_is_a_runtime_error_that_shows_the_schema() -> None:
    outcome = check(pair_of(gemm), lambda: call(torch.ones(2), 1.5), reason="argument-type")
    assert outcome.raised is not None
    kind, text = outcome.raised
    assert kind == "RuntimeError"
    assert "op(Tensor x, SymInt count, float factor=0.5, *, bool flag=True) -> Tensor" in text


def test_an_argument_whose_conversion_raises() -> None:
    class Number:
        def __index__(self) -> int:
            raise ValueError("no index")

        def __float__(self) -> float:
            raise ValueError("no float")

    raises(call(torch.ones(2), Number()), "argument-type")
    raises(call(torch.ones(2), 1, Number()), "argument-type")


def test_a_call_after_a_bad_call_is_direct_again() -> None:
    pair = pair_of(gemm)
    check(pair, lambda: call(torch.ones(2), "bad"), reason="argument-type")
    check(pair, lambda: call(torch.ones(2), 1))
