"""Operators without a tensor argument, which pick their backend by a device argument."""

import pytest
import torch
from torch import Tensor

from parity import call, check, pair_of, refused_alike


def filled(size: int, device: torch.device) -> Tensor:
    return torch.full((size,), 1.0, device=device)


def no_arguments() -> Tensor:
    return torch.ones(2)


# The kernel that picks the backend by the device argument is in the way.
SELECTED = "kernel"


def test_an_operator_without_arguments_runs() -> None:
    check(pair_of(no_arguments), call)


def test_an_operator_without_tensors_runs_its_default_kernel() -> None:
    check(pair_of(filled), lambda: call(2, torch.device("cpu")))
    check(pair_of(filled), lambda: call(2, device="cpu"), reason="argument-type")


def test_numbers_alone_reach_the_body() -> None:
    def body(count: int, factor: float = 0.5) -> float:
        return count * factor

    check(pair_of(body), lambda: call(3))
    check(pair_of(body), lambda: call(3, factor=2.0))


def test_the_device_argument_picks_the_backend() -> None:
    pair = pair_of(filled, device_types="cpu")
    check(pair, lambda: call(2, torch.device("cpu")), reason=SELECTED)
    check(pair, lambda: call(2, "cpu"), reason="argument-type")
    check(pair, lambda: call(2, device=torch.device("cpu", 0)), reason=SELECTED)


@pytest.mark.parametrize("device", ["meta", "cuda", "xpu"])
def test_a_device_without_a_kernel_raises_the_message_that_names_it(device: str) -> None:
    outcome = check(pair_of(filled, device_types="cpu"), lambda: call(2, torch.device(device)), reason="kernel")
    assert outcome.raised is not None
    assert "does not have a kernel registered for" in outcome.raised[1]


def test_a_kernel_registered_later_for_the_device_counts_at_once() -> None:
    pair = pair_of(filled)
    check(pair, lambda: call(2, torch.device("cpu")))

    def tens(size: int, device: torch.device) -> Tensor:
        return torch.full((size,), 10.0)

    pair.each(lambda op: op.register_kernel("cpu", tens))
    outcome = check(pair, lambda: call(2, torch.device("cpu")), reason=SELECTED)
    assert outcome.value["values"] == "[10.0, 10.0]"


def test_a_device_kernel_without_a_device_argument_is_refused_as_in_pytorch() -> None:
    kind, text = refused_alike(no_arguments, device_types="cpu")
    assert kind == "ValueError"
    assert "`device: torch.device`" in text


def test_a_device_context_does_not_change_what_an_explicit_device_picks() -> None:
    with torch.device("meta"):
        check(pair_of(filled), lambda: call(2, torch.device("cpu")), reason="torch-function-mode")


def test_a_keyword_only_device_is_treated_as_in_pytorch() -> None:
    def body(size: int, *, device: torch.device) -> Tensor:
        return torch.ones(size, device=device)

    check(pair_of(body, device_types="cpu"), lambda: call(2, device=torch.device("cpu")), reason=SELECTED)


def test_an_optional_tensor_that_is_none_leaves_no_device_to_pick_by() -> None:
    def body(x: Tensor | None, count: int = 2) -> Tensor:
        return torch.ones(count)

    check(pair_of(body), lambda: call(None))
    check(pair_of(body, device_types="cpu"), lambda: call(None), reason="kernel")
    check(pair_of(body, device_types="cpu"), lambda: call(torch.ones(1)))
