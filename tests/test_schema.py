"""Signatures and registration options: the schema, what is refused, and what is accepted beyond PyTorch."""

from collections.abc import Callable
from typing import Any, Optional

import pytest
import torch
from torch import Tensor
from torch.types import Number

import annotated_as_text
import dutyfree
from parity import call, check, pair_of, refused_alike, unique_namespaces

Alias = Tensor
OptionalTensor = Tensor | None


def everything(
    x: Tensor,
    optional: Tensor | None,
    older: Optional[int],  # noqa: UP045
    tensors: list[Tensor],
    optional_tensors: list[Tensor | None],
    sizes: list[int],
    flag: bool,
    mode: str,
    dtype: torch.dtype,
    device: torch.device,
    number: Number,
    factor: float = 0.5,
    *,
    flags: list[bool] | None = None,
    text: str = "a",
) -> tuple[Tensor, list[Tensor], int]:
    return x.clone(), [], 3


def zeroed(x: Tensor, y: Tensor) -> None:
    x.zero_()


def test_the_schema_is_the_one_that_pytorch_infers() -> None:
    pair = pair_of(everything, record=False)
    schemas = [side.text(side.overload._schema) for side in pair.sides()]
    assert schemas[0] == schemas[1]


@pytest.mark.parametrize(
    "make", [lambda: ("x",), lambda: ["x"], lambda: {"x"}, lambda: {"x": 1}, lambda: frozenset({"x"})],
    ids=["tuple", "list", "set", "dict", "frozenset"],
)  # fmt: skip
def test_mutates_args_may_be_any_collection_of_names(make: Callable[[], Any]) -> None:
    pair = pair_of(zeroed, mutates_args=make())
    assert "Tensor(a0!) x, Tensor y" in str(pair.fast.overload._schema)
    outcome = check(pair, lambda: call(torch.ones(2), torch.ones(2)))
    assert outcome.inputs_after["args"][0]["version"] == 2


def test_mutates_args_unknown_marks_every_tensor() -> None:
    pair = pair_of(zeroed, mutates_args="unknown")
    assert "Tensor(a0!) x, Tensor(a1!) y" in str(pair.fast.overload._schema)
    check(pair, lambda: call(torch.ones(2), torch.ones(2)))


def test_a_plain_name_as_mutates_args_is_one_name() -> None:
    def body(xy: Tensor, x: Tensor, y: Tensor) -> None:
        xy.zero_()

    namespace = unique_namespaces()[1]
    op = dutyfree.fast_custom_op(f"{namespace}::op", body, mutates_args="xy")
    assert "Tensor(a0!) xy, Tensor x, Tensor y" in str(op._opoverload._schema)


def test_mutates_args_that_name_no_argument_or_no_tensor_are_refused_as_in_pytorch() -> None:
    def body(x: Tensor, count: int) -> None: ...

    refused_alike(body, mutates_args={"absent"})
    refused_alike(body, mutates_args={"count"})


def test_mutates_args_and_schema_that_disagree_are_refused_as_in_pytorch() -> None:
    refused_alike(zeroed, schema="(Tensor(a!) x, Tensor y) -> ()", mutates_args=())
    refused_alike(zeroed, schema="(Tensor x, Tensor y) -> ()", mutates_args={"x"})


def test_mutates_args_may_be_left_out() -> None:
    namespace = unique_namespaces()[1]
    op = dutyfree.fast_custom_op(f"{namespace}::op", everything)
    assert not op._opoverload._schema.is_mutable


@pytest.mark.parametrize("device_types", ["cpu", "CPU", ["cpu"], ("CPU", "CUDA"), ["cpu", "cuda"]], ids=str)
def test_device_types_may_be_in_upper_case(device_types: Any) -> None:
    namespace = unique_namespaces()[1]

    def body(x: Tensor) -> Tensor:
        return x + 1

    op = dutyfree.fast_custom_op(f"{namespace}::op", body, device_types=device_types)
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]
    lower = [device_types] if isinstance(device_types, str) else device_types
    assert set(op._backend_fns) == {name.lower() for name in lower}


def test_register_kernel_takes_upper_case_too() -> None:
    namespace = unique_namespaces()[1]

    def body(x: Tensor) -> Tensor:
        return x + 1

    op = dutyfree.fast_custom_op(f"{namespace}::op", body, device_types="CUDA")

    @op.register_kernel("CPU")
    def _(x: Tensor) -> Tensor:
        return x + 2

    assert op(torch.ones(1)).tolist() == [3.0]


def test_an_unknown_device_type_is_refused_as_in_pytorch() -> None:
    def body(x: Tensor) -> Tensor: ...  # type: ignore[empty-body]

    refused_alike(body, device_types="nowhere")


