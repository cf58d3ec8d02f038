"""What ``trtllm::nvfp4_gemm`` keeps of weights on a CPU: a packed form is right only while the weight is the same."""

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nvfp4_oracle as oracle
from dutyfree.ops import nvfp4, nvfp4_gemm
from nvfp4_cases import operands

# bf16_mm keeps a form of every weight; which of the others do so, and for which M, is theirs.
BACKENDS = nvfp4.backends()
N, K = 60, 256
ROWS = [1, 16]


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    gc.collect()
    nvfp4.forget_packed_weights()
    assert nvfp4.packed_weights()["entries"] == 0
    yield
    nvfp4.forget_packed_weights()


def weight(seed: int = 0, n: int = N, k: int = K) -> tuple[Tensor, Tensor]:
    """Values and swizzled scales."""
    _, values, _, scales, _ = operands(1, n, k, seed=seed).tensors
    return values, scales


def product(values: Tensor, scales: Tensor, backend: str, m: int = 1) -> Tensor:
    act, _, act_scales, _, alpha = operands(m, 1, values.shape[1] * 2, seed=99).tensors
    return nvfp4_gemm(act, values, act_scales, scales, alpha, torch.float32, 0, backend)


def untouched(values: Tensor, scales: Tensor, backend: str, m: int = 1) -> Tensor:
    """The product with copies, of which nothing can have been kept."""
    return product(values.clone(), scales.clone(), backend, m)


def copy_(values: Tensor, scales: Tensor) -> None:
    values.copy_(weight(1)[0])


def write_a_row(values: Tensor, scales: Tensor) -> None:
    values[0] = 0x22


def write_by_a_view(values: Tensor, scales: Tensor) -> None:
    values.view(-1)[5:900:7].bitwise_xor_(0xFF)


def write_by_a_view_made_before(values: Tensor, scales: Tensor) -> Callable[[], object]:
    view = values.t()[3]
    return lambda: view.fill_(0x77)


def write_by_detach(values: Tensor, scales: Tensor) -> None:
    values.detach().bitwise_not_()


def write_by_out(values: Tensor, scales: Tensor) -> None:
    torch.bitwise_xor(values, 0x88, out=values)


def write_data_and_count_it(values: Tensor, scales: Tensor) -> None:
    values.data.copy_(weight(1)[0])  # does not count as a version
    values.add_(0)


def write_memory_and_forget(values: Tensor, scales: Tensor) -> None:
    values.numpy()[:] = weight(1)[0].numpy()  # nothing can notice that
    nvfp4.forget_packed_weights()


def set_data(values: Tensor, scales: Tensor) -> None:
    values.data = weight(1)[0]


def set_storage(values: Tensor, scales: Tensor) -> None:
    values.set_(weight(1)[0])


def write_a_scale(values: Tensor, scales: Tensor) -> None:
    scales[0] = 0x50


def copy_scales(values: Tensor, scales: Tensor) -> None:
    scales.copy_(weight(1)[1])


def set_data_of_scales(values: Tensor, scales: Tensor) -> None:
    scales.data = weight(1)[1]


