"""Recorded calls below torch.utils.checkpoint."""

from typing import Any

import pytest
import torch
import torch.utils.checkpoint

from gradients_alike import alike, needing_grad, with_factors, with_product, with_products
from parity import Side


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_runs_the_operator_again(reentrant: bool) -> None:
    def run(side: Side) -> Any:
        side.received.clear()
        x, y = needing_grad(), needing_grad()
        loss = torch.utils.checkpoint.checkpoint(lambda a, b: side.op(a, b).sin(), x, y, use_reentrant=reentrant).sum()
        loss.backward()
        calls = len(side.received)
        side.received.clear()
        return x.grad, y.grad, calls

    alike(with_factors(record=True), run, paths={"direct", "autograd"} if reentrant else None)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_over_lists(reentrant: bool) -> None:
    def run(side: Side) -> Any:
        x, y = needing_grad(), needing_grad()
        torch.utils.checkpoint.checkpoint(
            lambda a, b: side.op(a, [b, a])[0].sin() + side.op(a, [b])[0], x, y, use_reentrant=reentrant
        ).sum().backward()
        return x.grad, y.grad

    alike(with_products(), run, paths={"autograd", "direct"} if reentrant else None)


def test_selective_checkpointing_saves_the_operators_result() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    seen: list[Any] = []

    def run(side: Side, policy: CheckpointPolicy) -> Any:
        seen.clear()

        def decide(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            seen.append((ctx.is_recompute, side.text(op)))
            return policy if op is side.overload else CheckpointPolicy.PREFER_RECOMPUTE

        x, y = needing_grad(), needing_grad()
        torch.utils.checkpoint.checkpoint(
            lambda a, b: side.op(a, b).sin(),
            x,
            y,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(decide),
        ).sum().backward()
        return seen, x.grad, y.grad

    for policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE):
        alike(with_product(), lambda side, policy=policy: run(side, policy), paths={"pytorch", "direct"})