def test_signatures_that_pytorch_refuses_are_refused_with_its_text() -> None:
    def unannotated(x) -> Tensor: ...  # type: ignore[no-untyped-def, empty-body]

    def without_return(x: Tensor): ...  # type: ignore[no-untyped-def]

    def variadic(*x: Tensor) -> Tensor: ...  # type: ignore[empty-body]

    def keywords(**x: Tensor) -> Tensor: ...  # type: ignore[empty-body]

    def positional_only(x: Tensor, /) -> Tensor: ...  # type: ignore[empty-body]

    def a_tuple(x: tuple[int, int]) -> Tensor: ...  # type: ignore[empty-body]

    def a_dict(x: dict[str, int]) -> Tensor: ...  # type: ignore[empty-body]

    def an_object(x: object) -> Tensor: ...  # type: ignore[empty-body]

    def returns_text(x: Tensor) -> str: ...  # type: ignore[empty-body]

    def returns_optional(x: Tensor) -> Tensor | None: ...

    def bad_default(x: Tensor, sizes: list[int] = [1]) -> Tensor: ...  # type: ignore[empty-body]  # noqa: B006

    def keyword_only_tensor(*, x: Tensor) -> Tensor: ...  # type: ignore[empty-body]

    for body in (
        unannotated, without_return, variadic, keywords, positional_only, a_tuple, a_dict, an_object, returns_text,
        returns_optional, bad_default, keyword_only_tensor,
    ):  # fmt: skip
        refused_alike(body)


@pytest.mark.parametrize("name", ["noseparator", "a::b::c", "::op", "", "name space::op"])
def test_bad_names_are_refused_as_in_pytorch(name: str) -> None:
    def body(x: Tensor) -> Tensor: ...  # type: ignore[empty-body]

    def refusal(register: Any) -> tuple[str, str]:
        with pytest.raises(Exception) as raised:
            register(name, body, mutates_args=())
        return raised.typename, str(raised.value)

    assert refusal(torch.library.custom_op) == refusal(dutyfree.fast_custom_op)


def test_a_malformed_schema_is_refused_as_in_pytorch() -> None:
    refused_alike(zeroed, schema="(Tensor x, Nonsense y) -> ()")
    refused_alike(zeroed, schema="Tensor x -> Tensor")


def test_annotations_as_text_are_resolved_in_the_functions_own_module() -> None:
    for body in (annotated_as_text.scaled, annotated_as_text.listed, annotated_as_text.aliased):
        pair = pair_of(body, record=False)
        schemas = [side.text(side.overload._schema) for side in pair.sides()]
        assert schemas[0] == schemas[1]
    check(pair_of(annotated_as_text.scaled, record=False), lambda: call(torch.ones(2), 2.0))
    check(pair_of(annotated_as_text.listed, record=False), lambda: call([torch.ones(2)]))


def test_aliases_of_types_are_resolved() -> None:
    def body(x: Alias, y: OptionalTensor = None) -> Alias:
        return x.clone()

    pair = pair_of(body)
    assert "(Tensor x, Tensor? y=None) -> Tensor" in str(pair.fast.overload._schema)
    check(pair, lambda: call(torch.ones(2)))


def test_names_imported_in_the_enclosing_function_are_resolved() -> None:
    op = annotated_as_text.made_inside_a_function(unique_namespaces()[1])
    assert "(Tensor x, Tensor? y=None) -> Tensor" in str(op._opoverload._schema)
    assert op(torch.ones(2)).tolist() == [1.0, 1.0]


def test_an_optional_list_of_tensors_is_accepted() -> None:
    def body(x: Tensor, tensors: list[Tensor] | None = None) -> Tensor:
        return x + len(tensors or [])

    namespace = unique_namespaces()[1]
    op = dutyfree.fast_custom_op(f"{namespace}::op", body)
    assert "Tensor[]? tensors=None" in str(op._opoverload._schema)
    assert op(torch.zeros(1)).tolist() == [0.0]
    assert op(torch.zeros(1), None).tolist() == [0.0]
    assert op(torch.zeros(1), [torch.ones(1), torch.ones(2)]).tolist() == [2.0]
    assert op(torch.zeros(1), tensors=(torch.ones(1),)).tolist() == [1.0]


def test_callable_objects_and_methods_are_accepted_or_refused_as_in_pytorch() -> None:
    class Callable:
        def __call__(self, x: Tensor) -> Tensor:
            return x + 1

        def method(self, x: Tensor) -> Tensor:
            return x + 1

    check(pair_of(Callable().method, record=False), lambda: call(torch.ones(2)))
    refused_alike(Callable())


def test_operators_in_one_namespace_do_not_disturb_each_other() -> None:
    namespace = unique_namespaces()[1]

    def first(x: Tensor) -> Tensor:
        return x + 1

    def second(x: Tensor) -> Tensor:
        return x + 2

    one = dutyfree.fast_custom_op(f"{namespace}::one", first)
    two = dutyfree.fast_custom_op(f"{namespace}::two", second)
    assert (one(torch.zeros(1)).item(), two(torch.zeros(1)).item()) == (1.0, 2.0)
    assert dutyfree.stats()[f"{namespace}::one"].calls["direct"] == 1
