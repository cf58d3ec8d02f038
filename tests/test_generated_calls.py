"""Generated signatures and calls, right and wrong, each compared with PyTorch."""

from typing import Any

import hypothesis.strategies as st
import numpy
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from parity import Arguments, check, pair_of

ints = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**62 - 1, 2**62, 2**63 - 1, -(2**63), 2**63, True, numpy.int32(4)]),
)
floats = st.one_of(st.floats(width=64), st.integers(-3, 3), st.sampled_from([numpy.float32(1.5), True]))
# Tensors are made anew for each call, so that one operator's mutations don't reach the other.
tensors = st.sampled_from([lambda: torch.ones(2), lambda: torch.arange(6.0).view(2, 3).t(), lambda: torch.tensor(1)])
others = st.sampled_from([None, "text", 1, 2.5, [], [1], (1.5,), object, lambda: torch.ones(2)])

# Schema type, good values, and default literals with what they mean to the body.
TYPES: dict[str, tuple[st.SearchStrategy[Any], list[str]]] = {
    "Tensor": (tensors, []),
    "Tensor?": (st.one_of(st.none(), tensors), ["None"]),
    "Tensor[]": (st.one_of(st.lists(tensors, max_size=3), st.tuples(tensors, tensors)), []),
    "Tensor?[]": (st.lists(st.one_of(st.none(), tensors), max_size=3), []),
    "SymInt": (ints, ["0", "3", "4611686018427387904"]),
    "SymInt?": (st.one_of(st.none(), ints), ["None", "3"]),
    "SymInt[]": (st.one_of(st.lists(ints, max_size=3), st.tuples(ints)), []),
    "SymInt[]?": (st.one_of(st.none(), st.lists(ints, max_size=3)), ["None"]),
    "float": (floats, ["0.5", "-1.0"]),
    "float?": (st.one_of(st.none(), floats), ["None"]),
    "float[]": (st.lists(floats, max_size=3), []),
    "bool": (st.sampled_from([True, False, 1, 0]), ["True", "False"]),
    "bool[]": (st.lists(st.booleans(), max_size=3), []),
    "str": (st.text(st.characters(codec="utf-8"), max_size=5), ['"mean"']),
    "str?": (st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=5)), ["None"]),
    "Scalar": (st.one_of(ints, floats, st.just(1j)), ["2"]),
    "ScalarType": (st.sampled_from([torch.float32, torch.int8]), ["float32"]),
    "Device": (st.sampled_from([torch.device("cpu"), "cpu"]), ['"cpu"']),
}


@st.composite
def signatures(draw: st.DrawFn) -> list[tuple[str, str | None, bool]]:
    """Parameters as (type, default or None, keyword-only); what has a default comes last, as the schema wants it."""
    parameters = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(sorted(TYPES)))
        defaults = TYPES[kind][1]
        default = draw(st.sampled_from([None, *defaults]))
        keyword_only = "Tensor" not in kind and draw(st.integers(0, 3)) == 0
        parameters.append((kind, default, keyword_only))
    return sorted(parameters, key=lambda parameter: (parameter[2], parameter[1] is not None))


def schema_of(parameters: list[tuple[str, str | None, bool]]) -> str:
    texts = []
    for index, (kind, default, keyword_only) in enumerate(parameters):
        if keyword_only and "*" not in texts:
            texts.append("*")
        texts.append(f"{kind} a{index}" + ("" if default is None else f"={default}"))
    return f"({', '.join(texts)}) -> Tensor"


@st.composite
def calls(
    draw: st.DrawFn, parameters: list[tuple[str, str | None, bool]], wrong: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Values by position, then by name; with ``wrong`` some have another type, are missing or too many."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    by_name = False
    for index, (kind, default, keyword_only) in enumerate(parameters):
        if default is not None and draw(st.booleans()):
            by_name = True
            continue
        if wrong and draw(st.integers(0, 7)) == 0:
            by_name = True
            continue
        by_name = by_name or keyword_only or draw(st.integers(0, 3)) == 0
        value = draw(others if wrong and draw(st.integers(0, 3)) == 0 else TYPES[kind][0])
        if by_name:
            kwargs[f"a{index}"] = value
        else:
            args.append(value)
    if wrong and draw(st.integers(0, 7)) == 0:
        args.append(draw(others))
    if wrong and draw(st.integers(0, 7)) == 0:
        kwargs[draw(st.sampled_from(["nonsense", "a0", "a1"]))] = draw(others)
    return args, dict(draw(st.permutations(list(kwargs.items()))))


def made(value: Any) -> Any:
    """The value with its tensors made anew."""
    if isinstance(value, (list, tuple)):
        return type(value)(made(member) for member in value)
    return value() if callable(value) and not isinstance(value, type) else value


def body(*args: Any, **kwargs: Any) -> Tensor:
    return torch.ones(1)


def compare(data: st.DataObject, wrong: bool) -> None:
    parameters = data.draw(signatures())
    pair = pair_of(body, schema=schema_of(parameters))
    for _ in range(3):
        args, kwargs = data.draw(calls(parameters, wrong))
        outcome = check(
            pair,
            lambda args=args, kwargs=kwargs: Arguments(tuple(map(made, args)), {k: made(v) for k, v in kwargs.items()}),
            reason=None,
        )
        if not wrong and not outcome.received:
            assert outcome.raised is not None


quickly = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@quickly
@given(st.data())
def test_generated_calls_do_what_pytorch_does(data: st.DataObject) -> None:
    compare(data, wrong=False)


@quickly
@given(st.data())
def test_generated_wrong_calls_are_refused_as_in_pytorch(data: st.DataObject) -> None:
    compare(data, wrong=True)
