"""What a C++ kernel throws out of a boxed call is the Python exception that PyTorch's own binding makes of it."""

from typing import Any

import pytest
import torch

import dutyfree
from accelerated import restored
from isolated import run_isolated
from test_cpp import load

__all__ = ["restored"]  # a fixture for every test here

# What PyTorch 2.13 raises; of the standard library's exceptions, pybind11 decides.
RAISED = {
    "std::runtime_error": RuntimeError,
    "std::out_of_range": IndexError,
    "std::invalid_argument": ValueError,
    "std::domain_error": ValueError,
    "std::length_error": ValueError,
    "std::range_error": ValueError,
    "std::overflow_error": OverflowError,
    "std::bad_alloc": MemoryError,
    "TORCH_CHECK": RuntimeError,
    "TORCH_CHECK_INDEX": IndexError,
    "TORCH_CHECK_VALUE": ValueError,
    "TORCH_CHECK_TYPE": TypeError,
    "TORCH_CHECK_NOT_IMPLEMENTED": NotImplementedError,
    "TORCH_CHECK_LINALG": torch.linalg.LinAlgError,
}


@pytest.fixture(autouse=True)
def loaded() -> None:
    """The operator is in the module of the C++ tests."""
    load()


def raised(spelled: Any, exception: str) -> BaseException:
    with pytest.raises(BaseException) as caught:
        spelled(torch.ones(1), exception)
    return caught.value


@pytest.mark.parametrize("exception", RAISED)
def test_an_exception_of_a_kernel_arrives_as_pytorch_raises_it(exception: str) -> None:
    packet: Any = torch.ops.dutyfree_cpp_tests.throws
    for spelled in (packet, packet.default):
        dutyfree.restore()
        expected = raised(spelled, exception)
        assert type(expected) is RAISED[exception]
        assert dutyfree.accelerate(packet)["dutyfree_cpp_tests::throws"].path == "boxed"
        dutyfree.reset_stats()
        found = raised(spelled, exception)
        assert dutyfree.stats()["dutyfree_cpp_tests::throws"].calls["boxed"] == 1
        assert (type(found), str(found)) == (type(expected), str(expected))


def test_calls_go_on_after_an_exception_of_a_kernel() -> None:
    packet: Any = torch.ops.dutyfree_cpp_tests.throws
    dutyfree.accelerate(packet)
    before = torch._C._dispatch_tls_local_exclude_set(), torch.is_grad_enabled()
    for exception in RAISED:
        raised(packet, exception)
        assert torch.ops.aten.neg(torch.ones(2)).tolist() == [-1.0, -1.0]
        assert (torch._C._dispatch_tls_local_exclude_set(), torch.is_grad_enabled()) == before


def call_a_kernel_that_throws_an_int() -> None:
    load()
    packet: Any = torch.ops.dutyfree_cpp_tests.throws
    for accelerated in (False, True):
        if accelerated:
            dutyfree.accelerate(packet)
        print(repr(raised(packet, "an int")))
    assert dutyfree.stats()["dutyfree_cpp_tests::throws"].calls["boxed"] == 1


def test_what_is_no_exception_arrives_as_pytorch_raises_it() -> None:
    without, accelerated = run_isolated(call_a_kernel_that_throws_an_int).splitlines()
    assert accelerated == without == "RuntimeError('Caught an unknown exception!')"
