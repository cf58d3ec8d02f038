"""Accelerated operators of Library.define and Library.impl do what they did before: arguments and results."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accelerated import (
    DIRECT,
    KEYS,
    check,
    library_twins,
    ones,
    refused,
    restored,
)
from dutyfree.check.outcome import Arguments, call

__all__ = ["restored"]  # a fixture for every test here


# Arguments


EVERYTHING = (
    "(Tensor x, Tensor? maybe=None, Tensor[]? several=None, Tensor?[]? holes=None, int[] sizes=[], float f=0.5, "
    "Scalar s=1, str t='a', *, bool flag=False, int? i=None, ScalarType? dtype=None, Device? device=None, "
    "float[]? fs=None, SymInt n=3, str mode='m', bool[]? flags=None{more}) -> Tensor"
)
# With an argument of a type that has no direct path, and without.
SCHEMAS = [EVERYTHING.format(more=""), EVERYTHING.format(more=", int[2] pair=1")]


def everything(
    x: Tensor,
    maybe: Any = "D",
    several: Any = "D",
    holes: Any = "D",
    sizes: Any = "D",
    f: Any = "D",
    s: Any = "D",
    t: Any = "D",
    **keywords: Any,
) -> Tensor:
    return x.clone()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "given",
    [
        lambda: call(torch.ones(1)),
        lambda: call(torch.ones(1), torch.ones(2), [torch.ones(3)] * 2, [None, torch.ones(1)], (1, 2), 2, 2.5, "b"),
        lambda: call(torch.ones(1), None, (), [], torch.Size([4]), True, True),
        lambda: call(torch.ones(1), several=(torch.ones(1),), holes=(None,), sizes=[], f=0.5, s=1, t="a"),
        lambda: call(torch.ones(1), flag=True, i=4, dtype=torch.float16, device="cpu", fs=[1, 2.5], n=7, mode="z"),
        lambda: call(torch.ones(1), flag=False, i=None, dtype=None, device=torch.device("meta"), flags=[True, False]),
        lambda: call(x=torch.ones(1), s=2 + 3j, fs=(), flags=(True,)),
    ],
    ids=["defaults", "positional", "empty", "named", "keywords", "none", "scalars"],
)
def test_arguments_as_the_body_sees_them(key: str, given: Callable[[], Arguments]) -> None:
    for schema in SCHEMAS:
        check(library_twins(schema, everything, key), given, None)


@pytest.mark.parametrize(
    "given",
    [
        lambda: call(torch.ones(1), sizes=[1, 2]),
        lambda: call(torch.ones(1), f=3, sizes=(1,)),
        lambda: call(torch.ones(1), several=[torch.ones(1)], flag=True, n=4),
    ],
)
def test_common_arguments_stay_on_the_direct_path(given: Callable[[], Arguments]) -> None:
    check(library_twins(SCHEMAS[0], everything), given, DIRECT)
    check(library_twins(SCHEMAS[1], everything), given, ("boxed", "schema"))


@pytest.mark.parametrize(
    "given",
    [
        lambda: call(torch.ones(1), f=np.float32(2.5)),
        lambda: call(torch.ones(1), f=torch.tensor(2.5)),
        lambda: call(torch.ones(1), sizes=[np.int64(3)]),
        lambda: call(torch.ones(1), i=torch.tensor(3)),
        lambda: call(torch.ones(1), s=np.float64(1.5)),
        lambda: call(torch.ones(1), s=torch.tensor(2)),
        lambda: call(torch.ones(1), sizes=(True, 2)),
        lambda: call(torch.ones(1), flag=1),
        lambda: call(torch.ones(1), flag=np.True_),
    ],
)
def test_numbers_that_pytorch_converts(given: Callable[[], Arguments]) -> None:
    for schema in SCHEMAS:
        check(library_twins(schema, everything), given, None)


@pytest.mark.parametrize(
    "given",
    [
        lambda: call(),
        lambda: call(None),
        lambda: call(3),
        lambda: call(torch.ones(1), torch.ones(1), *[1] * 20),
        lambda: call(torch.ones(1), x=torch.ones(1)),
        lambda: call(torch.ones(1), nosuch=1),
        lambda: call(torch.ones(1), several=torch.ones(1)),
        lambda: call(torch.ones(1), several=[None]),
        lambda: call(torch.ones(1), sizes=[1.5]),
        lambda: call(torch.ones(1), sizes=None),
        lambda: call(torch.ones(1), n=1.5),
        lambda: call(torch.ones(1), n=2**70),
        lambda: call(torch.ones(1), t=3),
        lambda: call(torch.ones(1), f="x"),
        lambda: call(torch.ones(1), device="nosuch"),
        lambda: call(torch.ones(1), dtype="float"),
    ],
)
@pytest.mark.parametrize("key", ["CPU", ""])
def test_arguments_that_pytorch_refuses(given: Callable[[], Arguments], key: str) -> None:
    for schema in SCHEMAS:
        refused(check(library_twins(schema, everything, key), given, None))


def test_a_body_that_changes_its_lists_changes_a_copy() -> None:
    def greedy(xs: list[Tensor], sizes: list[int]) -> Tensor:
        result = xs[0] * sizes[0]
        xs.clear()
        sizes.append(1)
        return result

    twins = library_twins("(Tensor[] xs, int[] sizes) -> Tensor", greedy)
    check(twins, lambda: call([torch.ones(1)], [3]))
    check(twins, lambda: call((torch.ones(1),), (3,)))


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_an_operator_without_tensors(key: str) -> None:
    twins = library_twins("(int n, *, Device? device=None) -> Tensor", lambda n, device=None: torch.ones(n), key)
    check(twins, lambda: call(3), None)
    check(twins, lambda: call(3, device="cpu"), None)
    check(twins, lambda: call(3, device=torch.device("meta")), None)


def test_tensors_with_keys_of_their_own() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", lambda x: x.clone(), key)
        check(twins, lambda: call(torch.ones(2, dtype=torch.complex64).conj()), None)
        check(twins, lambda: call(torch.ones(2, dtype=torch.complex64).conj().imag), None)
        check(twins, lambda: call(torch.ones(2).to_sparse()), None)
        check(twins, lambda: call(torch.ones(2, device="meta")), None)
        check(twins, lambda: call(torch.nested.nested_tensor([torch.ones(2)])), None)
        check(twins, lambda: call(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)), None)
        check(twins, lambda: call(torch.nn.Parameter(torch.ones(2), requires_grad=False)), DIRECT)
        check(twins, lambda: call(torch._efficientzerotensor(2)), None)


# Results


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    ("returns", "result"),
    [
        ("()", lambda: None),
        ("Tensor[]", lambda: [torch.ones(1), torch.ones(2)]),
        ("Tensor[]", lambda: (torch.ones(1),)),
        ("Tensor[]", list),
        ("Tensor?", lambda: None),
        ("Tensor?", lambda: torch.ones(1)),
        ("(Tensor, Tensor)", lambda: (torch.ones(1), torch.ones(2))),
        ("(Tensor, Tensor)", lambda: [torch.ones(1), torch.ones(2)]),
        ("(Tensor, Tensor[], int)", lambda: (torch.ones(1), [torch.ones(2)], 3)),
        ("(Tensor, Tensor?)", lambda: (torch.ones(1), None)),
        ("int", lambda: 3),
        ("int", lambda: np.int64(3)),
        ("int", lambda: True),
        ("float", lambda: 3),
        ("bool", lambda: True),
        ("SymInt", lambda: 4),
        ("Scalar", lambda: 2.5),
        ("str", lambda: "text"),
        ("int[]", lambda: [1, 2]),
        ("(int, float)", lambda: (1, 2.0)),
        ("Tensor?[]", lambda: [None, torch.ones(1)]),
        ("ScalarType", lambda: torch.float16),
        ("Device", lambda: torch.device("cpu")),
    ],
)
def test_results(key: str, returns: str, result: Callable[[], Any]) -> None:
    check(library_twins(f"(Tensor x) -> {returns}", lambda x: result(), key), ones, None)


@pytest.mark.parametrize("key", ["CPU", ""])
@pytest.mark.parametrize(
    ("returns", "result"),
    [
        ("()", lambda: torch.ones(1)),
        ("()", lambda: 3),
        ("Tensor", lambda: None),
        ("Tensor", lambda: 3),
        ("Tensor", lambda: "text"),
        ("Tensor", lambda: [torch.ones(1)]),
        ("Tensor", lambda: (torch.ones(1),)),
        ("Tensor[]", lambda: torch.ones(2)),
        ("Tensor[]", lambda: [None]),
        ("Tensor[]", lambda: None),
        ("Tensor?", lambda: 3),
        ("(Tensor, Tensor)", lambda: torch.ones(2)),
        ("(Tensor, Tensor)", lambda: (torch.ones(1),)),
        ("(Tensor, Tensor)", lambda: (torch.ones(1), None)),
        ("(Tensor, Tensor)", lambda: None),
        ("int", lambda: 2.5),
        ("int", lambda: "3"),
        ("int", lambda: torch.tensor(3)),
        ("int", lambda: torch.ones(2)),
        ("float", lambda: torch.tensor(2.5)),
        ("bool", lambda: 1),
        ("str", lambda: 3),
        ("int[]", lambda: [1.5]),
        ("int[]", lambda: 1),
    ],
)
def test_wrong_results(key: str, returns: str, result: Callable[[], Any]) -> None:
    check(library_twins(f"(Tensor x) -> {returns}", lambda x: result(), key), ones, None)
