"""Keeps the compiler's caches from mistaking one schema of an operator for another.

AOTAutograd and Inductor keep compiled graphs, on disk too, under a hash of the graph's code. The code names an
operator, but does not say which arguments it mutates; a graph that was compiled when it mutated none (and so had no
need to be called) is used again when it does (PyTorch issue 187319). Here the schemas of the operators that dutyfree
made become part of the hash.
"""

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._library import custom_ops
from torch._library.custom_ops import CustomOpDef
from torch._library.utils import is_builtin
from torch._ops import OpOverload, OpOverloadPacket

import dutyfree_auto
from dutyfree import _front

_MODULE = "torch._inductor.codecache"
_HASHED = "FxGraphHashDetails"  # AOTAutogradCacheDetails derives from it
_MARK = "dutyfree_schemas"


@functools.cache  # the first call is all that it takes
def distinguish_schemas() -> None:
    """Make the schemas part of the hash, now or when PyTorch imports its cache. Calling it again changes nothing."""
    # To import it here would double the time that `import dutyfree` takes.
    dutyfree_auto.after_import(_MODULE, _patch)


def _patch(module: types.ModuleType) -> None:
    details: Any = getattr(module, _HASHED, None)
    if details is None or hasattr(details, _MARK):
        return
    original = details.__init__

    def __init__(self: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        original(self, gm, *args, **kwargs)
        schemas = _schemas_that_count(gm)
        if schemas:
            setattr(self, _MARK, schemas)

    setattr(details, _MARK, ())
    details.__init__ = __init__


def _schemas_that_count(gm: torch.fx.GraphModule) -> list[str]:
    """The schemas of dutyfree's operators that a graph calls, itself or through another operator.

    AOTAutograd hashes a graph before it traces the formulas of the operators in it. Which operators a formula (or a
    vmap rule) calls can't be told, so a graph with one counts all of dutyfree's.
    """
    overloads = set(_custom_overloads(gm))
    if any(_calls_others(overload) for overload in overloads):
        definitions = [reference() for reference in custom_ops.OPDEFS.valuerefs()]
        overloads |= {definition._opoverload for definition in definitions if definition is not None}
    return sorted(
        f"{overload._schema} {sorted(map(str, overload.tags))}"
        for overload in overloads
        if _front.front_of(overload) is not None
    )


def _custom_overloads(gm: torch.fx.GraphModule) -> Iterator[OpOverload]:
    """The operators in a graph that are not PyTorch's own: called, or given to a higher-order operator."""
    for graph in (module.graph for module in gm.modules() if isinstance(module, torch.fx.GraphModule)):
        for node in graph.nodes:
            for value in (node.target, *node.args, *node.kwargs.values()):
                op = value._opoverload if isinstance(value, CustomOpDef) else value
                overloads = [op] if isinstance(op, OpOverload) else []
                if isinstance(op, OpOverloadPacket):
                    overloads = [getattr(op, name) for name in op.overloads()]
                yield from (overload for overload in overloads if not is_builtin(overload))


def _calls_others(overload: OpOverload) -> bool:
    """Whether a formula or a rule of the operator may call other operators. Only custom_op's tells."""
    definition = custom_ops.OPDEFS.get(f"{overload.namespace}::{overload._opname}")
    return definition is None or definition._backward_fn is not None or definition._vmap_fn is not None
