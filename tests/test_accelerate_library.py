"""Accelerated operators of Library.define and Library.impl with Python bodies do what they did before."""

import copy
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import Library

import dutyfree
from accelerated import (
    AUTOGRAD,
    BOXED_FOR_GRADIENT,
    BOXED_FOR_KERNEL,
    DIRECT,
    Seeing,
    SeeingFunctions,
    Twins,
    both,
    check,
    doubled,
    library_twins,
    ones,
    ones_with_grad,
    refused,
    registered_twice,
    restored,
    took,
    tripled,
)
from dutyfree.check.outcome import Arguments, Side, call
from isolated import run_isolated

__all__ = ["restored"]  # a fixture for every test here

KEYS = ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", ""]
BELOW_AUTOGRAD = ["CPU", "CompositeExplicitAutograd"]


# Kernels and the autograd around them


@pytest.mark.parametrize("key", KEYS)
def test_a_body_under_any_key_runs_directly(key: str) -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, key)
    assert dutyfree.accelerate(twins.accelerated.qualname)[twins.accelerated.qualname].path == "direct"
    assert check(twins, ones).value["values"] == "[2.0, 2.0]"
    assert check(twins, lambda: call(x=torch.ones(2))).value["values"] == "[2.0, 2.0]"


@pytest.mark.parametrize("key", KEYS)
def test_without_grad_mode_an_input_that_requires_grad_does_not_matter(key: str) -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, key)
    with torch.no_grad():
        assert check(twins, ones_with_grad).value["requires grad"] is False
    with torch.inference_mode():
        assert check(twins, ones).value["inference"] is True
        x = torch.ones(2)
    check(twins, lambda: call(x))


@pytest.mark.parametrize("key", BELOW_AUTOGRAD)
def test_an_input_that_requires_grad_meets_pytorchs_fallback(key: str) -> None:
    def cut(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)

    for body in (doubled, cut):
        twins = library_twins("(Tensor x) -> Tensor", body, key)
        check(twins, ones_with_grad, BOXED_FOR_GRADIENT)


@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "", "Autograd", "AutogradCPU"])
def test_a_body_at_the_autograd_key_records_its_own_gradient(key: str) -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, key)
    outcome = check(twins, ones_with_grad)
    assert outcome.value["grad_fn"] == ("MulBackward0", ["AccumulateGrad", None])


@pytest.fixture
def fallback_mode() -> Iterator[Callable[[str], None]]:
    before = torch._C._get_autograd_fallback_mode()
    yield torch._C._set_autograd_fallback_mode
    torch._C._set_autograd_fallback_mode(before)


@pytest.mark.parametrize("mode", ["nothing", "warn"])
@pytest.mark.parametrize("key", BELOW_AUTOGRAD)
def test_the_modes_of_the_autograd_fallback(fallback_mode: Callable[[str], None], mode: str, key: str) -> None:
    def cut(x: Tensor) -> Tensor:
        return torch.full((2,), 3.0)

    fallback_mode(mode)
    twins = library_twins("(Tensor x) -> Tensor", cut, key)

    def gradient(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        y = side.overload(x)
        described = (y.requires_grad, side.text(type(y.grad_fn).__name__))
        with pytest.warns() if mode == "warn" else _no_warning() as caught:
            (y * x).sum().backward()
        warnings = [side.text(warning.message) for warning in caught or ()]
        return described, None if x.grad is None else x.grad.tolist(), warnings

    check(twins, ones_with_grad, DIRECT if mode == "nothing" else BOXED_FOR_GRADIENT)
    both(twins, gradient)


def test_the_mode_of_the_autograd_fallback_is_that_of_the_call(fallback_mode: Callable[[str], None]) -> None:
    twins = library_twins("(Tensor x) -> Tensor", lambda x: torch.full((2,), 3.0))
    # PyTorch 2.13 has the third mode, "error", by name only: to set it raises.
    for mode in ("warn", "nothing", "warn", "nothing"):
        fallback_mode(mode)
        outcome = check(twins, ones_with_grad, DIRECT if mode == "nothing" else BOXED_FOR_GRADIENT)
        assert outcome.value["requires grad"] is (mode == "warn")
        check(twins, ones)


class _no_warning:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...


def test_the_autograd_of_a_body_is_not_masked() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))

    def captures(x: Tensor) -> Tensor:
        return x * parameter

    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", captures, key)
        outcome = check(twins, ones)
        assert outcome.value["grad_fn"] == ("MulBackward0", [None, "AccumulateGrad"])

    def differentiates(x: Tensor) -> Tensor:
        y = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((y**3).sum(), y)
        return gradient

    twins = library_twins("(Tensor x) -> Tensor", differentiates)
    assert check(twins, ones).value["values"] == "[3.0, 3.0]"


