"""Arguments of operators whose kernels are C++: of every parameter type, the kernel gets what PyTorch gives it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dutyfree
from accelerated import DIRECT, Way, refused, restored
from cpp_twins import BOXED_FOR_TYPE, alike, alike_overload, call, load, twins
from dutyfree.check.outcome import Arguments

__all__ = ["restored"]  # a fixture for every test here

NUMBERS_OF_INT = [0, 1, -1, 2**30, -(2**30), 2**31, 2**62, 2**63 - 1, -(2**63)]
NUMBERS_OF_FLOAT = [0.0, -0.0, 0.1, float("inf"), float("-inf"), float("nan"), 5e-324, 3, -1, 2**53 + 1, 2**62]
SCALARS = [0, -1, 2**62, 0.5, float("nan"), True, False]
WORDS = ["", "text", "äöü", "a\0b", "\U0001f600" * 30]
INTS = [[], [1], (1, 2), torch.Size([3, 4]), [2**62, -(2**63)], list(range(200)), tuple(range(100))]
FLOATS = [[], [0.5], (1.5, 2), [1, 2], [float("inf")], [0.25] * 100]
BOOLS = [[], [True], (True, False), [False, False, True], [True, False] * 50]


def x() -> Tensor:
    return torch.arange(1.0, 7.0).reshape(2, 3)


def lists_of_tensors() -> list[Callable[[], Any]]:
    return [
        lambda: [x()],
        lambda: (x(), x()[0], x().t()),
        lambda: [x() + number for number in range(40)],
        lambda: [shared := x(), shared],
    ]


TENSORS = [x, lambda: x().t(), lambda: x()[1, 1:], lambda: torch.tensor(3), lambda: torch.empty(0, 2), lambda: x() > 2]
OPTIONAL_LISTS = [lambda: [x(), None], lambda: (None, x(), x()), lambda: [None, x()] * 20]

# After a tensor: of each parameter type, values that go directly.
VALUES: dict[str, list[Any]] = {
    "int": NUMBERS_OF_INT,
    "int_default": NUMBERS_OF_INT,
    "int_optional": [*NUMBERS_OF_INT, None],
    "symint": NUMBERS_OF_INT[:-1],
    "symint_optional": [0, -5, None],
    "float": NUMBERS_OF_FLOAT,
    "float_optional": [*NUMBERS_OF_FLOAT, None],
    "bool": [True, False],
    "bool_optional": [True, False, None],
    "scalar": SCALARS,
    "scalar_default": SCALARS,
    "scalar_optional": [*SCALARS, None],
    "str": WORDS,
    "str_view": WORDS,
    "str_optional": [*WORDS, None],
    "str_view_optional": [*WORDS, None],
    "dtype": [torch.float32, torch.bool, torch.complex64, torch.bfloat16],
    "dtype_optional": [torch.int8, None],
    "device": [torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")],
    "device_optional": [torch.device("cpu", 0), None],
    "layout": [torch.strided, torch.sparse_coo],
    "layout_optional": [torch.sparse_csr, None],
    "format": [torch.contiguous_format, torch.channels_last],
    "format_optional": [torch.preserve_format, None],
    "ints": INTS,
    "ints_sized": INTS,
    "ints_in_vector": INTS,
    "ints_in_list": INTS,
    "ints_optional": [*INTS, None],
    "ints_optional_in_vector": [*INTS, None],
    "symints": INTS[:4],
    "floats": FLOATS,
    "floats_in_vector": FLOATS,
    "floats_optional": [*FLOATS, None],
    "bools_optional": [None],
}
DIRECT_CASES = [(name, value) for name, values in VALUES.items() for value in values]
# The value is read as a list of bool was: PyTorch's own conversion makes it, or refuses it.
CONVERTED: dict[str, list[Any]] = {
    "int": [True, np.int64(3), torch.tensor(3), torch.tensor([3]), 2.0, "3", None, 2**63, -(2**63) - 1, [3]],
    "symint": [True, np.int32(3), torch.tensor(3), 1.5, None, 2**64],
    "float": [True, np.float64(0.5), np.float32(0.5), torch.tensor(0.5), 2**63, 2**1100, "a", None, 1j],
    "bool": [0, 1, np.bool_(True), torch.tensor(True), 1.0, None, "True"],
    "scalar": [1j, np.float64(0.5), np.int64(3), torch.tensor(2), torch.tensor(0.5), 2**63, 2**64, "a", None],
    "str": [b"bytes", 3, None, "\ud800", np.str_("text")],
    "dtype": [6, "float32", None, np.float32, float],
    "dtype_optional": [6, "float32"],
    "device": ["cpu", "cuda:1", 0, None, "nonsense"],
    "device_optional": ["cpu", 0],
    "layout": [0, "strided", None],
    "format": [0, None],
    "ints": [
        1, [True], [np.int64(3), 1], [torch.tensor(3)], [1.5], [None], None, "12", [2**63], {1, 2}, range(3), [1, "a"],
        np.array([1, 2]), torch.tensor([1, 2]), {1: 2},
    ],
    "ints_sized": [1, [True, 2], None, 1.5],
    "symints": [1, [True], [np.int64(3)], [torch.tensor(3)], [1.5], None],
    "floats": [0.5, [True], [np.float64(3)], [torch.tensor(3.0)], [0.5, "a"], [None], None, np.array([1.0])],
    "bools_in_list": [True, [1], [1, 0], [True, None], [torch.tensor(True)], None, [np.bool_(True)]],

}  # fmt: skip
CONVERTED_CASES = [(name, value) for name, values in CONVERTED.items() for value in values]


class WholeNumber(int):
    pass


class Word(str):
    __slots__ = ()


class Numbers(list):  # type: ignore[type-arg]
    pass


def numbered(cases: list[tuple[str, Any]]) -> Any:
    return pytest.mark.parametrize(
        ("name", "value"), cases, ids=[f"{name}-{number}" for number, (name, _) in enumerate(cases)]
    )


def arguments_of(schema: torch.FunctionSchema) -> list[str]:
    return [argument.name for argument in schema.arguments]


@pytest.mark.parametrize("name", ["tensor_by_reference", "tensor_by_value"])
@pytest.mark.parametrize("make", TENSORS)
def test_a_tensor(name: str, make: Callable[[], Tensor]) -> None:
    alike("arguments", name, lambda: call(make()))
    alike("arguments", name, lambda: call(x=make()))


@pytest.mark.parametrize("name", ["tensor_optional", "tensor_optional_by_reference"])
def test_an_optional_tensor(name: str) -> None:
    alike("arguments", name, lambda: call(x()))
    alike("arguments", name, lambda: call(x(), None))
    alike("arguments", name, lambda: call(x(), y=None))
    for make in TENSORS:
        alike("arguments", name, lambda make=make: call(x(), make()))


@pytest.mark.parametrize("name", ["tensors", "tensors_in_vector", "tensors_in_list"])
def test_a_list_of_tensors(name: str) -> None:
    for make in lists_of_tensors():
        alike("arguments", name, lambda make=make: call(make()))


@pytest.mark.parametrize("name", ["tensors_optional_in_list", "tensors_optional_in_vector"])
def test_a_list_of_optional_tensors(name: str) -> None:
    for make in [*lists_of_tensors(), *OPTIONAL_LISTS]:
        alike("arguments", name, lambda make=make: call(make()))


def test_an_optional_list_of_tensors() -> None:
    for make in [*lists_of_tensors(), lambda: None, list, tuple]:
        alike("arguments", "tensors_or_none", lambda make=make: call(x(), make()))
    alike("arguments", "tensors_or_none", lambda: call(x()))


@pytest.mark.parametrize("name", ["tensors", "tensors_in_list"])
@pytest.mark.parametrize(
    "make",
    [
        list, lambda: [None], lambda: [x(), None], lambda: [x(), 1], lambda: x(), lambda: (t for t in [x()]), lambda: 3,
        lambda: {0: x()}, lambda: None, lambda: Numbers([x()]), lambda: [[x()]],
    ],
)  # fmt: skip
def test_what_is_no_list_of_tensors_is_left_to_pytorch(name: str, make: Callable[[], Any]) -> None:
    found = alike("arguments", name, lambda: call(make()), None)
    assert "direct" not in ways(name), (found, ways(name))


def ways(name: str) -> set[str]:
    return {path for path, calls in dutyfree.stats()[f"cpparguments_fast::{name}"].calls.items() if calls}


@numbered(DIRECT_CASES)
def test_a_value_of_the_parameters_type_goes_directly(name: str, value: Any) -> None:
    alike("arguments", name, lambda: call(x(), value))
    schema = getattr(torch.ops.cpparguments_slow, name).default._schema
    alike("arguments", name, lambda: call(x(), **{arguments_of(schema)[1]: value}))
    alike("arguments", name, lambda: call(**{arguments_of(schema)[1]: value, "x": x()}))


@pytest.mark.parametrize("name", ["bools_in_list", "bools_optional"])
@pytest.mark.parametrize("value", BOOLS, ids=len)
def test_a_list_of_bools_goes_directly(name: str, value: Any) -> None:
    alike("arguments", name, lambda: call(x(), value))


@pytest.mark.parametrize("name", [name for name in VALUES if "optional" in name])
def test_a_default_is_given_to_the_kernel(name: str) -> None:
    alike("arguments", name, lambda: call(x()))


@pytest.mark.parametrize(
    "name", ["int_default", "scalar_default", "str_view", "dtype", "ints_sized", "ints_in_vector", "floats_in_vector"]
)
def test_a_default_that_is_a_value_is_given_to_the_kernel(name: str) -> None:
    alike("arguments", name, lambda: call(x()))


@numbered(CONVERTED_CASES)
def test_what_only_pytorch_converts_or_refuses(name: str, value: Any) -> None:
    found = alike("arguments", name, lambda: call(x(), value), None)
    assert "direct" not in ways(name), (found, ways(name))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("int", lambda: WholeNumber(5)),
        ("float", lambda: WholeNumber(5)),
        ("scalar", lambda: WholeNumber(5)),
        ("str", lambda: Word("text")),
        ("ints", lambda: Numbers([1, 2])),
        ("ints", lambda: [WholeNumber(1)]),
        ("ints", lambda: (n for n in [1, 2])),
        ("floats", lambda: iter([0.5])),
        ("floats", lambda: Numbers([0.5])),
    ],
)
def test_a_subclass_of_a_python_type_and_an_iterator_are_left_to_pytorch(name: str, make: Callable[[], Any]) -> None:
    found = alike("arguments", name, lambda: call(x(), make()), None)
    assert "direct" not in ways(name), (found, ways(name))


@pytest.mark.parametrize(
    "make",
    [
        lambda: call(),
        lambda: call(x()),
        lambda: call(x(), 1, 2),
        lambda: call(x(), 1, n=2),
        lambda: call(x(), x=x(), n=1),
        lambda: call(x(), m=1),
        lambda: call(x(), 1, m=1),
        lambda: call(n=1),
        lambda: call(None, 1),
        lambda: call(3, 1),
        lambda: call(1, x()),
        lambda: call("x", "n"),
    ],
)
def test_arguments_that_fit_no_schema_raise_pytorchs_error(make: Callable[[], Arguments]) -> None:
    assert refused(alike("arguments", "int", make, None))[0] in {"RuntimeError", "NotImplementedError"}
    assert ways("int") <= {"pytorch", "boxed"}


def test_keyword_only_arguments() -> None:
    alike("arguments", "keyword_only", lambda: call(x()))
    alike("arguments", "keyword_only", lambda: call(x(), 2, flag=True))
    alike("arguments", "keyword_only", lambda: call(x(), flag=True, a=0.25, n=2))
    refused(alike("arguments", "keyword_only", lambda: call(x(), 2, 0.5), None))


@pytest.mark.parametrize("length", [0, 1, 30])
def test_many_arguments_together(length: int) -> None:
    def make() -> Arguments:
        return call(x(), list(range(length)), None, [x()] * max(length, 1), [0.5] * length, "t" * length)

    alike("arguments", "many", make)
    alike("arguments", "many", lambda: call(x(), [1], x(), (x(), x())))


def test_as_many_arguments_as_pytorch_allows() -> None:
    alike("arguments", "of_64", lambda: call(x()))
    alike("arguments", "of_64", lambda: call(x(), *range(63)))
    alike("arguments", "of_64", lambda: call(x(), n62=-1))


def test_operators_without_tensors() -> None:
    alike("arguments", "nothing", call)
    alike("arguments", "no_tensor", lambda: call(3))
    alike("arguments", "no_tensor", lambda: call(3, device=torch.device("cpu")))
    alike("arguments", "no_tensor", lambda: call(3, device=torch.device("meta")))
    alike("arguments", "no_tensor", lambda: call(3, device="cpu"), BOXED_FOR_TYPE)


@pytest.mark.parametrize(
    ("overload", "make"),
    [
        ("several", lambda: call(x(), 3)),
        ("several.tensor", lambda: call(x(), x())),
        ("several.text", lambda: call(x(), "text")),
        ("several.ints", lambda: call(x(), [1, 2])),
        ("several.ints", lambda: call(x(), (1,), k=3)),
    ],
)
def test_a_packet_takes_the_overload_that_pytorch_takes(overload: str, make: Callable[[], Arguments]) -> None:
    way: Way = DIRECT
    alike_overload("arguments", overload, make, way)
    alike_overload("arguments", overload, make, way, "packet")


@pytest.mark.parametrize(
    "make",
    [
        lambda: call(x(), True),
        lambda: call(x(), torch.tensor(3)),
        lambda: call(x(), 2.5),
        lambda: call(x(), None),
        lambda: call(x(), ["a"]),
        lambda: call(x(), 1, k=2),
        lambda: call(x()),
        lambda: call(x(), np.int64(3)),
    ],
)
def test_a_packet_converts_and_refuses_as_pytorch_does(make: Callable[[], Arguments]) -> None:
    for spelling in ("packet", "overload"):
        alike_overload("arguments", "several", make, ("", ""), spelling)


def test_a_call_can_be_made_before_and_after_acceleration() -> None:
    load("arguments")
    op = torch.ops.cpparguments_fast.ints.default
    before = op(x(), [1, 2])
    both = twins("arguments", "ints")
    assert op(x(), [1, 2]) == before == both.reference.overload(x(), [1, 2])
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 1
