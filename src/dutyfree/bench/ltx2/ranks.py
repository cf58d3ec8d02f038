"""From one rank's host time to everyone's: what a call's tax costs where N ranks wait for each other at all-to-alls.

A step of N ranks takes, when the host is what it waits for,

    step(N) = a + b / N,     saved(N) = s * (1 + c * m(N)).

b is work that N ranks divide, the GPU's; a is what each rank does all of, the host's calls and communication. s is
what a rank's host saves by a cheaper registration, the same for any N. Ranks meet at each all-to-all, where all wait
for the slowest: if what is saved between two of them varies from rank to rank with a standard deviation of c times its
mean, the slowest of N has m(N) = E[max of N standard normal values] standard deviations more than the mean, and so
all have.

What that takes for granted: the host is what the ranks wait for, at every all-to-all; ranks are alike, and their
jitter is normal and independent; communication costs the same for any N. a and b follow from the published steps of 1
and 8 GPUs, s from the published saving of 1, and c from that of 8: so the row of 8 ranks is no prediction, and those
between are.
"""

import math
from dataclasses import dataclass

from dutyfree.bench.ltx2 import published

# Numbers of ranks that the page and the results have a row for.
RANKS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Model:
    """The constants above: a, b and s in milliseconds a step, c without a unit."""

    fixed_ms: float
    divided_ms: float
    saved_ms: float
    variation: float

    def step_ms(self, ranks: int) -> float:
        return self.fixed_ms + self.divided_ms / ranks

    def change(self, ranks: int, *, waiting: bool = True) -> float:
        """The step's, as a fraction below zero; without waiting as if c were 0."""
        more = 1 + self.variation * expected_max_normal(ranks) if waiting else 1
        return -self.saved_ms * more / self.step_ms(ranks)


def fitted(one: published.EndToEnd = published.RUNS[1], many: published.EndToEnd = published.RUNS[8]) -> Model:
    """The model through two published runs."""
    divided = (one.step_ms - many.step_ms) / (1 / one.gpus - 1 / many.gpus)
    fixed = one.step_ms - divided / one.gpus
    variation = (many.saved_ms / one.saved_ms - 1) / expected_max_normal(many.gpus)
    return Model(fixed, divided, one.saved_ms, variation)


def expected_max_normal(count: int) -> float:
    """E[max] of ``count`` independent standard normal values: 0, 0.56, 1.03 and 1.42 for 1, 2, 4 and 8.

    The integral over x of x * count * pdf(x) * cdf(x) ** (count - 1), by the trapezoidal rule.
    """
    if count < 1:
        raise ValueError(f"count is {count}; at least 1 is expected.")
    width, reach = 1e-3, 10.0
    total = 0.0
    for index in range(round(2 * reach / width) + 1):
        x = index * width - reach
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        total += x * count * density * (0.5 * math.erfc(-x / math.sqrt(2))) ** (count - 1)
    return total * width
