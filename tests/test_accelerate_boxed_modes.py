"""Modes, transforms, subclasses and gradients around a call that accelerate boxes."""

import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dutyfree
from accelerated import restored
from boxed_alike import (
    aten,
    calls_of,
    compare,
    generator,
    grad,
    numbered,
    operator,
    outcome,
    qualname,
    t,
    took,
    twice,
)
from dutyfree.check.outcome import Arguments, call

__all__ = ["restored"]  # a fixture for every test here


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, shown(args), shown(kwargs), [cls.__name__ for cls in types]))
        return func(*args, **(kwargs or {}))


def shown(value: Any) -> str:
    def show(member: Any) -> Any:
        if isinstance(member, torch.Generator):
            return "generator"
        return (tuple(member.shape), member.dtype) if isinstance(member, Tensor) else member

    return repr(torch.utils._pytree.tree_map(show, value))


SEEN: list[tuple[str, Callable[[], Arguments]]] = [
    ("aten.add.Tensor", lambda: call(t(2), 1, alpha=2)),
    ("aten.cat", lambda: call((t(2), t(2)))),
    ("aten.index.Tensor", lambda: call(t(2, 2), [None, torch.tensor([0])])),
    ("aten.ones", lambda: call(torch.Size([2]), dtype=torch.float16, device="cpu")),
    ("aten.clone", lambda: call(t(1, 1, 1, 1), memory_format=torch.channels_last)),
    ("aten.sum.dim_IntList", lambda: call(t(2, 2), 1, dtype=torch.float64)),
    ("aten.add.out", lambda: call(t(2), t(2), out=t(2))),
    ("aten.relu", lambda: call(grad(2))),
    ("aten.rand", lambda: call([2], generator=generator())),
]


@numbered(SEEN)
def test_a_dispatch_mode_sees_what_it_sees_without_accelerate(name: str, make: Callable[[], Arguments]) -> None:
    op = operator(name)

    def run() -> list[Any]:
        arguments = make()
        with Recorder() as mode:
            op(*arguments.args, **arguments.kwargs)
        return mode.seen

    assert qualname(twice([op], run)[0][0]).split(".")[0] == qualname(op).split(".")[0]


def test_a_dispatch_mode_that_calls_boxed_operators_inside_a_boxed_call() -> None:
    class Calling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inner = aten.cat.default([aten.mul.Tensor(x, 2) for x in args[0]])
            return aten.add.Tensor(inner, func(*args, **(kwargs or {})))

    def run() -> list[float]:
        tensors = [t(2), t(1)]
        with Calling():
            result = aten.cat.default(tensors)
        return result.tolist()

    assert twice([aten.cat.default, aten.mul.Tensor, aten.add.Tensor], run) == [3.0, 6.0, 3.0]


def test_boxed_calls_nest_deeply() -> None:
    class Nested(TorchDispatchMode):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.depth = depth

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self.depth == 0:
                return func(*args)
            with Nested(self.depth - 1):
                return aten.cat.default([aten.cat.default(args[0]), one])

    def run() -> list[float]:
        with Nested(5):
            result = aten.cat.default([one])
        return result.tolist()

    one = t(1)
    assert len(twice([aten.cat.default], run)) > 5


def test_an_error_of_a_dispatch_mode_comes_out_of_the_boxed_call() -> None:
    class Mine(Exception):
        pass

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise Mine("from the mode")

    def run() -> tuple[Any, Any]:
        with pytest.raises(Mine, match="from the mode") as caught, Refusing():
            aten.relu.default(x)
        return caught.value.args, caught.value.__cause__

    x = t(2)
    twice([aten.relu.default], run)


