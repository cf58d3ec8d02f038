"""The names in the results of ``dutyfree bench ltx2``: its cases, and the registrations that are timed in each."""

from typing import Any

from dutyfree.workloads.ltx2 import PLAIN, REGISTRATIONS

TIMED = (PLAIN, *REGISTRATIONS)
TRACE, EAGER, COMPILED, CUDA_GRAPHS = "trace", "model", "model_compiled", "model_cuda_graphs"
# What torch.compile gets for a compiled case.
OPTIONS: dict[str, dict[str, Any]] = {COMPILED: {}, CUDA_GRAPHS: {"mode": "reduce-overhead"}}
_PROCESSES = "model_processes"
# In words, code in backticks.
REGISTRATION_TITLES = {
    PLAIN: "plain function",
    "custom_op": "`torch.library.custom_op`",
    "library": "`Library.define` + `impl`",
    "accelerated": "`custom_op`, accelerated",
    "dutyfree": "`dutyfree.fast_custom_op`",
}
_CASE_TITLES = {EAGER: "eager", COMPILED: "torch.compile", CUDA_GRAPHS: "with CUDA graphs"}


def processes_case(processes: int) -> str:
    """Runs that so many processes share."""
    return f"{_PROCESSES}{processes}"


def title_of(case: str) -> str:
    """A case of the model in words."""
    return _CASE_TITLES.get(case) or f"eager, {case.removeprefix(_PROCESSES)} processes"
