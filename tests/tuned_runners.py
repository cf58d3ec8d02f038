"""Runners for the tests of the autotuner: their tactics take the time that the test gives them."""

import itertools
import time
from typing import Any

from torch import Tensor

from dutyfree import AutoTuner, _core

_numbers = itertools.count()


def unique_operator() -> str:
    """A name that no other test's operator has: operators live as long as the process."""
    return f"tuned::op{next(_numbers)}"


class Runner:
    """Counts its runs by tactic. A tactic takes its milliseconds, or raises what stands in their place."""

    def __init__(self, name: str, **tactics: float | BaseException) -> None:
        self.name = name
        self.costs = tactics
        self.runs: dict[str, int] = dict.fromkeys(tactics, 0)
        self.asked = 0

    def tactics(self, *tensors: Tensor | None) -> list[str]:
        self.asked += 1
        return list(self.costs)

    def __call__(self, *tensors: Tensor | None, tactic: Any) -> None:
        self.runs[tactic] += 1
        cost = self.costs[tactic]
        if isinstance(cost, BaseException):
            raise cost
        time.sleep(cost / 1000)


def operator(*runners: Any, name: str | None = None, **options: Any) -> _core.RunnerChooser:
    return AutoTuner.get().operator(name or unique_operator(), list(runners), **options)


def choices_of(operator: _core.RunnerChooser) -> dict[tuple[int, ...], str]:
    return {choice.dims: choice.tactic for choice in AutoTuner.get().choices() if choice.operator == operator.name}
