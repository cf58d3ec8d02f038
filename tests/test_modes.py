"""Modes and other thread state around a call: each sees the operator once, with the arguments as given."""

import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from parity import SPELLINGS, Pair, Side, call, check, pair_of, took


def clone(x: Tensor, count: int = 1, factor: float = 0.5) -> Tensor:
    return x.clone()


def count_of(tensors: list[Tensor], sizes: list[int]) -> Tensor:
    return torch.ones(len(tensors) + len(sizes))


def filled(size: int, device: torch.device) -> Tensor:
    return torch.ones(size)


class DispatchRecorder(TorchDispatchMode):
    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((self.side.text(func), func is self.side.overload, shown(args), shown(kwargs or {})))
        return func(*args, **(kwargs or {}))


class FunctionRecorder(TorchFunctionMode):
    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = "overload" if func is self.side.overload else "packet" if func is self.side.packet else str(func)
        self.seen.append((what, shown(args), shown(kwargs or {})))
        return func(*args, **(kwargs or {}))


def shown(value: Any) -> str:
    return repr(torch.utils._pytree.tree_map_only(Tensor, lambda tensor: "tensor", value))


def recorded(pair: Pair, make_mode: Callable[[Side], Any], spelling: str, *args: Any, **kwargs: Any) -> list[Any]:
    """What a mode saw of a call; asserts that it saw the same of both operators."""
    seen = []
    for side in pair.sides():
        side.received.clear()
        with make_mode(side) as mode:
            side.spelled(spelling)(*args, **kwargs)
        assert len(side.received) == 1
        seen.append(mode.seen)
    assert seen[1] == seen[0]
    return seen[1]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_dispatch_mode_sees_the_operator_once(spelling: str) -> None:
    pair = pair_of(clone)
    seen = recorded(pair, DispatchRecorder, spelling, torch.ones(2), factor=2.0)
    assert seen[0][:2] == ("NAMESPACE.op.default", True)
    assert [name for name, *_ in seen].count("NAMESPACE.op.default") == 1
    with DispatchRecorder(pair.fast), took(pair.fast, "dispatch-mode"):
        pair.fast.spelled(spelling)(torch.ones(2))
    check(pair, lambda: call(torch.ones(2)))


def test_a_dispatch_mode_sees_lists_and_tuples_as_pytorch_shows_them() -> None:
    pair = pair_of(count_of)
    recorded(pair, DispatchRecorder, "object", (torch.ones(1), torch.ones(2)), (1, 2))
    recorded(pair, DispatchRecorder, "overload", [torch.ones(1)], sizes=[1])