def test_a_function_mode_sees_the_operator_and_pytorch_makes_the_call() -> None:
    class FunctionRecorder(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append((func, shown(args), shown(kwargs)))
            return func(*args, **(kwargs or {}))

    def run() -> list[Any]:
        with FunctionRecorder() as mode:
            aten.add.Tensor(x, 1)
            aten.cat((x, x))
            aten.add(x, x)
        return mode.seen

    x = t(2)
    expected = run()
    dutyfree.accelerate("aten")
    dutyfree.reset_stats()
    assert run() == expected
    assert [func for func, *_ in expected] == [aten.add.Tensor, aten.cat, aten.add]
    assert calls_of(aten.cat)["pytorch"] == 1
    assert calls_of(aten.cat)["boxed"] == 1  # the mode's own call, which no mode sees


class Overriding(Tensor):
    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append((func, [kind.__name__ for kind in types], len(args), sorted(kwargs or {})))
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def overriding(*shape: int) -> Tensor:
    return t(*shape).as_subclass(Overriding)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("aten.relu.default", lambda: call(overriding(2))),
        ("aten.relu", lambda: call(self=overriding(2))),
        ("aten.add.Tensor", lambda: call(t(2), other=overriding(2))),
        ("aten.add", lambda: call(t(2), overriding(2))),
        ("aten.cat.default", lambda: call([t(2), overriding(2)])),
        ("aten.cat", lambda: call(tensors=(overriding(2), t(2)))),
        ("aten.index.Tensor", lambda: call(t(2), [torch.tensor([0]).as_subclass(Overriding)])),
        ("aten.clamp.Tensor", lambda: call(t(2), max=overriding(2))),
        ("aten.add.out", lambda: call(t(2), t(2), out=overriding(2))),
        # where no tensor belongs
        ("aten.select.int", lambda: call(t(2), 0, torch.tensor(1).as_subclass(Overriding))),
        ("aten.view.default", lambda: call(t(2), [torch.tensor(2).as_subclass(Overriding)])),
        ("aten.view.default", lambda: call(t(2), torch.tensor([2]).as_subclass(Overriding))),
        ("aten.cat.default", lambda: call(overriding(2, 2))),
        ("aten.add.Scalar", lambda: call(t(2), overriding())),
        ("aten.dropout.default", lambda: call(t(2), 0.5, torch.tensor(False).as_subclass(Overriding))),
        ("aten.gelu.default", lambda: call(t(2), approximate=overriding(1))),
        ("aten.ones.default", lambda: call([2], dtype=overriding(1))),
        ("aten.ones.default", lambda: call([2], device=overriding(1))),
        # where there are too many, or under an unknown name, or behind a value that is refused
        ("aten.relu.default", lambda: call(t(2), overriding(2))),
        ("aten.relu.default", lambda: call(t(2), unknown=overriding(2))),
        ("aten.add.Tensor", lambda: call("text", overriding(2))),
        ("aten.add", lambda: call("text", overriding(2))),
        ("aten.cat.default", lambda: call([None, overriding(2)])),
        ("aten.cat.default", lambda: call([[overriding(2)]])),
    ],
)
def test_torch_function_of_a_subclass_is_asked_as_without_accelerate(name: str, make: Callable[[], Arguments]) -> None:
    op = operator(name)
    Overriding.seen.clear()
    expected = outcome(op, make), list(Overriding.seen)
    dutyfree.accelerate(op)
    Overriding.seen.clear()
    assert (outcome(op, make), Overriding.seen) == expected
    assert calls_of(op)["pytorch"] > 0 or not expected[1]
    # Its own default implementation calls the operator once more, with __torch_function__ off.
    if expected[1] and expected[0].raised is None:
        assert calls_of(op)["boxed"] > 0


@pytest.mark.parametrize("name", ["aten.relu.default", "aten.mul", "aten.cat"])
def test_a_subclass_without_torch_function_is_boxed(name: str) -> None:
    x = t(2).as_subclass(Plain)
    make = {"aten.cat": lambda: call([x, x]), "aten.mul": lambda: call(x, x)}.get(name, lambda: call(x))
    compare(operator(name), make)


class Wrapper(Tensor):
    """A subclass with __torch_dispatch__."""

    elem: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: Tensor) -> "Wrapper":
        self = Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype, requires_grad=elem.requires_grad)
        self.elem = elem
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrap = torch.utils._pytree.tree_map_only(Wrapper, lambda wrapper: wrapper.elem, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, Wrapper, func(*unwrap[0], **unwrap[1]))


def test_a_wrapper_subclass_is_dispatched_in_its_torch_dispatch() -> None:
    def run() -> list[Any]:
        results = [aten.relu.default(Wrapper(t(2))), aten.cat.default([Wrapper(t(2)), t(2)])]
        return [(type(result), result.elem.tolist()) for result in results]

    assert twice([aten.relu.default, aten.cat.default], run)[0] == (Wrapper, [1.0, 2.0])