def test_gradients_through_a_body_that_torch_can_differentiate() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", doubled, key)

        def gradients(side: Side) -> Any:
            x = torch.full((2,), 3.0, requires_grad=True)
            (first,) = torch.autograd.grad((side.overload(x) ** 3).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            return first.tolist(), second.tolist()

        assert both(twins, gradients)[0] == [216.0, 216.0]


def test_register_autograd_on_a_library_operator() -> None:
    twins = library_twins("(Tensor x, float scale=1.0, *, bool flip=False) -> Tensor", lambda x, s=1.0, **_: x * s)
    check(twins, lambda: call(torch.ones(2), 3), DIRECT)
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        seen.append((len(inputs), inputs[1:], keyword_only_inputs, ctx.needs_input_grad))
        ctx.save_for_backward(output)
        ctx.scale = inputs[1]

    def backward(ctx: Any, gradient: Tensor) -> Any:
        (output,) = ctx.saved_tensors
        return gradient * ctx.scale + output, None

    twins.each(lambda side: torch.library.register_autograd(side.qualname, backward, setup_context=setup_context))
    check(twins, ones, DIRECT)
    check(twins, lambda: call(torch.ones(2, requires_grad=True), 3, flip=True), AUTOGRAD)

    def gradient(side: Side) -> Any:
        seen.clear()
        x = torch.ones(2, requires_grad=True)
        y = side.packet(x, 3.0)
        y.backward(torch.ones(2))
        assert x.grad is not None
        return x.grad.tolist(), side.text(type(y.grad_fn).__name__), list(seen)

    with took(twins.accelerated, AUTOGRAD):
        both(twins, gradient)


def test_returned_inputs_are_the_very_objects() -> None:
    twins = library_twins("(Tensor x, Tensor y) -> (Tensor, Tensor, Tensor[])", lambda x, y: (y, x, [x, x]))
    outcome = check(twins, lambda: call(torch.ones(2), torch.zeros(2)))
    assert [member.get("is input") for member in outcome.value["members"]] == [1, 0, None]
    x, y = torch.ones(2), torch.ones(2)
    for spelled in (twins.accelerated.packet, twins.accelerated.overload):
        first, second, several = spelled(x, y)
        assert first is y
        assert second is x
        assert several[0] is x


def test_a_view_of_an_input_is_returned() -> None:
    twins = library_twins("(Tensor x) -> Tensor", lambda x: x[1:])
    assert check(twins, ones).value["view"] is True
    twins = library_twins("(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1))
    check(twins, ones, ("boxed", "schema"))
    check(twins, ones_with_grad, None)


def test_no_version_bump_but_the_bodys_own() -> None:
    def in_place(x: Tensor) -> None:
        x.add_(1)

    def unseen(x: Tensor) -> None:
        x.numpy()[:] = 5

    for body, version in ((in_place, 1), (unseen, 0)):
        twins = library_twins("(Tensor(a!) x) -> ()", body)
        outcome = check(twins, ones)
        assert outcome.inputs_after["args"][0]["version"] == version
        assert outcome.value == ("NoneType", "None")


def test_an_in_place_and_an_out_operator() -> None:
    twins = library_twins("(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x.add_(y))
    outcome = check(twins, lambda: call(torch.ones(2), torch.ones(2)))
    assert outcome.value["is input"] == 0
    check(twins, lambda: call(torch.ones(2), torch.ones(2, requires_grad=True)), BOXED_FOR_GRADIENT)

    def out_of_place(x: Tensor, *, out: Tensor) -> Tensor:
        return out.copy_(x)

    twins = library_twins("(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", out_of_place)
    outcome = check(twins, lambda: call(torch.ones(2), out=torch.zeros(2)))
    assert outcome.value["is input"] == 1
    check(twins, lambda: call(torch.ones(2, requires_grad=True), out=torch.zeros(2)), None)
    check(twins, lambda: call(torch.ones(2)), None)


# Arguments


EVERYTHING = (
    "(Tensor x, Tensor? maybe=None, Tensor[]? several=None, Tensor?[]? holes=None, int[] sizes=[], float f=0.5, "
    "Scalar s=1, str t='a', *, bool flag=False, int? i=None, ScalarType? dtype=None, Device? device=None, "
    "float[]? fs=None, SymInt n=3, str mode='m', bool[]? flags=None{more}) -> Tensor"
)
# With an argument of a type that has no direct path, and without.
SCHEMAS = [EVERYTHING.format(more=""), EVERYTHING.format(more=", int[2] pair=1")]


def everything(
    x: Tensor,
    maybe: Any = "D",
    several: Any = "D",
    holes: Any = "D",
    sizes: Any = "D",
    f: Any = "D",
    s: Any = "D",
    t: Any = "D",
    **keywords: Any,
) -> Tensor:
    return x.clone()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "given",
    [
        lambda: call(torch.ones(1)),
        lambda: call(torch.ones(1), torch.ones(2), [torch.ones(3)] * 2, [None, torch.ones(1)], (1, 2), 2, 2.5, "b"),
        lambda: call(torch.ones(1), None, (), [], torch.Size([4]), True, True),
        lambda: call(torch.ones(1), several=(torch.ones(1),), holes=(None,), sizes=[], f=0.5, s=1, t="a"),
        lambda: call(torch.ones(1), flag=True, i=4, dtype=torch.float16, device="cpu", fs=[1, 2.5], n=7, mode="z"),
        lambda: call(torch.ones(1), flag=False, i=None, dtype=None, device=torch.device("meta"), flags=[True, False]),
        lambda: call(x=torch.ones(1), s=2 + 3j, fs=(), flags=(True,)),
    ],
    ids=["defaults", "positional", "empty", "named", "keywords", "none", "scalars"],
)
def test_arguments_as_the_body_sees_them(key: str, given: Callable[[], Arguments]) -> None:
    for schema in SCHEMAS:
        check(library_twins(schema, everything, key), given, None)


@pytest.mark.parametrize(
    "given",
    [
        lambda: call(torch.ones(1), sizes=[1, 2]),
        lambda: call(torch.ones(1), f=3, sizes=(1,)),
        lambda: call(torch.ones(1), several=[torch.ones(1)], flag=True, n=4),
    ],
)
def test_common_arguments_stay_on_the_direct_path(given: Callable[[], Arguments]) -> None:
    check(library_twins(SCHEMAS[0], everything), given, DIRECT)
    check(library_twins(SCHEMAS[1], everything), given, ("boxed", "schema"))


@pytest.mark.parametrize(
    "given",
    [
        lambda: call(torch.ones(1), f=np.float32(2.5)),
        lambda: call(torch.ones(1), f=torch.tensor(2.5)),
        lambda: call(torch.ones(1), sizes=[np.int64(3)]),
        lambda: call(torch.ones(1), i=torch.tensor(3)),
        lambda: call(torch.ones(1), s=np.float64(1.5)),
        lambda: call(torch.ones(1), s=torch.tensor(2)),
        lambda: call(torch.ones(1), sizes=(True, 2)),
        lambda: call(torch.ones(1), flag=1),
        lambda: call(torch.ones(1), flag=np.True_),
    ],
)
def test_numbers_that_pytorch_converts(given: Callable[[], Arguments]) -> None:
    for schema in SCHEMAS:
        check(library_twins(schema, everything), given, None)


@pytest.mark.parametrize(
    "given",
    [
        lambda: call(),
        lambda: call(None),
        lambda: call(3),
        lambda: call(torch.ones(1), torch.ones(1), *[1] * 20),
        lambda: call(torch.ones(1), x=torch.ones(1)),
        lambda: call(torch.ones(1), nosuch=1),
        lambda: call(torch.ones(1), several=torch.ones(1)),
        lambda: call(torch.ones(1), several=[None]),
        lambda: call(torch.ones(1), sizes=[1.5]),
        lambda: call(torch.ones(1), sizes=None),
        lambda: call(torch.ones(1), n=1.5),
        lambda: call(torch.ones(1), n=2**70),
        lambda: call(torch.ones(1), t=3),
        lambda: call(torch.ones(1), f="x"),
        lambda: call(torch.ones(1), device="nosuch"),
        lambda: call(torch.ones(1), dtype="float"),
    ],
)
@pytest.mark.parametrize("key", ["CPU", ""])
def test_arguments_that_pytorch_refuses(given: Callable[[], Arguments], key: str) -> None:
    for schema in SCHEMAS:
        refused(check(library_twins(schema, everything, key), given, None))


def test_a_body_that_changes_its_lists_changes_a_copy() -> None:
    def greedy(xs: list[Tensor], sizes: list[int]) -> Tensor:
        result = xs[0] * sizes[0]
        xs.clear()
        sizes.append(1)
        return result

    twins = library_twins("(Tensor[] xs, int[] sizes) -> Tensor", greedy)
    check(twins, lambda: call([torch.ones(1)], [3]))
    check(twins, lambda: call((torch.ones(1),), (3,)))


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_an_operator_without_tensors(key: str) -> None:
    twins = library_twins("(int n, *, Device? device=None) -> Tensor", lambda n, device=None: torch.ones(n), key)
    check(twins, lambda: call(3), None)
    check(twins, lambda: call(3, device="cpu"), None)
    check(twins, lambda: call(3, device=torch.device("meta")), None)


def test_tensors_with_keys_of_their_own() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", lambda x: x.clone(), key)
        check(twins, lambda: call(torch.ones(2, dtype=torch.complex64).conj()), None)
        check(twins, lambda: call(torch.ones(2, dtype=torch.complex64).conj().imag), None)
        check(twins, lambda: call(torch.ones(2).to_sparse()), None)
        check(twins, lambda: call(torch.ones(2, device="meta")), None)
        check(twins, lambda: call(torch.nested.nested_tensor([torch.ones(2)])), None)
        check(twins, lambda: call(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)), None)
        check(twins, lambda: call(torch.nn.Parameter(torch.ones(2), requires_grad=False)), DIRECT)
        check(twins, lambda: call(torch._efficientzerotensor(2)), None)


# Results


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    ("returns", "result"),
    [
        ("()", lambda: None),
        ("Tensor[]", lambda: [torch.ones(1), torch.ones(2)]),
        ("Tensor[]", lambda: (torch.ones(1),)),
        ("Tensor[]", list),
        ("Tensor?", lambda: None),
        ("Tensor?", lambda: torch.ones(1)),
        ("(Tensor, Tensor)", lambda: (torch.ones(1), torch.ones(2))),
        ("(Tensor, Tensor)", lambda: [torch.ones(1), torch.ones(2)]),
        ("(Tensor, Tensor[], int)", lambda: (torch.ones(1), [torch.ones(2)], 3)),
        ("(Tensor, Tensor?)", lambda: (torch.ones(1), None)),
        ("int", lambda: 3),
        ("int", lambda: np.int64(3)),
        ("int", lambda: True),
        ("float", lambda: 3),
        ("bool", lambda: True),
        ("SymInt", lambda: 4),
        ("Scalar", lambda: 2.5),
        ("str", lambda: "text"),
        ("int[]", lambda: [1, 2]),
        ("(int, float)", lambda: (1, 2.0)),
        ("Tensor?[]", lambda: [None, torch.ones(1)]),
        ("ScalarType", lambda: torch.float16),
        ("Device", lambda: torch.device("cpu")),
    ],
)
def test_results(key: str, returns: str, result: Callable[[], Any]) -> None:
    check(library_twins(f"(Tensor x) -> {returns}", lambda x: result(), key), ones, None)


