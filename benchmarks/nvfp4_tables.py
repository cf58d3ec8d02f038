"""The tables of docs/nvfp4.md. Where a floor is missed, they say so."""

from __future__ import annotations

from typing import Any

from dutyfree.bench import nvfp4_shapes as nvfp4
from table_parts import Rows, header, note, rows_of

# Products: candidate to column.
NVFP4_COLUMNS = {
    nvfp4.QUANTIZE: "quantize, µs",
    nvfp4.GEMM: "gemm",
    nvfp4.PAIR: "both",
    nvfp4.BF16: "bf16 `torch.mm`",
    nvfp4.FP32: "float32 `torch.mm`",
}


def product_cells(rows: Rows, shape: nvfp4.Shape, floors: nvfp4.Floors | None = None) -> list[str]:
    """The times, and how many times faster the pair of operators is than PyTorch's two products."""
    times = {name: rows[shape.case, name]["us"] for name in NVFP4_COLUMNS}
    cells = [digits(us) for us in times.values()]
    for name, floor in ((nvfp4.BF16, floors and floors.bf16), (nvfp4.FP32, floors and floors.fp32)):
        ratio = times[name] / times[nvfp4.PAIR]
        # Without a floor, slower than PyTorch is what must not be.
        cells.append(held(f"{ratio:.2f}", "" if floor is None else f" (≥ {floor})", ratio >= (floor or 1)))
    return cells


def digits(us: float) -> str:
    """Three digits at least, so that one more microsecond shows."""
    return f"{us:,.0f}" if us >= 1000 else f"{us:.1f}"


def held(number: str, floor: str, holds: bool) -> str:
    return f"{number}{floor}" if holds else f"**{number}**{floor} missed" if floor else f"**{number}** slower"


def nvfp4_table(results: dict[str, Any]) -> str:
    """The products that have floors."""
    rows = rows_of(results)
    lines = header(["N = K = 4096", *NVFP4_COLUMNS.values(), "bf16 / both", "float32 / both"])
    for shape, floors in nvfp4.FLOORS.items():
        lines.append(f"| M = {shape.m} | " + " | ".join(product_cells(rows, shape, floors)) + " |")
    return "\n".join(lines + note(results, *peak_sentences(results["facts"])))


PEAKS = {
    "fp32": "float32 FMA {}",
    "bf16": "`VDPBF16PS` {}",
    "int8": "`VPDPBUSD` {}",
    "int8_scaled": "with a multiplication and an FMA for each four of it {}",
}


def peak_sentences(facts: dict[str, Any]) -> list[str]:
    peaks = [PEAKS[name].format(f"{gop_s:,.0f}") for name, gop_s in facts["peak_gop_s"].items()]
    return [f"Peaks of the same run, Gop/s: {', '.join(peaks)}."] if peaks else []


def nvfp4_ltx2_table(results: dict[str, Any]) -> str:
    """The products of LTX-2, of a quick run the small ones."""
    rows, backends = rows_of(results), results["facts"]["backends"]
    columns = [*NVFP4_COLUMNS.values(), "bf16 / both", "float32 / both", "backend"]
    lines = header(["M, N, K", *columns])
    for shape in (shape for shape in nvfp4.LTX2 if shape.case in backends):
        cells = [*product_cells(rows, shape), f"`{backends[shape.case]}`"]
        lines.append(f"| {shape.m}, {shape.n}, {shape.k} | " + " | ".join(cells) + " |")
    return "\n".join(lines + note(results))


def nvfp4_quantize_table(results: dict[str, Any]) -> str:
    """Quantization in bytes a second beside copies, and in time beside what is written in PyTorch."""
    rows, rates = rows_of(results), results["facts"]["gb_s"]
    stream = results["facts"]["stream_bytes"] // 2**20
    titles = {
        "copy_stream": f"`copy_` of {stream} MiB, as STREAM measures",
        "copy_32_mib": "`copy_` of the 32 MiB that are quantized, which caches serve in part",
        "dutyfree": "`tunable_fp4_quantize`, swizzled",
    }
    lines = header(["(4096, 4096) bf16", "µs", "GB/s", "of STREAM's copy", "times as long"])
    for name, title in titles.items():
        share = rates[name] / rates["copy_stream"]
        cell = f"{share:.0%}"
        if name == "dutyfree":
            cell = held(cell, f" (≥ {nvfp4.BANDWIDTH_FLOOR:.0%})", share >= nvfp4.BANDWIDTH_FLOOR)
        lines.append(f"| {title} | {digits(rows[nvfp4.QUANTIZE_CASE, name]['us'])} | {rates[name]:.1f} | {cell} | |")
    others = {"torch": "the same bytes by PyTorch's operators", "torchao": "torchao 0.18.0, not swizzled"}
    ours = rows[nvfp4.TORCH_CASE, "dutyfree"]["us"]
    for name, title in others.items():
        row = rows.get((nvfp4.TORCH_CASE, name))
        if row is None:
            lines.append(f"| {title} | not installed | | | |")
            continue
        rate = nvfp4.quantize_bytes(nvfp4.QUANTIZED) / row["us"] / 1e3
        share = rate / rates["copy_stream"]
        lines.append(f"| {title} | {digits(row['us'])} | {rate:.2f} | {share:.1%} | {row['us'] / ours:.0f} |")
    return "\n".join(lines + note(results))


HOST_TITLES = {
    nvfp4.HOST_QUANTIZE: "`tunable_fp4_quantize` of (1, 16)",
    nvfp4.HOST_GEMM: "`nvfp4_gemm` of M = 1, N = K = 16",
}


def nvfp4_host_table(results: dict[str, Any]) -> str:
    """The smallest calls beside operators that allocate the same results."""
    rows = rows_of(results)
    columns = ["by object", "by overload", "allocates only, by object", "by overload", "more, by object"]
    lines = header(["µs per call", *columns])
    for case, title in HOST_TITLES.items():
        times = [rows[case, name] for name in nvfp4.HOST_CANDIDATES]
        cells = [f"{row['us']:.3f} + {row['spread_us']:.3f}" for row in times]
        more = times[0]["us"] - times[2]["us"]
        # The kernel is in it, so that a larger number does not say that the bound, which is without it, is missed.
        inside = "" if more <= nvfp4.HOST_BOUND_US else ", kernel included"
        cells.append(f"{more:.3f}{inside} (≤ {nvfp4.HOST_BOUND_US} without it)")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines + note(results, "After the + is how far the median round was from it."))