def test_fake_tensors_with_dynamic_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def run() -> list[Any]:
        from torch._dynamo.source import ConstantSource

        mode = FakeTensorMode(shape_env=ShapeEnv())
        x = mode.from_tensor(t(4, 6), source=ConstantSource("x"))
        with mode:
            rows, columns = x.shape
            results = [
                aten.view.default(x, [rows * columns]),
                aten.view(x, (columns, rows)),
                aten.ones.default([rows, 2]),
                aten.select.int(x, 0, rows - 1),
                aten.slice.Tensor(x, 0, 0, rows - 1),
                aten.cat.default([x, x]),
                aten.add.Tensor(x, rows),
                aten.full.default([rows], columns),
            ]
            sizes = [str(aten.sym_size.int(x, 0)), str(aten.sym_numel.default(x))]
        return [(type(result).__name__, str(result.shape), str(result.stride())) for result in results] + sizes

    names = ["view", "ones", "select", "slice", "cat", "add", "full", "sym_size", "sym_numel"]
    expected = run()
    dutyfree.accelerate("aten")
    assert run() == expected
    assert "s" in expected[0][1]
    for name in names:
        assert calls_of(getattr(aten, name))["boxed"] > 0, name


def test_make_fx_traces_boxed_operators() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x: Tensor) -> Tensor:
        return aten.cat.default([aten.mul.Tensor(x, 2), aten.relu(x)])

    for mode in ("real", "fake", "symbolic"):
        twice([aten.mul.Tensor, aten.relu], lambda mode=mode: make_fx(function, tracing_mode=mode)(t(3)).code)
        dutyfree.restore()


def test_functionalization_and_functional_tensor_mode() -> None:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    def functionalized() -> Any:
        def function(x: Tensor) -> Tensor:
            y = aten.view.default(x, [4])
            aten.add_.Tensor(y, 1)
            return x

        return torch.func.functionalize(function)(t(2, 2)).tolist()

    def mode() -> Any:
        given = t(2, 2)
        with FunctionalTensorMode():
            x = FunctionalTensor.to_functional(given)
            y = aten.view.default(x, [4])
            aten.add_.Tensor(y, 1)
            return type(y).__name__, torch._from_functional_tensor(x.elem).tolist()

    assert twice([aten.view.default, aten.add_.Tensor], functionalized) == [[2.0, 3.0], [4.0, 5.0]]
    dutyfree.restore()
    assert twice([aten.view.default, aten.add_.Tensor], mode)[0] == "FunctionalTensor"


def test_functorch_transforms() -> None:
    def f(x: Tensor) -> Tensor:
        return aten.sum(aten.mul.Tensor(aten.sin.default(x), x))

    def run() -> list[Any]:
        x, y = t(3), t(2, 3)
        return [
            torch.func.grad(f)(x).tolist(),
            torch.func.vmap(f)(y).tolist(),
            torch.func.vmap(torch.func.grad(f))(y).tolist(),
            [result.tolist() for result in torch.func.jvp(f, (x,), (x,))],
            torch.func.hessian(f)(x).tolist(),
            torch.func.jacrev(lambda x: aten.cat.default([x, x]))(x).tolist(),
            torch.func.vmap(aten.rand_like.default, randomness="same")(y).shape,
        ]

    twice([aten.sum, aten.mul.Tensor, aten.sin.default, aten.cat.default], run)


def test_an_operator_without_a_batching_rule_warns_or_fails_as_without_accelerate() -> None:
    def run() -> list[Any]:
        results: list[Any] = []
        for op in (aten.nonzero.default, aten.item.default, aten.histc.default):
            try:
                results.append(torch.func.vmap(op)(t(2, 1)))
            except Exception as error:
                results.append((type(error), str(error)))
        return [result.tolist() if isinstance(result, Tensor) else result for result in results]

    twice([aten.nonzero.default, aten.item.default], run)


def test_forward_mode_derivatives() -> None:
    import torch.autograd.forward_ad as forward

    def run() -> list[Any]:
        with forward.dual_level():
            result = aten.mul.Tensor(forward.make_dual(t(2), t(2)), t(2))
            primal, tangent = forward.unpack_dual(result)
        return [primal.tolist(), tangent.tolist()]

    assert twice([aten.mul.Tensor], run) == [[1.0, 4.0], [1.0, 4.0]]


