"""The benchmark of the NVFP4 operators: what it times, what it derives from that, and what is shown of it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import nvfp4_tables
import render
from dutyfree import ops
from dutyfree.bench import nvfp4, nvfp4_torch, peaks
from dutyfree.bench import nvfp4_shapes as shapes
from dutyfree.bench.environment import last_level_cache, vector_flags
from dutyfree.bench.nvfp4_shapes import Shape
from dutyfree.cli import app
from table_parts import rows_of

Content = dict[str, Any]
# Without torchao's, which is measured where it is installed, and the peaks, which depend on the machine.
OTHERS = {
    *((shapes.QUANTIZE_CASE, name) for name in shapes.QUANTIZE_CANDIDATES),
    *((shapes.TORCH_CASE, name) for name in ("dutyfree", "torch")),
    *((case, name) for case in (shapes.HOST_QUANTIZE, shapes.HOST_GEMM) for name in shapes.HOST_CANDIDATES),
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Content]:
    """The command's output and its JSON."""
    path = tmp_path_factory.mktemp("bench") / "nvfp4.json"
    outcome = CliRunner().invoke(app, ["bench", "nvfp4", "--quick", "--json", str(path)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output, json.loads(path.read_text())


@pytest.fixture(scope="module")
def committed() -> Content:
    return render.load("nvfp4")


def check_complete(content: Content, products: list[Shape]) -> None:
    assert content["schema"] == 1
    environment = content["environment"]
    assert {"cpu", "flags", "targets", "last_level_cache", "threads", "torch", "date"} <= environment.keys()
    rows = rows_of(content)
    assert rows.keys() >= OTHERS | {(shape.case, name) for shape in products for name in shapes.CANDIDATES}
    assert all(row["us"] > 0 and row["spread_us"] >= 0 for row in content["rows"])
    assert len(rows) == len(content["rows"])
    facts = content["facts"]
    assert facts["backends"].keys() == {shape.case for shape in products}
    assert {case for case, _ in rows} >= facts["backends"].keys()
    assert facts["stream_bytes"] >= 4 * environment["last_level_cache"]


def check_derived(content: Content, products: list[Shape]) -> None:
    rows, facts = rows_of(content), content["facts"]
    moved = {
        # 32 MiB of bf16, 8 MiB of codes, 1 MiB of scale factors.
        "dutyfree": 41 * 2**20,
        "copy_32_mib": 64 * 2**20,
        "copy_stream": 2 * facts["stream_bytes"],
    }
    for name, size in moved.items():
        assert facts["gb_s"][name] == pytest.approx(size / rows[shapes.QUANTIZE_CASE, name]["us"] / 1e3, rel=0.01)
    for shape in products:
        for name in shapes.CANDIDATES:
            row = rows[shape.case, name]
            assert row["tax_us"] == pytest.approx(row["us"] - rows[shape.case, shapes.BF16]["us"], abs=1e-3)
    peak = facts["peak_gop_s"]
    if "int8" in peak:
        assert peak["int8_scaled"] == pytest.approx(peak["int8"] * 4 / 6, rel=1e-3)


@pytest.mark.timeout(600)  # with nothing compiled yet, on a busy machine
def test_a_quick_run_measures_all_but_the_largest_products(quick: tuple[str, Content]) -> None:
    check_complete(quick[1], shapes.QUICK_SHAPES)
    assert quick[1]["environment"]["threads"] == torch.get_num_threads()


def test_what_a_quick_run_derives_follows_from_its_times(quick: tuple[str, Content]) -> None:
    check_derived(quick[1], shapes.QUICK_SHAPES)


def test_the_output_compares_ratios_with_their_floors(quick: tuple[str, Content]) -> None:
    output, content = quick
    rows = rows_of(content)
    for shape, floors in shapes.FLOORS.items():
        for name, floor in ((shapes.BF16, floors.bf16), (shapes.FP32, floors.fp32)):
            ratio = rows[shape.case, name]["us"] / rows[shape.case, shapes.PAIR]["us"]
            line = f"{re.escape(shape.case)}: ([\\d.]+) times as fast as {name}, floor {floor}(: missed)?"
            found = re.search(line, output)
            assert found, output
            assert float(found[1]) == pytest.approx(ratio, abs=0.02)
            if abs(ratio - floor) > 0.02:
                assert (found[2] is not None) == (ratio < floor)


def test_tables_can_be_made_of_a_quick_run(quick: tuple[str, Content]) -> None:
    for name, table in render.TABLES.items():
        if table.results == "nvfp4":
            assert render.TABLES[name].make(quick[1]).startswith("| ")


def test_the_committed_results_are_complete(committed: Content) -> None:
    check_complete(committed, shapes.SHAPES)
    check_derived(committed, shapes.SHAPES)
    rows = rows_of(committed)
    assert (shapes.TORCH_CASE, "torchao") in rows
    assert {name for case, name in rows if case == shapes.PEAKS_CASE} == set(peaks.INSTRUCTIONS)


def test_a_missed_floor_is_said(committed: Content) -> None:
    shape, floors = next(iter(shapes.FLOORS.items()))
    changed = copy.deepcopy(committed)
    rows = rows_of(changed)
    pair, bf16, fp32 = (rows[shape.case, name] for name in (shapes.PAIR, shapes.BF16, shapes.FP32))

    def cells() -> list[str]:
        table = nvfp4_tables.nvfp4_table(changed)
        return next(line for line in table.splitlines() if line.startswith(f"| M = {shape.m} ")).split(" | ")[-2:]

    pair["us"], bf16["us"], fp32["us"] = 1.0, float(floors.bf16), floors.fp32 - 0.5
    assert cells() == [
        f"{floors.bf16:.2f} (≥ {floors.bf16})",
        f"**{floors.fp32 - 0.5:.2f}** (≥ {floors.fp32}) missed |",
    ]


def test_a_product_that_is_slower_is_said(committed: Content) -> None:
    changed = copy.deepcopy(committed)
    rows = rows_of(changed)
    rows[shapes.LTX2[0].case, shapes.BF16]["us"] = rows[shapes.LTX2[0].case, shapes.PAIR]["us"] / 2
    line = nvfp4_tables.nvfp4_ltx2_table(changed).splitlines()[2]
    assert "**0.50** slower" in line


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, committed: Content) -> None:
    nvfp4_torch.torchao_quantize.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert len(nvfp4_torch.missing()) == 1
    nvfp4_torch.torchao_quantize.cache_clear()
    without = copy.deepcopy(committed)
    without["rows"] = [row for row in without["rows"] if row["candidate"] != "torchao"]
    assert "not installed" in nvfp4_tables.nvfp4_quantize_table(without)


def test_the_figure_is_drawn_the_same_each_time(committed: Content) -> None:
    figure = render.FIGURES["nvfp4_roofline"]
    first = figure.make(committed)
    assert figure.make(committed) == first
    assert "Matplotlib v" not in first
    assert first.count("VPDPBUSD") >= 2


def test_the_figure_needs_no_peak_that_a_machine_lacks(committed: Content) -> None:
    changed = copy.deepcopy(committed)
    changed["facts"]["peak_gop_s"] = {}
    assert "VPDPBUSD" not in render.FIGURES["nvfp4_roofline"].make(changed)


def given(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(rows, columns, dtype=torch.bfloat16)
    x[0, :16] = 0
    return x, ops.global_scale(x)


@pytest.mark.parametrize("size", [(1, 16), (129, 80), (256, 256)])
def test_quantization_in_torch_does_what_the_operator_does(size: tuple[int, int]) -> None:
    x, scale = given(*size)
    for own, other in zip(ops.tunable_fp4_quantize(x, scale, 16, True), nvfp4_torch.quantize(x, scale), strict=True):
        assert torch.equal(own, other)


def test_two_quantizations_that_differ_are_not_timed() -> None:
    codes, scales = ops.tunable_fp4_quantize(*given(2, 16), 16, True)
    other = codes.clone()
    other[1, 0] ^= 1
    nvfp4.require_same([codes, scales], [codes.clone(), scales.clone()])
    with pytest.raises(RuntimeError, match="codes differ in 1 of 16 bytes"):
        nvfp4.require_same([codes, scales], [other, scales])


def test_the_bytes_and_operations_of_a_product() -> None:
    shape = Shape(2, 32, 16)
    assert shape.operations == 2 * 2 * 32 * 16
    assert shape.bytes_moved(shapes.BF16) == 2 * (32 * 16 + 2 * 16 + 2 * 32)
    assert shape.bytes_moved(shapes.FP32) == 2 * shape.bytes_moved(shapes.BF16)
    before = ops.nvfp4.packed_weights()["bytes"]
    weight = nvfp4.weight_of(32, 16)
    values, scales = ops.tunable_fp4_quantize(torch.ones(2, 16), torch.ones(1), 16, True)
    ops.nvfp4_gemm(values, weight.values, scales, weight.scales, torch.ones(1), torch.bfloat16)
    packed = ops.nvfp4.packed_weights()["bytes"] - before
    assert shape.bytes_moved(shapes.GEMM) == packed + 2 * 16 * 9 / 16 + 2 * 2 * 32


def test_operations_of_probes_grow_with_their_rounds_and_threads() -> None:
    for instruction in peaks.INSTRUCTIONS.values():
        one = peaks._run()(torch.zeros(1), instruction, 1)
        assert peaks._run()(torch.zeros(3), instruction, 5) == 15 * one


def test_an_instruction_that_a_machine_lacks_is_left_out() -> None:
    assert peaks._run()(torch.zeros(1), "no such instruction", 1) == 0


def test_the_machine_is_described() -> None:
    assert last_level_cache() >= 2**20
    assert all(re.fullmatch(r"[a-z0-9_]+", flag) for flag in vector_flags().split())


def test_the_code_in_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (render.ROOT / "docs" / "nvfp4.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(Path("docs/nvfp4.md")), "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "True",
        "1 linear layers quantized to NVFP4, 1 left as they are",
        "  2: skip names it",
        "True",
        "0",
    ]
