"""A call has the instructions that it had when they were last recorded (benchmarks/results/instructions.json)."""

import functools
import json

import pytest

import instructions

RECORDED = json.loads(instructions.RECORDED.read_text())
# Both ways: what got faster is worth recording, and later holding.
ALLOWED = 0.10


@functools.cache
def counted() -> dict[str, dict[str, int]]:
    return instructions.count()


@pytest.fixture
def same_environment() -> None:
    """Counts of another compiler, Python or torch are other counts, which no limit can tell from a mistake."""
    if not instructions.VALGRIND.exists():
        pytest.skip("no valgrind: `make test` found no Debian package of it, nor one on the machine")
    here = instructions.environment()
    differing = [
        f"{name}: {value} here, {RECORDED['environment'].get(name)} when they were recorded"
        for name, value in here.items()
        if value != RECORDED["environment"].get(name)
    ]
    if differing:
        pytest.skip("instruction counts can't be compared: " + "; ".join(differing))


def test_every_shape_is_recorded() -> None:
    assert set(instructions.names()) == set(RECORDED["instructions per call"])


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("same_environment")
@pytest.mark.parametrize("shape", RECORDED["instructions per call"])
def test_a_call_has_as_many_instructions_as_recorded(shape: str) -> None:
    recorded, here = RECORDED["instructions per call"][shape], counted()[shape]
    compared = [("the call", recorded["operator"], here["operator"])]
    if not shape.startswith("gradient"):  # whose cost beside a Function's is next to nothing, or less
        compared.append(("what it costs beyond the plain function", cost_of(recorded), cost_of(here)))
    for what, expected, found in compared:
        change = found / expected - 1
        assert abs(change) <= ALLOWED, (
            f"{what}: {found} instructions, {expected} recorded ({change:+.0%}). If that is meant: make instructions"
        )


def cost_of(counts: dict[str, int]) -> int:
    return counts["operator"] - counts["plain"]
