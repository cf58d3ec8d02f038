"""Accelerates every operator of a program that sets DUTYFREE_AUTO=1, without a change to it.

``dutyfree_auto.pth`` imports this module whenever Python starts. It imports neither torch nor dutyfree: a program that
does not use torch must not pay for it. So it waits for the program to import torch.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any


def after_import(name: str, action: Callable[[types.ModuleType], None]) -> None:
    """Call ``action`` with the module of that name: now if it is imported already, else each time it is executed."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the finders after it do, and acts once it is imported.

    It stays: who asks for the spec may import nothing, an import may fail and be tried again, and another thread may be
    going through the list.
    """

    def __init__(self, name: str, action: Callable[[types.ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        finders = sys.meta_path[:]
        others = finders[finders.index(self) + 1 :] if self in finders else finders
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                self._action(module)

            loader.exec_module = exec_module
        return spec


def _accelerate(torch: types.ModuleType) -> None:
    try:
        import dutyfree

        dutyfree.accelerate()
    except Exception as error:  # the program is not to fail for it
        warnings.warn(f"DUTYFREE_AUTO: nothing is accelerated: {error}", stacklevel=2)


if os.environ.get("DUTYFREE_AUTO") == "1":
    after_import("torch", _accelerate)
