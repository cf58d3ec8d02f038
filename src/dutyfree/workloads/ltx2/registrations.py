"""The ways to register ``trtllm::tunable_fp4_quantize`` and ``trtllm::nvfp4_gemm`` that the workloads compare.

Their bodies are Python functions, as those of TensorRT-LLM are, and run the kernels of :mod:`dutyfree.ops`, which stay
reachable as ``dutyfree::…``. The names are the same for each registration, as a model's graph and what matches patterns
in it expect, so that a process has one of them.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Optional

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

import dutyfree
from dutyfree import _settings

NAMESPACE = "trtllm"
NAMES = ("tunable_fp4_quantize", "nvfp4_gemm")
PLAIN = "plain"
# PLAIN is what the others are compared with: the bodies, called as the Python functions that they are.
REGISTRATIONS = ("custom_op", "library", "accelerated", "dutyfree")

# Libraries unregister their operators when they are collected.
_libraries: list[torch.library.Library] = []
_registered: dict[str, "Operators"] = {}


@dataclass(frozen=True)
class Bodies:
    """The functions behind the two operators."""

    quantize: Callable[..., list[Tensor]]
    gemm: Callable[..., Tensor]


@dataclass(frozen=True)
class Operators:
    """What a program calls: the two operators of a registration, each in the way that users of it call it."""

    registration: str
    quantize: Callable[..., list[Tensor]]
    gemm: Callable[..., Tensor]


def register(registration: str) -> Operators:
    """Register the two operators in this process, and have :mod:`dutyfree.ops` and its ``NVFP4Linear`` call them.

    Args:
        registration: One of ``REGISTRATIONS``, or ``PLAIN`` for no operators.

    Raises:
        ValueError: There is no such registration.
        RuntimeError: This process has another one already, or operators of these names: :mod:`dutyfree.ops`, which was
            imported before, has registered its own, or TensorRT-LLM has.
    """
    check_registration(registration)
    if registration in _registered:
        return _registered[registration]
    if _registered:
        raise RuntimeError(
            f"the operators of this process are registered by {next(iter(_registered))!r}; {registration!r} takes "
            "another process, since their names are the same."
        )
    if "dutyfree.ops" in sys.modules:
        raise RuntimeError(
            f"dutyfree.ops is imported, so that {NAMESPACE}::nvfp4_gemm is registered already; "
            f"register({registration!r}) takes a process where it comes first."
        )
    taken = [name for name in NAMES if torch._C._jit_get_schemas_for_operator(f"{NAMESPACE}::{name}")]
    if taken:
        raise RuntimeError(
            f"this process has {' and '.join(f'{NAMESPACE}::{name}' for name in taken)} already, most likely "
            f"TensorRT-LLM's; register({registration!r}) takes a process without them."
        )
    operators = define(registration, NAMESPACE, KERNEL_BODIES)
    # It leaves operators of TensorRT-LLM's names in place. Processes that this one starts should not.
    with _settings.variable("DUTYFREE_TRTLLM_OPS", "keep"):
        from dutyfree import ops
    kernels.quantize, kernels.gemm = ops.nvfp4.own_quantize, ops.nvfp4.own_gemm
    if registration in ("custom_op", "library"):
        dutyfree.restore(NAMESPACE)  # importing dutyfree.ops has accelerated them
    ops.tunable_fp4_quantize, ops.nvfp4_gemm = operators.quantize, operators.gemm  # type: ignore[assignment]
    _registered[registration] = operators
    return operators


def check_registration(registration: str) -> None:
    """ValueError where there is no such registration."""
    known = (PLAIN, *REGISTRATIONS)
    if registration not in known:
        raise ValueError(f"{registration!r} is no registration: there are {', '.join(known)}.")


def define(registration: str, namespace: str, bodies: Bodies) -> Operators:
    """Register two bodies as ``namespace::tunable_fp4_quantize`` and ``namespace::nvfp4_gemm``."""
    if registration == PLAIN:
        return Operators(PLAIN, bodies.quantize, bodies.gemm)
    make: dict[str, Callable[[str, Callable[..., Any]], Callable[..., Any]]]
    make = {"custom_op": _custom_op, "library": _library, "accelerated": _accelerated, "dutyfree": _dutyfree}
    quantize, gemm = (
        make[registration](f"{namespace}::{name}", body)
        for name, body in zip(NAMES, (bodies.quantize, bodies.gemm), strict=True)
    )
    return Operators(registration, quantize, gemm)


def _custom_op(name: str, body: Callable[..., Any]) -> CustomOpDef:
    operator = torch.library.custom_op(name, body, mutates_args=())
    operator.register_fake(body)  # the kernels have fakes
    return operator


def _accelerated(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    operator = _custom_op(name, body)
    dutyfree.accelerate(operator)
    return operator


def _dutyfree(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    operator = dutyfree.fast_custom_op(name, body, mutates_args=())
    operator.register_fake(body)
    return operator


def _library(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    namespace, _, operator = name.partition("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    library.define(operator + torch.library.infer_schema(body, mutates_args=()))
    library.impl(operator, body, "CompositeExplicitAutograd")
    torch.library.register_fake(name, body, lib=library)
    overload: Callable[..., Any] = getattr(getattr(torch.ops, namespace), operator).default
    return overload


@dataclass
class Kernels:
    """What ``KERNEL_BODIES`` call, which a benchmark may replace.

    :func:`register` puts those of :mod:`dutyfree.ops` here, which is imported after the operators are registered.

    Attributes:
        quantize: Called with all arguments of ``tunable_fp4_quantize``, by position.
        gemm: Called with all arguments of ``nvfp4_gemm``, by position.
    """

    quantize: Callable[..., list[Tensor]]
    gemm: Callable[..., Tensor]


def _before_register(*args: object) -> NoReturn:
    raise RuntimeError("register() comes before the first call.")


kernels = Kernels(_before_register, _before_register)


def _tunable_fp4_quantize(
    input: Tensor, input_scale: Tensor, scaling_vector_size: int = 16, is_sf_swizzled_layout: bool = False
) -> list[Tensor]:
    return kernels.quantize(input, input_scale, scaling_vector_size, is_sf_swizzled_layout)


def _nvfp4_gemm(
    act_fp4: Tensor,
    weight: Tensor,
    act_sf: Tensor,
    weight_scale: Tensor,
    alpha: Tensor,
    output_dtype: torch.dtype,
    output_buffer_kind: int = 0,
    allowed_backends: str = "cutlass,cublaslt,cuda_core",
    group: Optional[Sequence[int]] = None,  # noqa: UP045  (infer_schema's own spelling)
    bias: Optional[Tensor] = None,  # noqa: UP045
) -> Tensor:
    return kernels.gemm(
        act_fp4,
        weight,
        act_sf,
        weight_scale,
        alpha,
        output_dtype,
        output_buffer_kind,
        allowed_backends,
        group,
        bias,
    )


# What TensorRT-LLM's functions do: they run a kernel.
KERNEL_BODIES = Bodies(_tunable_fp4_quantize, _nvfp4_gemm)
