"""DTensor: without a sharding rule the body must not run on the wrapper."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from parity import Pair, Side, call, check, pair_of, took


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def pair() -> Pair:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    pair = pair_of(doubled)
    pair.each(lambda op: op.register_fake(torch.empty_like))
    return pair


def result_of(side: Side, x: Tensor) -> Any:
    side.received.clear()
    try:
        result = side.op(x)
    except Exception as error:
        return type(error).__name__, side.text(error)
    return type(result).__name__, result.to_local().tolist()


@pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=["sharded", "replicated"])
def test_without_a_sharding_rule_the_body_never_runs_on_the_wrapper(pair: Pair, mesh: Any, placement: Any) -> None:
    x = distribute_tensor(torch.ones(4), mesh, [placement])
    assert result_of(pair.reference, x) == result_of(pair.fast, x)
    for side in pair.sides():
        assert not any(isinstance(given.args[0], DTensor) for given, _ in side.received)
    with took(pair.fast, ("tensor-subclass", "dispatch-mode")):
        result_of(pair.fast, x)
    check(pair, lambda: call(torch.ones(4)))


def test_with_a_sharding_rule_the_body_runs_on_the_local_part(pair: Pair, mesh: Any) -> None:
    from torch.distributed.tensor.experimental import register_sharding

    x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    for side in pair.sides():

        @register_sharding(side.overload)
        def _(x: Any) -> Any:
            return [([Shard(0)], [Shard(0)]), ([Replicate()], [Replicate()])]

        assert result_of(side, x) == ("DTensor", [2.0, 2.0, 2.0, 2.0])
        assert [type(given.args[0]) for given, _ in side.received] == [Tensor]