CHANGES = [
    copy_, write_a_row, write_by_a_view, write_by_a_view_made_before, write_by_detach, write_by_out,
    write_data_and_count_it, write_memory_and_forget, set_data, set_storage, write_a_scale, copy_scales,
    set_data_of_scales,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_weight_that_changes(change: Callable[[Tensor, Tensor], object], m: int, backend: str) -> None:
    values, scales = weight()
    later = change(values, scales) if change is write_by_a_view_made_before else None
    before = product(values, scales, backend, m)
    assert torch.equal(product(values, scales, backend, m), before)
    if callable(later):
        later()
    else:
        change(values, scales)
    found = product(values, scales, backend, m)
    assert torch.equal(found, untouched(values, scales, backend, m))
    assert not torch.equal(found, before)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", ROWS)
def test_a_weight_that_changes_at_every_call(m: int, backend: str) -> None:
    values, scales = weight()
    for seed in range(10):
        values.copy_(weight(seed)[0])
        assert torch.equal(product(values, scales, backend, m), untouched(values, scales, backend, m))
    assert nvfp4.packed_weights()["entries"] <= 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_weight_with_two_sets_of_scales(backend: str) -> None:
    values, first = weight()
    second = weight(1)[1]
    wanted = [untouched(values, scales, backend) for scales in (first, second)]
    assert not torch.equal(*wanted)
    for turn in range(6):
        assert torch.equal(product(values, (first, second)[turn % 2], backend), wanted[turn % 2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_memory_with_two_shapes(backend: str) -> None:
    values = weight(n=64, k=256)[0]
    shapes = [(values, weight(n=64, k=256)[1]), (values.view(128, 64), weight(n=128, k=128)[1])]
    wanted = [untouched(*given, backend) for given in shapes]
    for turn in range(6):
        assert torch.equal(product(*shapes[turn % 2], backend), wanted[turn % 2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_of_one_tensor(backend: str) -> None:
    whole = torch.cat([weight(seed)[0] for seed in range(4)])
    scales = [weight(seed)[1] for seed in range(4)]
    wanted = [untouched(whole[N * n : N * n + N], scales[n], backend) for n in range(4)]
    for _ in range(3):
        for n in range(4):
            assert torch.equal(product(whole[N * n : N * n + N], scales[n], backend), wanted[n])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_with_other_rows_uses_the_same_weight(backend: str) -> None:
    values, scales = weight()
    for m in (1, 2, 16, 64, 200, 1):
        assert torch.equal(product(values, scales, backend, m), untouched(values, scales, backend, m))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter(backend: str) -> None:
    values, scales = weight()
    parameter = nn.Parameter(values.clone(), requires_grad=False)
    assert torch.equal(product(parameter, scales, backend), product(values, scales, backend))
    with torch.no_grad():
        parameter.copy_(weight(1)[0])
    assert torch.equal(product(parameter, scales, backend), untouched(parameter, scales, backend))


# --- the same address


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("which", ["values", "scales", "both"])
def test_a_new_weight_at_the_address_of_one_that_is_gone(which: str, m: int, backend: str) -> None:
    values, scales = weight()
    memory = bytearray(values.numpy().tobytes()), bytearray(scales.numpy().tobytes())

    def at_the_same_address(seed: int) -> tuple[Tensor, Tensor]:
        for n, kind in enumerate(("values", "scales")):
            if which in (kind, "both"):
                memory[n][:] = weight(seed)[n].numpy().tobytes()
        return torch.frombuffer(memory[0], dtype=torch.uint8).view(values.shape), torch.frombuffer(
            memory[1], dtype=torch.uint8
        )

    addresses = set()
    for seed in range(5):
        given = at_the_same_address(seed)
        addresses.add((given[0].data_ptr(), given[1].data_ptr()))
        assert torch.equal(product(*given, backend, m), untouched(*given, backend, m))
        assert torch.equal(product(*given, backend, m), untouched(*given, backend, m))
        del given
    assert len(addresses) == 1


# --- inference mode


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", ROWS)
def test_a_weight_made_in_inference_mode(m: int, backend: str) -> None:
    with torch.inference_mode():
        values, scales = weight()
        values, scales = values.clone(), scales.clone()
        assert values.is_inference()
        for seed in range(4):
            values.copy_(weight(seed)[0])  # which counts no version
            scales.copy_(weight(seed)[1])
            assert torch.equal(product(values, scales, backend, m), untouched(values, scales, backend, m))
            assert torch.equal(product(values, scales, backend, m), untouched(values, scales, backend, m))
    assert torch.equal(product(values, scales, backend, m), untouched(values, scales, backend, m))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_that_changes_in_inference_mode(backend: str) -> None:
    values, scales = weight()
    before = product(values, scales, backend)
    with torch.inference_mode():
        assert torch.equal(product(values, scales, backend), before)
        values.copy_(weight(1)[0])
        assert torch.equal(product(values, scales, backend), untouched(values, scales, backend))
    assert torch.equal(product(values, scales, backend), untouched(values, scales, backend))


# --- what is counted


def counted(key: str) -> int:
    gc.collect()
    return nvfp4.packed_weights()[key]


def test_what_packed_weights_says() -> None:
    said = nvfp4.packed_weights()
    assert said.keys() == {"entries", "bytes", "limit", "repacks"}
    assert all(isinstance(number, int) and number >= 0 for number in said.values())
    assert (said["entries"], said["bytes"]) == (0, 0)
    assert said["limit"] > 0


@pytest.mark.parametrize("m", ROWS)
def test_a_weight_is_packed_once(m: int) -> None:
    values, scales = weight()
    product(values, scales, "bf16_mm", m)
    packed = nvfp4.packed_weights()
    assert packed["entries"] == 1
    assert packed["bytes"] >= N * K * 2
    for _ in range(5):
        product(values, scales, "bf16_mm", m)
    assert nvfp4.packed_weights() == packed
    values.add_(0)
    product(values, scales, "bf16_mm", m)
    assert counted("entries") == 1
    assert counted("repacks") > packed["repacks"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_with_the_same_weight_keep_nothing_more(backend: str) -> None:
    values, scales = weight()
    for m in (1, 16):
        product(values, scales, backend, m)
        product(values, scales, backend, m)
    packed = nvfp4.packed_weights()
    for _ in range(5):
        for m in (1, 16):
            product(values, scales, backend, m)
    assert nvfp4.packed_weights() == packed


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_kept_goes_with_the_weight(backend: str) -> None:
    kept = [weight(seed) for seed in range(4)]
    for values, scales in kept:
        product(values, scales, backend, 1)
        product(values, scales, backend, 16)
    before = counted("entries")
    if backend == "bf16_mm":
        assert before == 4
    del values, scales, kept[2:]
    assert counted("entries") <= before / 2
    kept.clear()
    assert counted("entries") == 0
    assert counted("bytes") == 0


def test_forgetting() -> None:
    values, scales = weight()
    before = product(values, scales, "bf16_mm")
    assert counted("entries") == 1
    nvfp4.forget_packed_weights()
    assert (counted("entries"), counted("bytes")) == (0, 0)
    assert torch.equal(product(values, scales, "bf16_mm"), before)
    assert counted("entries") == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_weights_that_come_and_go_keep_little(backend: str) -> None:
    values, scales = weight()
    product(values, scales, backend)
    one_weight = max(counted("bytes"), 1)
    for seed in range(100):
        values, scales = weight(seed)
        product(values, scales, backend)
        packed = nvfp4.packed_weights()
        assert packed["bytes"] <= packed["limit"]
        # Two may be alive for a moment: the one that is gone, until it is asked after.
        assert packed["bytes"] <= 2 * one_weight


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_weights_that_stay_are_right(backend: str) -> None:
    kept = [weight(seed) for seed in range(60)]
    wanted = [untouched(values, scales, backend) for values, scales in kept]
    for _ in range(3):
        for (values, scales), result in zip(kept, wanted, strict=True):
            assert torch.equal(product(values, scales, backend), result)
        assert counted("bytes") <= nvfp4.packed_weights()["limit"]
        assert counted("entries") <= 60


def test_a_weight_is_kept_alive_by_nobody_else() -> None:
    values, scales = weight()
    memory = values.untyped_storage()._weak_ref()
    product(values, scales, "bf16_mm")
    del values
    gc.collect()
    counted("entries")
    gone = torch.UntypedStorage._expired(memory)
    torch.UntypedStorage._free_weak_ref(memory)
    assert gone


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_weight_itself_is_not_written_to(backend: str) -> None:
    values, scales = weight()
    before = values.clone(), scales.clone()
    product(values, scales, backend)
    product(values, scales, backend, 16)
    assert torch.equal(values, before[0])
    assert torch.equal(scales, before[1])
    assert (values._version, scales._version) == (0, 0)


def test_the_products_are_those_of_the_oracle() -> None:
    # What the others compare with is the operator itself, without anything kept.
    of = operands(16, N, K)
    found = untouched(of.tensors[1], of.tensors[3], BACKENDS[0], 16)
    act = operands(16, 1, K, seed=99)
    exact, magnitude = oracle.gemm(act.act, act.act_scales, of.weight, of.weight_scales, act.alpha)
    assert (np.abs(found.double().numpy() - exact) <= 2**-14 * magnitude).all()


# --- what is dropped, and what is not


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_and_a_part_of_it_do_not_drive_each_other_out(backend: str) -> None:
    values, scales = weight(n=256)
    part = values[:128], scales[: 128 * (K // 16)]
    for _ in range(3):
        assert torch.equal(product(values, scales, backend)[:, :128], product(*part, backend))
    before = nvfp4.packed_weights()["repacks"]
    for _ in range(3):
        product(values, scales, backend)
        product(*part, backend)
    assert nvfp4.packed_weights()["repacks"] == before


def test_a_limit_drops_the_longest_unused() -> None:
    limit = nvfp4.packed_weights()["limit"]
    backend = nvfp4.available_targets()[-1]
    kept = [weight(seed) for seed in range(3)]
    try:
        product(*kept[0], backend)
        size = nvfp4.packed_weights()["bytes"]
        nvfp4.limit_packed_weights(2 * size)
        for each in kept:
            product(*each, backend)
        state = nvfp4.packed_weights()
        assert (state["entries"], state["bytes"]) == (2, 2 * size)
        product(*kept[2], backend)
        product(*kept[1], backend)
        assert nvfp4.packed_weights()["repacks"] == state["repacks"]
        nvfp4.limit_packed_weights(0)
        assert nvfp4.packed_weights()["entries"] == 0
        assert torch.equal(product(*kept[0], backend), untouched(*kept[0], backend))
    finally:
        nvfp4.limit_packed_weights(limit)
