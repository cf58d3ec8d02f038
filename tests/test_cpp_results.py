"""Results and exceptions of operators whose kernels are C++, and what such kernels do to their arguments."""

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from accelerated import DIRECT, Way, refused, restored
from cpp_twins import alike, both_sides, call, twins
from dutyfree.check.outcome import Arguments

__all__ = ["restored"]  # a fixture for every test here

RESULTS = [
    "doubled", "itself", "view", "undefined", "nothing", "two", "three", "one_in_tuple", "mixed",
    "many_and_one",
    "an_int", "a_symint", "a_float", "a_bool", "a_str", "a_scalar", "some_ints", "some_floats", "a_dtype", "a_device",
    "maybe_tensor", "maybe_int", "a_dict",
]  # fmt: skip
KINDS = {
    "check": "RuntimeError", "value": "ValueError", "type": "TypeError", "index": "IndexError",
    "not implemented": "NotImplementedError", "linalg": "_LinAlgError", "internal": "RuntimeError",
    "out of memory": "OutOfMemoryError", "runtime_error": "RuntimeError", "invalid_argument": "ValueError",
    "out_of_range": "IndexError", "bad_alloc": "MemoryError", "own": "RuntimeError", "python": "ZeroDivisionError",
    "torch": "TypeError",
}  # fmt: skip


def x() -> Tensor:
    return torch.arange(1.0, 7.0).reshape(2, 3)


class Marked(Tensor):
    pass


# --- results


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("make", [x, lambda: torch.ones(1), lambda: torch.arange(3), lambda: x().t()[1:]])
def test_a_result(name: str, make: Callable[[], Tensor]) -> None:
    alike("results", name, lambda: call(make()))


@pytest.mark.parametrize(("name", "way"), [("sixteen", DIRECT), ("seventeen", ("boxed", "cpp-kernel"))])
def test_as_many_results_as_the_direct_path_takes_and_one_more(name: str, way: Way) -> None:
    alike("results", name, lambda: call(x()), way)


@pytest.mark.parametrize("count", [0, 1, 2, 17, 100])
def test_a_list_of_tensors_as_a_result(count: int) -> None:
    found = alike("results", "many", lambda: call(x(), count))
    assert len(found.value["members"]) == count


def test_a_result_that_is_an_input_is_the_same_object() -> None:
    both = twins("results", "itself")
    given = x()
    for side in both.sides():
        assert side.overload(given) is given
        assert side.packet(given) is given
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 2


def test_a_result_is_no_object_twice() -> None:
    both = twins("results", "many")
    for side in both.sides():
        first, second = side.overload(x(), 2)
        assert first is second  # the kernel returns one tensor twice
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 1


def test_a_parameter_that_is_returned() -> None:
    found = alike("results", "itself", lambda: call(torch.nn.Parameter(x(), requires_grad=False)), None)
    assert found.value["is input"] == 0


# --- what is written to


WRITTEN: list[tuple[str, Callable[[], Arguments]]] = [
    ("add_", lambda: call(x())),
    ("add_", lambda: call(x(), a=2.5)),
    ("add_", lambda: call(x().t())),
    ("add_without_gil_", lambda: call(x())),
    ("add_unnamed_", lambda: call(x(), 2)),
    ("two_inferred.out", lambda: call(x(), torch.empty(2, 3), second=torch.empty(2, 3))),
    ("with_words", lambda: call(x(), n=None, a=2, text="")),
    ("add_nothing_returned", lambda: call(x(), x())),
    ("add_nothing_returned", lambda: call(shared := x(), shared)),
    ("add", lambda: call(x(), x(), out=torch.empty(2, 3))),
    ("add", lambda: call(shared := x(), shared, out=shared)),
    ("two_out", lambda: call(x(), first=torch.empty(2, 3), second=torch.empty(3, 2).t())),
    ("two_out", lambda: call(x(), second=torch.empty(2, 3), first=torch.empty(2, 3))),
    ("through_pointer", lambda: call(x())),
    ("add_to_all", lambda: call([x(), x()[0], x().t()])),
    ("add_to_all", lambda: call((shared := x(), shared))),
    ("add_where_given", lambda: call(x(), x())),
    ("add_where_given", lambda: call(x())),
    ("assigns_and_returns_nothing", lambda: call(x())),
    ("swaps", lambda: call(x(), x() * 2)),
    ("moves_from_its_value", lambda: call(x())),
    ("writes_then_raises", lambda: call(x())),
]


