"""What a tuned choice depends on beside the operator: versions, processor, number of threads, device."""

import importlib
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import torch

Machine = dict[str, Any]

# Instructions that kernels are written for. Others differ between processors without a kernel that cares.
_FEATURES = {
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16", "avx512vbmi", "avx512_vbmi2"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2"),
}


def describe() -> Machine:
    """This machine, in JSON's types: equal descriptions may use each other's choices."""
    cpu = _cpu()
    return {
        "dutyfree": _version(),
        "torch": torch.__version__,
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "features": sorted(_FEATURES & set((cpu.get("flags") or cpu.get("Features") or "").split())),
        "kernels": torch.backends.cpu.get_cpu_capability(),  # torch's own, which ATEN_CPU_CAPABILITY limits
        "threads": torch.get_num_threads(),
        "device": _device(),
    }


def difference(theirs: object, ours: Machine) -> str | None:
    """In what another description differs from this machine's, in words; None where it does not.

    Devices differ only where both name one: a process that has not used CUDA does not know its device, and has no
    choices for it.
    """
    if not isinstance(theirs, dict):
        return "it does not say on which machine it was made"
    for name, value in ours.items():
        if name == "device" and (value is None or ("device" in theirs and theirs["device"] is None)):
            continue
        if theirs.get(name) != value:
            return f"{name} was {_shown(theirs.get(name))} and is {_shown(value)} here"
    return None


def union(theirs: object, ours: Machine) -> Machine:
    """This machine, with the device that a description without a difference names where this process knows none."""
    assert isinstance(theirs, dict)
    return ours if ours["device"] is not None else {**ours, "device": theirs.get("device")}


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cpu() -> dict[str, str]:
    """The first processor's lines in /proc/cpuinfo."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def _version() -> str:
    """The extension's; the metadata's where an older CMake wrote _build_info; an uninstalled checkout has none."""
    # By name: type checkers of a checkout that was not built don't see the module, which CMake writes.
    built: str | None = getattr(importlib.import_module("dutyfree._build_info"), "DUTYFREE_VERSION", None)
    if built is not None:
        return built
    try:
        return importlib.metadata.version("dutyfree")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _device() -> dict[str, str] | None:
    """The CUDA device, once the process uses CUDA: asking for it would begin that, in processes that never would."""
    if not torch.cuda.is_initialized():
        return None
    major, minor = torch.cuda.get_device_capability()
    return {"name": torch.cuda.get_device_name(), "capability": f"{major}.{minor}"}