@pytest.mark.parametrize("key", ["CPU", ""])
@pytest.mark.parametrize(
    ("returns", "result"),
    [
        ("()", lambda: torch.ones(1)),
        ("()", lambda: 3),
        ("Tensor", lambda: None),
        ("Tensor", lambda: 3),
        ("Tensor", lambda: "text"),
        ("Tensor", lambda: [torch.ones(1)]),
        ("Tensor", lambda: (torch.ones(1),)),
        ("Tensor[]", lambda: torch.ones(2)),
        ("Tensor[]", lambda: [None]),
        ("Tensor[]", lambda: None),
        ("Tensor?", lambda: 3),
        ("(Tensor, Tensor)", lambda: torch.ones(2)),
        ("(Tensor, Tensor)", lambda: (torch.ones(1),)),
        ("(Tensor, Tensor)", lambda: (torch.ones(1), None)),
        ("(Tensor, Tensor)", lambda: None),
        ("int", lambda: 2.5),
        ("int", lambda: "3"),
        ("int", lambda: torch.tensor(3)),
        ("int", lambda: torch.ones(2)),
        ("float", lambda: torch.tensor(2.5)),
        ("bool", lambda: 1),
        ("str", lambda: 3),
        ("int[]", lambda: [1.5]),
        ("int[]", lambda: 1),
    ],
)
def test_wrong_results(key: str, returns: str, result: Callable[[], Any]) -> None:
    check(library_twins(f"(Tensor x) -> {returns}", lambda x: result(), key), ones, None)


