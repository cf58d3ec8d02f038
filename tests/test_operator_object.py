"""The operator as an object: what it is, what it keeps of the function, and what PyTorch keeps of it."""

import copy
import functools
import inspect
import pickle
import pydoc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

import dutyfree
from isolated import run_isolated
from parity import SPELLINGS, Pair, call, check, pair_of, took, unique_namespaces


def scaled(x: Tensor, factor: float = 2.0, *, count: int = 1) -> Tensor:
    """Multiplies a tensor."""
    return x * factor * count


@pytest.fixture
def pair() -> Pair:
    return pair_of(scaled, record=False)


@dutyfree.fast_custom_op("dutyfree_tests::module_level", mutates_args=())
def module_level(x: Tensor) -> Tensor:
    return x + 1


def test_it_is_a_custom_op_def_with_all_its_methods(pair: Pair) -> None:
    assert isinstance(pair.fast.op, CustomOpDef)
    public = [name for name in dir(pair.reference.op) if not name.startswith("_")]
    assert [name for name in public if not hasattr(pair.fast.op, name)] == []


def test_the_decorator_form_and_the_call_form_make_the_same_kind_of_object() -> None:
    namespace = unique_namespaces()[1]
    decorated = dutyfree.fast_custom_op(f"{namespace}::a", mutates_args=())(scaled)
    called = dutyfree.fast_custom_op(f"{namespace}::b", scaled)
    assert type(decorated) is type(called) is dutyfree.CustomOp
    assert torch.equal(decorated(torch.ones(2)), called(torch.ones(2)))


def test_the_overload_is_an_ordinary_overload_with_the_same_schema_and_tags(pair: Pair) -> None:
    texts = []
    for side in pair.sides():
        overload = side.overload
        assert type(overload) is torch._ops.OpOverload
        assert type(side.packet) is torch._ops.OpOverloadPacket
        described = (
            str(overload._schema),
            repr(overload),
            str(overload),
            overload.name(),
            overload._name,
            overload.__name__,
            overload.__qualname__,
            overload.__module__,
            overload.namespace,
            [str(tag) for tag in overload.tags],
            overload._schema.overload_name,
            repr(side.packet),
            side.packet.overloads(),
            side.packet._qualified_op_name,
            overload.overloadpacket is side.packet,
            overload.is_view,
            overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU),
        )
        texts.append([side.text(value) for value in described])
    assert texts[0] == texts[1]
    assert torch.Tag.pt2_compliant_tag in pair.fast.overload.tags


def test_the_overload_stays_the_same_object(pair: Pair) -> None:
    before = pair.fast.overload, pair.fast.packet, hash(pair.fast.overload)
    pair.fast.op(torch.ones(2))
    pair.fast.op.register_kernel("cpu", scaled)
    pair.fast.op(torch.ones(2))
    assert (pair.fast.overload, pair.fast.packet, hash(pair.fast.overload)) == before
    assert pair.fast.op._opoverload is pair.fast.overload
    assert torch.ops.dutyfree_tests.module_level.default is module_level._opoverload


def test_an_overload_taken_through_getattr_or_lookup_is_the_same(pair: Pair) -> None:
    from torch._library.utils import lookup_op

    assert lookup_op(pair.fast.qualname) is pair.fast.overload
    assert getattr(pair.fast.packet, "default") is pair.fast.overload  # noqa: B009
    assert pair.fast.overload in {pair.fast.overload: 1}
    assert pair.fast.packet in {pair.fast.packet}


def test_hash_and_equality_work_for_every_spelling(pair: Pair) -> None:
    values = {pair.fast.spelled(spelling) for spelling in SPELLINGS}
    assert len(values) == 3
    assert pair.fast.overload == pair.fast.overload
    assert pair.fast.overload != pair.reference.overload


def test_weak_references_to_the_inner_callables_work(pair: Pair) -> None:
    for inner in (pair.fast.overload._op, pair.fast.packet._op):
        assert weakref.ref(inner)() is inner
    assert weakref.ref(pair.fast.op)() is pair.fast.op


def test_the_inner_callables_can_be_called(pair: Pair) -> None:
    for side in pair.sides():
        for inner in (side.overload._op, side.packet._op):
            assert inner(torch.ones(2), 3.0).tolist() == [3.0, 3.0]
    with took(pair.fast):
        pair.fast.overload._op(torch.ones(2))


def test_other_operators_are_called_as_before() -> None:
    x = torch.tensor([-1.0, 1.0])
    assert torch.ops.aten.relu.default(x).tolist() == [0.0, 1.0]
    assert torch.ops.aten.add(x, 1).tolist() == [0.0, 2.0]
    assert torch.ops.aten.add.Tensor(x, x, alpha=2).tolist() == [-3.0, 3.0]
    out = torch.empty(2)
    assert torch.ops.aten.relu.out(x, out=out) is out
    with pytest.raises(RuntimeError, match=r"aten::relu\(\)"):
        torch.ops.aten.relu.default("text")
    with pytest.raises(RuntimeError, match=r"aten::relu\(\)"):
        torch.ops.aten.relu.default(nonsense=x)
    assert torch.ops.aten.relu.default(self=x).tolist() == [0.0, 1.0]


