"""transformers: the operators under its mixture-of-experts models, whose formula calls a second operator."""

import copy
from typing import Any

import pytest
import torch
import transformers
from before_and_after import Case, accelerated, by_path, check, check_with_gradient, registered, same, side_of
from torch import Tensor
from transformers.integrations import moe, msa_attention  # noqa: F401  (registers an operator)

from dutyfree.check.outcome import Arguments, call

NAMESPACES = "transformers", "transformers_msa"
FORWARD, BACKWARD = "transformers::grouped_mm_fallback", "transformers::grouped_mm_fallback_backward"
MSA = "transformers_msa::sparse_atten"
LAYERS, PROJECTIONS = 2, 2


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def grouped() -> Arguments:
    """Three experts, of which the second gets no rows."""
    return call(normal(5, 4), normal(3, 4, 6), offs=torch.tensor([2, 2, 5], dtype=torch.int32))


def grouped_backward() -> Arguments:
    given = grouped()
    return call(*given.args, given.kwargs["offs"], normal(5, 6))


def sparse_attention() -> Arguments:
    ends = torch.tensor([0, 4], dtype=torch.int32)
    tensors = normal(4, 2, 8), normal(4, 1, 8), normal(4, 1, 8), torch.zeros(4, 1, 1, dtype=torch.int32)
    return call(*tensors, ends, ends, 1, 4, 4, 4, 4, 2, 0.5, "no-such/kernel")


CASES = [
    Case(FORWARD, grouped),
    Case(BACKWARD, grouped_backward),
    # Its kernel is loaded from a hub, where the `kernels` package is installed.
    Case(MSA, sparse_attention, raises="ImportError"),
]


@pytest.fixture
def _fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch.nn.functional.grouped_mm can't be used, which it can with this torch on a CPU."""
    monkeypatch.setattr(moe, "_can_use_grouped_mm", lambda *_: False)


def test_every_operator_has_a_case() -> None:
    assert [case.operator for case in CASES] == registered(*NAMESPACES)


@pytest.mark.parametrize("target", ["transformers", transformers], ids=["namespace", "module"])
def test_the_report_lists_every_operator_as_direct(target: Any) -> None:
    with accelerated(target) as report:
        assert by_path(report) == {"direct": 2 if target == "transformers" else 3}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_calls_are_the_same_and_direct(case: Case) -> None:
    check(case, transformers)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_calls_with_gradients_are_the_same(case: Case) -> None:
    check_with_gradient(case, transformers)


@pytest.mark.parametrize("case", CASES[:2], ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_passes_under_accelerate(case: Case, requires_grad: bool) -> None:
    given = case.arguments()
    if case.operator == FORWARD:
        for tensor in given.args:
            tensor.requires_grad_(requires_grad)
    with accelerated(transformers):
        torch.library.opcheck(side_of(case.operator).overload, given.args, given.kwargs)


def tiny_model(**changed: Any) -> transformers.Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        experts_implementation="grouped_mm",
        **changed,
    )
    return transformers.Qwen3MoeForCausalLM(config)


TOKENS = torch.arange(12).view(2, 6)
CALLS = LAYERS * PROJECTIONS


def ours(taken: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Of the paths taken those of the package's operators."""
    return {name: calls for name, calls in taken.items() if name.partition("::")[0] in NAMESPACES}


@pytest.mark.usefixtures("_fallback")
@pytest.mark.parametrize("target", [transformers, FORWARD, None], ids=["module", "operator", "everything"])
def test_a_model_s_forward_and_backward_are_the_same(target: Any) -> None:
    def step() -> list[Any]:
        model = tiny_model()
        result = model(TOKENS, labels=TOKENS)
        result.loss.backward()
        return [result.loss, result.logits, *(parameter.grad for parameter in model.parameters())]

    backward = {} if target == FORWARD else {BACKWARD: {"direct": CALLS}}
    assert ours(same(step, target)) == {FORWARD: {"autograd": CALLS}, **backward}


@pytest.mark.usefixtures("_fallback")
def test_training_is_the_same() -> None:
    steps = 3

    def train() -> list[Any]:
        model = tiny_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(TOKENS, labels=TOKENS).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [losses, list(model.state_dict().values())]

    taken = ours(same(train, transformers))
    assert taken == {FORWARD: {"autograd": steps * CALLS}, BACKWARD: {"direct": steps * CALLS}}


@pytest.mark.usefixtures("_fallback")
def test_training_with_checkpoints_is_the_same() -> None:
    def step() -> list[Any]:
        model = tiny_model()
        model.activation_checkpointing_enable()
        model.train()
        loss = model(TOKENS, labels=TOKENS).loss
        loss.backward()
        return [loss, *(parameter.grad for parameter in model.parameters())]

    taken = ours(same(step, transformers))
    # The forward pass runs without a gradient, or with one that is thrown away, and again for the backward pass.
    assert sum(taken[FORWARD].values()) == 2 * CALLS
    assert taken[BACKWARD] == {"direct": CALLS}


@pytest.mark.usefixtures("_fallback")
def test_generation_is_the_same() -> None:
    new_tokens = 4

    def generate() -> Tensor:
        return tiny_model().generate(TOKENS, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False)  # type: ignore[no-any-return]

    assert ours(same(generate, transformers)) == {FORWARD: {"direct": new_tokens * CALLS}}


@pytest.mark.usefixtures("_fallback")
def test_a_copy_of_a_model_is_the_same() -> None:
    def step() -> Tensor:
        with torch.no_grad():
            return copy.deepcopy(tiny_model())(TOKENS).logits  # type: ignore[no-any-return]

    assert ours(same(step, transformers)) == {FORWARD: {"direct": CALLS}}


@pytest.mark.usefixtures("_fallback")
def test_autocast_is_the_same() -> None:
    def step() -> list[Any]:
        model = tiny_model()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(TOKENS, labels=TOKENS).loss
        loss.backward()
        return [loss, *(parameter.grad for parameter in model.parameters())]

    assert ours(same(step, transformers)) == {FORWARD: {"autograd": CALLS}, BACKWARD: {"direct": CALLS}}


def test_a_compiled_model_is_the_same() -> None:
    """Compiled code of float32 uses the fallback by itself; the graph is run by autograd without being lowered."""

    def step() -> list[Any]:
        torch._dynamo.reset()
        model = torch.compile(tiny_model(), backend="aot_eager")
        loss = model(TOKENS, labels=TOKENS).loss
        loss.backward()
        return [loss, *(parameter.grad for parameter in model.parameters())]

    taken = ours(same(step, transformers))
    assert set(taken) == {FORWARD, BACKWARD}