# Registrations


def test_the_functions_of_torch_library_register_operators_that_run_directly() -> None:
    def decorated(namespace: str) -> None:
        torch.library.define(f"{namespace}::op", "(Tensor x) -> Tensor")
        torch.library.impl(f"{namespace}::op", "cpu")(doubled)

    def passed(namespace: str) -> None:
        torch.library.define(f"{namespace}::op", "(Tensor x) -> Tensor")
        torch.library.impl(f"{namespace}::op", "default", doubled)

    def registered(namespace: str) -> None:
        torch.library.define(f"{namespace}::op", "(Tensor x) -> Tensor")
        torch.library.register_kernel(f"{namespace}::op", "cpu", doubled)

    for register in (decorated, passed, registered):
        twins = registered_twice(register)
        assert check(twins, ones).value["values"] == "[2.0, 2.0]"
        check(twins, ones_with_grad, None)


def direct_register_custom_op(
    library: Library, name: str, function: Callable[..., Any], mutates_args: list[str], fake: Callable[..., Any]
) -> None:
    """As vLLM, SGLang and their like have it."""
    library.define(name + torch.library.infer_schema(function, mutates_args=mutates_args))
    library.impl(name, function, dispatch_key="CPU")
    library._register_fake(name, fake)


def attend(q: Tensor, kv: list[Tensor], out: Tensor, scale: float, window: int | None = None) -> None:
    out.copy_(q * scale + sum(kv) + (window or 0))


def attend_fake(q: Tensor, kv: list[Tensor], out: Tensor, scale: float, window: int | None = None) -> None:
    return


@pytest.fixture
def attention() -> Twins:
    def register(namespace: str) -> Library:
        library = Library(namespace, "FRAGMENT")
        direct_register_custom_op(library, "op", attend, ["out"], attend_fake)
        return library

    return registered_twice(register)


def attention_arguments() -> Arguments:
    return call(torch.ones(2), [torch.ones(2), torch.ones(2)], torch.zeros(2), 0.5, window=3)


def test_a_helper_like_vllms(attention: Twins) -> None:
    outcome = check(attention, attention_arguments)
    assert outcome.inputs_after["args"][2]["values"] == "[5.5, 5.5]"


def test_a_helper_like_vllms_compiled(attention: Twins) -> None:
    def compiled(side: Side) -> Any:
        def function(q: Tensor, kv: Tensor) -> Tensor:
            out = torch.empty_like(q)
            side.packet(q + 1, [kv, kv], out, 0.5)
            return out + 1

        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="aot_eager")(torch.ones(2), torch.ones(2)).tolist()

    assert both(attention, compiled) == [4.0, 4.0]


def test_a_kernel_that_takes_the_keyset_is_boxed() -> None:
    def keyed(keyset: torch.DispatchKeySet, x: Tensor) -> Tensor:
        assert keyset.has(torch._C.DispatchKey.CPU)
        return x * 2

    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", keyed, key, record=False, with_keyset=True)
        assert check(twins, ones, None).value["values"] == "[2.0, 2.0]"
        plan = dutyfree.explain(twins.accelerated.overload, torch.ones(2))
        assert plan.path == "boxed"
        assert plan.reason != "its kernels are C++"