def test_the_function_s_name_docstring_and_signature_are_kept(pair: Pair) -> None:
    op = pair.fast.op
    assert op.__name__ == "scaled"
    assert op.__qualname__ == "scaled"
    assert op.__doc__ == "Multiplies a tensor."
    assert op.__wrapped__ is scaled
    assert op.__module__ == __name__
    assert inspect.signature(op) == inspect.signature(scaled)
    assert inspect.getdoc(op) == "Multiplies a tensor."


def test_help_shows_the_docstring(pair: Pair) -> None:
    assert "Multiplies a tensor." in pydoc.render_doc(pair.fast.op)


def test_every_way_of_calling_an_object_works(pair: Pair) -> None:
    x = torch.ones(2)
    arguments, keywords = [x], {"factor": 3.0}
    ways: dict[str, Callable[[Any], Tensor]] = {
        "call": lambda op: op.__call__(x, 3.0),
        "type": lambda op: type(op).__call__(op, x, 3.0),
        "partial": lambda op: functools.partial(op, factor=3.0)(x),
        "map": lambda op: next(map(op, [x], [3.0])),
        "unpacked": lambda op: op(*arguments, **keywords),
        "method": lambda op: types.MethodType(op, x)(3.0),
    }
    for side in pair.sides():
        for spelling in SPELLINGS:
            results = {name: way(side.spelled(spelling)).tolist() for name, way in ways.items()}
            assert [name for name, result in results.items() if result != [3.0, 3.0]] == []


def test_repr_is_the_reference_s(pair: Pair) -> None:
    reprs = [side.text(repr(side.op)) for side in pair.sides()]
    assert reprs[0] == reprs[1]


def test_it_does_not_bind_self_when_stored_on_a_class(pair: Pair) -> None:
    class Holder:
        op = pair.fast.op
        reference = pair.reference.op

    assert Holder().op is pair.fast.op
    assert Holder().op(torch.ones(2)).tolist() == Holder().reference(torch.ones(2)).tolist()


def test_copies_are_the_same_operator(pair: Pair) -> None:
    assert copy.copy(pair.fast.op) is pair.fast.op
    assert copy.deepcopy(pair.fast.op) is pair.fast.op


class Holder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.op = module_level
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x) * self.weight


def test_a_module_that_holds_it_can_be_copied_and_pickled() -> None:
    for other in (copy.deepcopy(Holder()), pickle.loads(pickle.dumps(Holder()))):
        assert other.op is module_level
        with torch.no_grad():
            assert other(torch.ones(2)).tolist() == [2.0, 2.0]


def test_it_is_pickled_by_its_name() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(module_level, protocol)) is module_level


def test_a_pickle_of_an_operator_that_does_not_exist_here_says_so() -> None:
    data = pickle.dumps(module_level).replace(b"dutyfree_tests::module_level", b"dutyfree_tests::absent_level")
    with pytest.raises(LookupError, match="dutyfree_tests::absent_level"):
        pickle.loads(data)


def test_opcheck_takes_the_object_the_overload_and_the_packet() -> None:
    pair = pair_of(scaled, record=False)
    pair.each(lambda op: op.register_fake(lambda x, factor=2.0, *, count=1: torch.empty_like(x)))

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1] * keyword_only_inputs["count"]

    pair.each(lambda op: op.register_autograd(lambda ctx, grad: (grad * ctx.factor, None), setup_context=setup_context))
    x = torch.ones(2, requires_grad=True)
    for spelling in SPELLINGS:
        passed = torch.library.opcheck(pair.fast.spelled(spelling), (x, 3.0), {"count": 2})
        assert set(passed.values()) == {"SUCCESS"}


def test_opcheck_finds_what_is_wrong() -> None:
    def aliasing_for_scalars(x: Tensor) -> Tensor:
        return x.clone()

    pair = pair_of(aliasing_for_scalars, record=False)
    results = []
    for side in pair.sides():
        result = torch.library.opcheck(side.op, (torch.ones(2),), raise_exception=False)
        results.append(
            {name: value if isinstance(value, str) else type(value).__name__ for name, value in result.items()}
        )
    assert results[0] == results[1]
    assert set(results[1].values()) != {"SUCCESS"}


def test_tags_are_the_reference_s() -> None:
    for tags in (
        None,
        (),
        torch.Tag.needs_fixed_stride_order,
        [torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag],
    ):
        pair = pair_of(scaled, tags=tags)
        assert pair.reference.overload.tags == pair.fast.overload.tags
        check(pair, lambda: call(torch.ones(2)))


