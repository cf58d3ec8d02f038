"""NVFP4 as numpy and ml_dtypes compute it, without torch: what the operators' results are compared with.

All arithmetic is float64. ``x`` is a float array (M, K); ``g``, the global scale 448 · 6 / amax, is a number or one
number a row; ``values`` are uint8 (M, K / 2) with element 2i in the low nibble of byte i; ``scales`` are e4m3 bytes
(M, K / 16). Rows are worked on in chunks that a core's cache holds, so that 10^8 values are no trouble.
"""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]

E2M1: Floats = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
E4M3: Floats = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
# Between two neighbouring magnitudes of e2m1.
MIDPOINTS: Floats = (E2M1[0:7] + E2M1[1:8]) / 2
CHUNK = 1 << 19


def scaled(x: NDArray[Any], g: Any) -> tuple[Floats, Bytes]:
    """The elements in units of their block's scale, (M, K), before they are rounded; and the scales."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        blocks = np.asarray(x, dtype=np.float64)
    rows, columns = blocks.shape
    blocks = blocks.reshape(rows, columns // 16, 16)
    g = np.broadcast_to(np.asarray(g, dtype=np.float64).reshape(-1, 1), (rows, 1))
    magnitude = np.abs(blocks)
    largest = np.fmax.reduce(magnitude, axis=-1, initial=0.0)  # fmax ignores NaN, as the CUDA kernels' maximum does
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        # ml_dtypes makes NaN of what lies beyond 464, where CUDA and torch saturate.
        scales = np.minimum(g * largest / 6, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        factor = np.where(largest == 0, 0.0, g / E4M3[scales])
        return (blocks * factor[..., None]).reshape(rows, columns), scales


def codes_of(elements: Floats) -> Bytes:
    """The e2m1 codes of elements in units of their scale: to nearest even, saturated at ±6, NaN is +6."""
    nan = np.isnan(elements)
    with np.errstate(over="ignore", under="ignore"):
        # By way of float32: what is not within half a unit in float32's last place of a midpoint cannot cross it.
        single = np.clip(np.where(nan, 6.0, elements), -6.0, 6.0).astype(np.float32)
    return single.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


def near_tie(elements: Floats, ulps: int = 4) -> NDArray[np.bool_]:
    """Where an element in units of its scale lies so near a midpoint that float32 may round it to either side."""
    above = np.abs(elements)[..., None]
    with np.errstate(invalid="ignore"):
        near: NDArray[np.bool_] = np.abs(above - MIDPOINTS) <= ulps * np.spacing(MIDPOINTS.astype(np.float32))
    return near.any(-1)


def pack(codes: Bytes) -> Bytes:
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(values: Bytes) -> Bytes:
    codes = np.empty((*values.shape[:-1], values.shape[-1] * 2), np.uint8)
    codes[..., 0::2] = values & 15
    codes[..., 1::2] = values >> 4
    return codes


def quantize(x: NDArray[Any], g: Any) -> tuple[Bytes, Bytes]:
    """Values and scales, the latter linear."""
    rows, columns = np.shape(x)
    values = np.empty((rows, columns // 2), np.uint8)
    scales = np.empty((rows, columns // 16), np.uint8)
    for chunk, elements, found in _in_chunks(x, g):
        values[chunk], scales[chunk] = pack(codes_of(elements)), found
    return values, scales


def faults(x: NDArray[Any], g: Any, values: Bytes, scales: Bytes) -> list[str]:
    """What is wrong with ``values`` and ``scales`` as the quantized ``x``; at most ten faults, each with its numbers.

    The rule: scales are equal; codes are equal, but near a midpoint the neighbouring code of the same sign will do.
    """
    found: list[str] = []
    x = np.asarray(x)
    every_g = np.broadcast_to(np.asarray(g, dtype=np.float64).reshape(-1), (x.shape[0],))
    for chunk, elements, expected in _in_chunks(x, g):
        for row, block in np.argwhere(scales[chunk] != expected)[:10]:
            at = chunk.start + row
            lanes = x[at, block * 16 : block * 16 + 16].astype(np.float64)
            found.append(
                f"scale of row {at}, block {block}: {scales[at, block]:#04x} for {expected[row, block]:#04x}, "
                f"with g = {every_g[at]!r} and lanes {lanes.tolist()}"
            )
        codes, right = unpack(values[chunk]), codes_of(elements)
        rows, columns = np.nonzero(codes != right)
        seen, wanted, exact = codes[rows, columns], right[rows, columns], elements[rows, columns]
        neighbours = ((seen ^ wanted) & 8 == 0) & (np.abs((seen & 7).astype(int) - (wanted & 7)) == 1)
        for n in np.flatnonzero(~(neighbours & near_tie(exact)))[:10]:
            at = chunk.start + rows[n]
            found.append(
                f"code of row {at}, column {columns[n]}: {seen[n]} for {wanted[n]}, {exact[n]!r} in its scale's "
                f"units; x = {float(x[at, columns[n]])!r}, g = {every_g[at]!r}"
            )
        if len(found) >= 10:
            break
    return found[:10]


def dequantize(values: Bytes, scales: Bytes, g: Any = 1.0) -> Floats:
    """(M, K): e2m1 · e4m3 / g."""
    with np.errstate(invalid="ignore"):
        exact: Floats = E2M1[unpack(values)] * np.repeat(E4M3[scales], 16, -1)
        return exact / np.asarray(g, dtype=np.float64).reshape(-1, 1)


def gemm(
    act: Bytes, act_scales: Bytes, weight: Bytes, weight_scales: Bytes, alpha: float = 1.0, bias: Any = None
) -> tuple[Floats, Floats]:
    """alpha · act · weightᵀ + bias, (M, N), of linear scales; and the same of all magnitudes, which bounds rounding."""
    a, w = dequantize(act, act_scales), dequantize(weight, weight_scales)
    with np.errstate(invalid="ignore"):
        result, bound = alpha * (a @ w.T), abs(alpha) * (np.abs(a) @ np.abs(w).T)
    if bias is not None:
        result, bound = result + np.asarray(bias, np.float64), bound + np.abs(np.asarray(bias, np.float64))
    return result, bound


def offsets(rows: int, columns: int) -> NDArray[np.intp]:
    """(rows, columns): where each scale lies in the swizzled layout of 128 × 4 tiles."""
    m, k = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    tile = (m // 128) * -(-columns // 4) + k // 4
    return tile * 512 + (m % 32) * 16 + (m % 128 // 32) * 4 + k % 4


def swizzled_size(rows: int, columns: int) -> int:
    return -(-rows // 128) * 128 * (-(-columns // 4) * 4)


def swizzle(scales: Bytes) -> Bytes:
    """Flat, padding 0."""
    flat = np.zeros(swizzled_size(*scales.shape), np.uint8)
    flat[offsets(*scales.shape)] = scales
    return flat


def unswizzle(flat: Bytes, rows: int, columns: int) -> Bytes:
    return flat[offsets(rows, columns)]


def _in_chunks(x: NDArray[Any], g: Any) -> Iterator[tuple[slice, Floats, Bytes]]:
    x = np.asarray(x)
    rows, columns = x.shape
    g = np.asarray(g, dtype=np.float64).reshape(-1)
    step = max(1, CHUNK // max(columns, 1))
    for start in range(0, rows, step):
        chunk = slice(start, min(start + step, rows))
        yield chunk, *scaled(x[chunk], g[chunk] if g.size > 1 else g)
