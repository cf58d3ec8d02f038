"""What a body may return, and what the caller gets for it."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import Tensor
from torch.types import Number

import dutyfree
from isolated import run_isolated
from parity import Pair, call, check, pair_of, unique_namespaces

X = torch.ones(2)


class Both(NamedTuple):
    first: Tensor
    second: Tensor


class TensorList(list):  # type: ignore[type-arg]
    pass


class TensorTuple(tuple):  # type: ignore[type-arg]
    __slots__ = ()


def returning(make: Callable[[], Any], annotation: Any) -> Pair:
    """The operator whose body returns ``make()`` and is annotated to return ``annotation``."""

    def body(x: Tensor) -> Any:
        return make()

    body.__annotations__["return"] = annotation
    return pair_of(body)


def check_result(make: Callable[[], Any], annotation: Any) -> Any:
    outcome = check(returning(make, annotation), lambda: call(torch.ones(2)))
    return outcome.raised if outcome.raised is not None else outcome.value


def tensor() -> Tensor:
    return torch.arange(6.0).view(2, 3).t()


@pytest.mark.parametrize(
    "make",
    [
        tensor,
        lambda: torch.tensor(1.5),
        lambda: torch.empty(0),
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: torch.ones(2, requires_grad=True),
        lambda: torch.ones(2).as_subclass(TensorSubclass),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2, device="meta"),
        lambda: tensor()[1:],
        lambda: torch.ones(2, requires_grad=True) * 2,
    ],
)
def test_a_tensor_is_returned_as_the_body_made_it(make: Callable[[], Any]) -> None:
    check_result(make, Tensor)


class TensorSubclass(Tensor):
    pass


@pytest.mark.parametrize(
    "result", [None, 1, 1.5, "text", [X.clone()], (X.clone(),), (), [], numpy.ones(2), object()], ids=repr
)
def test_what_is_no_tensor_raises_as_in_pytorch(result: Any) -> None:
    check_result(lambda: result, Tensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (tensor(), torch.ones(1)),
        lambda: [tensor(), torch.ones(1)],
        lambda: Both(tensor(), torch.ones(1)),
        lambda: TensorList([tensor(), torch.ones(1)]),
        lambda: TensorTuple([tensor(), torch.ones(1)]),
        lambda: namedtuple("Pair", "a b")(tensor(), torch.ones(1)),
    ],
    ids=["tuple", "list", "NamedTuple", "list subclass", "tuple subclass", "namedtuple"],
)
def test_two_outputs_arrive_as_a_tuple(make: Callable[[], Any]) -> None:
    check_result(make, tuple[Tensor, Tensor])


@pytest.mark.parametrize(
    "make",
    [
        lambda: tensor(),
        lambda: torch.ones(2, 2),
        lambda: None,
        lambda: (tensor(),),
        lambda: [tensor()],
        lambda: (),
        lambda: (tensor(), None),
        lambda: (tensor(), 1),
        lambda: (t for t in (tensor(), torch.ones(1))),
        lambda: {"a": tensor(), "b": tensor()},
        lambda: "ab",
        lambda: 5,
    ],
    ids=[
        "one tensor", "a tensor of two rows", "None", "a tuple of one", "a list of one", "an empty tuple", "a None",
        "a number", "a generator", "a dict", "text", "an int",
    ],
)  # fmt: skip
def test_other_values_for_two_outputs_are_refused_or_converted_as_in_pytorch(make: Callable[[], Any]) -> None:
    check_result(make, tuple[Tensor, Tensor])


def return_three_values_for_two_outputs(requires_grad: bool = False) -> None:
    def in_a_tuple(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x + 2, x + 3  # type: ignore[return-value]

    def in_a_list(x: Tensor) -> tuple[Tensor, Tensor]:
        return [x + 1, x + 2, x + 3]  # type: ignore[return-value]

    for body in (in_a_tuple, in_a_list):
        namespace = unique_namespaces()[1]
        op = dutyfree.fast_custom_op(f"{namespace}::op", body)
        packet = getattr(torch.ops, namespace).op
        for spelled in (op, packet, packet.default):
            with pytest.raises(RuntimeError, match="op"):
                spelled(torch.ones(2, requires_grad=requires_grad))


def return_three_values_beside_a_gradient() -> None:
    return_three_values_for_two_outputs(requires_grad=True)


# PyTorch 2.13 reads beyond the end of the schema here and dies, so there is no outcome to compare with.
def test_too_many_outputs_raise() -> None:
    run_isolated(return_three_values_for_two_outputs)


def test_too_many_outputs_raise_beside_a_gradient() -> None:
    run_isolated(return_three_values_beside_a_gradient)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (tensor(),),
        lambda: [tensor()],
        lambda: tensor(),
        lambda: None,
        lambda: (),
        lambda: ([tensor()],),
    ],
    ids=["tuple", "list", "bare tensor", "None", "empty", "nested"],
)
def test_a_tuple_of_one_output_arrives_as_in_pytorch(make: Callable[[], Any]) -> None:
    check_result(make, tuple[Tensor])


@pytest.mark.parametrize(
    "make",
    [
        lambda: [tensor(), torch.ones(1)],
        lambda: (tensor(), torch.ones(1)),
        list,
        tuple,
        lambda: TensorList([tensor()]),
        lambda: TensorTuple([tensor()]),
        lambda: Both(tensor(), torch.ones(1)),
    ],
    ids=["list", "tuple", "empty list", "empty tuple", "list subclass", "tuple subclass", "NamedTuple"],
)
def test_a_sequence_of_tensors_arrives_as_a_list(make: Callable[[], Any]) -> None:
    check_result(make, list[Tensor])


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: tensor(),
        lambda: [tensor(), None],
        lambda: [tensor(), 1],
        lambda: (t for t in (tensor(),)),
        lambda: {tensor()},
        lambda: 5,
    ],
    ids=["None", "a tensor", "a None in it", "a number in it", "a generator", "a set", "an int"],
)
def test_other_values_for_a_list_of_tensors_are_refused_or_converted_as_in_pytorch(make: Callable[[], Any]) -> None:
    check_result(make, list[Tensor])


def test_the_list_that_the_body_keeps_is_not_the_list_that_the_caller_gets() -> None:
    kept: list[Any] = []

    def body(x: Tensor) -> list[Tensor]:
        kept.append([x + 1, x + 2])
        return kept[-1]  # type: ignore[no-any-return]

    pair = pair_of(body)
    check(pair, lambda: call(torch.ones(2)))
    result = pair.fast.op(torch.ones(2))
    assert result is not kept[-1]
    kept[-1].clear()
    assert len(result) == 2


@pytest.mark.parametrize("annotation", [int, float, bool, Number], ids=["int", "float", "bool", "Number"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: 3,
        lambda: 2.5,
        lambda: True,
        lambda: -0.0,
        lambda: 2**62,
        lambda: 2**63 - 1,
        lambda: 2**63,
        lambda: 1 + 2j,
        lambda: numpy.int64(3),
        lambda: numpy.int8(3),
        lambda: numpy.float64(2.5),
        lambda: numpy.float32(2.5),
        lambda: numpy.bool_(True),
        lambda: torch.tensor(3),
        lambda: torch.tensor(2.5),
        lambda: None,
        lambda: "3",
        lambda: [3],
        lambda: (3,),
    ],
    ids=[
        "int", "float", "bool", "-0.0", "2**62", "2**63-1", "2**63", "complex", "numpy.int64", "numpy.int8",
        "numpy.float64", "numpy.float32", "numpy.bool", "int tensor", "float tensor", "None", "text", "list", "tuple",
    ],
)  # fmt: skip
def test_numbers_are_returned_converted_or_refused_as_in_pytorch(make: Callable[[], Any], annotation: Any) -> None:
    check_result(make, annotation)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (tensor(), 3, 2.5, True, [tensor()]),
        lambda: [tensor(), True, 2, False, (tensor(),)],
        lambda: (tensor(), numpy.int32(3), numpy.float32(2.5), True, []),
        lambda: (tensor(), 2.5, 2.5, True, []),
        lambda: (tensor(), 3, 2.5, True),
    ],
    ids=["exact", "converted", "numpy", "float for int", "too few"],
)
def test_outputs_of_several_kinds_are_each_converted(make: Callable[[], Any]) -> None:
    check_result(make, tuple[Tensor, int, float, bool, list[Tensor]])


@pytest.mark.parametrize("result", [None, 1, X, (), [], (None,), False], ids=repr)
def test_an_operator_without_result_returns_none_and_refuses_values_as_in_pytorch(result: Any) -> None:
    check_result(lambda: result, None)


@pytest.mark.parametrize(
    ("returns", "values"),
    [
        ("Tensor?", [None, torch.ones(1)]),
        ("int[]", [[1, 2], (3,), [], [True], [1.5]]),
        ("float[]", [[1.5], (2,)]),
        ("str", ["text", "größe", 3]),
        ("ScalarType", [torch.float64]),
        ("Device", [torch.device("cpu")]),
        ("(Tensor, Tensor?)", [(torch.ones(1), None), (torch.ones(1), torch.ones(2))]),
        ("int?", [None, 3]),
    ],
)
def test_results_that_only_a_schema_can_declare(returns: str, values: list[Any]) -> None:
    def body(x):  # type: ignore[no-untyped-def]
        return current

    pair = pair_of(body, schema=f"(Tensor x) -> {returns}")
    for value in values:
        current = value
        check(pair, lambda: call(torch.ones(2)))


def test_a_result_that_raises_while_it_is_read_raises_as_in_pytorch() -> None:
    class Broken(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            raise ValueError("no length")

        def __iter__(self) -> Any:
            raise ValueError("no elements")

    check_result(lambda: Broken([torch.ones(1)]), list[Tensor])
    check_result(lambda: Broken([torch.ones(1), torch.ones(1)]), tuple[Tensor, Tensor])


def test_an_operator_is_usable_after_a_bad_result() -> None:
    def body(x: Tensor) -> Tensor:
        return current  # type: ignore[no-any-return]

    pair = pair_of(body)
    current: Any = 5
    assert check(pair, lambda: call(torch.ones(2))).raised is not None
    current = torch.ones(3)
    assert check(pair, lambda: call(torch.ones(2))).raised is None


def return_three_values_while_the_kernel_is_disabled() -> None:
    def three(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x + 2, x + 3  # type: ignore[return-value]

    op = dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", three, device_types="cpu")
    for requires_grad in (False, True):
        with op.set_kernel_enabled("cpu", enabled=False), pytest.raises(RuntimeError, match="to return 2 values"):
            op(torch.ones(1, requires_grad=requires_grad))


def test_too_many_outputs_raise_while_the_kernel_is_disabled() -> None:
    run_isolated(return_three_values_while_the_kernel_is_disabled)