def test_several_overloads_of_one_name_keep_the_packet_to_pytorch() -> None:
    pair = pair_of(scaled)
    for side in pair.sides():
        library = torch.library.Library(side.namespace, "FRAGMENT")
        library.define("op.text(str text) -> str")
        library.impl("op.text", lambda text: text + "!", "CompositeExplicitAutograd")
        try:
            assert side.packet("a") == "a!"
            assert side.packet(torch.ones(1)).tolist() == [2.0]
            assert side.packet.text("a") == "a!"
        finally:
            library._destroy()
    check(pair, lambda: call(torch.ones(2)), spellings=("object",))


def test_torch_library_functions_take_it(pair: Pair) -> None:
    for side in pair.sides():
        torch.library.register_fake(side.op, lambda x, factor=2.0, *, count=1: torch.empty_like(x))
        torch.library.register_autograd(side.qualname, lambda ctx, grad: (grad * 7, None))
        x = torch.ones(2, requires_grad=True)
        side.op(x, 3.0).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [7.0, 7.0]


def test_it_is_callable_and_known_to_the_registry(pair: Pair) -> None:
    from torch._library.custom_ops import _maybe_get_opdef

    assert callable(pair.fast.op)
    assert _maybe_get_opdef(pair.fast.overload) is pair.fast.op
    assert _maybe_get_opdef(pair.fast.qualname) is pair.fast.op


def test_stats_and_explain_know_an_operator_by_its_qualified_name(pair: Pair) -> None:
    assert pair.fast.qualname in dutyfree.stats()
    assert dutyfree.explain(pair.fast.op, torch.ones(2)).operator == pair.fast.qualname


@pytest.mark.parametrize("cls", [dutyfree.CustomOp, CustomOpDef])
def test_a_call_method_assigned_to_the_class_is_honoured(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    op = pair_of(scaled).fast.op
    x = torch.ones(2)
    assert op(x, 3.0).tolist() == [3.0, 3.0]
    with monkeypatch.context() as patch:
        patch.setattr(cls, "__call__", lambda self, *args, **kwargs: (self is op, args, kwargs))
        assert op(x, factor=2.0) == (True, (x,), {"factor": 2.0})
    assert op(x, 3.0).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("cls", [torch._ops.OpOverload, torch._ops.OpOverloadPacket])
def test_a_call_method_assigned_to_torchs_classes_is_honoured(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = pair_of(scaled).fast
    spelled = fast.overload if cls is torch._ops.OpOverload else fast.packet
    x = torch.ones(2)
    assert spelled(x, 3.0).tolist() == [3.0, 3.0]
    with monkeypatch.context() as patch:
        patch.setattr(cls, "__call__", lambda self, /, *args, **kwargs: "patched")
        assert spelled(x, 2.0) == "patched"
        if cls is torch._ops.OpOverload:
            assert fast.op(x, 2.0) == "patched"
    assert spelled(x, 3.0).tolist() == [3.0, 3.0]


def test_a_callable_put_in_place_of_ours_is_honoured_by_every_spelling() -> None:
    fast = pair_of(scaled).fast
    x = torch.ones(2)
    ours = fast.overload._op
    assert fast.op(x, 3.0).tolist() == [3.0, 3.0]
    fast.overload._op = lambda *args, **kwargs: "replaced"
    assert fast.op(x) == fast.overload(x) == "replaced"
    fast.overload._op = ours
    assert fast.op(x, 3.0).tolist() == fast.overload(x, 3.0).tolist() == [3.0, 3.0]


def patch_calls_before_the_first_operator() -> None:
    from torch._ops import OpOverload

    original, count = OpOverload.__call__, 0

    def counting(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return original(self, *args, **kwargs)

    OpOverload.__call__ = counting  # type: ignore[method-assign]
    op = dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", scaled)
    for called in (op, op._opoverload, torch.ops.aten.neg.default):
        before = count
        called(torch.ones(2))
        assert count == before + 1, called


def test_a_call_method_assigned_before_the_first_operator_is_honoured() -> None:
    run_isolated(patch_calls_before_the_first_operator)


def test_another_overload_put_in_place_of_the_operators_own_is_called() -> None:
    fast, other = pair_of(scaled).fast, pair_of(scaled).fast
    fast.op(torch.ones(2))
    fast.op._opoverload = other.op._opoverload
    assert fast.op(torch.ones(2), 3.0).tolist() == [3.0, 3.0]
    assert (len(fast.received), len(other.received)) == (1, 1)


def test_an_argument_may_be_named_self() -> None:
    def negated(self: Tensor) -> Tensor:
        return -self

    op = pair_of(negated, record=False).fast.op
    assert op(self=torch.ones(1)).item() == op(torch.ones(1)).item() == -1
