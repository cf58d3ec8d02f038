"""States in which operators with C++ kernels are called: modes, autocast, functorch, other kinds of tensors."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from accelerated import DIRECT, Answering, Seeing, SeeingFunctions, Way, both, refused, restored, took
from cpp_twins import alike, call, twins
from dutyfree.check.outcome import Side

__all__ = ["restored"]  # a fixture for every test here

LIBRARY = "behaviour"


def x() -> Tensor:
    return torch.arange(1.0, 5.0).reshape(2, 2)


class Wrapped(Tensor):
    """A subclass whose operators reach __torch_dispatch__."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapped":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = [arg.inner if isinstance(arg, Wrapped) else arg for arg in args]
        return func(*unwrapped, **(kwargs or {})) + 100


class Bare(Tensor):
    pass


STATES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Way]] = {
    "none": (nullcontext, DIRECT),
    "no_grad": (torch.no_grad, DIRECT),
    "set_grad_enabled": (lambda: torch.set_grad_enabled(True), DIRECT),
    "inference_mode": (torch.inference_mode, DIRECT),
    "autocast": (lambda: torch.autocast("cpu"), DIRECT),
    "autocast off": (lambda: torch.autocast("cpu", enabled=False), DIRECT),
    "autocast of another device": (lambda: torch.autocast("cuda"), DIRECT),
    "below autograd": (torch._C._AutoDispatchBelowAutograd, DIRECT),
    "no torch_function": (torch._C.DisableTorchFunction, DIRECT),
    "no torch_function subclass": (torch._C.DisableTorchFunctionSubclass, DIRECT),
    "saved tensors' hooks": (lambda: torch.autograd.graph.save_on_cpu(), DIRECT),
    "a default device": (lambda: torch.device("cpu"), ("pytorch", "torch-function-mode")),
}


@pytest.mark.parametrize("name", ["state", "state_anywhere"])
@pytest.mark.parametrize("state", STATES)
def test_the_state_that_the_kernel_runs_in(name: str, state: str) -> None:
    enter, way = STATES[state]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context = enter()
    with context:
        alike(LIBRARY, name, lambda: call(x()), way)


@pytest.mark.parametrize("name", ["matched", "matched_with_rule"])
def test_autocast_with_and_without_a_rule(name: str) -> None:
    way: Way = DIRECT
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = alike(LIBRARY, name, lambda: call(x(), x()), way if name == "matched" else None)
    # Without a rule, autocast is still on inside the kernel, where aten::mm has one.
    assert found.value["dtype"] is torch.bfloat16
    alike(LIBRARY, name, lambda: call(x(), x()), way)
    with torch.autocast("cpu", enabled=False):
        assert alike(LIBRARY, name, lambda: call(x(), x()), way).value["dtype"] is torch.float32


@pytest.mark.parametrize(
    ("mode", "way"),
    [(Seeing, ("boxed", "dispatch-mode")), (SeeingFunctions, ("pytorch", "torch-function-mode"))],
)
def test_a_mode_sees_the_call_once(mode: type[Any], way: Way) -> None:
    def run(side: Side) -> Any:
        seen = []
        for spelled in (side.overload, side.packet):
            with mode() as active:
                spelled(x(), x(), a=3)
            seen.append([side.text(event) for event in active.seen])
        return seen

    both_ = twins(LIBRARY, "scaled")
    with took(both_.accelerated, way):
        found = both(both_, run)
    assert all(sum("scaled" in event for event in events) == 1 for events in found)


