"""Accelerated operators of torch.library.custom_op do what they did before, called by any of their names."""

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import Library

import dutyfree
from accelerated import (
    AUTOGRAD,
    DIRECT,
    Seeing,
    SeeingFunctions,
    Twins,
    both,
    check,
    custom_twins,
    doubled,
    ones,
    ones_with_grad,
    refused,
    registered_twice,
    restored,
    spellings_of,
    took,
    tripled,
)
from dutyfree.check.outcome import Arguments, Side, call, outcome_of

__all__ = ["restored"]  # a fixture for every test here


def gives(twins: Twins, values: list[float], way: tuple[str, str] | None = DIRECT) -> None:
    assert check(twins, ones, way).value["values"] == str(values)


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


# Devices and later registrations


def test_device_types() -> None:
    for devices in ("cpu", ["cpu", "cuda"], "cuda"):
        twins = custom_twins(doubled, device_types=devices)
        check(twins, ones, None)
        check(twins, ones_with_grad, None)
        twins.each(lambda side: side.op.register_kernel("cpu", tripled))
        # Where it was registered for several devices, PyTorch goes on with the function of the last.
        gives(twins, [2.0, 2.0] if devices == ["cpu", "cuda"] else [3.0, 3.0])

    def sized(n: int, device: torch.device) -> Tensor:
        return torch.ones(n)

    for devices in (None, "cpu"):
        twins = custom_twins(sized, device_types=devices)
        check(twins, lambda: call(3), None)
        check(twins, lambda: call(3, "cpu"), None)
        check(twins, lambda: call(3, device=torch.device("meta")), None)


def test_kernels_that_are_registered_later_and_disabled() -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])
    twins.each(lambda side: side.op.register_kernel("cpu", tripled))
    gives(twins, [3.0, 3.0])
    with (
        twins.reference.op.set_kernel_enabled("cpu", False),
        twins.accelerated.op.set_kernel_enabled("cpu", False),
    ):
        gives(twins, [2.0, 2.0])
    gives(twins, [3.0, 3.0])
    twins.each(lambda side: torch.library.register_kernel(side.qualname, "cpu", lambda x: x * 4))
    gives(twins, [4.0, 4.0])


@pytest.mark.parametrize("kernel_first", [True, False])
def test_kernels_and_formulas_from_before_the_operator_was_accelerated(kernel_first: bool) -> None:
    def register(namespace: str) -> Any:
        op = torch.library.custom_op(f"{namespace}::op", doubled_annotated, mutates_args=())
        if kernel_first:
            op.register_kernel("cpu", tripled)
        op.register_autograd(lambda ctx, gradient: gradient * 5)
        op.register_fake(lambda x: torch.empty_like(x))
        return op

    twins = registered_twice(register)
    gives(twins, [3.0, 3.0] if kernel_first else [2.0, 2.0])
    check(twins, ones_with_grad, AUTOGRAD)

    def gradient(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        side.op(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    assert both(twins, gradient) == [5.0, 5.0]


def doubled_annotated(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    "key", ["CPU", "AutogradCPU", "Autograd", "ADInplaceOrView", "CompositeExplicitAutograd", "BackendSelect"]
)
@pytest.mark.parametrize("with_keyset", [False, True])
def test_another_librarys_impl_and_its_removal(key: str, with_keyset: bool) -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])
    function = (lambda keyset, x: torch.full((1,), 3.0)) if with_keyset else (lambda x: torch.full((1,), 3.0))
    remove = twins.override(function, key, allow_override=True, with_keyset=with_keyset)
    check(twins, ones, None)
    check(twins, ones_with_grad, None)
    remove()
    gives(twins, [2.0, 2.0])
    check(twins, ones_with_grad, AUTOGRAD)


def test_an_override_does_not_get_the_checks_of_custom_op() -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])
    remove = twins.override(lambda x: x, "CPU")
    assert check(twins, ones, None).value["is input"] == 0
    remove()
    gives(twins, [2.0, 2.0])