@pytest.mark.parametrize(("name", "make"), WRITTEN, ids=[f"{name}-{n}" for n, (name, _) in enumerate(WRITTEN)])
def test_what_is_written_to(name: str, make: Callable[[], Arguments]) -> None:
    alike("results", name, make)
    with torch.no_grad():
        alike("results", name, make)
    with torch.inference_mode():
        alike("results", name, make, None)


def test_each_call_bumps_the_version_of_what_is_written_to() -> None:
    both = twins("results", "through_pointer")
    for side in both.sides():
        given = x()
        for calls in range(1, 4):
            side.overload(given)
            assert given._version == calls
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 3


def test_a_saved_tensor_that_is_written_to_is_noticed() -> None:
    both = twins("results", "through_pointer")
    for side in both.sides():
        factor = x()
        product = (x().requires_grad_() * factor).sum()
        side.overload(factor)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 1


def test_what_a_kernel_assigns_to_its_parameter_stays_in_it() -> None:
    both = twins("results", "assigns_and_returns_nothing")
    for side in both.sides():
        given = x()
        side.overload(given)
        assert given.tolist() == x().tolist()
        assert given.shape == (2, 3)
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 1


@pytest.mark.parametrize("name", ["assigns_", "assigns_without_gil_"])
def test_what_a_kernel_assigns_to_its_parameter_and_returns(name: str) -> None:
    alike("results", name, lambda: call(x()))


@pytest.mark.parametrize("name", ["with_words", "add_unnamed_", "two_inferred.out"])
def test_a_schema_that_is_made_of_the_function(name: str) -> None:
    both = twins("results", name)
    slow, fast = (side.overload._schema for side in both.sides())
    assert both.reference.text(slow) == both.accelerated.text(fast)


def test_an_inference_tensor_is_written_to_outside_inference_mode() -> None:
    def make() -> Arguments:
        with torch.inference_mode():
            return call(x())

    for name in ("add_", "through_pointer"):
        assert "Inplace update to inference tensor" in refused(alike("results", name, make, None))[1]


@pytest.mark.parametrize("name", ["add_", "through_pointer", "doubled", "itself"])
def test_inference_tensors_inside_inference_mode(name: str) -> None:
    with torch.inference_mode():
        alike("results", name, lambda: call(x()), None)


# --- exceptions


