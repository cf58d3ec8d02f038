"""torch.func over operators with a formula: right values, or what PyTorch gives; never wrong ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradients_alike import (
    alike,
    done,
    done_alike,
    double,
    needing_grad,
    product,
    products,
    step,
    with_exponential,
    with_formula,
    with_product,
    with_products,
)
from parity import Side, pair_of, thread_state


def derivative(transform: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    func = torch.func
    ones = torch.ones_like(x)
    return {
        "grad": lambda: func.grad(lambda x: function(x).sum())(x),
        "vjp": lambda: func.vjp(function, x)[1](ones)[0],
        "jacrev": lambda: func.jacrev(function)(x),
        "grad of grad": lambda: func.grad(lambda x: func.grad(lambda x: function(x).sum())(x).sum())(x),
        "vmap of grad": lambda: func.vmap(func.grad(lambda x: function(x).sum()))(torch.stack([x, x * 2])),
        "grad of vmap": lambda: func.grad(lambda x: func.vmap(function)(x).sum())(torch.stack([x, x * 2])),
        "jacrev of jacrev": lambda: func.jacrev(func.jacrev(function))(x),
        "jvp": lambda: func.jvp(function, (x,), (ones,))[1],
        "jacfwd": lambda: func.jacfwd(function)(x),
        "hessian": lambda: func.hessian(lambda x: function(x).sum())(x),
        "jacrev of jacfwd": lambda: func.jacrev(func.jacfwd(function))(x),
        "jvp of grad": lambda: func.jvp(func.grad(lambda x: function(x).sum()), (x,), (ones,))[1],
        "grad of jvp": lambda: func.grad(lambda x: func.jvp(function, (x,), (ones,))[1].sum())(x),
        "vmap of jvp": lambda: func.vmap(lambda x: func.jvp(function, (x,), (torch.ones_like(x),))[1])(
            torch.stack([x, x * 2])
        ),
        "forward ad": lambda: forward_tangent(function, x),
        "grad in forward ad": lambda: forward_tangent(func.grad(lambda x: function(x).sum()), x),
        "jvp of vmap of grad": lambda: func.jvp(
            func.vmap(func.grad(lambda x: function(x).sum())), (torch.stack([x, x]),), (torch.stack([ones, ones]),)
        )[1],
        "outer autograd": lambda: outer(function, x),
        "linearize": lambda: func.linearize(function, x)[1](ones),
        "autograd in grad": lambda: func.grad(lambda x: inner_autograd(function, x).sum())(x),
    }[transform]()


TRANSFORMS = (
    *("grad", "vjp", "jacrev", "grad of grad", "vmap of grad", "grad of vmap", "jacrev of jacrev", "jvp", "jacfwd"),
    *("hessian", "jacrev of jacfwd", "jvp of grad", "grad of jvp", "vmap of jvp", "forward ad", "grad in forward ad"),
    *("jvp of vmap of grad", "outer autograd", "linearize", "autograd in grad"),
)


def forward_tangent(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def outer(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    first = torch.func.grad(lambda x: function(x).sum())(x)
    return first, torch.autograd.grad(first.sum(), x, allow_unused=True)


def inner_autograd(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x * 1
    return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]


def close(first: Any, second: Any) -> bool:
    leaves = [torch.utils._pytree.tree_leaves(value) for value in (first, second)]
    return all(torch.allclose(a, b) for a, b in zip(*leaves, strict=True))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("vmap", [False, True], ids=["no vmap rule", "vmap rule"])
@pytest.mark.parametrize("kind", ["saved input", "saved output", "nothing saved", "lists"])
def test_transforms_give_right_values_or_what_pytorch_gives(transform: str, kind: str, vmap: bool) -> None:
    function: Any
    rule: Any
    if kind == "saved input":
        pair, function = with_product(), lambda op, x: op(x, x, 3.0).sin()
        rule = lambda info, dims, x, y, scale=2.0: (x * y * scale, 0)  # noqa: E731
        direct: Any = lambda x: (x * x * 3).sin()  # noqa: E731
    elif kind == "saved output":
        pair, function, direct = with_exponential(), lambda op, x: op(op(x)), lambda x: x.exp().exp()
        rule = lambda info, dims, x: (x.exp(), 0)  # noqa: E731
    elif kind == "lists":
        pair, function = with_products(), lambda op, x: op(x, [x, x * 2])[1].cos()
        rule = lambda info, dims, x, others: ([x * o for o in others], [0] * len(others))  # noqa: E731
        direct = lambda x: (x * x * 2).cos()  # noqa: E731
    else:
        pair, function = with_formula(double, lambda ctx, grad: grad * 2), lambda op, x: op(x * x).sin()
        rule = lambda info, dims, x: (x * 2, 0)  # noqa: E731
        direct = lambda x: (x * x * 2).sin()  # noqa: E731
    if vmap:
        pair.each(lambda op: op.register_vmap(rule))
    x = torch.tensor([0.5, 1.5])

    def run(side: Side) -> Any:
        return derivative(transform, lambda x: function(side.op, x), x)

    expected, actual = (done(run, side) for side in pair.sides())
    if actual == expected:
        return
    assert expected[0] == "raised", f"{expected}, but with dutyfree\n{actual}"
    if actual[0] == "raised":
        assert "Batching rule not implemented" in actual[2], f"{expected}, but with dutyfree\n{actual}"
        assert not vmap
    else:
        right = derivative(transform, direct, x)
        assert close(run(pair.fast), right), f"right: {right}, but with dutyfree\n{actual}"


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_an_operator_without_a_formula_do_what_pytorch_does(transform: str) -> None:
    x = torch.tensor([0.5, 1.5])
    for pair, function in (
        (pair_of(product, record=False), lambda op, x: op(x, x)),
        (pair_of(products, record=False), lambda op, x: op(x, [x])[0]),
    ):
        # Reverse mode is refused without a formula, too.
        done_alike(
            pair,
            lambda side, f=function: derivative(transform, lambda x: f(side.op, x), x),  # type: ignore[misc]
            may_raise=True,
        )


def test_several_results_and_keyword_only_inputs_have_right_gradients() -> None:
    def several(x: Tensor, count: int, *, scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor, int, float]:
        return x * scale, (x > 1).long(), x * count, 3, 2.5

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.count, ctx.scale = inputs[1], keyword_only_inputs["scale"]
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, first: Any, second: Any, third: Any, *numbers: Any) -> Any:
        assert second is None
        assert numbers == (None, None)
        assert ctx.needs_input_grad[0] is True
        pairs = (first, ctx.scale), (third, ctx.count)
        return sum(grad * factor for grad, factor in pairs if grad is not None), None

    op = with_formula(several, backward, setup_context).fast.op
    x = torch.tensor([0.5, 1.5])

    def loss(x: Tensor) -> Tensor:
        first, _, third, count, half = op(x, 4, scale=3.0)
        return (first.sin() * count + third.cos() * half).sum()  # type: ignore[no-any-return]

    def right(x: Tensor) -> Tensor:
        return ((x * 3).sin() * 3 + (x * 4).cos() * 2.5).sum()

    assert torch.allclose(torch.func.grad(loss)(x), torch.func.grad(right)(x))
    for twice in (
        lambda loss: torch.func.jacrev(torch.func.jacrev(loss))(x),
        lambda loss: torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(loss)))(x),
    ):
        assert torch.allclose(twice(loss), twice(right), atol=1e-4)


def test_a_result_that_is_marked_not_differentiable_stays_so_at_every_level() -> None:
    def twins(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])

    op = with_formula(twins, lambda ctx, first, second: first * 2, setup_context).fast.op
    x = torch.tensor([0.5, 1.5])

    def loss(x: Tensor) -> Tensor:
        first, second = op(x)
        return (first.sin() + second.sin()).sum()  # type: ignore[no-any-return]

    assert torch.allclose(torch.func.grad(loss)(x), 2 * (2 * x).cos())
    second = torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())(x)
    assert torch.allclose(second, -4 * (2 * x).sin())


def test_a_call_that_belongs_to_an_outer_level_is_recorded_there() -> None:
    op = with_product().fast.op
    x, weight = torch.tensor([0.5, 1.5]), needing_grad()
    outer_only = torch.func.grad(lambda x: torch.func.grad(lambda y: op(x, x, 1.0).sum() * y.sum())(x).sum())(x)
    assert torch.allclose(outer_only, 4 * x)

    def loss(x: Tensor, weight: Tensor, times: Any) -> Tensor:
        return torch.func.grad(lambda x: times(x, weight).sin().sum())(x).sum()  # type: ignore[no-any-return]

    found, right = (
        torch.autograd.grad(loss(x, weight, times), weight)[0]
        for times in (lambda x, y: op(x, y, 1.0), lambda x, y: x * y)
    )
    assert torch.allclose(found, right)


def test_a_functional_call_of_a_module_has_per_sample_gradients() -> None:
    class Model(torch.nn.Module):
        def __init__(self, op: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
            self.op = op

        def forward(self, x: Tensor) -> Tensor:
            return self.op(self.weight, x, 1.0).sum()  # type: ignore[no-any-return]

    pair = with_product()
    model = Model(pair.fast.op)
    values = dict(model.named_parameters())
    rows = torch.arange(6.0).view(3, 2)

    def loss(values: Any, row: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, (row,))  # type: ignore[no-any-return]

    assert torch.func.grad(loss)(values, rows[1])["weight"].tolist() == rows[1].tolist()
    assert torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, rows)["weight"].tolist() == rows.tolist()


def test_a_tensor_that_outlived_its_transform_is_treated_alike() -> None:
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x.sum()

    def run(side: Side, index: int, saved: bool) -> Any:
        kept.clear()
        torch.func.grad(keep)(torch.ones(2))
        torch.vmap(keep)(torch.ones(1, 2))
        x = needing_grad()
        result = side.op(x, kept[index])
        if saved:
            result.sum().backward()
        return result, x.grad, type(result).__name__

    for index, is_batched in enumerate((False, True)):  # a batched one finds no level to belong to
        for pair, saved in ((with_product(), True), (pair_of(product, record=False), False)):
            outcome = done_alike(
                pair, lambda side, index=index, saved=saved: run(side, index, saved), may_raise=is_batched
            )
            assert (outcome[0] == "raised") is is_batched


def test_no_grad_around_a_transform_hides_the_outer_tape_only() -> None:
    op = with_product().fast.op
    x = needing_grad()
    with torch.no_grad():
        first = torch.func.grad(lambda x: op(x, x, 1.0).sin().sum())(x)
    assert not first.requires_grad
    assert torch.allclose(first, torch.func.grad(lambda x: (x * x).sin().sum())(x))
    inner = torch.func.grad(lambda x: torch.func.grad(lambda y: unrecorded(op, x).sum() * y.sum())(x).sum())(x)
    assert inner.tolist() == [0.0, 0.0]


def unrecorded(op: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return op(x, x, 1.0)  # type: ignore[no-any-return]


def test_the_body_under_a_transform_runs_in_the_state_of_an_ordinary_call() -> None:
    states: list[Any] = []

    def body(x: Tensor) -> Tensor:
        states.append(
            (type(x).__name__, torch._C._functorch.is_functorch_wrapped_tensor(x), x.requires_grad, thread_state())
        )
        return x * 2

    op = with_formula(body, lambda ctx, grad: grad * 2).fast.op
    op(torch.ones(2))
    ordinary = states.pop()
    assert torch.func.grad(lambda x: op(x).sum())(torch.ones(2)).tolist() == [2.0, 2.0]
    assert torch.func.grad(lambda x: torch.func.grad(lambda y: op(y).sin().sum())(x).sum())(torch.ones(2)).shape == (2,)
    for state in states:
        assert state == ordinary


def test_a_transform_and_the_tape_inside_a_compiled_function_agree_with_eager() -> None:
    pair = with_product()

    def run(side: Side) -> Any:
        torch._dynamo.reset()
        function = torch.func.grad(lambda x: side.op(x, x, 1.0).sin().sum())
        return torch.compile(function, backend="aot_eager")(torch.tensor([0.5, 1.5]))

    expected, actual = (done(run, side) for side in pair.sides())
    if actual != expected:
        assert expected[0] == "raised", f"{expected}, but with dutyfree\n{actual}"
        assert torch.allclose(run(pair.fast), torch.func.grad(lambda x: (x * x).sin().sum())(torch.tensor([0.5, 1.5])))


def test_state_after_a_transform_that_raised_is_as_before() -> None:
    pair = with_product()

    def failing(x: Tensor) -> Tensor:
        raise KeyError(pair.fast.op(x, x))

    with pytest.raises(KeyError):
        torch.func.grad(failing)(torch.ones(2))
    alike(pair, step)
    assert torch.func.grad(lambda x: pair.fast.op(x, x, 1.0).sum())(torch.ones(2)).tolist() == [2.0, 2.0]
