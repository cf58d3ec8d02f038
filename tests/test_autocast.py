"""Autocast: without a rule nothing is cast; a rule registered later takes effect at once."""

from typing import Any

import torch
from torch import Tensor

from parity import call, check, pair_of

RULE = "kernel"


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def clone(x: Tensor) -> Tensor:
    return x.clone()


def count_of(x: Tensor, tensors: list[Tensor], mode: str = "a") -> Tensor:
    return x.clone()


def test_without_a_rule_nothing_is_cast_and_autocast_stays_on_inside_the_body() -> None:
    pair = pair_of(product)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = check(pair, lambda: call(torch.ones(2, 2), torch.ones(2, 2)))
    assert outcome.received[0]["state"]["autocast"] is True
    assert outcome.received[0]["arguments"]["args"][0]["dtype"] is torch.float32
    assert outcome.value["dtype"] is torch.bfloat16


def test_a_rule_registered_after_the_first_call_casts_at_once() -> None:
    pair = pair_of(clone)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(pair, lambda: call(torch.ones(2))).value["dtype"] is torch.float32
        pair.each(lambda op: op.register_autocast("cpu", torch.bfloat16))
        outcome = check(pair, lambda: call(torch.ones(2)), reason=RULE)
    assert outcome.value["dtype"] is torch.bfloat16
    assert check(pair, lambda: call(torch.ones(2))).value["dtype"] is torch.float32


def test_a_rule_turns_autocast_off_inside_the_body() -> None:
    pair = pair_of(product)
    pair.each(lambda op: op.register_autocast("cpu", torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = check(pair, lambda: call(torch.ones(2, 2), torch.ones(2, 2)), reason=RULE)
    assert outcome.value["dtype"] is torch.float32


def test_a_rule_casts_lists_and_leaves_integers_and_doubles_alone() -> None:
    pair = pair_of(count_of)
    pair.each(lambda op: op.register_autocast("cpu", torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = check(pair, lambda: call(torch.ones(2), [torch.ones(1), torch.ones(1).long()], "b"), reason=RULE)
        check(pair, lambda: call(torch.ones(2).double(), []), reason=RULE)
    members = outcome.received[0]["arguments"]["args"][1]["members"]
    assert [member["dtype"] for member in members] == [torch.bfloat16, torch.int64]


def test_a_rule_of_another_device_changes_nothing() -> None:
    pair = pair_of(clone)
    pair.each(lambda op: op.register_autocast("cuda", torch.float16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(pair, lambda: call(torch.ones(2))).value["dtype"] is torch.float32


def test_autocast_switched_off_inside_is_honoured() -> None:
    pair = pair_of(clone)
    pair.each(lambda op: op.register_autocast("cpu", torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert check(pair, lambda: call(torch.ones(2))).value["dtype"] is torch.float32


def test_a_rule_together_with_a_gradient_acts_as_in_pytorch() -> None:
    pair = pair_of(clone)
    pair.each(lambda op: op.register_autocast("cpu", torch.bfloat16))
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: grad))
    gradients: list[Any] = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(pair, lambda: call(torch.ones(2, requires_grad=True)), reason=(RULE, "requires-grad"))
        for side in pair.sides():
            x = torch.ones(2, requires_grad=True)
            side.op(x).sum().backward()
            assert x.grad is not None
            gradients.append((x.grad.dtype, x.grad.tolist()))
    assert gradients[0] == gradients[1]


def test_a_rule_by_torch_library_register_autocast_counts_too() -> None:
    pair = pair_of(clone)
    for side in pair.sides():
        torch.library.register_autocast(side.qualname, "cpu", torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(pair, lambda: call(torch.ones(2)), reason=RULE).value["dtype"] is torch.bfloat16
