"""Gradients of operators with C++ kernels: C++ autograd functions, formulas in Python, no formula."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import dutyfree
from accelerated import AUTOGRAD, DIRECT, Way, both, refused, restored, took
from cpp_twins import alike, call, load, twins
from dutyfree.check.outcome import Arguments, Side
from isolated import run_isolated

__all__ = ["restored"]  # a fixture for every test here

LIBRARY = "behaviour"


def x() -> Tensor:
    return torch.arange(1.0, 5.0, dtype=torch.float64).reshape(2, 2)


def g() -> Tensor:
    return x().requires_grad_()


SCALED: list[tuple[Callable[[], Arguments], Way]] = [
    (lambda: call(x(), x()), DIRECT),
    (lambda: call(g(), x()), AUTOGRAD),
    (lambda: call(x(), g()), AUTOGRAD),
    (lambda: call(g(), g(), 0.5), AUTOGRAD),
    (lambda: call(y=g(), x=x(), a=3), AUTOGRAD),
    (lambda: call(g() * 2, x()), AUTOGRAD),
    (lambda: call((g() * 2).detach(), x()), DIRECT),
    (lambda: call(torch.nn.Parameter(x()), x()), AUTOGRAD),
    (lambda: call(shared := g(), shared), AUTOGRAD),
]


@pytest.mark.parametrize(("make", "way"), SCALED)
def test_a_cpp_autograd_function(make: Callable[[], Arguments], way: Way) -> None:
    found = alike(LIBRARY, "scaled", make, way)
    assert found.value["requires grad"] == (way == AUTOGRAD)
    with torch.no_grad():
        alike(LIBRARY, "scaled", make, DIRECT)


TOTALS = ["total", "total_of_two", "total_of_vector", "total_or_none"]


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.parametrize(
    ("make", "way"),
    [
        (lambda: call(x(), [x(), x()]), DIRECT),
        (lambda: call(g(), [x(), x()]), AUTOGRAD),
        (lambda: call(x(), [x(), g()]), AUTOGRAD),
        (lambda: call(x(), (g(), g())), AUTOGRAD),
    ],
)
def test_lists_of_every_type(name: str, make: Callable[[], Arguments], way: Way) -> None:
    found = alike(LIBRARY, name, make, way)
    assert found.value["requires grad"] == (way == AUTOGRAD)
    # PyTorch's own way, which a program without dutyfree takes.
    given = make()
    own = twins(LIBRARY, name).accelerated.overload._op.pytorch(*given.args, **given.kwargs)
    assert own.requires_grad == (way == AUTOGRAD)
    assert str(own.tolist()) == found.value["values"]


def test_a_list_whose_length_the_schema_has_gets_new_versions() -> None:
    one, two = torch.zeros(1), torch.zeros(1)
    with took(twins(LIBRARY, "add_one").accelerated, DIRECT):
        twins(LIBRARY, "add_one").accelerated.overload([one, two])
    assert (one.item(), one._version, two._version) == (1, 1, 1)
    alike(LIBRARY, "add_one", lambda: call([torch.zeros(1), torch.zeros(1)]))


def gradients(side: Side, *, name: str = "overload") -> Any:
    first, second = g(), g()
    result = side.spelled(name)(first * 1, second, a=3.0)
    found = torch.autograd.grad(result.sum(), (first, second), create_graph=True)
    again = torch.autograd.grad(found[0].sum(), second)
    return [tensor.tolist() for tensor in (result, *found, *again)]


@pytest.mark.parametrize("spelling", ["overload", "packet"])
def test_the_gradients_of_a_cpp_autograd_function(spelling: str) -> None:
    both_ = twins(LIBRARY, "scaled")
    with took(both_.accelerated, ("autograd", "requires-grad")):
        both(both_, lambda side: gradients(side, name=spelling))
    assert torch.autograd.gradcheck(both_.accelerated.overload, (g(), g(), 2.0))
    assert torch.autograd.gradgradcheck(both_.accelerated.overload, (g(), g(), 2.0))


def test_the_forward_of_an_autograd_function_goes_through_the_dispatcher_below_autograd() -> None:
    # It calls the operator in C++, where nothing of Python is on the way.
    both_ = twins(LIBRARY, "scaled")
    both_.accelerated.overload(g(), x())
    calls = dutyfree.stats()[both_.accelerated.qualname].calls
    assert (calls["autograd"], calls["direct"]) == (1, 0)


def test_saved_tensors_hooks_see_what_is_saved() -> None:
    def run(side: Side) -> Any:
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.tolist()) or t, lambda t: t):
            result = side.overload(g(), x())
        result.sum().backward()
        return packed

    both_ = twins(LIBRARY, "scaled")
    with took(both_.accelerated, AUTOGRAD):
        assert len(both(both_, run)) == 2


LISTS: list[tuple[Callable[[], Arguments], Way]] = [
    (lambda: call([x()]), DIRECT),
    (lambda: call([g()]), AUTOGRAD),
    (lambda: call((g(),)), AUTOGRAD),
]


@pytest.mark.parametrize(("make", "way"), LISTS)
def test_a_list_of_tensors_and_several_results(make: Callable[[], Arguments], way: Way) -> None:
    alike(LIBRARY, "sum_and_count", make, way)
    with torch.no_grad():
        alike(LIBRARY, "sum_and_count", make, DIRECT)


def test_an_autograd_function_that_raises() -> None:
    assert refused(alike(LIBRARY, "refuses_gradient", lambda: call(g()), AUTOGRAD))[1].startswith("has no gradient")


def test_inputs_that_need_no_gradient_do_not_reach_the_autograd_function() -> None:
    # PyTorch's twin calls it always; include/dutyfree/op.h says that it runs where an argument needs a gradient.
    both_ = twins(LIBRARY, "refuses_gradient")
    with took(both_.accelerated, DIRECT):
        assert both_.accelerated.overload(x()).tolist() == (x() + 1).tolist()
    dutyfree.restore()
    assert both_.accelerated.overload(x()).tolist() == (x() + 1).tolist()


@pytest.mark.parametrize("mode", ["nothing", "warn"])
def test_an_operator_without_a_formula(mode: str) -> None:
    before = torch._C._get_autograd_fallback_mode()
    torch._C._set_autograd_fallback_mode(mode)
    try:
        for make in (lambda: call(g(), x()), lambda: call(x(), g() * 2)):
            alike(LIBRARY, "matched", make, None)
            with torch.no_grad():
                alike(LIBRARY, "matched", make, DIRECT)

        def run(side: Side) -> Any:
            given = g()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = side.overload(given, x())
                (result.sum() + given.sum()).backward()
            return given.grad is not None, [side.text(warning.message) for warning in caught]

        both(twins(LIBRARY, "matched"), run)
    finally:
        torch._C._set_autograd_fallback_mode(before)


def test_mutation_of_what_requires_a_gradient() -> None:
    alike(LIBRARY, "increment_", lambda: call(g()), None)
    alike(LIBRARY, "increment_", lambda: call(g() * 2), None)
    with torch.no_grad():
        alike(LIBRARY, "increment_", lambda: call(g()), DIRECT)


def cubed_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.n = inputs[1]


def cubed_backward(ctx: Any, gradient: Tensor) -> Any:
    return gradient * 3 * ctx.saved_tensors[0] ** 2 * ctx.n, None


def test_a_formula_in_python_over_a_cpp_kernel() -> None:
    both_ = twins(LIBRARY, "cubed")
    library = {side.namespace: torch.library.Library(side.namespace, "FRAGMENT") for side in both_.sides()}
    try:
        alike(LIBRARY, "cubed", lambda: call(g()), None)
        for side in both_.sides():
            torch.library.register_autograd(
                f"{side.namespace}::cubed", cubed_backward, setup_context=cubed_context, lib=library[side.namespace]
            )
        for make, path in (
            (lambda: call(x()), "direct"),
            (lambda: call(g(), 3), "autograd"),
            (lambda: call(g()), "autograd"),
        ):
            assert alike(LIBRARY, "cubed", make, None).value["requires grad"] == (path == "autograd")

        def run(side: Side) -> Any:
            given = g()
            side.overload(given, 2).sum().backward()
            return given.grad.tolist()

        assert both(both_, run) == (x() ** 2 * 6).tolist()
        assert torch.autograd.gradcheck(both_.accelerated.overload, (g(), 2))
        calls = dutyfree.stats()[both_.accelerated.qualname].calls
        assert calls["direct"] > 0
        assert calls["autograd"] > 0
    finally:
        for made in library.values():
            made._destroy()
    alike(LIBRARY, "cubed", lambda: call(g()), None)
    alike(LIBRARY, "cubed", lambda: call(x()), DIRECT)


def sums_with_a_formula(side: Side, lists: list[Any]) -> list[Any]:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.n = len(inputs[0])

    def backward(ctx: Any, gradient: Tensor) -> Any:
        return [gradient] * ctx.n, gradient, None

    library = torch.library.Library(side.namespace, "FRAGMENT")
    name = f"{side.namespace}::sum_of"
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=library)
    found: list[Any] = []
    for tensors in lists:
        for y in (x(), g()):
            result = side.overload(tensors, y)
            found.append((result.tolist(), side.text(type(result.grad_fn).__name__)))
            if result.requires_grad:
                result.sum().backward()
            found.append([None if tensor.grad is None else tensor.grad.tolist() for tensor in (*tensors, y)])
    library._destroy()
    return found


def a_formula_in_python_over_lists() -> None:
    both(twins(LIBRARY, "sum_of"), lambda side: sums_with_a_formula(side, [[g(), x()], [x()], [g()] * 20]))
    assert dutyfree.stats()["cppbehaviour_fast::sum_of"].calls["autograd"] > 0


def a_formula_in_python_over_tuples() -> None:
    both(twins(LIBRARY, "sum_of"), lambda side: sums_with_a_formula(side, [(g(), x()), (x(),), (g(),) * 20]))
    assert dutyfree.stats()["cppbehaviour_fast::sum_of"].calls["autograd"] > 0


@pytest.mark.parametrize(
    "run",
    [
        a_formula_in_python_over_lists,
        a_formula_in_python_over_tuples,
    ],
)
def test_a_formula_in_python_over_a_cpp_kernel_that_takes_a_list(run: Callable[[], None]) -> None:
    load(LIBRARY)
    run_isolated(run)


@pytest.mark.parametrize("key", ["CPU", "Autograd", "AutogradCPU"])
def test_a_python_kernel_beside_a_cpp_autograd_function(key: str) -> None:
    both_ = twins(LIBRARY, "scaled")

    def sevenfold(first: Tensor, second: Tensor, a: float = 2.0) -> Tensor:
        return first * second * 7

    remove = both_.override(sevenfold, key)
    for make in (lambda: call(x(), x()), lambda: call(g(), x(), 1.0)):
        found = alike(LIBRARY, "scaled", make, None)
        assert found.value["values"] == str((x() * x() * 7).tolist())
    remove()
    alike(LIBRARY, "scaled", lambda: call(g(), x()), AUTOGRAD)


def test_inference_mode() -> None:
    with torch.inference_mode():
        given = x()
    alike(LIBRARY, "scaled", lambda: call(given, x()), None)
    refused(alike(LIBRARY, "scaled", lambda: call(given, g()), None))
    with torch.inference_mode():
        alike(LIBRARY, "scaled", lambda: call(given, x()), None)


@pytest.mark.parametrize("name", ["matched", "scaled"])
def test_forward_mode_tangents(name: str) -> None:
    def run(side: Side) -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x(), x())
            primal, tangent = forward_ad.unpack_dual(side.overload(dual, x()))
            return primal.tolist(), None if tangent is None else tangent.tolist()

    both(twins(LIBRARY, name), run)


def test_a_gradient_below_a_kernel_that_releases_the_gil() -> None:
    alike(LIBRARY, "sum_of_without_gil", lambda: call([g(), x()], x()), None)
    alike(LIBRARY, "sum_of_without_gil", lambda: call([x(), x()], x(), x()), DIRECT)
