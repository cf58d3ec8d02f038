"""Tensors that are not plain strided ones: each reaches the body, or is refused, as in PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from parity import Pair, call, check, observe, pair_of, took


def clone(x: Tensor) -> Tensor:
    return x.clone()


def doubled(x: Tensor, scale: float = 2.0) -> Tensor:
    return x * scale


def count_of(tensors: list[Tensor]) -> Tensor:
    return torch.tensor([float(len(tensors))])


def first_or_one(x: Tensor | None, y: Tensor | None = None) -> Tensor:
    return torch.ones(1) if x is None else x.clone()


def zeroed(x: Tensor) -> None:
    x.zero_()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(3.0),
        lambda: torch.empty(0),
        lambda: torch.empty(0, 3),
        lambda: torch.arange(12.0).view(3, 4).t(),
        lambda: torch.arange(12.0)[2::3],
        lambda: torch.ones(1).expand(4, 3),
        lambda: torch.arange(8.0).as_strided((2, 3), (1, 2), 1),
        lambda: torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda: torch.ones(2, dtype=torch.complex64),
        lambda: torch.ones(2, dtype=torch.bfloat16),
        lambda: torch.ones(2, dtype=torch.bool),
        lambda: torch.ones(4, dtype=torch.uint8).view(torch.float8_e4m3fn),
    ],
    ids=[
        "scalar", "empty", "empty rows", "transposed", "sliced", "expanded", "overlapping", "channels last", "complex",
        "bfloat16", "bool", "float8",
    ],
)  # fmt: skip
def test_strided_tensors_of_every_layout_and_dtype_take_the_direct_path(make: Callable[[], Tensor]) -> None:
    check(pair_of(clone), lambda: call(make()))


def test_a_conjugated_view_is_materialised_before_the_body_sees_it() -> None:
    pair = pair_of(doubled)
    outcome = check(pair, lambda: call(torch.ones(2, dtype=torch.complex64).mul(1j).conj()), reason="tensor-key")
    assert outcome.received[0]["arguments"]["args"][0]["conj, neg"] == (False, False)
    check(
        pair_of(count_of),
        lambda: call([torch.ones(1), torch.ones(2) * 1j, (torch.ones(2) * 1j).conj()]),
        reason="tensor-key",
    )


def test_a_negated_view_is_materialised_before_the_body_sees_it() -> None:
    pair = pair_of(doubled)
    outcome = check(pair, lambda: call(torch.ones(2, dtype=torch.complex64).conj().imag), reason="tensor-key")
    assert outcome.received[0]["arguments"]["args"][0]["conj, neg"] == (False, False)


def test_a_tensor_of_zeros_without_memory_is_materialised_before_the_body_sees_it() -> None:
    check(pair_of(doubled), lambda: call(torch._efficientzerotensor(2)), reason="tensor-key")


def test_a_conjugated_view_that_the_body_mutates_is_changed() -> None:
    pair = pair_of(zeroed, mutates_args={"x"})
    check(pair, lambda: call(torch.ones(2, dtype=torch.complex64).mul(1j).conj()), reason="tensor-key")
    check(pair, lambda: call(torch.ones(2, dtype=torch.complex64).conj().imag), reason="tensor-key")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).to_sparse_csc(),
        lambda: torch.eye(4).to_sparse_bsr((2, 2)),
        lambda: torch.eye(4).to_sparse_bsc((2, 2)),
        lambda: torch.eye(3).to_mkldnn(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8),
    ],
    ids=["coo", "csr", "csc", "bsr", "bsc", "mkldnn", "quantized"],
)
def test_sparse_mkldnn_and_quantized_tensors_reach_the_body(make: Callable[[], Tensor]) -> None:
    outcome = check(pair_of(count_of), lambda: call([make()]), reason="tensor-key")
    assert len(outcome.received) == 1
    check(pair_of(clone), lambda: call(make()), reason="tensor-key")


@pytest.mark.parametrize(
    ("layout", "reason"), [(torch.strided, "tensor-key"), (torch.jagged, "tensor-subclass")], ids=["strided", "jagged"]
)
def test_nested_tensors_are_refused_or_handled_as_in_pytorch(layout: torch.layout, reason: str) -> None:
    def nested() -> Tensor:
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)

    check(pair_of(clone), lambda: call(nested()), reason=reason)
    check(pair_of(count_of), lambda: call([torch.ones(1), nested()]), reason=reason)


def test_a_meta_tensor_without_a_fake_raises_the_message_that_names_register_fake() -> None:
    outcome = check(pair_of(clone), lambda: call(torch.ones(2, device="meta")), reason="kernel")
    assert outcome.raised is not None
    assert "register_fake" in outcome.raised[1]
    assert not outcome.received


def test_a_meta_tensor_with_a_fake_runs_the_fake() -> None:
    pair = pair_of(clone)
    pair.each(lambda op: op.register_fake(lambda x: x.new_empty(3, 4)))
    outcome = check(pair, lambda: call(torch.ones(2, device="meta")), reason="kernel")
    assert outcome.value["shape"] == (3, 4)
    assert not outcome.received


def test_a_meta_tensor_beside_a_cpu_tensor_is_treated_as_in_pytorch() -> None:
    def body(x: Tensor, y: Tensor) -> Tensor:
        return x.clone()

    pair = pair_of(body)
    check(pair, lambda: call(torch.ones(2), torch.ones(2, device="meta")), reason="kernel")
    check(pair, lambda: call(torch.ones(2, device="meta"), torch.ones(2)), reason="kernel")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False),
        lambda: torch.nn.Buffer(torch.ones(2)),
    ],
    ids=["parameter", "buffer"],
)
def test_parameters_and_buffers_count_as_plain_tensors(make: Callable[[], Tensor]) -> None:
    check(pair_of(clone), lambda: call(make()))
    check(pair_of(count_of), lambda: call([make(), torch.ones(1)]))
    check(pair_of(zeroed, mutates_args={"x"}), lambda: call(make()))


def test_a_parameter_without_grad_mode_takes_the_direct_path() -> None:
    with torch.no_grad():
        check(pair_of(clone), lambda: call(torch.nn.Parameter(torch.ones(2))))


class Bare(Tensor):
    pass


def test_a_bare_subclass_reaches_the_body_as_itself() -> None:
    pair = pair_of(doubled)
    outcome = check(pair, lambda: call(torch.ones(2).as_subclass(Bare)), reason="tensor-subclass")
    assert outcome.received[0]["arguments"]["args"][0]["type"] == "Bare"
    check(pair_of(count_of), lambda: call([torch.ones(1), torch.ones(2).as_subclass(Bare)]), reason="tensor-subclass")
    check(pair_of(first_or_one), lambda: call(None, torch.ones(2).as_subclass(Bare)), reason="tensor-subclass")


class Untouched(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def test_a_subclass_without_torch_function_reaches_the_body_as_itself() -> None:
    check(pair_of(doubled), lambda: call(torch.ones(2).as_subclass(Untouched)), reason="tensor-subclass")


class Functional(Tensor):
    """Counts the operators that it is asked about."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("spelling", ["object", "packet", "overload"])
