"""Eight threads calling and registering."""

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dutyfree
from isolated import run_isolated
from parity import unique_namespaces

ROUNDS = 2000


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Lets threads take turns every few bytecodes rather than every 5 ms."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(*jobs: Callable[[], None]) -> None:
    """Runs the jobs at once, each in a thread of its own, and raises what any of them raised."""
    barrier = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        barrier.wait()
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def ones(x: Tensor, count: int = 1) -> Tensor:
    return torch.full((1,), float(count))


def twos(x: Tensor, count: int = 1) -> Tensor:
    return torch.full((1,), 2.0 * count)


def make(body: Callable[..., Any] = ones, **options: Any) -> Any:
    return dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", body, **options)


def test_eight_threads_call_one_operator() -> None:
    op = make()

    def caller(number: int) -> Callable[[], None]:
        spelled = [op, op._opoverload, op._opoverload.overloadpacket][number % 3]

        def run() -> None:
            x = torch.ones(2)
            for _ in range(ROUNDS):
                assert spelled(x, count=number + 2).item() == number + 2

        return run

    in_threads(*(caller(number) for number in range(8)))
    assert dutyfree.stats()[op._qualname].calls["direct"] == 8 * ROUNDS


def test_threads_call_while_others_register() -> None:
    op = make()
    op.register_kernel("cpu", ones)
    stop = threading.Event()
    libraries: list[torch.library.Library] = []

    def caller(number: int) -> Callable[[], None]:
        spelled = [op, op._opoverload, op._opoverload.overloadpacket, op][number]

        def run() -> None:
            x = torch.ones(2)
            try:
                for _ in range(ROUNDS):
                    assert spelled(x).item() in (1.0, 2.0, 3.0)
            finally:
                stop.set()

        return run

    def registers_kernels() -> None:
        while not stop.is_set():
            op.register_kernel("cpu", twos)
            op.register_kernel("cpu", ones)

    def overrides() -> None:
        # Removed only after the callers are done: PyTorch frees a kernel even while another thread runs it.
        for _ in range(10):
            library = torch.library.Library(op._namespace, "IMPL")
            library.impl("op", lambda x, count=1: torch.full((1,), 3.0), "AutogradCPU", allow_override=True)
            libraries.append(library)

    def defines() -> None:
        for _ in range(50):
            other = make(twos)
            assert other(torch.ones(1)).item() == 2.0

    def observes() -> None:
        while not stop.is_set():
            assert op._qualname in dutyfree.stats()
            assert dutyfree.explain(op, torch.ones(2)).path in ("direct", "pytorch")

    in_threads(*(caller(number) for number in range(4)), registers_kernels, overrides, defines, observes)
    assert op(torch.ones(2)).item() == 3.0
    for library in libraries:
        library._destroy()
    assert op(torch.ones(2)).item() in (1.0, 2.0)


def test_threads_call_while_another_turns_the_kernel_off_and_replaces_the_formula() -> None:
    op = make()
    op.register_kernel("cpu", twos)
    op.register_autograd(lambda ctx, grad: (grad.expand(2), None))
    stop = threading.Event()

    def caller(number: int) -> Callable[[], None]:
        spelled = [op, op._opoverload, op._opoverload.overloadpacket, op][number]

        def run() -> None:
            x = torch.ones(2)
            needing_grad = torch.ones(2, requires_grad=True)
            try:
                for step in range(ROUNDS):
                    assert spelled(x).item() in (1.0, 2.0)
                    if step % 50 == 0:
                        spelled(needing_grad).sum().backward()
                        assert needing_grad.grad is not None
                        assert needing_grad.grad[0].item() in (1.0, 5.0)
                        needing_grad.grad = None
            finally:
                stop.set()

        return run

    def turns_off_and_on() -> None:
        while not stop.is_set():
            with op.set_kernel_enabled("cpu", False):
                pass

    def replaces_the_formula() -> None:
        while not stop.is_set():
            op.register_autograd(lambda ctx, grad: (5.0 * grad.expand(2), None))
            op.register_autograd(lambda ctx, grad: (grad.expand(2), None))

    in_threads(*(caller(number) for number in range(4)), turns_off_and_on, replaces_the_formula)
    assert op(torch.ones(2)).item() == 2.0
    assert dutyfree.stats()[op._qualname].calls["autograd"] >= 4