def test_a_dispatch_mode_that_does_not_call_on_keeps_the_body_from_running() -> None:
    class Answer(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.full((3,), 7.0)

    pair = pair_of(clone)
    with Answer():
        for spelling in SPELLINGS:
            assert pair.fast.spelled(spelling)(torch.ones(2)).shape == (3,)
    assert not pair.fast.received


def test_nested_dispatch_modes_each_see_the_operator() -> None:
    pair = pair_of(clone)
    seen = []
    for side in pair.sides():
        with DispatchRecorder(side) as outer, DispatchRecorder(side) as inner:
            side.op(torch.ones(2))
        seen.append((outer.seen, inner.seen))
    assert seen[0] == seen[1]


def test_a_dispatch_mode_entered_by_the_body_sees_what_the_body_calls() -> None:
    def body(x: Tensor) -> Tensor:
        with modes[-1]:
            return x + 1

    pair = pair_of(body)
    modes: list[DispatchRecorder] = []
    for side in pair.sides():
        modes.append(DispatchRecorder(side))
        side.op(torch.ones(2))
    assert modes[0].seen == modes[1].seen
    assert len(modes[1].seen) == 1


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_function_mode_sees_the_operator_once(spelling: str) -> None:
    pair = pair_of(clone)
    seen = recorded(pair, FunctionRecorder, spelling, torch.ones(2), 3, factor=2.0)
    assert sum(what in ("overload", "packet") for what, *_ in seen) == 1
    with FunctionRecorder(pair.fast), took(pair.fast, "torch-function-mode"):
        pair.fast.spelled(spelling)(torch.ones(2))
    check(pair, lambda: call(torch.ones(2)))


def test_a_function_mode_sees_values_before_they_are_converted() -> None:
    pair = pair_of(count_of)
    recorded(pair, FunctionRecorder, "overload", (torch.ones(1),), (1, True))
    recorded(pair, FunctionRecorder, "object", [torch.ones(1)], sizes=torch.Size([1]))


def test_a_device_context_is_a_function_mode_that_the_body_runs_without() -> None:
    def body(x: Tensor) -> Tensor:
        return torch.ones(2)

    pair = pair_of(body)
    with torch.device("meta"):
        outcome = check(pair, lambda: call(torch.ones(2, device="cpu")), reason="torch-function-mode")
    assert outcome.value["device"] == torch.device("cpu")
    assert outcome.received[0]["state"]["function modes"] == 0


def test_a_default_device_is_treated_as_in_pytorch() -> None:
    def body(x: Tensor) -> Tensor:
        return torch.ones(2)

    pair = pair_of(body)
    x = torch.ones(2)
    torch.set_default_device("meta")
    try:
        check(pair, lambda: call(x), reason="torch-function-mode")
    finally:
        torch.set_default_device(None)  # type: ignore[arg-type]


def test_without_torch_function_subclasses_and_modes_are_passed_over_as_in_pytorch() -> None:
    pair = pair_of(clone)
    seen = []
    for side in pair.sides():
        with FunctionRecorder(side) as mode, torch._C.DisableTorchFunction():
            side.op(torch.ones(2))
        with torch._C.DisableTorchFunctionSubclass():
            side.op(torch.ones(2))
        seen.append(mode.seen)
    assert seen[0] == seen[1] == []
    with torch._C.DisableTorchFunctionSubclass():
        check(pair, lambda: call(torch.ones(2)))


def test_the_flop_counter_counts_the_operator_by_its_formula() -> None:
    def body(x: Tensor) -> Tensor:
        return x @ x

    pair = pair_of(body)
    counts = []
    for side in pair.sides():
        with FlopCounterMode(display=False, custom_mapping={side.packet: lambda *args, **kwargs: 1000}) as counter:
            side.op(torch.ones(4, 4))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 1000
    with FlopCounterMode(display=False) as counter, took(pair.fast, "dispatch-mode"):
        pair.fast.op(torch.ones(4, 4))


def test_a_selective_checkpointing_policy_sees_the_operator() -> None:
    import torch.utils.checkpoint as checkpoint

    def body(x: Tensor) -> Tensor:
        return x * 2

    pair = pair_of(body)
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: grad * 2))
    counts = []
    for side in pair.sides():
        side.received.clear()

        def policy(context: Any, op: Any, *args: Any, side: Side = side, **kwargs: Any) -> Any:
            must_save = op is side.overload
            return checkpoint.CheckpointPolicy.MUST_SAVE if must_save else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

        x = torch.ones(2, requires_grad=True)
        checkpoint.checkpoint(
            lambda x, side=side: side.op(x).sin(),
            x,
            use_reentrant=False,
            context_fn=lambda policy=policy: checkpoint.create_selective_checkpoint_contexts(policy),
        ).sum().backward()
        counts.append((len(side.received), x.grad.tolist()))
    assert counts[0] == counts[1]
    assert counts[1][0] == 1


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_profiler_shows_one_event_a_call(spelling: str) -> None:
    pair = pair_of(clone)
    events = []
    for side in pair.sides():
        with torch.profiler.profile() as profiler:
            side.spelled(spelling)(torch.ones(2))
        names = [side.text(event.name) for event in profiler.events()]
        events.append(names)
    assert events[0].count("NAMESPACE::op") == 1
    assert events[1] == events[0]
    with torch.profiler.profile(), took(pair.fast, ""):
        pair.fast.spelled(spelling)(torch.ones(2))
    check(pair, lambda: call(torch.ones(2)))


def test_the_profiler_records_shapes_as_in_pytorch() -> None:
    shapes = []
    for side in pair_of(clone).sides():
        with torch.profiler.profile(record_shapes=True) as profiler:
            side.op(torch.ones(2, 3), 3)
        shapes.append([event.input_shapes for event in profiler.events() if event.name == side.qualname])
    assert shapes[0] == shapes[1]
    assert shapes[1][0][0] == [2, 3]


def test_the_autograd_profiler_sees_a_direct_call() -> None:
    pair = pair_of(clone)
    with torch.autograd.profiler.profile() as profiler:
        pair.reference.op(torch.ones(2))
        with took(pair.fast, ""):
            pair.fast.op(torch.ones(2))
    names = [event.name for event in profiler.function_events]
    assert all(names.count(side.qualname) == 1 for side in pair.sides())


def test_the_profiler_gives_a_call_the_sequence_number_that_pytorch_gives() -> None:
    seen = []
    for side in pair_of(clone).sides():
        for state in (torch.enable_grad, torch.no_grad):
            with state(), torch.autograd.profiler.profile() as profiler:  # type: ignore[no-untyped-call]
                side.op(torch.ones(2))
            seen.append([e.sequence_nr >= 0 for e in profiler.function_events if e.name == side.qualname])
    assert seen[:2] == seen[2:]
    assert seen[2:] == [[True], [False]]


