"""Hypothesis strategies for weighted choices."""

from collections.abc import Callable, Sequence
from typing import Any

try:
    import hypothesis.strategies as st
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dutyfree check --fuzz generates its cases with Hypothesis, which is not installed: pip install 'dutyfree[check]'"
    ) from error

Draw = Callable[[st.SearchStrategy[Any]], Any]


def weighted(*choices: tuple[int, Any]) -> st.SearchStrategy[Any]:
    """One of the values, as often as its weight says; shrinks to the first."""
    return one_of([value for weight, value in choices for _ in range(weight)])


def one_of(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of the values; shrinks to the first."""
    return st.sampled_from(values)
