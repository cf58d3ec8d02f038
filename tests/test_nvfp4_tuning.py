"""nvfp4_gemm and the tuner: what it chooses, what a file may say, and what does not depend on the choice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dutyfree
from dutyfree import AutoTuner, ops
from dutyfree.ops import nvfp4, tuning
from isolated import run_isolated

OPERATOR = "trtllm::nvfp4_gemm"


@pytest.fixture(autouse=True)
def _no_choices() -> Iterator[None]:
    AutoTuner.get().clear()
    yield
    AutoTuner.get().clear()


def operands(rows: int, weight_rows: int, columns: int, magnitude: float = 1.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows + columns)
    sides = []
    for size in (rows, weight_rows):
        given = torch.randn(size, columns, generator=generator) * magnitude
        sides.append((*ops.tunable_fp4_quantize(given, ops.global_scale(given), 16, True), ops.global_scale(given)))
    (act, act_sf, act_scale), (weight, weight_sf, weight_scale) = sides
    return act, weight, act_sf, weight_sf, 1 / (act_scale * weight_scale)


def chosen() -> dict[tuple[int, ...], str]:
    return {choice.dims: choice.tactic for choice in AutoTuner.get().choices() if choice.operator == OPERATOR}


def test_one_measurement_serves_a_bucket() -> None:
    with dutyfree.autotune(repeats=2, warmup=0):
        tuning.tune_shapes([(33, 64, 128), (40, 64, 128), (63, 64, 128), (64, 64, 128)])
    assert set(chosen()) == {(32, 64, 128), (64, 64, 128)}
    assert set(chosen().values()) <= set(nvfp4.backends())


def test_the_rounding_backend_is_no_candidate_for_wider_results() -> None:
    with dutyfree.autotune(repeats=2, warmup=0):
        tuning.tune_shapes([(33, 64, 128)], torch.float32)
    (choice,) = [choice for choice in AutoTuner.get().choices() if choice.operator == OPERATOR]
    assert "bf16_mm" not in choice.configuration


def test_a_named_backend_asks_no_tuner() -> None:
    given = operands(4, 32, 64)
    with dutyfree.autotune(repeats=2, warmup=0):
        ops.nvfp4_gemm(*given, torch.bfloat16, 0, "portable")
    assert chosen() == {}


def test_the_unchosen_form_of_a_weight_is_not_kept() -> None:
    nvfp4.forget_packed_weights()
    given = operands(4, 512, 1024)
    with dutyfree.autotune(repeats=2, warmup=0):
        ops.nvfp4_gemm(*given, torch.bfloat16)
    assert nvfp4.packed_weights()["entries"] == 1


def test_ltx2_has_its_sizes() -> None:
    shapes = tuning.model_shapes("ltx2")
    assert (126, 2048, 2048) in shapes
    assert (14720, 16384, 4096) in shapes
    with pytest.raises(ValueError, match="ltx2"):
        tuning.model_shapes("ltx3")


def tune_into_a_file() -> None:
    import os

    with dutyfree.autotune(cache=os.environ["TUNED"], repeats=2, warmup=0):
        ops.nvfp4_gemm(*operands(4, 32, 64), torch.bfloat16)
    print(chosen()[4, 32, 64])


def test_a_later_process_takes_the_choice_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    first = run_isolated(tune_into_a_file, TUNED=str(path))
    second = run_isolated(tune_into_a_file, TUNED=str(path))
    assert first == second


def test_a_file_that_names_what_this_device_lacks(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    given = operands(4, 32, 64)
    expected = ops.nvfp4_gemm(*given, torch.bfloat16, 0, "portable")
    with dutyfree.autotune(cache=path, repeats=2, warmup=0):
        ops.nvfp4_gemm(*given, torch.bfloat16)
    text = path.read_text()
    written = f'"tactic": "{chosen()[4, 32, 64]}"'
    assert written in text
    path.write_text(text.replace(written, '"tactic": "cublaslt"'))
    AutoTuner.get().clear()
    assert AutoTuner.get().load(path) is None
    for _ in range(2):
        torch.testing.assert_close(ops.nvfp4_gemm(*given, torch.bfloat16), expected)


@pytest.mark.parametrize("backend", nvfp4.backends())
def test_autocast_changes_nothing(backend: str) -> None:
    given = operands(8, 32, 256, 100.0)
    # Without alpha the sums are far above what float16 holds.
    expected = ops.nvfp4_gemm(*given, torch.bfloat16, 0, backend)
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(ops.nvfp4_gemm(*given, torch.bfloat16, 0, backend), expected)


@pytest.mark.parametrize("backend", nvfp4.backends())
def test_no_backend_records_a_gradient(backend: str) -> None:
    bias = torch.randn(32, requires_grad=True)
    result = torch.ops.trtllm.nvfp4_gemm.default.redispatch(
        torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *operands(4, 32, 64), torch.bfloat16, 0, backend, None, bias
    )
    assert result.grad_fn is None
    assert torch.equal(result, ops.nvfp4_gemm(*operands(4, 32, 64), torch.bfloat16, 0, backend, None, bias))