@pytest.mark.parametrize("name", ["raises", "raises_without_gil"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_of_a_kernel(name: str, kind: str) -> None:
    assert refused(alike("results", name, lambda: call(x(), kind)))[0] == KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_of_a_kernel_with_other_results(kind: str) -> None:
    found = alike("results", "raises_mixed", lambda: call(x(), [x(), x()], kind))
    assert refused(found)[0] == KINDS[kind]


def test_an_exception_that_the_kernel_lets_through() -> None:
    # std::map::at has no such element.
    assert refused(alike("results", "raises", lambda: call(x(), "unknown")))[0] == "IndexError"


def test_what_is_thrown_and_no_exception() -> None:
    refused(alike("results", "raises_no_exception", lambda: call(x())))


def test_an_exception_leaves_no_state_behind() -> None:
    both = twins("results", "raises")
    other = twins("results", "doubled")
    for _ in range(100):
        with pytest.raises(ValueError, match="no value"):
            both.accelerated.overload(x(), "value")
    assert other.accelerated.overload(x()).tolist() == (x() * 2).tolist()
    assert other.accelerated.overload(x().requires_grad_()).requires_grad


# --- memory


def unreferenced_after(run: Callable[[list[Tensor]], object], count: int = 3) -> bool:
    """Whether tensors that only a call holds are gone after it."""
    given = [x() for _ in range(count)]
    references = [weakref.ref(tensor) for tensor in given]
    run(given)
    given.clear()
    return all(reference() is None for reference in references)


@pytest.mark.parametrize("name", ["doubled", "view", "two", "mixed", "an_int", "three", "undefined"])
def test_a_call_keeps_no_tensor(name: str) -> None:
    both = twins("results", name)

    def run(given: list[Tensor]) -> None:
        both.accelerated.overload(given[0])
        both.accelerated.packet(given[1])
        both.accelerated.overload(x=given[2])

    assert unreferenced_after(run)
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 3


def test_reference_counts_are_constant_over_many_calls() -> None:
    given = x()
    text = "value"
    raising, itself, writing, mixed = (twins("results", n) for n in ("raises_mixed", "itself", "add_", "mixed"))
    listed = [given] * 40

    def counts() -> tuple[int, ...]:
        return sys.getrefcount(given), sys.getrefcount(text), given._use_count()

    def run() -> None:
        with pytest.raises(ValueError, match="no value"):
            raising.accelerated.overload(given, listed, text)
        itself.accelerated.overload(given)
        writing.accelerated.overload(given, 0.0)
        mixed.accelerated.packet(x=given)

    run()
    before, nones = counts(), sys.getrefcount(None)
    for _ in range(1000):
        run()
    assert counts() == before
    # Others take and drop some as well.
    assert abs(sys.getrefcount(None) - nones) < 500
    for both in (raising, itself, writing, mixed):
        assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 1001


@pytest.mark.parametrize(
    "spoiled",
    [lambda: None, lambda: 3, lambda: "a", lambda: [x()], object],
    ids=["none", "int", "str", "list", "object"],
)
def test_a_conversion_that_fails_halfway_through_a_list_keeps_no_tensor(spoiled: Callable[[], Any]) -> None:
    both = twins("results", "add_to_all")

    def run(given: list[Tensor]) -> None:
        for _ in range(10):
            with pytest.raises((RuntimeError, NotImplementedError)):
                both.accelerated.overload([*given, spoiled()])

    assert unreferenced_after(run, 40)
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 0


@pytest.mark.parametrize("length", [1, 40])
def test_a_list_is_let_go_after_the_call_and_after_an_exception(length: int) -> None:
    listing, raising = twins("results", "add_to_all"), twins("results", "raises_mixed")

    def run(given: list[Tensor]) -> None:
        listing.accelerated.overload(given)
        with pytest.raises(IndexError):
            raising.accelerated.overload(given[0], given, "index")

    assert unreferenced_after(run, length)
    for both in (listing, raising):
        assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 1


# --- wrong devices, subclasses


@pytest.mark.parametrize("name", ["doubled", "add_", "mixed"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: x().to("meta"),
        lambda: x().to_sparse(),
        lambda: torch.randn(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
        lambda: torch._efficientzerotensor(2),
        lambda: torch.quantize_per_tensor(x(), 0.5, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: x().as_subclass(Marked),
        lambda: torch.nn.Parameter(x(), requires_grad=False),
        lambda: x().to_mkldnn(),
    ],
    ids=["meta", "sparse", "conj", "neg", "zero", "quantized", "nested", "subclass", "parameter", "mkldnn"],
)
def test_a_tensor_of_another_kind(name: str, make: Callable[[], Tensor]) -> None:
    def seeded() -> Arguments:
        torch.manual_seed(0)
        return call(make())

    both_sides("results", name, seeded)


def test_calls_from_several_threads() -> None:
    both = twins("results", "mixed")
    wrong: list[Any] = []

    def run() -> None:
        for number in range(500):
            tensor, count, text = both.accelerated.overload(torch.full((3,), float(number)))
            if (tensor.tolist(), count, text) != ([number + 1.0] * 3, 3, "text"):
                wrong.append((number, tensor, count, text))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 2000
