"""torchao: every operator that it registers here, and the ways of quantizing a model that call them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchao
from before_and_after import Case, accelerated, by_path, check, check_with_gradient, registered, same, side_of
from torch import Tensor, nn
from torchao import quantization
from torchao.prototype import quant_logger
from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig
from torchao_cases import CASES, NAMESPACES, RAISING, RUNNING, WITHOUT_KERNEL, normal

# What PyTorch says once a process of the sparse tensors in blocksparse::bsr_to_dense.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

OPCHECK_FAILS = {"torchao::dequantize_affine_float8_non_decomposed", "torchao::reference_dqlinear_int4"}


def test_every_operator_has_a_case() -> None:
    assert sorted(case.operator for case in CASES) == registered(*NAMESPACES)


def test_the_report() -> None:
    with accelerated(torchao) as report:
        assert report.names == registered(*NAMESPACES)
        assert by_path(report) == {"direct": len(RUNNING) + len(RAISING), "boxed": len(WITHOUT_KERNEL)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_calls_are_the_same(case: Case) -> None:
    check(case, torchao)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_calls_with_gradients_are_the_same(case: Case) -> None:
    check_with_gradient(case, torchao)


@pytest.mark.parametrize("case", RUNNING, ids=str)
def test_opcheck_says_the_same(case: Case) -> None:
    """It passes for most; its check of the schema can compare no float8, and knows no out_dtype."""

    def opcheck() -> list[str]:
        given = case.arguments()
        said = torch.library.opcheck(side_of(case.operator).overload, given.args, given.kwargs, raise_exception=False)
        return [f"{name}: {result}" for name, result in said.items()]

    same(opcheck, torchao)
    failures = [result for result in opcheck() if "SUCCESS" not in result]
    assert bool(failures) == (case.operator in OPCHECK_FAILS), failures


def ours(taken: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Of the paths taken those of the package's operators, without the namespace."""
    return {name.partition("::")[2]: calls for name, calls in taken.items() if name.partition("::")[0] in NAMESPACES}


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))


LINEARS = 2
CONFIGS: list[tuple[Any, dict[str, int]]] = [
    # The calls of each operator, per linear layer: to quantize its weight, and to run it once.
    (quantization.Int8WeightOnlyConfig(), {"choose_qparams_affine": 1, "quantize_affine": 1}),
    (quantization.Int8DynamicActivationInt8WeightConfig(), {"choose_qparams_affine": 2, "quantize_affine": 2}),
    (quantization.Float8WeightOnlyConfig(), {"choose_scale_float8": 1}),
    (
        quantization.IntxWeightOnlyConfig(),
        {"choose_qparams_affine": 1, "quantize_affine": 1, "dequantize_affine": 1},
    ),
    (
        quantization.Int8DynamicActivationIntxWeightConfig(),
        {"choose_qparams_affine": 2, "quantize_affine": 2, "dequantize_affine": 2},
    ),
]


@pytest.mark.parametrize("target", [torchao, None], ids=["module", "everything"])
@pytest.mark.parametrize(("config", "calls"), CONFIGS, ids=[type(config).__name__ for config, _ in CONFIGS])
def test_a_quantized_model_is_the_same(config: Any, calls: dict[str, int], target: Any) -> None:
    def quantize_and_run() -> Tensor:
        model = small_model()
        quantization.quantize_(model, config)
        with torch.no_grad():
            return model(normal(4, 64))  # type: ignore[no-any-return]

    taken = ours(same(quantize_and_run, target))
    assert taken == {name: {"direct": LINEARS * each} for name, each in calls.items()}


@pytest.mark.parametrize("target", [torchao, None], ids=["module", "everything"])
def test_quantization_aware_training_is_the_same(target: Any) -> None:
    steps = 3

    def train() -> list[Any]:
        model = small_model()
        activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
        weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)
        quantization.quantize_(model, QATConfig(activation_config=activations, weight_config=weights, step="prepare"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 64)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [losses, list(model.state_dict().values())]

    assert ours(same(train, target)) == {"choose_qparams_affine": {"direct": steps * 2 * LINEARS}}


def test_a_compiled_quantized_model_is_the_same() -> None:
    def run() -> Tensor:
        torch._dynamo.reset()
        model = small_model()
        quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
        with torch.no_grad():
            return torch.compile(model, backend="aot_eager", fullgraph=True)(normal(4, 64))  # type: ignore[no-any-return]

    same(run, torchao)


def test_an_exported_quantized_model_names_the_same_operators() -> None:
    """The operators that torchao keeps in exported programs."""

    def names() -> list[str]:
        model = small_model()
        quantization.quantize_(model, quantization.IntxWeightOnlyConfig())
        program = torch.export.export(model, (normal(4, 64),))
        return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]

    same(names, torchao)
    assert any("torchao" in name for name in names())


def logged(redefine: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> str:
    quant_logger.reset_counter()
    redefine()
    model = small_model()
    quant_logger.log_parameter_info(model)
    quant_logger.add_activation_loggers(model)
    with torch.no_grad():
        model(normal(4, 64))
    return capsys.readouterr().out


def test_logging_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    before = logged(lambda: None, capsys)
    with accelerated(torchao):
        under = logged(lambda: None, capsys)
    assert under == before
    assert len(before.splitlines()) == 6


def test_an_operator_that_torchao_defines_again_under_accelerate_is_the_new_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """torchao lets its users replace what the operator does, by defining it again."""
    first = quant_logger.log_tensor._init_fn
    files = tmp_path / "before.csv", tmp_path / "under.csv"
    try:
        logged(lambda: quant_logger.enable_log_stats_to_file(str(files[0])), capsys)
        with accelerated(torchao):
            assert logged(lambda: quant_logger.enable_log_stats_to_file(str(files[1])), capsys) == ""
        assert files[1].read_text() == files[0].read_text()
        assert len(files[1].read_text().splitlines()) == 7
    finally:
        again = torch.library.custom_op("quant_logger::log_tensor", first, mutates_args=("x",))
        again.register_fake(lambda x, fqn, op, tag, extra=None: None)
