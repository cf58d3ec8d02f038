"""diffusers registers one operator, for CUDA alone; its models run with it, and with accelerate() over everything.

On a CPU the operator has no kernel. Here that error is compared, its fake kernel, and, with a kernel for the CPU that
this test adds to it, a transformer whose attention goes through it.
"""

from collections.abc import Iterator
from typing import Any

import diffusers
import pytest
import torch
from before_and_after import Case, accelerated, check, check_with_gradient, registered, same, side_of
from diffusers.models import attention_dispatch
from diffusers.models.attention_dispatch import AttentionBackendName
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dutyfree.check.outcome import Arguments, call

NAMESPACE = "_diffusers_flash_attn_3"
OPERATOR = f"{NAMESPACE}::_flash_attn_forward"
LAYERS = 1, 2  # blocks of the transformer with two streams, and with one


def attention(device: str = "cpu") -> Arguments:
    query, key, value = torch.randn(3, 1, 5, 2, 8, generator=torch.Generator().manual_seed(0)).to(device)
    return call(q=query, k=key, v=value, softmax_scale=0.5, causal=True)


@pytest.fixture
def _kernel_for_cpu() -> Iterator[None]:
    """A kernel in the place of flash-attn 3's, which has none for the CPU."""

    def forward(
        q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, *rest: Any
    ) -> tuple[Tensor, Tensor]:
        query, key, value = (part.transpose(1, 2) for part in (q, k, v))
        scale = query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        scores = query @ key.transpose(-1, -2) * scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), scores.logsumexp(-1).transpose(1, 2).clone()

    with torch.library._scoped_library(NAMESPACE, "IMPL") as library:
        library.impl("_flash_attn_forward", forward, "CPU")
        yield


def test_it_registers_one_operator() -> None:
    assert registered(NAMESPACE) == [OPERATOR]
    with accelerated(diffusers) as report:
        assert [entry.name for entry in report] == [OPERATOR]


@pytest.mark.parametrize("target", [diffusers, OPERATOR, None], ids=["module", "operator", "everything"])
def test_without_a_kernel_for_the_cpu_the_error_is_the_same(target: Any) -> None:
    check(Case(OPERATOR, attention, path="boxed", raises="NotImplementedError"), target)


def test_meta_tensors_give_the_same() -> None:
    check(Case(OPERATOR, lambda: attention("meta"), path="boxed"), diffusers)


def test_fake_tensors_give_the_same() -> None:
    def faked() -> Any:
        with FakeTensorMode():
            query = torch.empty(1, 5, 2, 8, dtype=torch.bfloat16)
            out, lse = side_of(OPERATOR).packet(query, query, query)
            return [(part.shape, part.dtype, type(part).__name__) for part in (out, lse)]

    assert set(same(faked, diffusers)[OPERATOR]) == {"boxed"}


@pytest.mark.usefixtures("_kernel_for_cpu")
def test_with_a_kernel_for_the_cpu_calls_are_the_same() -> None:
    check(Case(OPERATOR, attention), diffusers)
    check_with_gradient(Case(OPERATOR, attention), diffusers)


def transformer() -> diffusers.FluxTransformer2DModel:
    torch.manual_seed(0)
    return diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=LAYERS[0],
        num_single_layers=LAYERS[1],
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )


def denoise(backend: AttentionBackendName | None) -> Any:
    """A step of the transformer, and its gradients where the attention has them."""
    model = transformer()
    for module in model.modules():
        processor = getattr(module, "processor", None)
        if processor is not None and backend is not None:
            processor._attention_backend = backend
    inputs = {
        "hidden_states": torch.randn(1, 6, 4),
        "encoder_hidden_states": torch.randn(1, 3, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(6, 3),
        "txt_ids": torch.zeros(3, 3),
    }
    if backend is None:
        sample = model(**inputs).sample
        sample.square().mean().backward()
        return [sample, *(parameter.grad for parameter in model.parameters())]
    with torch.no_grad():
        return model(**inputs).sample


@pytest.mark.usefixtures("_kernel_for_cpu")
@pytest.mark.parametrize("target", [diffusers, None], ids=["module", "everything"])
def test_a_transformer_whose_attention_is_the_operator_gives_the_same(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The backend asks for CUDA and half precision before it calls the operator.
    monkeypatch.setattr(attention_dispatch._AttentionBackendRegistry, "_checks_enabled", False)
    taken = same(lambda: denoise(AttentionBackendName._FLASH_3), target)
    assert taken[OPERATOR] == {"direct": sum(LAYERS)}


def test_a_transformer_gives_the_same_under_accelerate_of_everything() -> None:
    """Its own attention calls torch.nn.functional: no call reaches an operator's object."""
    taken = same(lambda: denoise(None), None)
    assert OPERATOR not in taken
