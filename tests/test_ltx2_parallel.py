"""LTX-2's denoising loop over several processes, against the same loop in one.

In NVFP4 a rounding difference in one value becomes one of the size of a quantization step, so that after 3 steps two
correct runs that round differently are as far apart (0.15) as a correct and a wrong one. So those are compared bit by
bit, which they allow: rows of an NVFP4 product do not depend on the other rows. And in float32, where splits differ by
rounding only, within a tolerance: they came to 5e-7 of the latents' norm at most, and the wrong exchanges to 2e-3 and
more (2026-11-30, PyTorch 2.13, 2 blocks, 3 steps).
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ltx2_forked
from dutyfree.workloads.ltx2 import PLAIN, REGISTRATIONS, Sizes, ulysses
from dutyfree.workloads.ltx2.layout import Layout
from ltx2_forked import SPLITS, any_outcome, outcome

TOLERANCE = 1e-5


def difference(name: str, reference: str) -> float:
    """The largest of both latents', relative to the reference's norm."""
    found, expected = outcome(name), outcome(reference)
    pairs = (found.video[0], expected.video[0]), (found.audio[0], expected.audio[0])
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def assert_same_bits(name: str, reference: str) -> None:
    found, expected = outcome(name), outcome(reference)
    assert torch.equal(found.video[0], expected.video[0])
    assert torch.equal(found.audio[0], expected.audio[0])


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_run_in_float32_is_that_of_one_process(split: str) -> None:
    assert difference(f"{split}, float32", "float32") < TOLERANCE


@pytest.mark.parametrize("wrong", ["heads_of_another_rank", "tokens_in_another_order"])
def test_a_wrong_exchange_is_far_outside_the_tolerance(wrong: str) -> None:
    assert difference(f"{wrong}, float32", "float32") > 100 * TOLERANCE


@pytest.mark.parametrize("split", ["ulysses 2", "ulysses 4"])
def test_the_split_of_the_sequence_changes_no_bit_in_nvfp4(split: str) -> None:
    assert_same_bits(split, "alone")


@pytest.mark.parametrize("split", ["guidance 2", "guidance 2, ulysses 2"])
def test_the_split_of_guidance_changes_no_bit_of_one_row_at_a_time_in_nvfp4(split: str) -> None:
    # Both rows as a batch round differently in PyTorch's own linear layers before the blocks.
    assert_same_bits(split, "alone, one row at a time")


@pytest.mark.parametrize("split", SPLITS)
def test_all_ranks_end_with_the_same_latents(split: str) -> None:
    found = outcome(split)
    assert len(found.audio) == SPLITS[split].processes
    assert all(torch.equal(audio, found.audio[0]) for audio in found.audio)
    assert all(torch.equal(video, found.video[0]) for video in found.video)


@pytest.mark.parametrize("split", SPLITS)
def test_the_latents_are_whole(split: str) -> None:
    sizes = ltx2_forked.SIZES
    found = outcome(split)
    assert found.video[0].shape == (1, sizes.video_tokens, sizes.channels)
    assert found.audio[0].shape == (1, sizes.audio_tokens, sizes.channels)


@pytest.mark.parametrize("registration", [*REGISTRATIONS, PLAIN])
def test_every_registration_runs_over_processes_with_the_same_bits(registration: str) -> None:
    assert_same_bits(f"{registration} in 2", "ulysses 2")


@pytest.mark.parametrize("split", SPLITS)
def test_a_rank_calls_each_operator_once_a_linear_layer(split: str) -> None:
    linears = ltx2_forked.SIZES.linears
    expected = {"trtllm::tunable_fp4_quantize": linears, "trtllm::nvfp4_gemm": linears}
    assert all(calls == expected for calls in outcome(split).calls)


def test_a_split_block_is_one_graph_for_torch_compile() -> None:
    # "fullgraph" raises where it is not.
    assert_same_bits("traced", "ulysses 2")


def test_ranks_agree_on_tactics_that_they_measured() -> None:
    # Rank 0's win the tie. Ranks with different ones would end with different latents, which is an error.
    assert len(outcome("disagreeing").audio) == 2


@pytest.mark.parametrize("case", ["drifting", "no exchange"])
def test_ranks_that_drift_apart_are_an_error_on_all_of_them(case: str) -> None:
    errors = any_outcome(case).errors
    assert len(errors) == 2
    assert all("rank 1 ended with other audio than rank 0" in error for error in errors)
    assert "tuning cache" in errors[0]


def test_rows_of_an_nvfp4_product_do_not_depend_on_the_others() -> None:
    from dutyfree import ops

    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(64, 48).bfloat16()
    x = torch.randn(33, 64, generator=generator).bfloat16()
    layer = ops.NVFP4Linear.from_linear(linear, input_scale=ops.global_scale(x))
    with torch.inference_mode():
        for target in ops.nvfp4.available_targets():
            with ops.nvfp4.force_target(target):
                whole = layer(x)
                for begin, end in ((0, 1), (3, 7), (16, 33)):
                    assert torch.equal(layer(x[begin:end]), whole[begin:end]), target


# --- what is refused --------------------------------------------------------------------------------------------------


def block_with(**attributes: Any) -> nn.Module:
    block = nn.Module()
    for name in ulysses.PROCESSORS:
        attention = nn.Module()
        given = {"to_gate_logits": None, "heads": 4, "rope_type": "interleaved", **attributes}
        for key, value in given.items():
            setattr(attention, key, value)
        block.add_module(name, attention)
    return nn.ModuleList([block])


def two_ranks() -> Any:
    return SimpleNamespace(size=2, rank=0)


def test_gated_attention_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"attn1 of block 0 is gated attention, which runs in one process"):
        ulysses.split_attentions(block_with(to_gate_logits=nn.Linear(4, 4)), two_ranks())


def test_perturbed_attention_is_refused() -> None:
    blocks = block_with()
    blocks[0].perturbed_attn = True  # type: ignore[index]
    with pytest.raises(NotImplementedError, match="attn1 of block 0 is perturbed attention"):
        ulysses.split_attentions(blocks, two_ranks())


def test_heads_that_the_ranks_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="attn1 of block 0 has 3 heads, which 2 ranks do not divide"):
        ulysses.split_attentions(block_with(heads=3), two_ranks())


def test_a_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ulysses, "rotary_function", lambda rope_type: None)
    monkeypatch.setattr(ulysses, "attention_function", lambda: None)
    processor = ulysses.SelfAttention(two_ranks(), "interleaved")
    tokens: Tensor = torch.zeros(1, 4, 8)
    with pytest.raises(NotImplementedError, match=r"attention_mask of shape \(1, 4, 4\).* Run in one process"):
        processor(None, tokens, attention_mask=torch.zeros(1, 4, 4))


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "ulysses", "expected"),
    [
        (1, None, (1, 1)),
        (2, None, (2, 1)),
        (2, 2, (1, 2)),
        (3, None, (1, 3)),
        (4, None, (2, 2)),
        (4, 4, (1, 4)),
        (8, None, (2, 4)),
    ],
)
def test_processes_split_guidance_first(processes: int, ulysses: int | None, expected: tuple[int, int]) -> None:
    layout = Layout.of(processes, ulysses)
    assert (layout.guidance, layout.ulysses) == expected
    assert layout.processes == processes


@pytest.mark.parametrize(
    ("processes", "ulysses", "message"),
    [
        (0, None, "processes=0: a run has at least one process"),
        (4, 1, "ulysses=1 with 4 processes: .* 2 or 4 is accepted"),
        (4, 3, "ulysses=3 with 4 processes: .* 2 or 4 is accepted"),
        (4, 8, "ulysses=8 with 4 processes: .* 2 or 4 is accepted"),
        (3, 2, "ulysses=2 with 3 processes: .*; 3 is accepted"),
        (2, 0, "ulysses=0 with 2 processes: .* 1 or 2 is accepted"),
    ],
)
def test_other_splits_are_refused(processes: int, ulysses: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.of(processes, ulysses)


def test_a_layout_has_to_divide_heads_and_video_tokens() -> None:
    with pytest.raises(ValueError, match="ulysses=3, of 3 processes, does not divide the 4 heads"):
        Layout(1, 3).check(Sizes())
    with pytest.raises(ValueError, match="ulysses=2, of 4 processes, does not divide the 15 video tokens"):
        Layout(2, 2).check(Sizes(frames=3, height=1, width=5))
    Layout(2, 4).check(Sizes.real())