def test_torch_function_of_a_subclass_sees_the_operator(spelling: str) -> None:
    pair = pair_of(count_of)
    seen = []
    for side in pair.sides():
        Functional.seen = []
        arguments = call([torch.ones(1), torch.ones(2).as_subclass(Functional)])
        outcome = observe(side, lambda s=side, a=arguments: s.spelled(spelling)(*a.args), arguments)  # type: ignore[misc]
        seen.append((list(Functional.seen), outcome))
    assert seen[0] == seen[1]
    assert "op.default" in seen[0][0] or "op" in seen[0][0]
    with took(pair.fast, "tensor-subclass"):
        pair.fast.spelled(spelling)([torch.ones(2).as_subclass(Functional)])


class Wrapper(Tensor):
    """A wrapper with __torch_dispatch__: the body must never run on it."""

    inner: Tensor
    seen: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        unwrapped = torch.utils._pytree.tree_map_only(Wrapper, lambda tensor: tensor.inner, args)
        result = func(*unwrapped, **(kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, Wrapper, result)


@pytest.mark.parametrize("spelling", ["object", "packet", "overload"])
def test_torch_dispatch_of_a_subclass_sees_the_operator_and_the_body_only_what_is_inside(spelling: str) -> None:
    pair = pair_of(doubled)
    seen = []
    for side in pair.sides():
        Wrapper.seen = []
        side.received.clear()
        result = side.spelled(spelling)(Wrapper(torch.ones(2)))
        assert type(result) is Wrapper
        assert result.inner.tolist() == [2.0, 2.0]
        assert [type(given.args[0]) for given, _ in side.received] == [Tensor]
        seen.append([side.text(name) for name in Wrapper.seen])
    assert seen[0] == seen[1] == ["NAMESPACE.op.default"]
    with took(pair.fast, "tensor-subclass"):
        pair.fast.spelled(spelling)(Wrapper(torch.ones(2)))


def test_a_wrapper_in_a_list_or_an_optional_argument_is_found() -> None:
    for body, arguments in (
        (count_of, lambda: call([torch.ones(1), Wrapper(torch.ones(2))])),
        (first_or_one, lambda: call(None, Wrapper(torch.ones(2)))),
        (first_or_one, lambda: call(x=torch.ones(1), y=Wrapper(torch.ones(2)))),
    ):
        pair = pair_of(body)
        for side in pair.sides():
            side.received.clear()
            given = arguments()
            result = side.op(*given.args, **given.kwargs)
            assert type(result) is Wrapper
            assert len(side.received) == 1
        given = arguments()
        with took(pair.fast, "tensor-subclass"):
            pair.fast.op(*given.args, **given.kwargs)


def test_a_subclass_of_parameter_is_a_subclass() -> None:
    class Weight(torch.nn.Parameter):
        pass

    pair = pair_of(doubled)
    check(pair, lambda: call(Weight(torch.ones(2), requires_grad=False)), reason="tensor-subclass")


def test_an_uninitialised_parameter_is_refused_as_in_pytorch() -> None:
    pair = pair_of(count_of)
    texts = []
    for side in pair.sides():
        with pytest.raises(ValueError, match="uninitialized parameter") as raised:
            side.op([torch.nn.UninitializedParameter()])
        texts.append(side.text(raised.value))
    assert texts[0] == texts[1]
    assert dutyfree.explain(pair.fast.op, [torch.nn.UninitializedParameter()]).code == "tensor-subclass"


def mixed_calls(pair: Pair) -> None:
    check(pair, lambda: call(torch.ones(2)))
    check(pair, lambda: call(torch.ones(2).as_subclass(Bare)), reason="tensor-subclass")
    check(pair, lambda: call(torch.ones(2, dtype=torch.complex64).conj()), reason="tensor-key")


def test_plain_tensors_are_direct_again_after_others() -> None:
    pair = pair_of(doubled)
    mixed_calls(pair)
    mixed_calls(pair)


def test_functional_tensors_are_left_to_pytorch() -> None:
    pair = pair_of(clone)
    pair.each(lambda op: op.register_fake(torch.empty_like))
    for side in pair.sides():
        result = torch.func.functionalize(side.op)(torch.ones(2))
        assert result.tolist() == [1.0, 1.0]
    with took(pair.fast, "thread-state"):
        torch.func.functionalize(pair.fast.op)(torch.ones(2))
