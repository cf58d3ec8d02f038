"""In no situation does a call cost more than custom_op's: the ways that leave the direct path, by ratio in one run."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dutyfree
from dutyfree.bench.measure import Call, measure, timed_block
from parity import unique_namespaces

ALLOWED = 1.05
ROUNDS = 25
# Other programs may take the processor during one measurement, hardly during several.
TRIES = 4


class Bare(Tensor):
    pass


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def operator_body(x: Tensor, count: int = 1, *, factor: float = 1.0) -> Tensor:
    return x.clone()


def tensor() -> Tensor:
    return torch.ones(4)


# The state around the calls, the call, and whether it raises.
SITUATIONS: dict[str, tuple[Callable[[], Any], Call, bool]] = {
    "direct": (contextlib.nullcontext, Call((tensor(),), {}), False),
    "keyword": (contextlib.nullcontext, Call((tensor(),), {"factor": 2.0}), False),
    "no_grad": (torch.no_grad, Call((tensor().requires_grad_(),), {}), False),
    "inference mode": (torch.inference_mode, Call((tensor(),), {}), False),
    "gradient": (contextlib.nullcontext, Call((tensor().requires_grad_(),), {}), False),
    "bool for int": (contextlib.nullcontext, Call((tensor(), True), {}), False),
    "numpy scalar": (contextlib.nullcontext, Call((tensor(), np.int64(3)), {}), False),
    "bare subclass": (contextlib.nullcontext, Call((tensor().as_subclass(Bare),), {}), False),
    "conjugated": (contextlib.nullcontext, Call((torch.ones(4, dtype=torch.complex64).conj(),), {}), False),
    "sparse": (contextlib.nullcontext, Call((torch.eye(2).to_sparse(),), {}), False),
    "device context": (lambda: torch.device("cpu"), Call((tensor(),), {}), False),
    "function mode": (FunctionMode, Call((tensor(),), {}), False),
    "dispatch mode": (DispatchMode, Call((tensor(),), {}), False),
    "fake tensor mode": (FakeTensorMode, Call((tensor(),), {}), True),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), Call((tensor(),), {}), False),
    "meta": (contextlib.nullcontext, Call((torch.ones(4, device="meta"),), {}), False),
    "wrong type": (contextlib.nullcontext, Call((3,), {}), True),
    "missing argument": (contextlib.nullcontext, Call((), {}), True),
}


def registered(register: Any, namespace: str) -> Any:
    op = register(f"{namespace}::op", operator_body, mutates_args=())
    op.register_fake(lambda x, count=1, *, factor=1.0: torch.empty_like(x))
    return op


def swallowing(op: Callable[..., Any]) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            op(*args, **kwargs)

    return call


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("spelling", ["object", "overload"])
def test_a_call_costs_no_more_than_custom_ops(situation: str, spelling: str) -> None:
    state, call, raises = SITUATIONS[situation]
    reference, fast = unique_namespaces()
    ops = {
        "custom_op": registered(torch.library.custom_op, reference),
        "dutyfree": registered(dutyfree.fast_custom_op, fast),
    }
    if spelling == "overload":
        ops = {name: op._opoverload for name, op in ops.items()}
    blocks = {name: timed_block(swallowing(op) if raises else op, call) for name, op in ops.items()}
    ratios = []
    for _ in range(TRIES):
        with state():
            timings = measure(blocks, ROUNDS).timings()
        ratios.append(timings["dutyfree"].us / timings["custom_op"].us)
        if ratios[-1] <= ALLOWED:
            break
    assert min(ratios) <= ALLOWED, f"{situation}: {ratios} times custom_op's"
