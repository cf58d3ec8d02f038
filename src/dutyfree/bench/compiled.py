"""Operators in code that Inductor generates: a function of fifty calls, run eagerly and compiled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dutyfree.bench.calls import CASES, Case, clone_call
from dutyfree.bench.candidates import build, require_path
from dutyfree.bench.measure import Block, Call, timed_block

CALLS = 50
EAGER, COMPILED = f"compile{CALLS}_eager", f"compile{CALLS}_compiled"


def chain(operator: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """A new function each time, so that each candidate is compiled and specialised by itself."""
    namespace: dict[str, Any] = {"operator": operator}
    body = "".join("    x = operator(x)\n" for _ in range(CALLS))
    exec(f"def chain(x):\n{body}    return x\n", namespace)
    function: Callable[[Tensor], Tensor] = namespace["chain"]
    return function


def blocks(device: torch.device) -> dict[tuple[str, str], Block]:
    """A block for each (case, candidate). The plain function is only run eagerly: Inductor would remove its clones."""
    case: Case = next(case for case in CASES if case.name == "clone")
    candidates = build(case)
    call: Call = clone_call(device)
    require_path("direct", EAGER, "dutyfree.object", candidates["dutyfree.object"], call)
    result = {(EAGER, "plain"): timed_block(chain(candidates["plain"]), call)}
    for name in ("custom_op", "dutyfree.object"):
        operator = candidates[name]
        if name not in _has_fake:
            operator.register_fake(torch.empty_like)  # type: ignore[attr-defined]
            _has_fake.add(name)
        compiled = torch.compile(chain(operator), fullgraph=True)
        compiled(*call.args)
        result[EAGER, name] = timed_block(chain(operator), call)
        result[COMPILED, name] = timed_block(compiled, call)
    return result


_has_fake: set[str] = set()