def test_a_formula_that_is_registered_later() -> None:
    twins = custom_twins(doubled)

    def gradient(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        side.packet(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    error, text = both(twins, gradient)
    assert error == "RuntimeError"
    assert "no autograd formula was registered" in text
    for factor in (5.0, 6.0):
        twins.each(lambda side, factor=factor: side.op.register_autograd(lambda ctx, g, factor=factor: g * factor))
        assert both(twins, gradient) == [factor] * 2


def test_the_name_is_defined_again() -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])
    kept = {side.namespace: (side.op, side.packet) for side in twins.sides()}
    overloads = {side.namespace: side.overload for side in twins.sides()}

    def again(side: Side) -> None:
        side.op = torch.library.custom_op(side.qualname, tripled, mutates_args=())

    twins.each(again)

    def values(side: Side) -> Any:
        old = [op(torch.ones(2)).tolist() for op in kept[side.namespace]]
        return old, [side.spelled(spelling)(torch.ones(2)).tolist() for spelling in spellings_of(side)]

    assert both(twins, values)[1] == [[3.0, 3.0]] * 3
    assert overloads[twins.accelerated.namespace] is not None
    with took(twins.accelerated, DIRECT):
        assert both(twins, values)[1] == [[3.0, 3.0]] * 3
    dutyfree.accelerate(twins.accelerated.qualname)
    gives(twins, [3.0, 3.0])


def test_the_name_is_defined_again_with_another_schema() -> None:
    twins = custom_twins(doubled)
    gives(twins, [2.0, 2.0])

    def scaled(x: Tensor, f: float) -> Tensor:
        return x * f

    def again(side: Side) -> None:
        side.op = torch.library.custom_op(side.qualname, scaled, mutates_args=())

    twins.each(again)
    for _ in range(2):
        both(twins, lambda side: [op(torch.ones(2), 3).tolist() for op in (side.op, side.packet, side.overload)])
        both(twins, lambda side: side.op(torch.ones(2)))


# Gradients


