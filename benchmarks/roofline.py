"""The roofline plot of docs/nvfp4.md: operations a second over operations for each byte that has to be moved."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dutyfree.bench.nvfp4_shapes import BF16, FLOORS, FP32, GEMM, PAIR, QUANTIZE_CASE, QUANTIZED, quantize_bytes
from dutyfree.bench.svg import svg

# Points: candidate to name, marker and colour.
POINTS = {
    PAIR: ("dutyfree, quantize + gemm", "o", "#0060c0"),
    GEMM: ("dutyfree, gemm alone", "^", "#60a8f0"),
    BF16: ("torch.mm, bf16", "s", "#c05000"),
    FP32: ("torch.mm, float32", "D", "#707070"),
}
# Roofs: the fact's name to text and style.
ROOFS = {
    "int8": ("VPDPBUSD", "-", "#0060c0"),
    "int8_scaled": ("VPDPBUSD, a multiplication and an FMA for each 4", "--", "#0060c0"),
    "bf16": ("VDPBF16PS", "-", "#c05000"),
    "fp32": ("FMA, float32", "-", "#707070"),
}
BANDWIDTHS = {"copy_stream": ("copy of {} MiB", "-"), "copy_32_mib": ("copy of 32 MiB", ":")}
# Operations an element that quantization is counted with: the multiplication and the rounding. How far the point is
# below the sloped line does not depend on it.
QUANTIZE_OPERATIONS = 2


def roofline(results: dict[str, Any]) -> str:
    """The plot as SVG."""
    rows = {(row["case"], row["candidate"]): row for row in results["rows"]}

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot(xscale="log", yscale="log")
        _draw_roofs(axes, results["facts"])
        _draw_products(axes, rows)
        moved, us = quantize_bytes(QUANTIZED), rows[QUANTIZE_CASE, "dutyfree"]["us"]
        operations = QUANTIZE_OPERATIONS * QUANTIZED.m * QUANTIZED.k
        axes.plot(
            operations / moved, operations / us / 1e3, "*", color="#008050", markersize=10, label="dutyfree, quantize"
        )
        axes.set_xlim(0.3, 3000)
        axes.set_xlabel("operations for each byte that has to be moved")
        axes.set_ylabel("Gop/s")
        axes.grid(visible=True, which="major", color="#e0e0e0", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(loc="lower right", frameon=True)
        environment = results["environment"]
        axes.set_title(
            f"N = K = 4096 by M; {environment['cpu']}, {environment['threads']} threads, {environment['date']}",
            fontsize=9,
        )

    return svg(8.4, 5.2, draw)


def _draw_roofs(axes: Axes, facts: dict[str, Any]) -> None:
    ends = (0.3, 3000)
    for name, (title, style, colour) in ROOFS.items():
        peak = facts["peak_gop_s"].get(name)
        if peak is not None:
            axes.axhline(peak, linestyle=style, color=colour, linewidth=1)
            axes.annotate(f"{title}: {peak:.0f}", (0.33, peak), xytext=(0, 2), textcoords="offset points", color=colour)
    for name, (title, style) in BANDWIDTHS.items():
        rate = facts["gb_s"][name]
        axes.plot(ends, [rate * end for end in ends], style, color="black", linewidth=1)
        at = 5.0 if name == "copy_stream" else 3.0
        axes.annotate(
            f"{title.format(facts['stream_bytes'] // 2**20)}: {rate:.0f} GB/s",
            (at, rate * at),
            xytext=(4, -10) if name == "copy_stream" else (-4, 6),
            ha="left" if name == "copy_stream" else "right",
            textcoords="offset points",
        )
    peaks = [*facts["peak_gop_s"].values(), 100]
    axes.set_ylim(5, 2 * max(peaks))


def _draw_products(axes: Axes, rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    for candidate, (title, marker, colour) in POINTS.items():
        at = [
            (
                shape.operations / shape.bytes_moved(candidate),
                shape.operations / rows[shape.case, candidate]["us"] / 1e3,
            )
            for shape in FLOORS
        ]
        axes.plot(*zip(*at, strict=True), marker, linestyle="", color=colour, markersize=6, label=title)
        if candidate in (PAIR, FP32):
            for shape, point in zip(FLOORS, at, strict=True):
                axes.annotate(
                    f"M={shape.m}", point, xytext=(6, -9), textcoords="offset points", color=colour, fontsize=7
                )