def test_an_autograd_kernel_with_keyset_above_a_plain_one() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    check(twins, ones)
    libraries = []
    for side in twins.sides():

        def above(keyset: Any, x: Tensor, side: Side = side) -> Any:
            return side.overload.redispatch(keyset & torch._C._after_autograd_keyset, x) + 10

        library = Library(side.namespace, "IMPL")
        library.impl("op", above, "Autograd", with_keyset=True)
        libraries.append(library)
    assert check(twins, ones, BOXED_FOR_KERNEL).value["values"] == "[12.0, 12.0]"
    for library in libraries:
        library._destroy()
    check(twins, ones)


@pytest.mark.parametrize("key", ["CPU", "AutogradCPU", "Autograd", "ADInplaceOrView", "BackendSelect", "Meta"])
@pytest.mark.parametrize("base", ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_a_later_impl_and_its_removal(base: str, key: str) -> None:
    if (base, key) == ("CompositeImplicitAutograd", "Meta"):
        base = "CPU"  # PyTorch refuses that pair
    twins = library_twins("(Tensor x) -> Tensor", doubled, base)
    check(twins, ones)
    remove = twins.override(tripled, key, allow_override=True)
    check(twins, ones, None)
    check(twins, ones_with_grad, None)
    remove()
    check(twins, ones)
    check(twins, ones_with_grad, None)


def test_a_later_impl_is_direct_too() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, "CompositeExplicitAutograd")
    check(twins, ones)
    twins.override(tripled, "CPU")
    assert check(twins, ones, DIRECT).value["values"] == "[3.0, 3.0]"


def test_overrides_on_top_of_each_other_and_their_removal_in_any_order() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    first = twins.override(tripled, "CPU", allow_override=True)
    assert check(twins, ones).value["values"] == "[3.0, 3.0]"
    second = twins.override(lambda x: x * 4, "CPU", allow_override=True)
    assert check(twins, ones).value["values"] == "[4.0, 4.0]"
    first()
    assert check(twins, ones).value["values"] == "[4.0, 4.0]"
    second()
    assert check(twins, ones).value["values"] == "[2.0, 2.0]"


def test_many_overrides_in_turn() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    for factor in range(50):
        remove = twins.override(lambda x, factor=factor: x * factor, "CPU", allow_override=True)
        assert check(twins, ones, None).value["values"] == str([float(factor)] * 2)
        remove()
    assert check(twins, ones).value["values"] == "[2.0, 2.0]"


def test_a_body_comes_and_goes_where_there_was_none() -> None:
    twins = library_twins("(Tensor x) -> Tensor", None)
    error, text = refused(check(twins, ones, None))
    assert error == "NotImplementedError"
    assert "Could not run 'NAMESPACE::op'" in text
    remove = twins.override(doubled, "CPU")
    assert check(twins, ones).value["values"] == "[2.0, 2.0]"
    remove()
    assert check(twins, ones, None).raised == (error, text)


def test_a_fallthrough_kernel_is_passed_by() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    remove = twins.override(torch.library.fallthrough_kernel, "AutogradCPU")
    check(twins, ones, None)
    check(twins, ones_with_grad, None)
    remove()
    check(twins, ones)


def call_a_dead_operator() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    side = twins.accelerated
    kept = side.packet, side.overload
    for operator in kept:
        operator(torch.ones(2))
    twins.libraries[1]._destroy()
    for operator in kept:
        try:
            operator(torch.ones(2))
        except Exception as error:
            print(type(error).__name__)


def test_an_operator_that_is_gone_with_its_library_raises() -> None:
    # PyTorch reads freed memory here, so there is nothing to compare with.
    assert len(run_isolated(call_a_dead_operator).split()) == 2


def test_the_operator_is_defined_again_after_its_library_is_gone() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    kept = {side.namespace: (side.packet, side.overload) for side in twins.sides()}
    check(twins, ones)
    for library in twins.libraries:
        library._destroy()
    again = []
    for side in twins.sides():
        library = Library(side.namespace, "FRAGMENT")
        library.define("op(Tensor x) -> Tensor")
        library.impl("op", tripled, "CPU")
        again.append(library)

    def values(side: Side) -> Any:
        return side.packet(torch.ones(2)).tolist(), side.overload(torch.ones(2)).tolist()

    assert both(twins, values) == ([3.0, 3.0], [3.0, 3.0])
    both(twins, lambda side: kept[side.namespace][0](torch.ones(2)).tolist())


def test_a_python_kernel_under_the_autograd_of_an_aten_operator_is_boxed() -> None:
    name = "aten::logaddexp2"
    x = torch.ones(2)
    expected = torch.logaddexp2(x, x).tolist()
    dutyfree.accelerate(name)
    overload: Any = torch.ops.aten.logaddexp2.default
    assert overload(x, x).tolist() == expected
    library = Library("aten", "IMPL")
    library.impl("logaddexp2", lambda x, y: x * 7, "CPU", allow_override=True)
    try:
        plan = dutyfree.explain(overload, x, x)
        assert (plan.path, plan.code) == BOXED_FOR_KERNEL
        dutyfree.reset_stats()
        assert overload(x, x).tolist() == [7.0, 7.0]
        assert torch.ops.aten.logaddexp2(x, x).tolist() == [7.0, 7.0]
        assert dutyfree.stats()[name].calls["boxed"] == 2
        assert torch.logaddexp2(x, x).tolist() == [7.0, 7.0]
        assert overload(x.clone().requires_grad_(), x).requires_grad
    finally:
        library._destroy()
    assert overload(x, x).tolist() == expected
    assert overload(x.clone().requires_grad_(), x).requires_grad


