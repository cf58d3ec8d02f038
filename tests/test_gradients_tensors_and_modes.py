"""Recorded calls with other kinds of tensors, and below modes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradients_alike import alike, done_alike, needing_grad, plain, with_formula, with_product
from parity import Side


def test_saved_tensors_that_are_subclasses_parameters_and_views_are_kept() -> None:
    def run(side: Side, make: Callable[[], Tensor]) -> Any:
        x = make()
        result = side.op(x, x)
        saved = result.grad_fn.saved_tensors
        return [type(tensor).__name__ for tensor in saved], saved[0] is x, saved[1] is x, result

    alike(with_product(), lambda side: run(side, lambda: torch.nn.Parameter(torch.ones(2))))
    alike(with_product(), lambda side: run(side, lambda: torch.nn.Buffer(torch.ones(2)).requires_grad_()))
    alike(with_product(), lambda side: run(side, lambda: needing_grad(4)[::2]))
    alike(with_product(), lambda side: run(side, lambda: needing_grad(2, 2).t()))


def test_complex_conjugated_and_low_precision_tensors_have_the_same_gradients() -> None:
    def run(side: Side, change: Callable[[Tensor], Tensor]) -> Any:
        x = needing_grad()
        result = side.op(change(x), change(x))
        (result.real if result.is_complex() else result).float().sum().backward()
        return result, x.grad

    for change in (
        lambda x: x * (1 + 2j),
        lambda x: (x * (1 + 2j)).conj(),
        lambda x: (x * (1 + 2j)).conj().imag,
        lambda x: x.bfloat16(),
        lambda x: x.half(),
        lambda x: x.expand(3, 2),
    ):
        # The dispatcher, not the autograd kernel, makes a conjugated view an ordinary tensor.
        done_alike(with_product(), lambda side, change=change: run(side, change))


def test_meta_and_sparse_tensors_record_as_in_pytorch() -> None:
    pair = with_product()
    meta = torch.ones(2, device="meta", requires_grad=True)
    done_alike(pair, lambda side: [plain(side.op(meta, meta).grad_fn, side), side.op(meta, meta).shape])

    def sparse(side: Side) -> Any:
        x = torch.eye(2).to_sparse().requires_grad_()
        result = side.op(x, x)
        torch.sparse.sum(result).backward()
        return result.detach().to_dense(), plain(result.grad_fn, side), x.grad.to_dense()

    done_alike(pair, sparse)


def test_subclasses_with_torch_function_record_as_in_pytorch() -> None:
    class Bare(Tensor):
        pass

    def run(side: Side) -> Any:
        x = torch.ones(2).as_subclass(Bare).requires_grad_()
        result = side.op(x, x)
        result.sum().backward()
        return type(result).__name__, type(x.grad).__name__, plain(result.grad_fn, side), x.grad.tolist()

    done_alike(with_product(), run)


def test_batched_calls_record_as_in_pytorch() -> None:
    def run(side: Side) -> Any:
        x = needing_grad(3, 2)
        result = torch.vmap(lambda row: side.op(row, row * 2))(x)
        result.sin().sum().backward()
        return result, x.grad

    pair = with_product()
    done_alike(pair, run)
    pair.each(lambda op: op.register_vmap(lambda info, dims, x, y: (x * y * 2, 0)))
    done_alike(pair, run)


def test_autocast_stays_on_in_body_and_formula_as_in_pytorch() -> None:
    def backward(ctx: Any, grad: Tensor) -> Any:
        return (grad * 2 @ torch.ones(2, 2)), None, None

    def run(side: Side) -> Any:
        x = needing_grad(2, 2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = side.op(x, torch.ones(2, 2))
            result.sum().backward()
        return result, x.grad

    alike(with_formula(lambda_body, backward), run)


def lambda_body(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    return x @ y


def test_modes_that_are_active_in_backward_only_see_the_formula() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __init__(self, side: Side, seen: list[str]) -> None:
            super().__init__()
            self.side, self.seen = side, seen

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(self.side.text(func))
            return func(*args, **(kwargs or {}))

    def run(side: Side) -> Any:
        seen: list[str] = []
        result = side.op(needing_grad(), needing_grad(), 3.0)
        with Log(side, seen):
            result.sum().backward()
        return seen

    alike(with_product(), run)


def test_mutation_of_saved_tensors_may_be_allowed() -> None:
    def run(side: Side) -> Any:
        x, y = needing_grad(), torch.ones(2)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            result = side.op(x, y)
            y.mul_(5)
            result.sum().backward()
        return x.grad

    done_alike(with_product(), run)
