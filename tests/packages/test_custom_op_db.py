"""PyTorch's own collection of custom operators: each of them, with each of its sample inputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from before_and_after import Case, accelerated, by_path, check, check_with_gradient, differentiable, registered, same
from torch import Tensor
from torch._library import custom_ops
from torch.testing._internal import custom_op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map_only

from dutyfree.check.outcome import Arguments

NAMESPACE = "_torch_testing"
# Defined, and registered a fake kernel for, but no other.
WITHOUT_KERNEL = [f"{NAMESPACE}::source{number}" for number in range(4)]
# Not in the collection: they only show how fake kernels are registered.
CLONES = [f"{NAMESPACE}::source4", f"{NAMESPACE}::source5"]


def operator_of(info: OpInfo) -> str:
    overload = getattr(info.op, "default", info.op)
    return overload.name()  # type: ignore[no-any-return]


def samples(info: OpInfo, requires_grad: bool) -> list[SampleInput]:
    torch.manual_seed(0)
    return list(info.sample_inputs("cpu", torch.float32, requires_grad=requires_grad))


def arguments_of(sample: SampleInput) -> Arguments:
    return Arguments((sample.input, *sample.args), dict(sample.kwargs))


def remade(info: OpInfo, number: int) -> Callable[[], Arguments]:
    """Makes one sample's arguments, the same each time, of which none requires grad."""
    return lambda: arguments_of(samples(info, requires_grad=False)[number])


def each_sample(*, requires_grad: bool) -> list[Any]:
    return [
        pytest.param(info, number, id=f"{info.name}-{number}")
        for info in custom_op_db.custom_op_db
        if info.supports_autograd or not requires_grad
        for number in range(len(samples(info, requires_grad)))
    ]


def test_the_collection_has_every_operator_of_the_namespace_that_has_a_kernel() -> None:
    named = {operator_of(info) for info in custom_op_db.custom_op_db}
    assert registered(NAMESPACE) == sorted(named | set(WITHOUT_KERNEL) | set(CLONES))
    assert {name for name in registered(NAMESPACE) if name in custom_ops.OPDEFS} == named | set(CLONES)


def test_the_report() -> None:
    with accelerated(custom_op_db) as report:
        assert by_path(report) == {"direct": 13, "boxed": 4}
        assert [entry.name for entry in report if entry.path == "boxed"] == WITHOUT_KERNEL


@pytest.mark.parametrize(("info", "number"), each_sample(requires_grad=False))
def test_the_same_without_a_gradient(info: OpInfo, number: int) -> None:
    check(Case(operator_of(info), remade(info, number)), NAMESPACE)


@pytest.mark.parametrize(("info", "number"), each_sample(requires_grad=True))
def test_the_same_with_a_gradient(info: OpInfo, number: int) -> None:
    case = Case(operator_of(info), remade(info, number))
    assert differentiable(case.arguments())
    for outcome in check_with_gradient(case, NAMESPACE):
        _result, grads = outcome.value["members"]
        assert any("values" in grad for grad in grads["members"]), "no gradient came back"


# The collection's own fake kernels use a name that PyTorch replaced.
@pytest.mark.filterwarnings("ignore:.create_unbacked_symint.:FutureWarning")
@pytest.mark.parametrize(("info", "number"), each_sample(requires_grad=False))
def test_opcheck_passes_without_a_gradient(info: OpInfo, number: int) -> None:
    opcheck(info, samples(info, requires_grad=False)[number])


@pytest.mark.parametrize(("info", "number"), each_sample(requires_grad=True))
def test_opcheck_passes_with_a_gradient(info: OpInfo, number: int) -> None:
    opcheck(info, samples(info, requires_grad=True)[number])


def opcheck(info: OpInfo, sample: SampleInput) -> None:
    given = arguments_of(sample)
    with accelerated(NAMESPACE):
        torch.library.opcheck(custom_ops.OPDEFS[operator_of(info)], given.args, given.kwargs)


@pytest.mark.parametrize("operator", CLONES)
def test_operators_beside_the_collection_are_the_same(operator: str) -> None:
    case = Case(operator, lambda: Arguments((torch.arange(3.0),), {}))
    check(case, NAMESPACE)
    check_with_gradient(case, NAMESPACE)


@pytest.mark.parametrize("operator", WITHOUT_KERNEL)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_operators_with_a_fake_kernel_only_are_the_same(operator: str, device: str) -> None:
    def arguments() -> Arguments:
        return Arguments((torch.ones(3, device=device),), {})

    check(Case(operator, arguments, path="boxed", raises="NotImplementedError" if device == "cpu" else None), NAMESPACE)


@pytest.mark.parametrize("info", custom_op_db.custom_op_db, ids=lambda info: info.name)
def test_vmap_gives_the_same(info: OpInfo) -> None:
    """Every operator of the collection has a rule for it, if only one that refuses."""

    def batched() -> Any:
        given = remade(info, 0)()
        stacked = tree_map_only(Tensor, lambda tensor: torch.stack([tensor, tensor + 1]), given.args)
        dims = tuple(0 if has_tensors(member) else None for member in given.args)
        try:
            return torch.vmap(lambda *args: info.op(*args, **given.kwargs), in_dims=dims)(*stacked)
        except Exception as error:
            return type(error).__name__, str(error)

    taken = same(batched, NAMESPACE)
    assert "pytorch" not in taken[operator_of(info)]


def has_tensors(value: Any) -> bool:
    return any(isinstance(member, Tensor) for member in tree_leaves(value))
