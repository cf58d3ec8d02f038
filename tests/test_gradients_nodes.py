"""Nodes and their class in the hands of programs: copied, patched, derived, outliving their operator."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dutyfree
from gradients_alike import alike, done_alike, needing_grad, product, step, with_product
from parity import Side, pair_of, unique_namespaces


@pytest.mark.parametrize(
    ("change", "of_node", "refusal"),
    [
        (copy.copy, False, None),
        (copy.deepcopy, False, "Only Tensors created explicitly by the user"),
        (pickle.dumps, False, None),
        (copy.copy, True, "cannot pickle"),
        (copy.deepcopy, True, "cannot pickle"),
        (pickle.dumps, True, "cannot pickle"),
    ],
)
def test_results_and_their_nodes_are_copied_and_pickled_as_in_pytorch(
    change: Callable[[Any], Any], of_node: bool, refusal: str | None
) -> None:
    def run(side: Side) -> Any:
        result = side.op(needing_grad(), torch.ones(2))
        return type(change(result.grad_fn if of_node else result)).__name__

    outcome = done_alike(with_product(), run, may_raise=refusal is not None)
    if refusal is not None:
        assert outcome[0] == "raised"
        assert refusal in outcome[2]


def test_another_autograd_kernel_takes_over_at_once() -> None:
    def run(side: Side) -> Any:
        found = [step(side)]
        with torch.library._scoped_library(side.namespace, "IMPL") as library:
            library.impl("op", lambda x, y, scale=2.0: x + y, "AutogradCPU")
            found.append(step(side))
        found.append(step(side))
        return found

    alike(with_product(), run, paths={"autograd", "pytorch"})


def test_an_operator_lives_as_long_with_a_node_as_in_pytorch() -> None:
    def run(register: Any, namespace: str) -> Any:
        op = register(f"{namespace}::op", product, mutates_args=())
        op.register_autograd(lambda ctx, grad: (grad * 5, None, None))
        x = needing_grad()
        result = op(x, torch.ones(2), 3.0)
        reference = weakref.ref(op)
        del op
        gc.collect()
        found: list[Any] = [reference() is None]
        result.sum().backward()
        found.append(x.grad.tolist())  # type: ignore[union-attr]
        del result
        gc.collect()
        return [*found, reference() is None]

    reference, ours = unique_namespaces()
    assert run(dutyfree.fast_custom_op, ours) == run(torch.library.custom_op, reference)


def test_a_redefined_operator_leaves_older_nodes_their_formula() -> None:
    def run(register: Any, namespace: str) -> Any:
        x = needing_grad()
        results = []
        for factor in (5, 7):
            op = register(f"{namespace}::op", product, mutates_args=())
            op.register_autograd(lambda ctx, grad, factor=factor: (grad * factor, None, None))
            results.append(op(x, torch.ones(2), 3.0))
        return [torch.autograd.grad(result.sum(), x)[0].tolist() for result in results]

    reference, ours = unique_namespaces()
    assert run(dutyfree.fast_custom_op, ours) == run(torch.library.custom_op, reference)


def test_an_apply_that_someone_put_on_function_sees_every_call() -> None:
    seen: list[str] = []
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(cls.__name__.rpartition("_")[2])
        return original.__func__(cls, *args, **kwargs)

    pair = pair_of(lambda x: x * 2, schema="(Tensor x) -> Tensor")
    x = torch.ones(2, requires_grad=True)
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        for side in pair.sides():
            side.op(x)
        plan = dutyfree.explain(pair.fast.op, x)
        assert (plan.path, plan.code) == ("pytorch", "patched-apply")
    finally:
        torch.autograd.Function.apply = original
    assert seen == ["default", "default"]
    assert dutyfree.explain(pair.fast.op, x).path == "autograd"


def test_an_apply_that_someone_put_on_nodes_sees_every_backward() -> None:
    seen: list[int] = []
    nodes = torch.autograd.function.BackwardCFunction
    original = nodes.apply

    def apply(self: Any, *args: Any) -> Any:
        seen.append(len(args))
        return original(self, *args)

    pair = pair_of(lambda x: x * 2, schema="(Tensor x) -> Tensor")
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: grad * 2))
    nodes.apply = apply
    try:
        for side in pair.sides():
            x = torch.ones(2, requires_grad=True)
            side.op(x).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2.0, 2.0]
    finally:
        nodes.apply = original
    assert seen == [1, 1]


def test_a_class_derived_from_the_function_applies_itself() -> None:
    pair = pair_of(lambda x: x * 2, schema="(Tensor x) -> Tensor")
    for side in pair.sides():
        x = torch.ones(2, requires_grad=True)
        node: Any = type(side.op(x).grad_fn)
        functions = {
            "forward": staticmethod(lambda ctx, x: x * 2),
            "backward": staticmethod(lambda ctx, grad: grad * 5),
        }
        derived: Any = type("Derived", (node._forward_cls,), functions)
        derived.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [5.0, 5.0]