def test_each_thread_has_its_own_modes_and_grad_mode() -> None:
    op = make()
    op.register_autograd(lambda ctx, grad: (grad.expand(2), None))

    class Answer(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.full((1,), 7.0)

    def plain() -> None:
        x = torch.ones(2)
        for _ in range(ROUNDS):
            assert op(x).item() == 1.0

    def in_a_mode() -> None:
        x = torch.ones(2)
        with Answer():
            for _ in range(ROUNDS // 10):
                assert op(x).tolist is not None
                assert op(x).shape == (1,)
        assert op(x).item() == 1.0

    def with_gradients() -> None:
        for _ in range(ROUNDS // 10):
            x = torch.ones(2, requires_grad=True)
            op(x).sum().backward()
            assert x.grad is not None

    def without_grad_mode() -> None:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            for _ in range(ROUNDS):
                assert not op(x).requires_grad

    def in_inference_mode() -> None:
        x = torch.ones(2)
        with torch.inference_mode():
            for _ in range(ROUNDS):
                assert op(x).is_inference()

    def in_a_function_mode() -> None:
        x = torch.ones(2)
        for _ in range(ROUNDS // 10):
            with torch.device("cpu"):
                assert op(x).item() == 1.0

    in_threads(plain, in_a_mode, with_gradients, without_grad_mode, in_inference_mode, in_a_function_mode, plain, plain)


def test_threads_mutate_their_own_tensors() -> None:
    def body(x: Tensor, tensors: list[Tensor]) -> None:
        pass

    op = make(body, mutates_args={"x", "tensors"})

    def run() -> None:
        x, tensors = torch.ones(2), [torch.ones(1), torch.ones(1)]
        for _ in range(ROUNDS):
            op(x, tensors)
        assert [x._version, *(tensor._version for tensor in tensors)] == [ROUNDS] * 3

    in_threads(*[run] * 8)


def test_a_body_that_lets_other_threads_run_keeps_its_own_call() -> None:
    def body(x: Tensor, count: int = 1) -> Tensor:
        pause.wait(0.001)
        return torch.full((1,), float(count))

    pause = threading.Event()
    op = make(body)

    def caller(number: int) -> Callable[[], None]:
        def run() -> None:
            for step in range(20):
                assert op(torch.ones(2), number * 100 + step).item() == number * 100 + step

        return run

    in_threads(*(caller(number) for number in range(8)))


def test_bodies_that_raise_in_several_threads_raise_their_own_errors() -> None:
    def body(x: Tensor, count: int = 1) -> Tensor:
        raise ValueError(count)

    op = make(body)

    def caller(number: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(ROUNDS // 10):
                with pytest.raises(ValueError, match=f"^{number}$"):
                    op(torch.ones(2), number)

        return run

    in_threads(*(caller(number) for number in range(2, 10)))


def test_threads_define_their_own_names_again_and_again() -> None:
    # One name defined anew while another thread is in a call of it is beyond PyTorch, which frees the kernel that runs.
    def redefines() -> None:
        namespace = unique_namespaces()[1]
        x = torch.ones(2)
        for _ in range(10):
            for body, expected in ((ones, 1.0), (twos, 2.0)):
                op = dutyfree.fast_custom_op(f"{namespace}::op", body)
                assert op(x).item() == op._opoverload(x).item() == expected

    in_threads(*[redefines] * 8)


def forget_kernels_while_an_observed_call_has_let_the_gil_go() -> None:
    def body(x: Tensor, sizes: list[int]) -> Tensor:
        return x.clone()

    op = dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", body)
    # Making IValues of so many sizes takes longer than a switch interval, so the other thread asks for the GIL
    # meanwhile and gets it where the profiler is told of the call.
    x, sizes = torch.ones(2), [1] * 20_000_000
    op(x, [1])
    sys.setswitchinterval(0.01)
    started = threading.Event()

    def forget() -> None:
        started.wait()
        op._operator.forget()  # what a redefinition does to the kernels that it replaces
        _ = [bytes(size) for size in range(16, 400)]  # takes over what was freed

    thread = threading.Thread(target=forget)
    thread.start()
    with torch.profiler.profile():
        started.set()
        assert op(x, sizes).tolist() == [1.0, 1.0]
    thread.join()


def test_kernels_may_be_forgotten_while_an_observed_call_has_let_the_gil_go() -> None:
    run_isolated(forget_kernels_while_an_observed_call_has_let_the_gil_go)
