"""A call has the instructions that it had when they were last recorded (benchmarks/results/instructions.json)."""

import functools
import json

import pytest

import instruction_counts

RECORDED = json.loads(instruction_counts.RECORDED.read_text())
# Both ways: what got faster is worth recording, and later holding.
ALLOWED = 0.10


@functools.cache
def counted() -> dict[str, dict[str, int]]:
    return instruction_counts.count()


@pytest.fixture
def same_environment() -> None:
    """Counts of another compiler, Python or torch are other counts, which no limit can tell from a mistake."""
    here = instruction_counts.environment()
    differing = [
        f"{name}: {value} here, {RECORDED['environment'].get(name)} when they were recorded"
        for name, value in here.items()
        if value != RECORDED["environment"].get(name)
    ]
    if differing:
        pytest.skip("instruction counts can't be compared: " + "; ".join(differing))


def test_every_shape_is_recorded() -> None:
    assert {shape.name for shape in instruction_counts.shapes()} == set(RECORDED["instructions per call"])


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("same_environment")
@pytest.mark.parametrize("shape", RECORDED["instructions per call"])
def test_a_call_has_as_many_instructions_as_recorded(shape: str) -> None:
    recorded, here = RECORDED["instructions per call"][shape], counted()[shape]
    for what, expected, found in (
        ("the call", recorded["direct"], here["direct"]),
        ("what it costs beyond the plain function", cost_of(recorded), cost_of(here)),
    ):
        change = found / expected - 1
        assert abs(change) <= ALLOWED, (
            f"{what}: {found} instructions, {expected} recorded ({change:+.0%}). If that is meant: make instructions"
        )


def cost_of(counts: dict[str, int]) -> int:
    return counts["direct"] - counts["plain"]
