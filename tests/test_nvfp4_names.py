"""Who owns ``torch.ops.trtllm``: names that another library has taken, and those of ``dutyfree.ops``."""

import pytest
import torch

import dutyfree
from isolated import run_isolated

GEMM = (
    "nvfp4_gemm(Tensor act_fp4, Tensor weight, Tensor act_sf, Tensor weight_scale, Tensor alpha, "
    "ScalarType output_dtype, SymInt output_buffer_kind=0, "
    'str allowed_backends="cutlass,cublaslt,cuda_core", SymInt[]? group=None, Tensor? bias=None) -> Tensor'
)
QUANTIZE = (
    "tunable_fp4_quantize(Tensor input, Tensor input_scale, SymInt scaling_vector_size=16, "
    "bool is_sf_swizzled_layout=False) -> Tensor[]"
)


def _theirs() -> torch.library.Library:
    library = torch.library.Library("trtllm", "DEF")
    library.define(GEMM)
    library.impl("nvfp4_gemm", lambda *_: torch.full((1,), 42.0), "CPU")
    return library


def _arguments() -> tuple[object, ...]:
    byte = torch.zeros(1, 8, dtype=torch.uint8)
    scales = torch.zeros(512, dtype=torch.uint8)
    return byte, byte, scales, scales, torch.ones(1), torch.float32


def import_after_theirs() -> None:
    library = _theirs()
    for _ in range(2):  # the second import finds what the first has left
        try:
            import dutyfree.ops
        except RuntimeError as error:
            print(error)
        else:
            raise AssertionError(f"{dutyfree.ops} was imported beside {library}")
        assert torch.ops.trtllm.nvfp4_gemm(*_arguments()).item() == 42


def test_a_name_that_is_taken_is_one_clear_error() -> None:
    text = run_isolated(import_after_theirs)
    assert text.count("trtllm::nvfp4_gemm") >= 2
    assert text.count("DUTYFREE_TRTLLM_OPS=keep") >= 2


def keep_theirs() -> None:
    library = _theirs()
    import dutyfree.ops

    assert torch.ops.trtllm.nvfp4_gemm(*_arguments()).item() == 42, library
    assert dutyfree.ops.nvfp4_gemm(*_arguments()).item() == 42
    # What they did not define is ours.
    values, scales = dutyfree.ops.tunable_fp4_quantize(torch.full((1, 16), 6.0), torch.ones(1))
    assert (values == 0x77).all()
    assert scales.tolist() == [0x38]
    assert dutyfree.ops.fp4_dequantize(values, scales, torch.ones(1)).tolist() == [[6.0] * 16]
    # Ours has a name beside theirs.
    own = dutyfree.ops.nvfp4.own_gemm
    assert own._qualname == "dutyfree::nvfp4_gemm"
    assert own(*_arguments()).tolist() == [[0.0]]


def test_theirs_are_kept_when_asked_to() -> None:
    run_isolated(keep_theirs, DUTYFREE_TRTLLM_OPS="keep")


def names_are_ours() -> None:
    before = torch._C._dispatch_get_all_op_names()
    assert not [name for name in before if name.startswith("trtllm::")]
    import dutyfree

    assert not [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("trtllm::")]
    import dutyfree.ops

    found = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith(("trtllm::", "dutyfree::"))}
    assert {"trtllm::tunable_fp4_quantize", "trtllm::nvfp4_gemm"} <= found
    assert {"dutyfree::fp4_dequantize", "dutyfree::swizzle_scale_factors"} <= found
    assert dutyfree.ops.NVFP4Linear.__module__.startswith("dutyfree.ops")


def test_only_importing_the_operators_defines_them() -> None:
    run_isolated(names_are_ours)


def test_keeping_without_theirs_defines_ours() -> None:
    run_isolated(names_are_ours, DUTYFREE_TRTLLM_OPS="keep")


@pytest.mark.parametrize("schema", [GEMM, QUANTIZE])
def test_the_schemas_are_the_published_ones(schema: str) -> None:
    import dutyfree.ops

    name = schema.partition("(")[0]
    assert hasattr(dutyfree.ops, name)
    assert getattr(torch.ops.trtllm, name).default._schema == torch._C.parse_schema(f"trtllm::{schema}")


@pytest.mark.parametrize("name", ["tunable_fp4_quantize", "nvfp4_gemm"])
def test_calls_go_the_direct_way_however_the_operator_is_spelled(name: str) -> None:
    import dutyfree.ops

    given = _arguments() if name == "nvfp4_gemm" else (torch.ones(2, 16), torch.ones(1))
    packet = getattr(torch.ops.trtllm, name)
    before = dutyfree.stats()[f"trtllm::{name}"].calls["direct"]
    for op in (getattr(dutyfree.ops, name), packet, packet.default):
        assert dutyfree.explain(op, *given).path == "direct"
        op(*given)
    assert dutyfree.stats()[f"trtllm::{name}"].calls["direct"] == before + 3


@pytest.mark.parametrize("name", ["tunable_fp4_quantize", "nvfp4_gemm"])
def test_the_names_of_dutyfree_are_the_same_operators(name: str) -> None:
    from dutyfree import ops

    own = {"tunable_fp4_quantize": ops.nvfp4.own_quantize, "nvfp4_gemm": ops.nvfp4.own_gemm}[name]
    other = getattr(ops, name)
    assert str(own._opoverload._schema) == str(other._opoverload._schema).replace("trtllm::", "dutyfree::")
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    scale = ops.global_scale(x)
    quantized = ops.tunable_fp4_quantize(x, scale, 16, True)
    values, factors = quantized
    gemm = (values, values, factors, factors, scale, torch.float32)
    arguments = (x, scale, 16, True) if name == "tunable_fp4_quantize" else gemm
    torch.testing.assert_close(own(*arguments), other(*arguments), rtol=0, atol=0)
    assert dutyfree.explain(own, *arguments).path == "direct"
