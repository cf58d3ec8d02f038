"""Defaults: the body is not passed what was omitted, nor what equals the schema's default."""

from typing import Any

import pytest
import torch
from torch import Tensor

from parity import call, check, pair_of


def with_defaults(
    x: Tensor,
    count: int = 3,
    factor: float = 0.5,
    flag: bool = True,
    mode: str = "mean",
    *,
    dtype: torch.dtype = torch.float32,
    size: int = 2,
) -> Tensor:
    return torch.full((size,), x.sum().item() * factor + count + flag + len(mode), dtype=dtype)


def with_optional_defaults(
    x: Tensor,
    y: Tensor | None = None,
    count: int | None = None,
    factor: float | None = 1.0,
    sizes: list[int] | None = None,
) -> Tensor:
    return x + (0 if y is None else y) + (count or 0)


def test_omitted_arguments_are_not_passed_to_the_body() -> None:
    pair = pair_of(with_defaults)
    outcome = check(pair, lambda: call(torch.ones(2)))
    given = outcome.received[0]["arguments"]
    assert len(given["args"]) == 1
    assert given["kwargs"] == []


def test_trailing_arguments_equal_to_their_defaults_are_not_passed() -> None:
    pair = pair_of(with_defaults)
    outcome = check(pair, lambda: call(torch.ones(2), 4, 0.5, True, "mean"))
    assert len(outcome.received[0]["arguments"]["args"]) == 2
    check(pair, lambda: call(torch.ones(2), 3))
    check(pair, lambda: call(torch.ones(2), 3, 0.5))


def test_a_middle_argument_equal_to_its_default_is_passed() -> None:
    pair = pair_of(with_defaults)
    outcome = check(pair, lambda: call(torch.ones(2), 3, 0.25))
    assert len(outcome.received[0]["arguments"]["args"]) == 3


def test_a_gap_left_by_keywords_is_filled_with_defaults() -> None:
    pair = pair_of(with_defaults)
    check(pair, lambda: call(torch.ones(2), mode="sum"))
    check(pair, lambda: call(torch.ones(2), flag=False))
    check(pair, lambda: call(torch.ones(2), flag=True))
    check(pair, lambda: call(x=torch.ones(2), factor=2.0))


def test_keyword_only_arguments_equal_to_their_defaults_are_not_passed() -> None:
    pair = pair_of(with_defaults)
    outcome = check(pair, lambda: call(torch.ones(2), dtype=torch.float32, size=2))
    assert outcome.received[0]["arguments"]["kwargs"] == []
    outcome = check(pair, lambda: call(torch.ones(2), size=3, dtype=torch.float32))
    assert [name for name, _ in outcome.received[0]["arguments"]["kwargs"]] == ["size"]
    check(pair, lambda: call(torch.ones(2), size=3, dtype=torch.float64))


def test_the_kernel_of_the_device_uses_its_own_defaults() -> None:
    pair = pair_of(with_defaults)

    def doubled(
        x: Tensor,
        count: int = 30,
        factor: float = 5.0,
        flag: bool = False,
        mode: str = "longer",
        *,
        dtype: torch.dtype = torch.float64,
        size: int = 1,
    ) -> Tensor:
        return with_defaults(x, count, factor, flag, mode, dtype=dtype, size=size)

    pair.each(lambda op: op.register_kernel("cpu", doubled))
    check(pair, lambda: call(torch.ones(2)))
    check(pair, lambda: call(torch.ones(2), 3, 0.5, True, "mean", dtype=torch.float32))
    check(pair, lambda: call(torch.ones(2), 3, 0.75))


@pytest.mark.parametrize("zero", [0.0, -0.0], ids=repr)
def test_a_zero_of_the_other_sign_counts_as_the_default_as_in_pytorch(zero: float) -> None:
    def positive(x: Tensor, factor: float = 0.0) -> Tensor:
        return x + torch.tensor(1.0) / torch.tensor(factor)

    def negative(x: Tensor, factor: float = -0.0) -> Tensor:
        return x + torch.tensor(1.0) / torch.tensor(factor)

    check(pair_of(positive), lambda: call(torch.ones(2), zero))
    check(pair_of(negative), lambda: call(torch.ones(2), zero))