def test_a_python_kernel_in_place_of_a_cpp_one_without_autograd_is_direct() -> None:
    name = "quantization::_FloatToBfloat16Quantized"
    x = torch.ones(1, 2)
    overload: Any = torch.ops.quantization._FloatToBfloat16Quantized.default
    expected = overload(x).tolist()
    assert dutyfree.accelerate(name)[name].path == "boxed"
    assert overload(x).tolist() == expected
    library = Library("quantization", "IMPL")
    library.impl("_FloatToBfloat16Quantized", lambda x: x * 7, "CPU", allow_override=True)
    try:
        assert dutyfree.accelerate(name)[name].path == "direct"
        dutyfree.reset_stats()
        assert overload(x).tolist() == [[7.0, 7.0]]
        assert torch.ops.quantization._FloatToBfloat16Quantized(x).tolist() == [[7.0, 7.0]]
        assert dutyfree.stats()[name].calls["direct"] == 2
    finally:
        library._destroy()
    assert overload(x).tolist() == expected
    assert dutyfree.explain(overload, x).path == "boxed"


def test_an_autocast_rule_that_is_registered_later() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(twins, ones, None).value["dtype"] is torch.float32
        twins.each(lambda side: torch.library.register_autocast(side.qualname, "cpu", torch.bfloat16))
        assert check(twins, ones, None).value["dtype"] is torch.bfloat16
    assert check(twins, ones, None).value["dtype"] is torch.float32


# Modes, tracing, transforms


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("mode", [Seeing, SeeingFunctions])
def test_modes_see_the_operator(key: str, mode: type[Any]) -> None:
    twins = library_twins("(Tensor x, float f=2.0, *, bool b=False) -> Tensor", lambda x, f=2.0, b=False: x * f, key)
    code = "dispatch-mode" if mode is Seeing else "torch-function-mode"

    def under(side: Side) -> Any:
        with mode() as active:
            result = side.overload(torch.ones(2), 3, b=True), side.packet(torch.ones(2), 2.0)
        return [member.tolist() for member in result], side.text(active.seen)

    values, seen = both(twins, under)
    assert values == [[3.0, 3.0], [2.0, 2.0]]
    assert ("NAMESPACE.op.default" in seen) == (mode is SeeingFunctions or key in BELOW_AUTOGRAD)
    with mode():
        plan = dutyfree.explain(twins.accelerated.overload, torch.ones(2))
        assert plan.code == code
        assert plan.path == ("boxed" if mode is Seeing else "pytorch")


def test_fake_tensors_of_an_operator_with_a_fake_kernel() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled)

    def faked(side: Side) -> Any:
        with FakeTensorMode() as mode:
            inside = side.overload(mode.from_tensor(torch.ones(2)))
        outside = side.packet(mode.from_tensor(torch.ones(2)))
        return [(type(result).__name__, tuple(result.shape)) for result in (inside, outside)]

    assert both(twins, faked)[0] == "UnsupportedOperatorException"
    twins.each(lambda side: torch.library.register_fake(side.qualname, lambda x: x.new_empty(5)))
    assert both(twins, faked) == [("FakeTensor", (5,))] * 2
    check(twins, ones)
    check(twins, lambda: call(torch.ones(2, device="meta")), None)


@pytest.mark.parametrize("key", KEYS)
def test_compiled_without_a_graph_break(key: str) -> None:
    def above_all(x: Tensor) -> Tensor:
        return x * 2

    twins = library_twins("(Tensor x) -> Tensor", above_all, key, record=False)
    if key == "CPU":
        twins.each(lambda side: torch.library.register_fake(side.qualname, lambda x: torch.empty_like(x)))

    def compiled(side: Side) -> Any:
        graphs: list[str] = []

        def backend(module: Any, inputs: Any) -> Any:
            graphs.append(side.text(module.code))
            return module

        torch._dynamo.reset()
        function = torch.compile(lambda x: side.packet(x + 1) + side.overload(x), fullgraph=True, backend=backend)
        return function(torch.ones(2)).tolist(), graphs

    values, graphs = both(twins, compiled)
    assert values == [6.0, 6.0]
    assert len(graphs) == 1


def test_compiled_functions_stay_compiled_when_the_operator_is_accelerated_later() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, "CompositeExplicitAutograd", record=False)
    overload = twins.reference.overload
    function = torch.compile(lambda x: overload(x) + 1, fullgraph=True, backend="aot_eager")
    assert function(torch.ones(2)).tolist() == [3.0, 3.0]
    dutyfree.accelerate(twins.reference.qualname)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert function(torch.ones(2)).tolist() == [3.0, 3.0]
    dutyfree.restore(twins.reference.qualname)
    assert function(torch.ones(2)).tolist() == [3.0, 3.0]