def test_autocast() -> None:
    def run() -> list[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            results = [aten.mm.default(t(2, 2), t(2, 2)), aten.mm(t(2, 2), t(2, 2)), aten.cat([t(2), t(2).bfloat16()])]
        return [(result.dtype, result.tolist()) for result in results]

    assert twice([aten.mm.default, aten.cat], run)[0][0] == torch.bfloat16


def test_inference_mode_and_no_grad() -> None:
    def run() -> list[Any]:
        x = grad(2)
        with torch.inference_mode():
            results = [aten.relu.default(x), aten.view.default(x, [2]), aten.ones.default([2])]
        with torch.no_grad():
            results.append(aten.relu.default(x))
        return [(result.is_inference(), result.requires_grad, result._is_view()) for result in results]

    assert twice([aten.relu.default, aten.view.default, aten.ones.default], run)[0] == (True, False, False)


def test_backward_through_boxed_calls() -> None:
    def run() -> list[Any]:
        x, w = grad(2, 3), grad(3, 2)
        y = aten.mm.default(x, w)
        aten.unbind(aten.cat([y, aten.sin(y)]))
        aten.add_.Tensor(y, 1)
        values, indices = aten.max.dim(y, 1)
        total = aten.sum(aten.mul.Tensor(values, 2))
        total.backward()
        return [x.grad.tolist(), w.grad.tolist(), type(y.grad_fn).__name__, y._version, indices.requires_grad]

    twice([aten.mm.default, aten.unbind, aten.cat, aten.sin, aten.add_.Tensor, aten.max.dim, aten.sum], run)


def test_hooks_and_anomaly_detection_see_a_boxed_call() -> None:
    def run() -> list[Any]:
        saved: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(tuple(x.shape)) or x, lambda x: x):
            aten.mul.Tensor(grad(2), grad(2))
        with torch.autograd.detect_anomaly(check_nan=False):
            result = aten.mul.Tensor(grad(2), grad(2))
        return [saved, sorted(result.grad_fn.metadata)]

    with pytest.warns(UserWarning, match="Anomaly Detection"):
        assert twice([aten.mul.Tensor], run) == [[(2,), (2,)], ["traceback_"]]


def test_the_result_of_an_in_place_operator_is_the_object_that_was_given() -> None:
    dutyfree.accelerate("aten")
    x, out = t(2), t(2)
    x.note = "kept"  # type: ignore[attr-defined]
    assert aten.add_.Tensor(x, 1) is x
    assert aten.relu_(x) is x
    assert aten.add.out(x, x, out=out) is out
    assert aten.contiguous.default(x) is x
    parameter = torch.nn.Parameter(t(2))
    assert aten.contiguous.default(parameter) is parameter
    plain = t(2).as_subclass(Plain)
    assert aten.add_.Tensor(plain, 1) is plain
    for name in ("add_", "relu_", "contiguous"):
        took(getattr(aten, name), "boxed")


def test_views_share_memory_and_know_their_base() -> None:
    dutyfree.accelerate("aten")
    base = t(2, 3)
    seen = aten.view.default(base, [6])
    assert seen._base is base
    rows = aten.unbind(base)
    assert [row._base is base for row in rows] == [True, True]
    aten.fill_.Scalar(rows[1], 9)
    assert seen.tolist() == [1, 2, 3, 9, 9, 9]
    assert base._version == seen._version == 1
    took(aten.unbind, "boxed")


def test_the_profiler_shows_the_same_events() -> None:
    def run() -> list[Any]:
        with torch.profiler.profile(record_shapes=True) as profiler:
            aten.add.Tensor(t(2, 3), 1)
            aten.cat((t(2), t(2)))
        return [(e.name, e.input_shapes) for e in profiler.events() if e.name.startswith("aten::")]

    assert [name for name, _ in twice([aten.add.Tensor, aten.cat], run)].count("aten::cat") == 1


def test_torchscript_traces_and_scripts_boxed_operators() -> None:
    def function(x: Tensor) -> Tensor:
        return aten.mul(aten.relu(x), 2)

    def traced() -> str:
        return re.sub("#.*", "", str(torch.jit.trace(function, (t(2),)).graph))  # without the lines of code

    def scripted() -> tuple[str, Any]:
        compiled = torch.jit.script(scriptable)
        return str(compiled.graph).split("#")[0], compiled(t(2)).tolist()

    assert "aten::relu" in twice([aten.relu, aten.mul], traced)
    dutyfree.restore()
    expected = scripted()
    dutyfree.accelerate("aten")
    assert scripted() == expected


def scriptable(x: Tensor) -> Tensor:
    return torch.ops.aten.relu(x)


def test_torch_compile_traces_boxed_operators() -> None:
    graphs: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module.code)
        return module

    def run() -> Any:
        graphs.clear()
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: aten.cat.default([aten.relu(x), x]), backend=backend, fullgraph=True)
        return compiled(t(2)).tolist(), list(graphs)

    expected = run()
    dutyfree.accelerate("aten")
    assert run() == expected
    assert "torch.ops.aten.relu" in expected[1][0]