def test_none_equal_to_the_default_is_not_passed() -> None:
    pair = pair_of(with_optional_defaults)
    check(pair, lambda: call(torch.ones(2)))
    check(pair, lambda: call(torch.ones(2), None))
    check(pair, lambda: call(torch.ones(2), None, None, 1.0, None))
    check(pair, lambda: call(torch.ones(2), None, 3))
    check(pair, lambda: call(torch.ones(2), None, None, None))
    check(pair, lambda: call(torch.ones(2), None, None, 1.0, [1]))
    check(pair, lambda: call(torch.ones(2), torch.ones(2)))


@pytest.mark.parametrize(
    "value", [3, True, 3.0, "mean", 0.5, torch.tensor(3)], ids=lambda value: f"{type(value).__name__}_{value}"
)
def test_a_converted_value_equal_to_the_default_is_treated_as_in_pytorch(value: Any) -> None:
    def body(x: Tensor, count: int = 1, factor: float = 3.0, flag: bool = True) -> Tensor:
        return x + count * factor

    pair = pair_of(body)
    allowed = ("", "argument-type")
    check(pair, lambda: call(torch.ones(2), value), reason=allowed)
    check(pair, lambda: call(torch.ones(2), factor=value), reason=allowed)
    check(pair, lambda: call(torch.ones(2), flag=value), reason=allowed)


def test_defaults_of_every_type_are_left_out() -> None:
    def body(
        x: Tensor,
        device: torch.device = torch.device("cpu"),  # noqa: B008
        dtype: torch.dtype = torch.int64,
        mode: str = "größe",
        big: int = 2**62,
        small: int = -(2**63) + 1,
        flag: bool = False,
        factor: float = 1e300,
    ) -> Tensor:
        return x.clone()

    pair = pair_of(body)
    check(pair, lambda: call(torch.ones(2)))
    check(pair, lambda: call(torch.ones(2), torch.device("cpu"), torch.int64, "größe", 2**62, 1 - 2**63, False, 1e300))
    check(pair, lambda: call(torch.ones(2), torch.device("cpu", 0)))
    check(pair, lambda: call(torch.ones(2), mode="grösse"))
    check(pair, lambda: call(torch.ones(2), big=2**62 + 1))
    check(pair, lambda: call(torch.ones(2), flag=True))


def test_list_defaults_from_a_schema_are_left_out() -> None:
    def body(x, sizes=(1, 2), factors=(0.5,)):  # type: ignore[no-untyped-def]
        return x + sum(sizes) * sum(factors)

    pair = pair_of(body, schema="(Tensor x, int[] sizes=[1, 2], float[] factors=[0.5]) -> Tensor")
    check(pair, lambda: call(torch.ones(2)))
    check(pair, lambda: call(torch.ones(2), [1, 2]))
    check(pair, lambda: call(torch.ones(2), (1, 2), [0.5]))
    check(pair, lambda: call(torch.ones(2), [1, 2], [0.25]))
    check(pair, lambda: call(torch.ones(2), [1, 2, 3]))


def test_setup_context_gets_every_default_filled_in() -> None:
    def body(x: Tensor, count: int = 3, *, factor: float = 0.5) -> Tensor:
        return x * factor + count

    pair = pair_of(body)
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        seen.append((len(inputs), inputs[1:], keyword_only_inputs))

    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None

    pair.each(lambda op: op.register_autograd(backward, setup_context=setup_context))
    check(pair, lambda: call(torch.ones(2, requires_grad=True)), reason="requires-grad", spellings=("object",))
    check(pair, lambda: call(torch.ones(2, requires_grad=True), 4), reason="requires-grad", spellings=("object",))
    assert seen[:2] == [(2, (3,), {"factor": 0.5})] * 2
    assert seen[2:] == [(2, (4,), {"factor": 0.5})] * 2