def test_make_fx_gives_the_same_graph() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", doubled, key, record=False)
        if key in BELOW_AUTOGRAD:
            twins.each(lambda side: torch.library.register_fake(side.qualname, lambda x: torch.empty_like(x)))
        for tracing in ("real", "fake", "symbolic"):
            both(
                twins,
                lambda side, tracing=tracing: side.text(
                    make_fx(lambda x: side.packet(x) + side.overload(x), tracing_mode=tracing)(torch.ones(2)).code
                ),
            )


def test_jit_trace_gives_the_same_graph() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, record=False)
    both(twins, lambda side: side.text(torch.jit.trace(side.overload, torch.ones(2)).graph))


def test_vmap_with_and_without_a_rule() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", lambda x: x.sum(), key, record=False)
        both(twins, lambda side: torch.vmap(side.packet)(torch.ones(4, 2)).tolist())
        if key != "CompositeImplicitAutograd" and key:
            twins.each(
                lambda side: torch.library.register_vmap(side.qualname, lambda info, dims, x: (torch.zeros(4), 0))
            )
            assert both(twins, lambda side: torch.vmap(side.overload)(torch.ones(4, 2)).tolist()) == [0.0] * 4
        check(twins, ones, None)


def test_functorch_gradients() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", doubled, key, record=False)
        both(twins, lambda side: torch.func.grad(lambda x: side.overload(x).sum())(torch.ones(2)).tolist())
        both(twins, lambda side: [t.tolist() for t in torch.func.jvp(side.packet, (torch.ones(2),), (torch.ones(2),))])
        both(twins, lambda side: torch.func.functionalize(side.overload)(torch.ones(2)).tolist())


def test_forward_mode_tangents() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", doubled, key, record=False)

        def tangent(side: Side) -> Any:
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
                result = torch.autograd.forward_ad.unpack_dual(side.overload(dual))
                return result.primal.tolist(), None if result.tangent is None else result.tangent.tolist()

        both(twins, tangent)


class Bare(Tensor):
    pass


class Answering(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return str(func), len(args), sorted(kwargs or {})


class Wrapper(Tensor):
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        made: Wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, requires_grad=inner.requires_grad)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
        return Wrapper(func(*unwrapped, **(kwargs or {})))


class Plain(Wrapper):
    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("key", KEYS)
def test_tensor_subclasses(key: str) -> None:
    twins = library_twins("(Tensor x, Tensor? y=None) -> Tensor", lambda x, y=None: x * 2, key, record=False)
    both(twins, lambda side: [(type(r), r.tolist()) for r in [side.overload(torch.ones(2).as_subclass(Bare))]])
    assert both(twins, lambda side: side.text(side.packet(torch.ones(2).as_subclass(Answering)))) == (
        "('NAMESPACE.op', 1, [])"
    )
    both(twins, lambda side: side.text(side.overload(torch.ones(2), torch.ones(2).as_subclass(Answering))))
    for cls in (Wrapper, Plain):

        def wrapped(side: Side, cls: Any = cls) -> Any:
            result = side.overload(cls(torch.ones(2)))
            return type(result).__name__, result.inner.tolist()

        assert both(twins, wrapped) == ("Wrapper", [2.0, 2.0])
    assert dutyfree.explain(twins.accelerated.overload, Plain(torch.ones(2))).path == "boxed"


@pytest.mark.parametrize("key", KEYS)
def test_what_the_default_torch_function_does_to_results_and_state(key: str) -> None:
    states: list[bool] = []

    def body(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        states.append(torch._C._is_torch_function_enabled())
        return torch.ones(1), [torch.ones(2)]

    twins = library_twins("(Tensor x) -> (Tensor, Tensor[])", body, key, record=False)

    class Unwrapping(Wrapper):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            states.append(torch._C._is_torch_function_enabled())
            return torch.ones(1), [torch.ones(2)]

    def types_of(side: Side) -> Any:
        kinds = []
        for x in (torch.ones(2).as_subclass(Bare), Unwrapping(torch.ones(2)), torch.ones(2)):
            states.clear()
            first, (second,) = side.overload(x)
            kinds.append((type(first).__name__, type(second).__name__, list(states)))
        return kinds

    both(twins, types_of)


def test_objects_with_a_torch_function_for_other_arguments() -> None:
    class Number:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "answered", len(args)

    twins = library_twins("(Tensor x, float f=1.0, Tensor[]? xs=None) -> Tensor", lambda x, f=1.0, xs=(): x * f)
    for given in (call(Number()), call(torch.ones(1), Number()), call(torch.ones(1), xs=[Number()])):
        both(twins, lambda side, given=given: side.overload(*given.args, **given.kwargs))


# Exceptions, recursion, threads, lifetime


class Failure(Exception):
    pass


@pytest.mark.parametrize("key", KEYS)
def test_an_exception_of_the_body_reaches_the_caller_as_it_is(key: str) -> None:
    raised = Failure("no")

    def fails(x: Tensor) -> Tensor:
        raise raised

    twins = library_twins("(Tensor x) -> Tensor", fails, key)
    assert check(twins, ones).raised == ("Failure", "no")
    check(twins, ones_with_grad, None)
    with pytest.raises(Failure) as caught:
        twins.accelerated.overload(torch.ones(2))
    assert caught.value is raised
    assert caught.traceback[-1].name == "fails"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, RecursionError])
