"""Looks into functions, and makes them again over other variables."""

import types
from typing import Any


def closure_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """The cells of the variables that ``function`` takes from the functions around it, by name."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def made_again(
    function: types.FunctionType, names: dict[str, Any] | None = None, /, **variables: Any
) -> types.FunctionType:
    """``function``'s own code, where some of those variables have other values, or the global names are ``names``."""
    cells = closure_of(function) | {name: types.CellType(value) for name, value in variables.items()}
    # No generator here: it would need a cell for `cells`, and CPython 3.11 loses the references to a function's
    # arguments when memory runs out as it makes a cell.
    closure = tuple(map(cells.__getitem__, function.__code__.co_freevars))
    names = function.__globals__ if names is None else names
    made = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