def test_a_mode_may_answer_for_the_kernel() -> None:
    class Answers(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.full((1,), 5.0)

    with Answers():
        alike(LIBRARY, "scaled", lambda: call(x(), x()), None)
    alike(LIBRARY, "scaled", lambda: call(x(), x()))


def test_a_subclass_with_torch_function_answers_for_the_kernel() -> None:
    found = alike(LIBRARY, "scaled", lambda: call(x(), x().as_subclass(Answering)), None)
    assert found.value["type"] == "tuple"


def test_a_subclass_with_torch_dispatch_answers_for_the_kernel() -> None:
    def run(side: Side) -> Any:
        return side.overload(Wrapped(x()), x()).tolist(), side.packet(x(), Wrapped(x())).tolist()

    assert both(twins(LIBRARY, "scaled"), run)[0] == (x() * x() * 2 + 100).tolist()


@pytest.mark.parametrize("name", ["scaled", "matched"])
def test_a_bare_subclass(name: str) -> None:
    alike(LIBRARY, name, lambda: call(x().as_subclass(Bare), x()), None)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_parameters_and_buffers(requires_grad: bool) -> None:
    for name in ("scaled", "matched"):
        alike(LIBRARY, name, lambda name=name: call(torch.nn.Parameter(x(), requires_grad), torch.nn.Buffer(x())), None)


def test_fake_tensors() -> None:
    def run(side: Side) -> Any:
        with FakeTensorMode() as mode:
            given = mode.from_tensor(x())
            made = side.overload(given, given)
            return type(made).__name__, made.shape, made.dtype, made.fake_mode is mode

    assert both(twins(LIBRARY, "scaled"), run)[0] == "FakeTensor"
    # Without a fake kernel.
    assert "matched" in str(both(twins(LIBRARY, "matched"), run))
    with FakeTensorMode(allow_non_fake_inputs=True):
        for side in twins(LIBRARY, "scaled").sides():
            assert type(side.overload(x(), x())).__name__ == "FakeTensor"


def test_meta_tensors() -> None:
    alike(LIBRARY, "scaled", lambda: call(x().to("meta"), x().to("meta")), None)
    alike(LIBRARY, "increment_", lambda: call(x().to("meta")), None)
    refused(alike(LIBRARY, "matched", lambda: call(x().to("meta"), x().to("meta")), None))


@pytest.mark.parametrize(
    "transform",
    [
        lambda op: torch.func.vmap(op)(x(), x()),
        lambda op: torch.func.vmap(op, in_dims=(0, None))(x(), x()[0]),
        lambda op: torch.func.grad(lambda a: op(a, a).sum())(x()),
        lambda op: torch.func.vjp(op, x(), x())[1](x()),
        lambda op: torch.func.jvp(op, (x(), x()), (x(), x())),
        lambda op: torch.func.functionalize(op)(x(), x()),
        lambda op: torch.func.jacrev(op)(x(), x()),
    ],
    ids=["vmap", "vmap in_dims", "grad", "vjp", "jvp", "functionalize", "jacrev"],
)
@pytest.mark.parametrize("name", ["scaled", "matched"])
def test_functorch(transform: Callable[[Any], Any], name: str) -> None:
    def run(side: Side) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.utils._pytree.tree_map(
                lambda value: value.tolist() if isinstance(value, Tensor) else str(type(value)),
                (transform(side.overload), transform(side.packet)),
            )

    both(twins(LIBRARY, name), run)


def test_functionalized_mutation() -> None:
    def run(side: Side) -> Any:
        given = x()
        return torch.func.functionalize(side.overload)(given).tolist(), given.tolist()

    both(twins(LIBRARY, "increment_"), run)


def test_a_profiler_sees_the_same_events() -> None:
    both_ = twins(LIBRARY, "scaled")

    def run(side: Side) -> Any:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            side.overload(x(), x())
            side.packet(x(), x(), a=0.5)
        return [(side.text(event.name), event.input_shapes) for event in profiler.events() if "::op" not in event.name]

    with took(both_.accelerated, DIRECT):
        found = both(both_, run)
    assert sum(name == "NAMESPACE::scaled" for name, _ in found) == 2


@pytest.mark.parametrize("name", ["warns", "warns_without_gil", "warns_of_the_past"])
def test_a_warning_of_the_kernel(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    alike(LIBRARY, name, lambda: call(x()))
    # PyTorch prints what operators of other libraries warn of.
    assert capfd.readouterr().err.count("old" if name == "warns_of_the_past" else "warned by the kernel 2") == 4


@pytest.mark.parametrize("name", ["calls_another", "calls_another_without_gil"])
def test_a_kernel_that_calls_an_operator_with_a_python_body(name: str) -> None:
    python = twins(LIBRARY, "in_python")
    other = twins(LIBRARY, name)
    seen: list[bool] = []

    def body(given: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return given * 2

    remove = python.override(body, "CPU")
    try:
        alike(LIBRARY, name, lambda: call(x()))
        with torch.no_grad():
            alike(LIBRARY, name, lambda: call(x()))
        assert seen == [True] * 4 + [False] * 4
    finally:
        remove()

    def fails(given: Tensor) -> Tensor:
        raise KeyError("in the body")

    remove = python.override(fails, "CPU")
    try:
        assert refused(alike(LIBRARY, name, lambda: call(x())))[0] == "KeyError"
        for side in other.sides():
            with pytest.raises(KeyError) as caught:
                side.overload(x())
            assert caught.traceback[-1].name == "fails"
    finally:
        remove()
    refused(alike(LIBRARY, name, lambda: call(x())))


def test_jit_trace() -> None:
    def run(side: Side) -> Any:
        traced = torch.jit.trace(lambda a, b: side.overload(a, b) + 1, (x(), x()))
        scripted = side.text(traced.graph.findNode(f"{side.namespace}::scaled").kind())
        return scripted, traced(x() * 2, x()).tolist()

    assert both(twins(LIBRARY, "scaled"), run)[0] == "NAMESPACE::scaled"
