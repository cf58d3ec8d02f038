"""The published figures that ``dutyfree bench ltx2`` puts beside its own: a host program's for LTX-2 with NVFP4.

Source: https://github.com/NVIDIA/TensorRT-LLM/pull/13149, which registers its operators by a ``define`` + ``impl``
helper named ``fast_custom_op``; LTX-2 at 736 x 1280 pixels and 121 frames, 40 steps, on one and on eight B200, PyTorch
2.10.
"""

from dataclasses import dataclass

from dutyfree.bench.ltx2.cases import COMPILED, CUDA_GRAPHS, EAGER
from dutyfree.workloads.ltx2.trace import GEMM_CALLS, QUANTIZE_CALLS

SOURCE = "B200, PyTorch 2.10"

# Microseconds that a call of an operator whose body is x.clone() takes beyond the plain function, by registration.
# Their fast_custom_op, a helper around Library, is what dutyfree takes the place of.
TAX_US = {"custom_op": 7.02, "library": 1.63, "dutyfree": 1.44}

CALLS = QUANTIZE_CALLS + GEMM_CALLS


@dataclass(frozen=True)
class HostTime:
    """A step's host time in milliseconds, and the share of it that the operators' calls of 12 µs had."""

    host_ms: float
    share: float


# By the case that measures the same here.
OPERATOR_US = 12.0
HOST_TIMES = {EAGER: HostTime(1007, 0.025), COMPILED: HostTime(548, 0.046), CUDA_GRAPHS: HostTime(193, 0.13)}


@dataclass(frozen=True)
class EndToEnd:
    """Seconds that 40 steps took end to end, before and after, with custom_op and with the helper."""

    gpus: int
    before_s: float
    after_s: float

    @property
    def change(self) -> float:
        return self.after_s / self.before_s - 1

    @property
    def step_ms(self) -> float:
        return self.before_s / STEPS * 1000

    @property
    def saved_ms(self) -> float:
        """A step."""
        return (self.before_s - self.after_s) / STEPS * 1000


STEPS = 40
RUNS = {1: EndToEnd(1, 33.95, 33.61), 8: EndToEnd(8, 10.21, 9.67)}  # eight: classifier-free guidance 2 x Ulysses 4
