"""The comparison itself notices each kind of difference."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import Pair, assert_took, call, check, pair_of, took


def clone(x: Tensor) -> Tensor:
    return x.clone()


def mixed(reference: Callable[..., Any], fast: Callable[..., Any]) -> Pair:
    """A pair whose operators have different bodies."""
    return Pair(pair_of(reference).reference, pair_of(fast).fast)


def differently(kind: str) -> Callable[[Tensor], Any]:
    def values(x: Tensor) -> Tensor:
        return x + 1

    def dtype(x: Tensor) -> Tensor:
        return x.double()

    def stride(x: Tensor) -> Tensor:
        return x.t().contiguous().t()

    def version(x: Tensor) -> Tensor:
        return x.clone().add_(0)

    def requires_grad(x: Tensor) -> Tensor:
        return x.clone().requires_grad_()

    def python_type(x: Tensor) -> Tensor:
        return torch.nn.Parameter(x.clone(), requires_grad=False)

    def raises(x: Tensor) -> Tensor:
        raise ValueError("no")

    def mutates(x: Tensor) -> Tensor:
        x.add_(1)
        return x - 1

    def warns(x: Tensor) -> Tensor:
        import warnings

        warnings.warn("different", stacklevel=1)
        return x.clone()

    return locals()[kind]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "kind", ["values", "dtype", "stride", "version", "requires_grad", "python_type", "raises", "mutates", "warns"]
)
def test_a_difference_is_noticed(kind: str) -> None:
    with pytest.raises(AssertionError):
        check(mixed(clone, differently(kind)), lambda: call(torch.arange(6.0).view(2, 3)))


def test_no_difference_is_no_failure() -> None:
    check(mixed(clone, clone), lambda: call(torch.arange(6.0).view(2, 3)))


def test_a_wrong_path_is_noticed() -> None:
    pair = pair_of(clone)
    with pytest.raises(AssertionError, match="requires-grad"):
        check(pair, lambda: call(torch.ones(2, requires_grad=True)))
    with pytest.raises(AssertionError):
        check(pair, lambda: call(torch.ones(2)), reason="requires-grad")
    with pytest.raises(AssertionError, match="not called"), took(pair.fast):
        pass
    with pytest.raises(AssertionError):
        assert_took("pytorch", "", "")
