"""Weighted choices, made by Hypothesis."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

try:
    from hypothesis.internal.conjecture.data import ConjectureData
    from hypothesis.strategies import SearchStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "`dutyfree check --fuzz` generates its cases with Hypothesis, which is not installed here. Install it with "
        "`pip install 'dutyfree[check]'`."
    ) from error

T = TypeVar("T")


class Draw:
    """Makes choices; Hypothesis records them, and shrinks each towards its first value."""

    def __init__(self, data: ConjectureData) -> None:
        self._data = data

    def __call__(self, values: Sequence[T]) -> T:
        """One of the values."""
        return values[self.below(len(values))]

    def below(self, count: int) -> int:
        """A number from 0 to ``count - 1``."""
        return self._data.draw_integer(0, count - 1)

    def rarely(self, count: int) -> bool:
        """True once in ``count`` times; shrinks to False."""
        return self.below(count) == count - 1


class Drawn(SearchStrategy[T], Generic[T]):
    """The strategy whose values ``build`` makes by choices.

    It stands below Hypothesis' public strategies on purpose. Those mark every choice as a part of its own, and
    Hypothesis 6.170 then spends five of six examples on copying one part over another: of 93 operators 26 were
    different. Here every one is.
    """

    def __init__(self, build: Callable[[Draw], T]) -> None:
        super().__init__()
        self._build = build

    def do_draw(self, data: ConjectureData) -> T:
        return self._build(Draw(data))


def weighted(*choices: tuple[int, Any]) -> tuple[Any, ...]:
    """Every value as often as its weight says."""
    return tuple(value for weight, value in choices for _ in range(weight))
