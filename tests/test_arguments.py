"""Arguments as the body sees them."""

from collections.abc import Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.types import Number

from parity import call, check, pair_of, refused_alike


def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


def repeated(x: Tensor, count: int) -> Tensor:
    return x + count % 97


def switched(x: Tensor, flag: bool) -> Tensor:
    return x + 1 if flag else x - 1


def with_number(x: Tensor, number: Number) -> Tensor:
    return x + number


def with_sizes(x: Tensor, sizes: list[int]) -> Tensor:
    result = x.new_zeros(sizes)
    sizes.append(7)
    return result


def with_factors(x: Tensor, factors: Sequence[float]) -> Tensor:
    return x * sum(factors)


def with_flags(x: Tensor, flags: list[bool]) -> Tensor:
    return x + sum(flags)


def with_numbers(x: Tensor, numbers: list[Number]) -> Tensor:
    return x + sum(numbers)


def summed(tensors: list[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    tensors.clear()
    return total


def summed_optional(x: Tensor, tensors: list[Tensor | None]) -> Tensor:
    return x + sum(1 for tensor in tensors if tensor is not None)


def with_text(x: Tensor, mode: str) -> Tensor:
    return x + len(mode)


def converted(x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return x.to(dtype=dtype, device=device, copy=True)


def optional(
    x: Tensor | None,
    count: int | None,
    factor: float | None,
    flag: bool | None,
    mode: str | None,
    sizes: list[int] | None,
    dtype: torch.dtype | None,
    device: torch.device | None,
    number: Number | None,
) -> Tensor:
    given = [x, count, factor, flag, mode, sizes, dtype, device, number]
    return torch.tensor([float(value is not None) for value in given])


def test_tensor_and_numbers_of_the_exact_type_arrive_unchanged() -> None:
    def body(x: Tensor, count: int, factor: float, flag: bool, mode: str) -> Tensor:
        return x * factor + count

    check(pair_of(body), lambda: call(torch.arange(6.0).view(2, 3).t(), 3, 0.5, True, "mean"))


def test_many_arguments_arrive_in_order() -> None:
    names = [f"a{index}" for index in range(51)]
    source = (
        f"def body(x: Tensor, {', '.join(f'{name}: int' for name in names)}) -> Tensor:\n    return x + {names[-1]}"
    )
    scope: dict[str, Any] = {"Tensor": Tensor}
    exec(source, scope)
    pair = pair_of(scope["body"])
    check(pair, lambda: call(torch.ones(2), *range(51)))
    check(pair, lambda: call(torch.ones(2), **{name: index for index, name in reversed(list(enumerate(names)))}))


def test_sixty_four_arguments_are_taken_and_more_are_refused_as_in_pytorch() -> None:
    def body(x, *numbers, **named):  # type: ignore[no-untyped-def]
        return x + sum(numbers) + sum(named.values())

    def schema(count: int) -> str:
        return f"(Tensor x, {', '.join(f'int a{index}' for index in range(count))}) -> Tensor"

    check(pair_of(body, schema=schema(63)), lambda: call(torch.ones(1), *range(63)))
    refused_alike(body, schema=schema(64))


@pytest.mark.parametrize("sizes", [[2, 3], (2, 3), torch.Size([2, 3]), [], ()], ids=repr)
def test_every_sequence_of_ints_arrives_as_a_new_list(sizes: Any) -> None:
    check(pair_of(with_sizes), lambda: call(torch.ones(2), type(sizes)(sizes)))


@pytest.mark.parametrize(
    "sizes", [[True, 2], [numpy.int64(2), 3], [torch.tensor(2), 3], numpy.array([2, 3]), range(2)], ids=repr
)
def test_sequences_of_other_values_convert_to_ints_or_raise_as_in_pytorch(sizes: Any) -> None:
    check(pair_of(with_sizes), lambda: call(torch.ones(2), sizes), reason="argument-type")


def test_an_int_given_for_a_list_of_ints_converts_or_raises_as_in_pytorch() -> None:
    check(pair_of(with_sizes), lambda: call(torch.ones(2), 3), reason="argument-type")


def test_lists_of_floats_bools_and_numbers_arrive_as_lists_of_them() -> None:
    check(pair_of(with_factors), lambda: call(torch.ones(2), [0.5, -0.0, float("inf")]))
    check(pair_of(with_factors), lambda: call(torch.ones(2), (0.5, 2.0)))
    check(pair_of(with_flags), lambda: call(torch.ones(2), [True, False]))
    check(pair_of(with_numbers), lambda: call(torch.ones(2), [1, 2.5]))


def test_ints_in_a_list_of_floats_arrive_as_floats() -> None:
    check(pair_of(with_factors), lambda: call(torch.ones(2), [1, 2.0, True]), reason="argument-type")


def test_ints_in_a_list_of_bools_convert_or_raise_as_in_pytorch() -> None:
    check(pair_of(with_flags), lambda: call(torch.ones(2), [1, 0]), reason="argument-type")


def test_a_list_of_tensors_arrives_as_a_new_list_of_the_same_tensors() -> None:
    pair = pair_of(summed)
    check(pair, lambda: call([torch.ones(2), torch.zeros(2)]))
    check(pair, lambda: call((torch.ones(2), torch.zeros(2))))
    check(pair, lambda: call(tensors=[torch.ones(2)]))


def test_a_body_may_change_the_list_that_it_received() -> None:
    pair = pair_of(summed)
    for side in pair.sides():
        tensors = [torch.ones(2), torch.ones(2)]
        side.op(tensors)
        assert len(tensors) == 2


def test_a_list_of_optional_tensors_keeps_its_nones() -> None:
    check(pair_of(summed_optional), lambda: call(torch.ones(2), [None, torch.ones(1), None]))
    check(pair_of(summed_optional), lambda: call(torch.ones(2), [None]))


def test_an_empty_list_of_tensors_is_received_or_refused_as_in_pytorch() -> None:
    check(pair_of(summed_optional), lambda: call(torch.ones(2), []))
    check(pair_of(summed), lambda: call([]))


def test_an_int_for_a_float_arrives_as_a_float() -> None:
    check(pair_of(scaled), lambda: call(torch.ones(2), 3))


def test_a_bool_for_an_int_arrives_as_an_int() -> None:
    check(pair_of(repeated), lambda: call(torch.ones(2), True), reason="argument-type")


def test_a_bool_for_a_float_converts_or_raises_as_in_pytorch() -> None:
    check(pair_of(scaled), lambda: call(torch.ones(2), True), reason="argument-type")


@pytest.mark.parametrize("flag", [1, 0, 2, 1.0, None, numpy.bool_(True), torch.tensor(True)], ids=repr)
def test_other_values_for_a_bool_convert_or_raise_as_in_pytorch(flag: Any) -> None:
    check(pair_of(switched), lambda: call(torch.ones(2), flag), reason="argument-type")


@pytest.mark.parametrize(
    "number",
    [numpy.int64(3), numpy.int8(3), numpy.float64(2.5), numpy.float32(2.5), numpy.bool_(True), numpy.array(2)],
    ids=lambda number: type(number).__name__,
)
def test_numpy_scalars_arrive_as_python_numbers_or_raise_as_in_pytorch(number: Any) -> None:
    for body in (scaled, repeated, with_number):
        check(pair_of(body), lambda: call(torch.ones(2), number), reason="argument-type")


@pytest.mark.parametrize(
    "number",
    [
        torch.tensor(3),
        torch.tensor([3]),
        torch.tensor(2.5),
        torch.tensor([[2.5]]),
        torch.tensor(True),
        torch.tensor([1, 2]),
        torch.tensor(3.0, requires_grad=True),
    ],
    ids=repr,
)
def test_one_element_tensors_for_a_number_arrive_as_python_numbers_or_raise_as_in_pytorch(number: Tensor) -> None:
    for body in (scaled, repeated, with_number):
        check(pair_of(body), lambda: call(torch.ones(2), number), reason="argument-type")


@pytest.mark.parametrize("number", [1, 2.5, True, 1 + 2j, -0.0, float("nan"), 2**62], ids=repr)
def test_every_number_arrives_with_its_own_type(number: Any) -> None:
    check(
        pair_of(with_number),
        lambda: call(torch.ones(2), number),
        reason="argument-type" if isinstance(number, complex) else "",
    )


@pytest.mark.parametrize(
    "count", [2**31 - 1, 2**31, 2**53 + 1, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, -(2**63), -(2**62), -1]
)
def test_large_ints_arrive_exactly(count: int) -> None:
    check(pair_of(repeated), lambda: call(torch.ones(2), count))
    check(pair_of(with_sizes_kept), lambda: call(torch.ones(2), [count, 0]))


def with_sizes_kept(x: Tensor, sizes: list[int]) -> Tensor:
    return x + len(sizes)


@pytest.mark.parametrize("count", [2**63, 2**64, 2**200, -(2**63) - 1], ids=["2**63", "2**64", "2**200", "-2**63-1"])
def test_ints_over_64_bits_raise_as_in_pytorch(count: int) -> None:
    check(pair_of(repeated), lambda: call(torch.ones(2), count), reason="argument-type")
    check(pair_of(with_sizes_kept), lambda: call(torch.ones(2), [1, count]), reason="argument-type")
    check(pair_of(scaled), lambda: call(torch.ones(2), count), reason="argument-type")
    check(pair_of(with_number), lambda: call(torch.ones(2), count), reason="argument-type")


@pytest.mark.parametrize("mode", ["mean", "", "größe", "日本", "a\0b", "x" * 5000], ids=ascii)
def test_text_arrives_unchanged(mode: str) -> None:
    check(pair_of(with_text), lambda: call(torch.ones(2), mode))


@pytest.mark.parametrize("mode", ["\ud800", "a\udfff"], ids=ascii)
def test_lone_surrogates_arrive_or_raise_as_in_pytorch(mode: str) -> None:
    check(pair_of(with_text), lambda: call(torch.ones(2), mode), reason="argument-type")


def test_a_subclass_of_str_or_int_or_float_arrives_as_in_pytorch() -> None:
    class Text(str):
        pass

    class Count(int):
        pass

    class Factor(float):
        pass

    check(pair_of(with_text), lambda: call(torch.ones(2), Text("mean")), reason="argument-type")
    check(pair_of(repeated), lambda: call(torch.ones(2), Count(3)), reason="argument-type")
    check(pair_of(scaled), lambda: call(torch.ones(2), Factor(3.5)), reason="argument-type")


def test_dtype_and_device_arrive_as_given() -> None:
    check(pair_of(converted), lambda: call(torch.ones(2), torch.float64, torch.device("cpu")))
    check(pair_of(converted), lambda: call(torch.ones(2), torch.float64, torch.device("cpu", 0)))
    check(pair_of(converted), lambda: call(torch.ones(2), dtype=torch.int8, device=torch.device("cpu")))


@pytest.mark.parametrize("device", ["cpu", "cpu:0", 0], ids=repr)
def test_text_or_an_index_for_a_device_arrives_as_a_device(device: Any) -> None:
    pair = pair_of(converted_on_cpu)
    check(pair, lambda: call(torch.ones(2), torch.float64, device), reason="argument-type")


def converted_on_cpu(x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return x.to(dtype, copy=True)


@pytest.mark.parametrize("device", ["", "nowhere", "cpu:x", None, 1.5], ids=repr)
def test_what_is_no_device_raises_as_in_pytorch(device: Any) -> None:
    check(pair_of(converted_on_cpu), lambda: call(torch.ones(2), torch.float64, device), reason="argument-type")


@pytest.mark.parametrize("dtype", [6, "float32", None, float, torch.strided], ids=repr)
def test_other_values_for_a_dtype_convert_or_raise_as_in_pytorch(dtype: Any) -> None:
    check(pair_of(converted_on_cpu), lambda: call(torch.ones(2), dtype, torch.device("cpu")), reason="argument-type")


def test_a_list_of_dtypes_arrives_as_a_list_of_dtypes() -> None:
    def body(x, dtypes):  # type: ignore[no-untyped-def]
        return x.to(dtypes[0], copy=True)

    pair = pair_of(body, schema="(Tensor x, ScalarType[] dtypes) -> Tensor")
    check(pair, lambda: call(torch.ones(2), [torch.float64, torch.int8]))
    check(pair, lambda: call(torch.ones(2), (torch.float64,)))


def test_optional_arguments_arrive_as_none_or_as_their_values() -> None:
    pair = pair_of(optional)
    check(pair, lambda: call(None, None, None, None, None, None, None, None, None))
    check(
        pair,
        lambda: call(torch.ones(2), 1, 2.0, True, "x", [1], torch.float16, torch.device("cpu"), 3.5),
    )
    check(pair, lambda: call(None, None, None, False, None, [], None, torch.device("cpu"), None))


def test_converted_values_reach_optional_arguments_too() -> None:
    pair = pair_of(optional)
    check(
        pair,
        lambda: call(None, True, 2, numpy.bool_(True), None, (1, True), None, "cpu", numpy.float32(1.5)),
        reason="argument-type",
    )


def test_keyword_arguments_arrive_as_in_pytorch() -> None:
    pair = pair_of(scaled)
    check(pair, lambda: call(torch.ones(2), factor=2.0))
    check(pair, lambda: call(x=torch.ones(2), factor=2.0))
    check(pair, lambda: call(factor=2.0, x=torch.ones(2)))


def test_keyword_names_that_are_not_interned_are_known() -> None:
    name = "".join(["fac", "tor"])
    check(pair_of(scaled), lambda: call(torch.ones(2), **{name: 2.0}))


def test_keyword_names_of_a_subclass_of_str_are_known_or_refused_as_in_pytorch() -> None:
    class Name(str):
        pass

    check(pair_of(scaled), lambda: call(torch.ones(2), **{Name("factor"): 2.0}), reason=None)
    check(pair_of(scaled), lambda: call(torch.ones(2), **{Name("nonsense"): 2.0}), reason="argument-name")


def test_keyword_only_arguments_arrive_by_keyword() -> None:
    def body(x: Tensor, *, count: int, factor: float = 0.5) -> Tensor:
        return x * factor + count

    pair = pair_of(body)
    check(pair, lambda: call(torch.ones(2), count=3))
    check(pair, lambda: call(torch.ones(2), factor=2.0, count=3))
    check(pair, lambda: call(count=3, x=torch.ones(2)))
    check(pair, lambda: call(torch.ones(2), 3), reason="argument-count")


def test_arguments_named_self_arrive_as_in_pytorch() -> None:
    def body(self: Tensor, args: int, kwargs: int) -> Tensor:
        return self + args * kwargs

    pair = pair_of(body)
    check(pair, lambda: call(torch.ones(2), 2, 3))
    check(pair, lambda: call(torch.ones(2), kwargs=2, args=3))


def test_symbolic_numbers_are_left_to_pytorch() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    symbol = ShapeEnv().create_unbacked_symint()
    check(pair_of(repeated), lambda: call(torch.ones(2), symbol), reason="argument-type", spellings=("object",))