class Formula:
    """A formula that writes down what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def setup_context(self, ctx: Any, inputs: Any, output: Any) -> None:
        x, y, n = inputs
        self.seen.append((ctx.needs_input_grad, n, type(inputs).__name__, x._version, output.requires_grad))
        ctx.save_for_backward(x, y)
        ctx.n = n

    def backward(self, ctx: Any, gradient: Tensor) -> Any:
        x, y = ctx.saved_tensors
        self.seen.append((ctx.needs_input_grad, gradient.tolist(), torch.is_grad_enabled()))
        return gradient * y * ctx.n, gradient * x * ctx.n, None


@pytest.fixture
def product() -> tuple[Twins, Formula]:
    formula = Formula()

    def multiplied(x: Tensor, y: Tensor, n: int = 2) -> Tensor:
        return x * y * n

    twins = custom_twins(multiplied, record=False)
    twins.each(lambda side: side.op.register_autograd(formula.backward, setup_context=formula.setup_context))
    return twins, formula


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_of_a_formula(product: tuple[Twins, Formula], needs: tuple[bool, bool]) -> None:
    twins, formula = product

    def arguments() -> Arguments:
        return call(torch.full((2,), 3.0, requires_grad=needs[0]), torch.full((2,), 5.0, requires_grad=needs[1]))

    check(twins, arguments, AUTOGRAD if any(needs) else DIRECT)

    def gradients(side: Side) -> Any:
        formula.seen.clear()
        x, y = arguments().args
        side.op(x, y).sum().backward()
        return [None if t.grad is None else t.grad.tolist() for t in (x, y)], list(formula.seen)

    both(twins, gradients)


def test_double_backward(product: tuple[Twins, Formula]) -> None:
    twins, _ = product

    def second(side: Side) -> Any:
        x = torch.full((2,), 3.0, requires_grad=True)
        y = torch.full((2,), 5.0, requires_grad=True)
        (first,) = torch.autograd.grad((side.overload(x, y, 3) ** 2).sum(), x, create_graph=True)
        return first.tolist(), [t.tolist() for t in torch.autograd.grad(first.sum(), (x, y))]

    assert isinstance(both(twins, second)[0], list)
    for side in twins.sides():
        inputs = [torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        assert torch.autograd.gradcheck(side.op, inputs)
        assert torch.autograd.gradgradcheck(side.op, inputs)


def test_saved_tensors_and_their_hooks(product: tuple[Twins, Formula]) -> None:
    twins, _ = product

    def saved(side: Side) -> Any:
        packed: list[Any] = []

        def pack(tensor: Tensor) -> Tensor:
            packed.append(tensor.tolist())
            return tensor

        x = torch.ones(2, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 7):
            y = side.packet(x, torch.full((2,), 2.0))
        node: Any = y.grad_fn
        described = side.text(type(node).__name__), [t.tolist() for t in node.saved_tensors]
        y.sum().backward()
        assert x.grad is not None
        return packed, described, x.grad.tolist()

    both(twins, saved)

    def twice(side: Side) -> Any:
        y = side.op(torch.ones(2, requires_grad=True), torch.ones(2)).sum()
        y.backward()
        y.backward()

    assert "second time" in both(twins, twice)[1]


@pytest.mark.parametrize("spelling", ["object", "packet", "overload"])
def test_torch_func_over_a_formula_is_refused_as_before(product: tuple[Twins, Formula], spelling: str) -> None:
    twins, _ = product
    x = torch.ones(2)

    def summed(side: Side) -> Callable[..., Any]:
        return lambda x: side.spelled(spelling)(x, torch.ones(2)).sum()

    both(twins, lambda side: torch.func.grad(summed(side))(x).tolist())
    assert isinstance(both(twins, lambda side: torch.func.grad(summed(side))(x).tolist())[0], str)
    both(twins, lambda side: torch.func.vjp(summed(side), x)[1](torch.ones(()))[0].tolist())
    both(twins, lambda side: torch.func.jacrev(summed(side))(x).tolist())
    both(twins, lambda side: torch.func.jvp(summed(side), (x,), (x,))[1].tolist())


def test_forward_mode_tangents_are_dropped_as_before(product: tuple[Twins, Formula]) -> None:
    def tangent(side: Side) -> Any:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
            result = torch.autograd.forward_ad.unpack_dual(side.op(dual, torch.ones(2)))
            return result.primal.tolist(), result.tangent

    both(product[0], tangent)


def test_a_formula_with_lists_keywords_and_integer_results() -> None:
    def body(xs: list[Tensor], *, f: float = 2.0) -> tuple[Tensor, Tensor]:
        return xs[0] * f, xs[0].to(torch.int64)

    twins = custom_twins(body, record=False)

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.f = keyword_only_inputs["f"]
        ctx.many = len(inputs[0])

    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        return [gradient * ctx.f] + [None] * (ctx.many - 1)

    twins.each(lambda side: side.op.register_autograd(backward, setup_context=setup_context))
    check(twins, lambda: call([torch.ones(2, requires_grad=True), torch.ones(1)], f=3), AUTOGRAD)

    def gradients(side: Side) -> Any:
        xs = [torch.ones(2, requires_grad=True) for _ in range(2)]
        first, second = side.op(xs, f=3.0)
        first.sum().backward()
        return second.requires_grad, [None if x.grad is None else x.grad.tolist() for x in xs]

    both(twins, gradients)


@pytest.mark.parametrize("result", [None, (None, None), (torch.ones(3), None, None), "text"])
def test_formulas_that_return_the_wrong_thing(result: Any) -> None:
    twins = custom_twins(lambda x, y: x * y, schema="(Tensor x, Tensor y) -> Tensor", record=False)
    twins.each(lambda side: side.op.register_autograd(lambda ctx, gradient: result))

    def gradients(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        side.op(x, torch.ones(2)).sum().backward()
        return None if x.grad is None else x.grad.tolist()

    both(twins, gradients)


def test_an_exception_of_the_formula() -> None:
    def fails(ctx: Any, *rest: Any) -> Any:
        raise ValueError("no")

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        fails(ctx)

    for backward, options in ((fails, {}), (lambda ctx, gradient: gradient, {"setup_context": setup_context})):
        twins = custom_twins(doubled, record=False)
        twins.each(lambda side, b=backward, options=options: side.op.register_autograd(b, **options))
        assert both(twins, lambda side: side.op(torch.ones(2, requires_grad=True)).sum().backward()) == (
            "ValueError",
            "no",
        )
        check(twins, ones)


# Modes, tracing, transforms


@pytest.mark.parametrize("mode", [Seeing, SeeingFunctions])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_modes_see_the_operator(mode: type[Any], requires_grad: bool) -> None:
    twins = custom_twins(doubled)

    def under(side: Side) -> Any:
        results = []
        with mode() as active:
            for spelling in spellings_of(side):
                y = side.spelled(spelling)(torch.ones(2, requires_grad=requires_grad))
                results.append((y.tolist(), y.requires_grad))
        return results, side.text(active.seen)

    results, seen = both(twins, under)
    assert results == [([2.0, 2.0], requires_grad)] * 3
    assert seen.count("NAMESPACE.op") == 3


def test_a_rule_for_a_mode_and_a_default_device() -> None:
    twins = custom_twins(doubled)
    twins.each(
        lambda side: side.op.register_torch_dispatch(Seeing, lambda mode, func, types, args, kwargs: torch.zeros(1))
    )

    def under(side: Side) -> Any:
        with Seeing():
            return side.op(torch.ones(2)).tolist()

    assert both(twins, under) == [0.0]
    with torch.device("cpu"):
        check(twins, ones, ("pytorch", "torch-function-mode"))


def test_fake_and_meta_tensors() -> None:
    twins = custom_twins(doubled, record=False)

    def faked(side: Side) -> Any:
        with FakeTensorMode() as mode:
            inside = side.op(mode.from_tensor(torch.ones(2)))
        outside = side.overload(mode.from_tensor(torch.ones(2)))
        meta = side.packet(torch.ones(2, device="meta"))
        return [(type(result).__name__, tuple(result.shape)) for result in (inside, outside, meta)]

    assert isinstance(both(twins, faked)[1], str)
    both(twins, lambda side: side.op(torch.ones(2, device="meta")))
    twins.each(lambda side: side.op.register_fake(lambda x: x.new_empty(5)))
    assert both(twins, faked) == [("FakeTensor", (5,))] * 2 + [("Tensor", (5,))]


@pytest.mark.parametrize("spelling", ["object", "packet", "overload"])
def test_compiled_without_a_graph_break(product: tuple[Twins, Formula], spelling: str) -> None:
    twins, _ = product
    twins.each(lambda side: side.op.register_fake(lambda x, y, n=2: torch.empty_like(x)))

    def compiled(side: Side) -> Any:
        op, graphs = side.spelled(spelling), []

        def backend(module: Any, inputs: Any) -> Any:
            graphs.append(side.text(module.code))
            return module

        torch._dynamo.reset()
        function = torch.compile(lambda x: op(x + 1, x) + 1, fullgraph=True, backend=backend)
        values = function(torch.ones(2)).tolist()
        torch._dynamo.reset()
        function = torch.compile(lambda x: op(x + 1, x) + 1, fullgraph=True, backend="aot_eager")
        x = torch.ones(2, requires_grad=True)
        function(x).sum().backward()
        assert x.grad is not None
        return values, graphs, x.grad.tolist()

    values, graphs, gradient = both(twins, compiled)
    assert values == [5.0, 5.0]
    assert gradient == [6.0, 6.0]
    assert len(graphs) == 1
    assert "torch.ops.NAMESPACE.op" in graphs[0]


def test_a_mutating_operator_compiled_and_exported() -> None:
    def add(x: Tensor, ys: list[Tensor]) -> None:
        x.add_(1)
        ys[0].add_(2)

    twins = custom_twins(add, mutates_args=("x", "ys"), record=False)

    def function(side: Side) -> Callable[..., Any]:
        def called(x: Tensor, y: Tensor) -> Tensor:
            side.op(x, [y])
            return x + y

        return called

    def compiled(side: Side) -> Any:
        torch._dynamo.reset()
        x, y = torch.ones(2), torch.ones(2)
        result = torch.compile(function(side), fullgraph=True, backend="aot_eager")(x, y)
        return result.tolist(), x.tolist(), y.tolist()

    assert both(twins, compiled) == ([5.0, 5.0], [2.0, 2.0], [3.0, 3.0])

    class Module(torch.nn.Module):
        def __init__(self, side: Side) -> None:
            super().__init__()
            self.called = function(side)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.called(x, y)  # type: ignore[no-any-return]

    both(
        twins,
        lambda side: side.text(torch.export.export(Module(side), (torch.ones(2), torch.ones(2))).graph_module.code),
    )


def test_make_fx_and_jit_trace_give_the_same_graph() -> None:
    twins = custom_twins(doubled, record=False)
    twins.each(lambda side: side.op.register_fake(lambda x: torch.empty_like(x)))
    for tracing in ("real", "fake", "symbolic"):

        def traced(side: Side, tracing: str = tracing) -> Any:
            function = lambda x: side.op(x) + side.packet(x) + side.overload(x)  # noqa: E731
            return side.text(make_fx(function, tracing_mode=tracing)(torch.ones(2)).code)

        assert both(twins, traced).count("torch.ops.NAMESPACE.op.default") == 3
    both(twins, lambda side: side.text(torch.jit.trace(lambda x: side.op(x), torch.ones(2)).graph))
    both(twins, lambda side: side.text(torch.fx.symbolic_trace(lambda x: side.packet(x)).code))


def test_opcheck(product: tuple[Twins, Formula]) -> None:
    twins, _ = product
    twins.each(lambda side: side.op.register_fake(lambda x, y, n=2: torch.empty_like(x)))
    for spelling in ("object", "packet", "overload"):
        for requires_grad in (False, True):

            def checked(side: Side, spelling: str = spelling, requires_grad: bool = requires_grad) -> Any:
                inputs = (torch.rand(2, requires_grad=requires_grad), torch.rand(2))
                return torch.library.opcheck(side.spelled(spelling), inputs)

            assert set(both(twins, checked).values()) == {"SUCCESS"}


def test_opcheck_finds_an_operator_that_mutates_secretly() -> None:
    def secretly(x: Tensor) -> Tensor:
        x.add_(1)
        return x.clone()

    twins = custom_twins(secretly, record=False)
    error, _ = both(twins, lambda side: torch.library.opcheck(side.op, (torch.rand(2),), test_utils="test_schema"))
    assert error == "OpCheckError"


def test_vmap_with_and_without_a_rule() -> None:
    def summed(x: Tensor) -> Tensor:
        return x.sum()

    twins = custom_twins(summed, record=False)
    for spelling in ("object", "packet", "overload"):
        both(twins, lambda side, s=spelling: torch.vmap(side.spelled(s))(torch.ones(4, 2)).tolist())
    twins.each(lambda side: side.op.register_vmap(lambda info, dims, x: (torch.zeros(4), 0)))
    for spelling in ("object", "packet", "overload"):
        rule = both(twins, lambda side, s=spelling: torch.vmap(side.spelled(s))(torch.ones(4, 2)).tolist())
        assert rule == [0.0] * 4
    check(twins, ones)


def test_autocast_with_and_without_a_rule() -> None:
    twins = custom_twins(doubled)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(twins, ones, DIRECT).received[0]["arguments"]["args"][0]["dtype"] is torch.float32
        twins.each(lambda side: side.op.register_autocast("cpu", torch.bfloat16))
        assert check(twins, ones, None).received[0]["arguments"]["args"][0]["dtype"] is torch.bfloat16
    assert check(twins, ones, None).received[0]["arguments"]["args"][0]["dtype"] is torch.float32


class Bare(Tensor):
    pass


class Wrapper(Tensor):
    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        return Tensor._make_wrapper_subclass(cls, inner.shape)  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.full((1,), 7.0)


def test_tensor_subclasses_and_tensors_with_keys_of_their_own() -> None:
    def cloned(x: Tensor) -> Tensor:
        return x.clone()

    twins = custom_twins(cloned)
    for made in (
        lambda: torch.ones(2).as_subclass(Bare),
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.ones(2)]),
        lambda: torch._efficientzerotensor(2),
        lambda: torch.ones(2, device="meta"),
        lambda: Wrapper(torch.ones(2)),
    ):
        check(twins, lambda made=made: call(made()), None)


# Exceptions, threads, restoring


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, RecursionError, StopIteration])
def test_an_exception_of_the_body_reaches_the_caller_as_it_is(error: type[BaseException]) -> None:
    raised = error("no")

    def fails(x: Tensor) -> Tensor:
        raise raised

    twins = custom_twins(fails, record=False)
    for spelling in ("object", "packet", "overload"):
        for arguments in (ones(), ones_with_grad()):
            for side in twins.sides():
                with pytest.raises(error) as caught:
                    side.spelled(spelling)(*arguments.args)
                assert caught.value is raised
                assert caught.traceback[-1].name == "fails"


def test_a_body_may_call_its_own_operator() -> None:
    def register(namespace: str) -> Any:
        def recursive(x: Tensor, n: int) -> Tensor:
            return x.clone() if n == 0 else getattr(torch.ops, namespace).op(x, n - 1) + 1

        return torch.library.custom_op(f"{namespace}::op", recursive, mutates_args=())

    twins = registered_twice(register)
    assert check(twins, lambda: call(torch.zeros(1), 30)).value["values"] == "[30.0]"
    check(twins, lambda: call(torch.zeros(1, requires_grad=True), 30), AUTOGRAD)


def test_threads_call_while_kernels_are_registered_and_the_operator_restored() -> None:
    twins = custom_twins(doubled, record=False)
    side = twins.accelerated
    side.op.register_autograd(lambda ctx, gradient: gradient * 2)
    failures: list[object] = []
    done = threading.Event()

    def calls() -> None:
        x, y = torch.ones(2), torch.ones(2, requires_grad=True)
        try:
            while not done.is_set():
                for spelling in ("object", "packet", "overload"):
                    for given in (x, y):
                        if side.spelled(spelling)(given)[0].item() not in (2.0, 3.0):
                            failures.append(spelling)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(60):
            side.op.register_kernel("cpu", (doubled, tripled)[number % 2])
            dutyfree.restore(side.op)
            dutyfree.accelerate(side.op)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_restore_gives_back_the_same_objects_and_pytorchs_behaviour() -> None:
    twins = custom_twins(doubled)
    side = twins.reference
    holders = (side.packet, side.overload)
    pytorch = [holder._op for holder in holders]
    called = type(side.op).__call__, type(side.packet).__call__, type(side.overload).__call__
    expected = [outcome_of(side, spelling, ones()) for spelling in spellings_of(side)]
    dutyfree.accelerate(side.op)
    assert all(holder._op is not before for holder, before in zip(holders, pytorch, strict=True))
    assert (side.packet, side.overload) == holders
    with took(side, DIRECT):
        assert [outcome_of(side, spelling, ones()) for spelling in spellings_of(side)] == expected
    dutyfree.restore(side.op)
    assert all(holder._op is before for holder, before in zip(holders, pytorch, strict=True))
    assert side.qualname not in dutyfree.stats()
    assert dutyfree.explain(side.op, torch.ones(2)).path == "pytorch"
    dutyfree.restore()
    assert (type(side.op).__call__, type(side.packet).__call__, type(side.overload).__call__) == called
    assert [outcome_of(side, spelling, ones()) for spelling in spellings_of(side)] == expected
    assert side.qualname not in dutyfree.stats()


def test_restoring_one_operator_leaves_the_others() -> None:
    first, second = custom_twins(doubled), custom_twins(doubled)
    dutyfree.restore(first.accelerated.op)
    assert dutyfree.explain(first.accelerated.op, torch.ones(2)).path == "pytorch"
    gives(second, [2.0, 2.0])
    dutyfree.accelerate(first.accelerated.packet)
    gives(first, [2.0, 2.0])


def test_gradients_that_cross_a_restore(product: tuple[Twins, Formula]) -> None:
    twins, _ = product
    side = twins.accelerated
    x = torch.full((2,), 3.0, requires_grad=True)
    before = side.op(x, torch.ones(2)).sum()
    dutyfree.restore()
    after = side.op(x, torch.ones(2)).sum()
    dutyfree.accelerate(side.op)
    (before + after + side.op(x, torch.ones(2)).sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0]


def test_fast_operators_are_left_alone_by_accelerate_and_restore() -> None:
    op = dutyfree.fast_custom_op("accelerated_and_fast::op", doubled, mutates_args=())
    callable_ = op._opoverload._op
    dutyfree.accelerate(op)
    assert op._opoverload._op is callable_
    dutyfree.restore(op)
    dutyfree.restore()
    assert op._opoverload._op is callable_
    assert dutyfree.explain(op, torch.ones(2)).path == "direct"
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]


def test_descriptions_of_the_object_stay() -> None:
    twins = custom_twins(doubled, record=False)
    for describe in (repr, inspect.signature, lambda op: op.__doc__, lambda op: getattr(op, "__name__", None)):
        for spelling in ("object", "packet", "overload"):
            both(twins, lambda side, d=describe, s=spelling: side.text(d(side.spelled(s))))


def test_an_operator_whose_library_is_overridden_before_it_is_accelerated() -> None:
    def register(namespace: str) -> Any:
        op = torch.library.custom_op(f"{namespace}::op", doubled_annotated, mutates_args=())
        libraries.append(Library(namespace, "IMPL"))
        libraries[-1].impl("op", tripled, "CPU")
        return op

    libraries: list[Library] = []
    twins = registered_twice(register)
    gives(twins, [3.0, 3.0], None)
    check(twins, ones_with_grad, None)
    for library in libraries:
        library._destroy()
    gives(twins, [2.0, 2.0], None)
    check(twins, ones_with_grad, AUTOGRAD)


# triton_op


def triton_twins(body: Callable[..., Any]) -> Twins:
    return registered_twice(lambda namespace: torch.library.triton_op(f"{namespace}::op", body, mutates_args=()))


def test_a_triton_op_is_direct_too() -> None:
    def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
        return x * factor

    twins = triton_twins(scaled)
    gives(twins, [2.0, 2.0])
    check(twins, lambda: call(torch.ones(2), factor=3))
    check(twins, ones_with_grad, AUTOGRAD)
    refused(check(triton_twins(returns_its_input), ones))
    twins.each(lambda side: side.op.register_autograd(lambda ctx, gradient: (gradient * 5, None)))

    def gradient(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        side.op(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    with took(twins.accelerated, AUTOGRAD):
        assert both(twins, gradient) == [5.0, 5.0]


def returns_its_input(x: Tensor) -> Tensor:
    return x


def test_a_triton_op_is_traced_through_where_pytorch_traces_through_it() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    twins = triton_twins(scaled)

    def compiled(side: Side) -> Any:
        graphs: list[str] = []

        def backend(module: Any, inputs: Any) -> Any:
            graphs.append(side.text(module.code))
            return module

        torch._dynamo.reset()
        for compiler in (backend, aot_autograd(fw_compiler=backend)):
            function = torch.compile(lambda x: side.op(x) + 1, fullgraph=True, backend=compiler)
            assert function(torch.ones(2)).tolist() == [3.0, 3.0]
        return graphs

    first, second = both(twins, compiled)
    assert "torch.ops.NAMESPACE.op" in first
    assert "torch.ops.aten.mul" in second
    assert "NAMESPACE" not in second

    def traced(side: Side) -> Any:
        return [
            side.text(make_fx(side.op, tracing_mode=mode)(torch.ones(2)).code) for mode in ("real", "fake", "symbolic")
        ]

    both(twins, traced)

    def faked(side: Side) -> Any:
        with FakeTensorMode() as mode:
            result = side.op(mode.from_tensor(torch.ones(2)))
        return type(result).__name__, tuple(result.shape)

    assert both(twins, faked) == ("FakeTensor", (2,))