def test_other_exceptions_of_the_body(error: type[BaseException]) -> None:
    def fails(x: Tensor) -> Tensor:
        raise error("no")

    twins = library_twins("(Tensor x) -> Tensor", fails, record=False)
    for side in twins.sides():
        with pytest.raises(error, match="no"):
            side.overload(torch.ones(2))
        with pytest.raises(error, match="no"):
            side.overload(torch.ones(2, requires_grad=True))


@pytest.mark.parametrize("key", KEYS)
def test_a_body_may_call_its_own_operator(key: str) -> None:
    namespaces: list[str] = []

    def register(namespace: str) -> Library:
        def recursive(x: Tensor, n: int) -> Tensor:
            return x if n == 0 else getattr(torch.ops, namespace).op(x, n - 1) + 1

        namespaces.append(namespace)
        library = Library(namespace, "FRAGMENT")
        library.define("op(Tensor x, int n) -> Tensor")
        library.impl("op", recursive, key)
        return library

    twins = registered_twice(register)
    assert check(twins, lambda: call(torch.zeros(1), 50)).value["values"] == "[50.0]"
    for side in twins.sides():
        with pytest.raises(RecursionError):
            side.overload(torch.zeros(1), 100_000)
    check(twins, lambda: call(torch.zeros(1), 5))


def test_threads_call_override_and_restore() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, record=False)
    side = twins.accelerated
    failures: list[object] = []
    done = threading.Event()

    def calls() -> None:
        x = torch.ones(2)
        while not done.is_set():
            for spelled in (side.packet, side.overload):
                if (value := spelled(x)[0].item()) not in (2.0, 3.0):
                    failures.append(value)

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            library = Library(side.namespace, "IMPL")
            library.impl("op", tripled, "CPU", allow_override=True)
            library._destroy()
            dutyfree.restore(side.qualname)
            dutyfree.accelerate(side.qualname)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    check(twins, ones)


def test_several_overloads_and_their_packet() -> None:
    def register(namespace: str) -> Library:
        library = Library(namespace, "FRAGMENT")
        for overload, schema in (("", "Tensor x"), (".f", "Tensor x, float f"), (".t", "Tensor x, Tensor y")):
            library.define(f"op{overload}({schema}) -> Tensor")
            library.impl(f"op{overload}", lambda x, *rest, overload=overload: torch.full((1,), float(len(overload))))
        library.define("op.s(str s) -> str")
        library.impl("op.s", lambda s: s * 2)
        return library

    twins = registered_twice(register)
    for given in (
        call(torch.ones(1)),
        call(torch.ones(1), 2.5),
        call(torch.ones(1), 2),
        call(torch.ones(1), torch.ones(1)),
        call(torch.ones(1), y=torch.ones(1)),
        call("s"),
        call(),
        call(torch.ones(1), "s"),
        call(torch.ones(1), True),
        call(torch.ones(1), f=torch.tensor(2.0)),
        call(torch.ones(1), torch.ones(1).as_subclass(Answering)),
    ):

        def called(side: Side, given: Arguments = given) -> Any:
            result = side.packet(*given.args, **given.kwargs)
            return result if isinstance(result, (str, tuple)) else result.tolist()

        both(twins, lambda side, called=called: side.text(called(side)))
    names = {name for name in dutyfree.stats() if name.startswith(twins.accelerated.qualname)}
    assert names == {twins.accelerated.qualname + suffix for suffix in ("", ".f", ".t", ".s")}
    assert dutyfree.stats()[f"{twins.accelerated.qualname}.t"].calls["direct"] > 0


def test_the_objects_of_the_operator_stay_what_they_are() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, record=False)
    side = twins.accelerated
    packet, overload = side.packet, side.overload
    accelerated = packet._op, overload._op
    dutyfree.restore(side.qualname)
    pytorch = packet._op, overload._op
    assert (side.packet, side.overload) == (packet, overload)
    dutyfree.accelerate(side.qualname)
    assert packet._op is not accelerated[0]
    assert (side.packet, side.overload) == (packet, overload)
    dutyfree.restore()
    assert (packet._op, overload._op) == pytorch
    assert packet._op is pytorch[0]
    assert overload._op is pytorch[1]
    assert side.qualname not in dutyfree.stats()
    assert dutyfree.explain(overload, torch.ones(2)).path == "pytorch"
    assert overload(torch.ones(2)).tolist() == [2.0, 2.0]


def test_copies_and_descriptions() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, record=False)
    for describe in (str, repr, inspect.signature, pickle.dumps, lambda op: op.__doc__):
        both(twins, lambda side, describe=describe: side.text(describe(side.packet)))
        both(twins, lambda side, describe=describe: side.text(describe(side.overload)))
    side = twins.accelerated
    assert copy.deepcopy(side.overload) is side.overload


def test_an_operator_is_taken_at_its_first_call_where_its_namespace_is_accelerated() -> None:
    namespace = "accelerated_before_it_is_there"
    assert len(dutyfree.accelerate(namespace)) == 0
    library = Library(namespace, "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", doubled, "CPU")
    op: Any = getattr(torch.ops, namespace).op
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]
    assert op.default(torch.ones(2)).tolist() == [2.0, 2.0]
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]
    assert dutyfree.stats()[f"{namespace}::op"].calls["direct"] >= 2
    library._destroy()
