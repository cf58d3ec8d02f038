"""What profilers and execution traces show of recorded calls and their nodes."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradients_alike import alike, step, steps, with_product, with_products
from parity import Side

CPU = [torch.profiler.ProfilerActivity.CPU]


def events_of(side: Side, run: Callable[[Side], Any], **options: Any) -> Any:
    with torch.profiler.profile(activities=CPU, **options) as profiler:
        run(side)
    events = [event for event in profiler.events() if not event.name.startswith(("Profiler", "Unrecognized"))]
    first = min((event.sequence_nr for event in events if event.sequence_nr >= 0), default=0)

    def parents(event: Any) -> list[str]:
        return [] if event.cpu_parent is None else [side.text(event.cpu_parent.name), *parents(event.cpu_parent)]

    return [
        (
            side.text(event.name),
            parents(event),
            event.sequence_nr - first if event.sequence_nr >= 0 else None,
            event.scope,
            str(event.input_shapes),
        )
        for event in sorted(events, key=lambda event: (event.time_range.start, -event.time_range.end))
    ]


@pytest.mark.parametrize("shapes", [False, True])
def test_the_profiler_shows_the_same_events(shapes: bool) -> None:
    for pair, run in ((with_product(), step), (with_products(), steps)):
        outcome = alike(pair, lambda side, run=run: events_of(side, run, record_shapes=shapes))
        assert "NAMESPACE::op" in str(outcome)
        assert "GeneratedBackwardFor_NAMESPACE_op_defaultBackward" in str(outcome)


def test_the_legacy_profiler_sees_the_same() -> None:
    def legacy(side: Side) -> Any:
        with torch.autograd.profiler.profile(use_kineto=False) as profiler:
            step(side)
        return sorted(Counter(side.text(event.name) for event in profiler.function_events).items())

    alike(with_product(), legacy)


def test_execution_traces_hold_the_same_nodes(tmp_path: Any) -> None:
    def run(side: Side, forward_and_backward: Callable[[Side], Any]) -> Any:
        observer = torch.profiler.ExecutionTraceObserver()
        observer.register_callback(str(tmp_path / "trace.json"))
        with torch.profiler.profile(activities=CPU, execution_trace_observer=observer):
            forward_and_backward(side)
        nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
        return [
            (side.text(node["name"]), node["inputs"]["shapes"], node["inputs"]["types"], node["outputs"]["types"])
            for node in nodes
        ]

    alike(with_product(), lambda side: run(side, step))
    alike(with_products(), lambda side: run(side, steps))
