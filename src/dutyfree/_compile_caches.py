"""Keeps the compiler's caches from mistaking one schema of an operator for another.

AOTAutograd and Inductor keep compiled graphs, on disk too, under a hash of the graph's code. The code names an
operator, but does not say which arguments it mutates; a graph that was compiled when it mutated none (and so had no
need to be called) is used again when it does (PyTorch issue 187319). Here the schemas of the operators that dutyfree
made become part of the hash.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dutyfree import _front

_MODULE = "torch._inductor.codecache"
_HASHED = "FxGraphHashDetails"  # AOTAutogradCacheDetails derives from it
_MARK = "dutyfree_schemas"


def distinguish_schemas() -> None:
    """Make the schemas part of the hash, now or when PyTorch imports its cache. Calling it again changes nothing."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _patch(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # To import it here would double the time that `import dutyfree` takes.
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module in the place of Python's own finder, patches it, and is gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                _patch(module)

            loader.exec_module = exec_module
        return spec


def _patch(module: types.ModuleType) -> None:
    details: Any = getattr(module, _HASHED, None)
    if details is None or hasattr(details, _MARK):
        return
    original = details.__init__

    def __init__(self: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        original(self, gm, *args, **kwargs)
        schemas = sorted(set(_schemas(gm)))
        if schemas:
            setattr(self, _MARK, schemas)

    setattr(details, _MARK, ())
    details.__init__ = __init__


def _schemas(gm: torch.fx.GraphModule) -> Iterator[str]:
    """The schemas of dutyfree's operators in a graph: called, or given to a higher-order operator."""
    for graph in (module.graph for module in gm.modules() if isinstance(module, torch.fx.GraphModule)):
        for node in graph.nodes:
            for value in (node.target, *node.args, *node.kwargs.values()):
                if not isinstance(value, (str, torch.fx.Node)) and _front.front_of(value) is not None:
                    for overload in _overloads(value):
                        yield f"{overload._schema} {sorted(map(str, overload.tags))}"


def _overloads(op: Any) -> list[Any]:
    if isinstance(op, torch._ops.OpOverloadPacket):
        return [getattr(op, name) for name in op.overloads()]
    return [getattr(op, "_opoverload", op)]
