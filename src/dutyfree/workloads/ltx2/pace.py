"""Progress of a run in words: which step, and how long the rest takes."""

import time
from collections.abc import Callable

# Seconds; a run that ends sooner says nothing, and a longer one not more often than EVERY.
PATIENCE = 3.0
EVERY = 1.0


class Pace:
    """Says "step 3 of 40, 12 s left", of runs that take more than a few seconds.

    Args:
        steps: Of the run.
        progress: What takes the words.
    """

    def __init__(self, steps: int, progress: Callable[[str], None]) -> None:
        self._steps, self._progress = steps, progress
        self._begin: float | None = None
        self._next = 0.0

    def reached(self, steps: int) -> None:
        """So many steps are finished; 0 when the first begins. More often than once a step is fine."""
        now = time.monotonic()
        if self._begin is None:
            self._begin, self._next = now, now + PATIENCE
        elif 0 < steps < self._steps and now >= self._next:
            left = (now - self._begin) / steps * (self._steps - steps)
            self._progress(f"step {steps} of {self._steps}, {left:.0f} s left")
            self._next = now + EVERY
