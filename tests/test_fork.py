"""Operators in forked processes: workers of a DataLoader, and a fork inside a body."""

import os
import warnings

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import dutyfree
from isolated import run_isolated
from parity import thread_state, unique_namespaces


def scale(x: Tensor, sizes: list[int], factor: float = 1.0) -> Tensor:
    return x * factor + len(sizes)


class Scaled(Dataset[Tensor]):
    """Its items are made by operators, one of which each worker makes itself."""

    def __init__(self, op: object) -> None:
        self.op = op
        self.own: object = None

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        if self.own is None:
            self.own = dutyfree.fast_custom_op(f"worker_{os.getpid()}::op", scale)
        arguments = (torch.full((2,), float(index)), [1, 2], 3)
        for op in (self.op, self.own):
            assert dutyfree.explain(op, *arguments).path == "direct"
        return torch.cat([self.op(*arguments), self.own(*arguments)])  # type: ignore[operator]


def load_in_workers() -> None:
    op = dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", scale)
    op(torch.ones(2), [1])
    loader = DataLoader(Scaled(op), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        values = torch.cat(list(loader))
        assert values.tolist() == [[index * 3.0 + 2.0] * 4 for index in range(16)]


def test_workers_of_a_data_loader_call_operators_directly() -> None:
    run_isolated(load_in_workers)


def fork_in_a_body() -> None:
    def body(x: Tensor, tensors: list[Tensor]) -> Tensor:
        children.append(os.fork())
        return x + len(tensors)

    children: list[int] = []
    op = dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", body)
    before = thread_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # CPython 3.12 warns where other threads run
        result = op(torch.ones(2), [torch.ones(1)])
    right = result.tolist() == [2.0, 2.0] and thread_state() == before
    if children == [0]:
        # The child finishes the call that it was born in, and can make others.
        status = 1
        if right:
            again = dutyfree.fast_custom_op("born_in_a_call::op", scale)(result, [1], 2)
            status = 0 if again.tolist() == [5.0, 5.0] else 2
        os._exit(status)
    assert right
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def test_a_body_may_fork() -> None:
    run_isolated(fork_in_a_body)