def test_the_profiler_records_a_call_whose_body_raises() -> None:
    def raises(x: Tensor) -> Tensor:
        raise ValueError("from the body")

    pair = pair_of(raises)
    with torch.autograd.profiler.profile() as profiler:
        for side in pair.sides():
            with pytest.raises(ValueError, match="from the body"):
                side.op(torch.ones(2))
    names = [event.name for event in profiler.function_events]
    assert all(names.count(side.qualname) == 1 for side in pair.sides())


def test_the_profiler_records_every_kind_of_argument() -> None:
    def many(
        xs: list[Tensor], n: int, f: float = 1.5, flags: list[int] | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        return xs[0].clone(), [xs[1].clone()]

    shapes = []
    pair = pair_of(many)
    for side in pair.sides():
        with torch.profiler.profile(record_shapes=True) as profiler:
            side.op([torch.ones(2, 3), torch.ones(1)], 3, flags=(1, 2), dtype=torch.float16)
        shapes.append([event.input_shapes for event in profiler.events() if event.name == side.qualname])
    assert shapes[0] == shapes[1]
    with torch.profiler.profile(record_shapes=True), took(pair.fast, ""):
        pair.fast.op([torch.ones(2, 3), torch.ones(1)], 3)


@pytest.mark.parametrize(
    ("enter", "reason"),
    [
        (lambda side: DispatchRecorder(side), "dispatch-mode"),
        (lambda side: FunctionRecorder(side), "torch-function-mode"),
        (lambda side: torch.inference_mode(), ""),
    ],
    ids=["dispatch mode", "function mode", "inference mode"],
)
def test_the_modes_of_one_thread_do_not_reach_another(enter: Callable[[Side], Any], reason: str) -> None:
    pair = pair_of(clone)
    results: list[Tensor] = []

    def elsewhere() -> None:
        results.append(pair.fast.op(torch.ones(2)))

    with enter(pair.fast):
        with took(pair.fast, ""):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        with took(pair.fast, reason):
            pair.fast.op(torch.ones(2))
    assert not results[0].is_inference()


def test_modes_entered_and_left_between_calls_are_never_remembered() -> None:
    pair = pair_of(clone)
    for enter, reason in (
        (nullcontext, ""),
        (lambda: DispatchRecorder(pair.fast), "dispatch-mode"),
        (nullcontext, ""),
        (lambda: FunctionRecorder(pair.fast), "torch-function-mode"),
        (nullcontext, ""),
        (torch.profiler.profile, ""),
        (torch.no_grad, ""),
    ):
        with enter(), took(pair.fast, reason):  # type: ignore[attr-defined]
            pair.fast.op(torch.ones(2))


def test_reasons_combined_still_give_pytorchs_outcome() -> None:
    pair = pair_of(clone)
    seen = []
    for side in pair.sides():
        with ExitStack() as stack:
            function = stack.enter_context(FunctionRecorder(side))
            dispatch = stack.enter_context(DispatchRecorder(side))
            stack.enter_context(torch.profiler.profile())
            result = side.op(torch.ones(2, requires_grad=True), factor=2)
        seen.append((function.seen, dispatch.seen, result.requires_grad))
    assert seen[0] == seen[1]


def test_the_python_dispatcher_is_thread_state() -> None:
    from torch._dispatch.python import enable_python_dispatcher

    pair = pair_of(clone)
    with enable_python_dispatcher():
        check(pair, lambda: call(torch.ones(2)), reason="thread-state")
    check(pair, lambda: call(torch.ones(2)))


def test_excluded_dispatch_keys_are_honoured() -> None:
    pair = pair_of(clone)
    autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
    with torch._C._ExcludeDispatchKeyGuard(autograd):
        check(pair, lambda: call(torch.ones(2)))
        check(pair, lambda: call(torch.ones(2, requires_grad=True)))
    with torch._C._AutoDispatchBelowAutograd():
        check(pair, lambda: call(torch.ones(2)))
        check(pair, lambda: call(torch.ones(2, requires_grad=True)))


def test_version_bumps_below_adinplaceorview_are_left_out_as_in_pytorch() -> None:
    def body(x: Tensor) -> None:
        pass

    pair = pair_of(body, mutates_args={"x"})
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)):
        outcome = check(pair, lambda: call(torch.ones(2)))
    assert outcome.inputs_after["args"][0]["version"] == 0


def test_deterministic_and_warn_settings_change_nothing() -> None:
    pair = pair_of(clone)
    torch.use_deterministic_algorithms(True)
    try:
        check(pair, lambda: call(torch.ones(2)))
    finally:
        torch.use_deterministic_algorithms(False)
