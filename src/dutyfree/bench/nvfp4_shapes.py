"""The products that ``dutyfree bench nvfp4`` times: what each computes and moves, and the ratios it is held to.

Without torch's operators, so that what renders the results needs none.
"""

from dataclasses import dataclass

# The candidates of a product, by the names that the results have for them.
BF16, FP32, QUANTIZE, GEMM, PAIR = "bf16", "fp32", "quantize", "gemm", "pair"
CANDIDATES = [BF16, FP32, QUANTIZE, GEMM, PAIR]


@dataclass(frozen=True)
class Shape:
    """Activations (M, K) times a weight (N, K), transposed."""

    m: int
    n: int
    k: int

    @property
    def case(self) -> str:
        return f"M={self.m} N={self.n} K={self.k}"

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    def bytes_moved(self, candidate: str) -> float:
        """What has to be read and written once, with nothing in a cache: the weight, the activations, the result."""
        if candidate == FP32:
            weight, activations, result = 4.0, 4.0, 4.0
        elif candidate == BF16:
            weight, activations, result = 2.0, 2.0, 2.0
        elif candidate == GEMM:
            weight, activations, result = PACKED_BYTES, NVFP4_BYTES, 2.0
        elif candidate == PAIR:
            # Codes and scale factors of the activations are written by one operator and read by the other.
            weight, activations, result = PACKED_BYTES, 2.0 + 2 * NVFP4_BYTES, 2.0
        else:
            weight, activations, result = 0.0, 2.0 + NVFP4_BYTES, 0.0
        return weight * self.n * self.k + activations * self.m * self.k + result * self.m * self.n


@dataclass(frozen=True)
class Floors:
    """How many times faster than PyTorch's products the pair of operators has to be."""

    bf16: float
    fp32: float


# Bytes an element: half of one for the code, and a scale factor for 16; packed weights have theirs in bf16.
NVFP4_BYTES, PACKED_BYTES = 0.5 + 1 / 16, 0.5 + 2 / 16

FLOORS = {
    Shape(1, 4096, 4096): Floors(5, 15),
    Shape(16, 4096, 4096): Floors(2, 8),
    Shape(256, 4096, 4096): Floors(1.05, 4),
    Shape(1024, 4096, 4096): Floors(1.05, 4),
}

# The weights of a block of LTX-2 (LTX2VideoTransformer3DModel), each shape once, for its audio and its text tokens.
LTX2_WEIGHTS = [
    (4096, 4096),
    (2048, 2048),
    (2048, 4096),
    (4096, 2048),
    (16384, 4096),
    (4096, 16384),
    (8192, 2048),
    (2048, 8192),
]
LTX2 = [Shape(m, n, k) for n, k in LTX2_WEIGHTS for m in (126, 1024)]

SHAPES = list(dict.fromkeys([*FLOORS, *LTX2]))
# A quick run leaves out what takes most of the time: of the products without floors, the large ones.
QUICK_SHAPES = [shape for shape in SHAPES if shape in FLOORS or shape.operations <= 10**10]

# Quantization, and what a copy of the same machine takes. Bytes are those read and those written, as STREAM counts.
QUANTIZED = Shape(4096, 4096, 4096)
QUANTIZE_CASE = "quantize (4096, 4096) bf16"
QUANTIZE_CANDIDATES = ["dutyfree", "copy_32_mib", "copy_stream"]
COPY_32_MIB = 32 * 2**20
# dutyfree's share of the copy's bandwidth has to be this.
BANDWIDTH_FLOOR = 0.6
# In a case of its own, since it takes some hundred times as long.
TORCH_CASE = "the same, written in torch"
TORCH_CANDIDATES = ["dutyfree", "torch", "torchao"]

PEAKS_CASE = "peaks"
# Of 4 VPDPBUSD of a block's 16 products, each block needs one multiplication and one FMA more: of 6 instructions, 4.
INT8_SHARE = 4 / 6

HOST_QUANTIZE, HOST_GEMM = "host: quantize (1, 16)", "host: gemm M=1 N=16 K=16"
HOST_CANDIDATES = ["dutyfree.object", "dutyfree.overload", "allocates.object", "allocates.overload"]
HOST_BOUND_US = 0.25


def quantize_bytes(shape: Shape) -> float:
    """Read and written by the quantization of its activations; of whole tiles of 128 × 4, so without padding."""
    return shape.bytes_moved(QUANTIZE)
