"""Accelerated operators of torch.library.custom_op do what they did before, called by any of their names."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from accelerated import (
    AUTOGRAD,
    DIRECT,
    both,
    check,
    custom_twins,
    doubled,
    gives,
    ones,
    ones_with_grad,
    refused,
    restored,
    spellings_of,
    took,
)
from dutyfree.check.outcome import Arguments, Side, call

__all__ = ["restored"]  # a fixture for every test here


# What is called


def test_a_pure_operator_by_its_object_packet_and_overload() -> None:
    twins = custom_twins(doubled)
    assert spellings_of(twins.accelerated) == ("object", "packet", "overload")
    assert dutyfree.accelerate(twins.accelerated.op)[twins.accelerated.qualname].path == "direct"
    gives(twins, [2.0, 2.0])
    check(twins, lambda: call(x=torch.ones(2)))


@pytest.mark.parametrize("key", ["op", "overload", "packet", "qualname", "namespace"])
def test_any_spelling_of_the_target_accelerates_all_spellings_of_the_call(key: str) -> None:
    twins = custom_twins(doubled, record=False)
    side = twins.reference
    dutyfree.accelerate(getattr(side, key))
    for spelling in spellings_of(side):
        with took(side, DIRECT):
            assert side.spelled(spelling)(torch.ones(2)).tolist() == [2.0, 2.0]


def test_the_autograd_of_the_body_is_masked() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))

    def captures(x: Tensor) -> Tensor:
        return x * parameter

    assert check(custom_twins(captures), ones).value["grad_fn"] is None

    def differentiates(x: Tensor) -> Tensor:
        y = x.detach().requires_grad_()
        return torch.autograd.grad((y**3).sum(), y)[0]

    refused(check(custom_twins(differentiates), ones))


def test_versions_of_results_and_inference_mode() -> None:
    def cloned(x: Tensor) -> Tensor:
        return x.clone()

    twins = custom_twins(cloned)
    check(twins, ones)
    with torch.inference_mode():
        check(twins, ones)
        x = torch.ones(2)
    check(twins, lambda: call(x), None)


# Mutation


def unseen(x: Tensor, ys: list[Tensor], z: Tensor | None = None) -> None:
    for tensor in (x, *ys, *(() if z is None else (z,))):
        tensor.detach().numpy()[:] += 1


def test_mutated_arguments_get_a_new_version_on_every_call() -> None:
    twins = custom_twins(unseen, mutates_args=("x", "ys", "z"))
    for given in (
        lambda: call(torch.ones(2), []),
        lambda: call(torch.ones(2), [torch.ones(2), torch.ones(2)]),
        lambda: call(torch.ones(2), (torch.ones(2),), torch.ones(2)),
        lambda: call(x=torch.ones(2), ys=[torch.ones(2)], z=torch.ones(2)),
    ):
        outcome = check(twins, given)
        seen = [*outcome.inputs_after["args"], *(value for _, value in outcome.inputs_after["kwargs"])]
        tensors = [member for value in seen for member in value.get("members", [value])]
        assert {tensor["version"] for tensor in tensors} == {1}
        assert {tensor["values"] for tensor in tensors} == {"[2.0, 2.0]"}


def test_a_mutation_that_autograd_notices_later() -> None:
    twins = custom_twins(unseen, mutates_args=("x", "ys", "z"))

    def stale(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        y = x * 1
        product = (y * y).sum()
        with torch.no_grad():
            side.op(y, [])
        product.backward()

    error, text = both(twins, stale)
    assert error == "RuntimeError"
    assert "modified by an inplace operation" in text


def test_the_version_moves_even_if_the_body_raises() -> None:
    def fails(x: Tensor) -> None:
        raise ValueError("no")

    outcome = check(custom_twins(fails, mutates_args=("x",)), ones)
    assert outcome.raised == ("ValueError", "no")
    assert outcome.inputs_after["args"][0]["version"] == 1


def test_mutated_inputs_that_require_grad_or_are_inference_tensors() -> None:
    def add(x: Tensor) -> None:
        x.add_(1)

    for mutates in (("x",), "unknown"):
        twins = custom_twins(add, mutates_args=mutates)
        check(twins, ones, DIRECT)
        check(twins, ones_with_grad, None)
        check(twins, lambda: call(torch.ones(2, requires_grad=True) * 1), None)
        with torch.inference_mode():
            check(twins, ones, DIRECT)
        refused(check(twins, inference_tensor, None))


def inference_tensor() -> Arguments:
    with torch.inference_mode():
        return call(torch.ones(2))


# Arguments and results


def many(
    x: Tensor,
    maybe: Tensor | None = None,
    sizes: Sequence[int] | None = None,
    f: float = 0.5,
    *,
    flag: bool = False,
    i: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    mode: str = "m",
) -> Tensor:
    return x.clone()


@pytest.mark.parametrize(
    "given",
    [
        lambda: call(torch.ones(1)),
        lambda: call(torch.ones(1), torch.ones(2), [3], 2),
        lambda: call(torch.ones(1), None, (1, 2), 0.5),
        lambda: call(torch.ones(1), sizes=torch.Size([4]), f=True),
        lambda: call(torch.ones(1), flag=True, i=4, dtype=torch.float16, device="cpu", mode="z"),
        lambda: call(torch.ones(1), flag=False, i=None, mode="m"),
        lambda: call(mode="z", x=torch.ones(1)),
    ],
)
def test_arguments_as_the_body_sees_them(given: Callable[[], Arguments]) -> None:
    def without_defaults_for_lists(x: Tensor, maybe: Tensor | None = None, *rest: Any, **more: Any) -> Tensor:
        return x.clone()

    schema = (
        "(Tensor x, Tensor? maybe=None, int[] sizes=[1, 2], float f=0.5, *, bool flag=False, int? i=None, "
        "ScalarType? dtype=None, Device? device=None, str mode='m') -> Tensor"
    )
    check(custom_twins(without_defaults_for_lists, schema=schema), given, None)
    outcome = check(custom_twins(many), given, None)
    assert outcome.raised is None
    assert outcome.received


@pytest.mark.parametrize(
    "given",
    [
        lambda: call(),
        lambda: call(3),
        lambda: call(torch.ones(1), None, [1.5]),
        lambda: call(torch.ones(1), None, [1], "f"),
        lambda: call(torch.ones(1), None, [1], 0.5, True),
        lambda: call(torch.ones(1), nosuch=1),
        lambda: call(torch.ones(1), x=torch.ones(1)),
        lambda: call(torch.ones(1), i=2**70),
        lambda: call(torch.ones(1), i=1.5),
        lambda: call(torch.ones(1), device="nosuch"),
        lambda: call(torch.ones(1), mode=None),
    ],
)
def test_arguments_that_pytorch_refuses(given: Callable[[], Arguments]) -> None:
    refused(check(custom_twins(many), given, None))


def count(xs: list[Tensor]) -> Tensor:
    return torch.tensor(len(xs))


@pytest.mark.parametrize("members", [(1,), (torch.ones(1), "text")])
def test_an_iterator_over_what_is_no_tensor_is_refused(members: tuple[Any, ...]) -> None:
    twins = custom_twins(count)
    for spelling in spellings_of(twins.reference):

        def call_it(side: Side, spelling: str = spelling) -> Any:
            return side.spelled(spelling)(each for each in members)

        assert both(twins, call_it)[0] == "RuntimeError"


def test_explain_does_not_read_an_iterator() -> None:
    twins = custom_twins(count)
    given = (each for each in [torch.ones(1), torch.ones(1)])
    dutyfree.explain(twins.accelerated.op, given)
    assert len(list(given)) == 2


def test_lists_of_tensors_go_in_and_come_out() -> None:
    def each(xs: list[Tensor], ys: list[Tensor | None]) -> list[Tensor]:
        return [x + 1 for x in xs] + [y + 1 for y in ys if y is not None]

    schema = "(Tensor[] xs, Tensor?[] ys) -> Tensor[]"
    twins = custom_twins(each, schema=schema)
    check(twins, lambda: call([torch.ones(2), torch.ones(1)], [None, torch.ones(1)]))
    check(twins, lambda: call((torch.ones(2),), ()))
    check(twins, lambda: call([], []), None)
    check(twins, lambda: call([torch.ones(2, requires_grad=True)], [None]), AUTOGRAD)
    check(twins, lambda: call([torch.ones(1)], [torch.ones(2, requires_grad=True)]), AUTOGRAD)


def test_several_and_other_results() -> None:
    def several(x: Tensor, n: int) -> tuple[Tensor, int, list[Tensor]]:
        return x + n, n, [x * n]

    check(custom_twins(several), lambda: call(torch.ones(2), 3))
    check(custom_twins(several), lambda: call(torch.ones(2, requires_grad=True), 3), None)

    for annotation, result in ((int, 3), (float, 2), (bool, True), (None, None)):
        schema = f"(Tensor x) -> {'()' if annotation is None else annotation.__name__}"
        check(custom_twins(lambda x, result=result: result, record=False, schema=schema), ones)


@pytest.mark.parametrize(
    ("returns", "result"),
    [
        ("()", lambda: torch.ones(1)),
        ("Tensor", lambda: None),
        ("Tensor", lambda: (torch.ones(1),)),
        ("Tensor[]", lambda: torch.ones(2)),
        ("(Tensor, Tensor)", lambda: (torch.ones(1),)),
        ("(Tensor, Tensor)", lambda: None),
        ("int", lambda: 2.5),
    ],
)
def test_wrong_results(returns: str, result: Callable[[], Any]) -> None:
    def body(x: Tensor) -> Any:
        return result()

    check(custom_twins(body, schema=f"(Tensor x) -> {returns}"), ones, None)


@pytest.mark.parametrize(
    ("returns", "body"),
    [
        ("Tensor", lambda x: x),
        ("Tensor", lambda x: x[:1]),
        ("(Tensor, Tensor)", lambda x: (x + 1, x)),
        ("(Tensor, Tensor)", lambda x: (x + 1,) * 2),
        ("Tensor[]", lambda x: [x + 1, x.view(-1)]),
        ("Tensor[]", lambda x: [(y := x + 1), y[1:]]),
    ],
)
def test_results_that_share_memory_are_refused_with_pytorchs_words(returns: str, body: Callable[..., Any]) -> None:
    twins = custom_twins(body, schema=f"(Tensor x) -> {returns}")
    error, text = refused(check(twins, ones, None))
    assert error == "RuntimeError"
    assert "op (with implementation in " in text
    refused(check(twins, ones_with_grad, None))
