"""Operators from Library.define and Library.impl, as vLLM's and SGLang's helpers register them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import vllm_pattern
from before_and_after import Case, accelerated, by_path, check, check_with_gradient, registered, same, side_of
from torch import Tensor
from vllm_pattern import layers

import dutyfree
from dutyfree.check.outcome import Arguments, call

NAMESPACE = "vllm_pattern"


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def attention() -> Arguments:
    layers.reset()
    return call(numbers(3, 2, 4), numbers(3, 2, 4), numbers(3, 2, 4), torch.empty(3, 2, 4).fill_(9), "one")


def experts() -> Arguments:
    layers.set_experts("one", numbers(4, 6, 5), numbers(4, 5, 6), 2)
    return call(numbers(3, 6), numbers(3, 4), "one")


def case_of(name: str, arguments: Callable[[], Arguments], gradient_raises: str | None = None) -> Case:
    """Kernels for a backend alone: with a gradient to record, PyTorch's own fallback has to say that there is none."""
    return Case(f"{NAMESPACE}::{name}", arguments, gradient_path="boxed", gradient_raises=gradient_raises)


CASES = [
    case_of("rms_norm", lambda: call(numbers(3, 6), numbers(6), 1e-5)),
    # A leaf that requires grad can't be written to.
    case_of("add_and_norm_", lambda: call(numbers(3, 6), numbers(3, 6), weight=numbers(6)), "RuntimeError"),
    case_of("attend_into", attention, "RuntimeError"),
    case_of("mix_experts", experts),
    case_of("quantize_rows", lambda: call(numbers(3, 6), 4, floor=0.01)),
    case_of("sum_parts", lambda: call([numbers(3, 6), numbers(3, 6)], "group")),
]


def test_every_operator_has_a_case() -> None:
    assert [case.operator for case in sorted(CASES, key=str)] == registered(NAMESPACE)


@pytest.mark.parametrize("target", [NAMESPACE, vllm_pattern, None], ids=["namespace", "module", "everything"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_calls_are_the_same_and_direct(case: Case, target: Any) -> None:
    check(case, target)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_calls_with_gradients_are_the_same(case: Case) -> None:
    check_with_gradient(case, NAMESPACE)


def test_the_report_lists_every_operator_as_direct() -> None:
    with accelerated(vllm_pattern) as report:
        assert by_path(report) == {"direct": len(CASES)}


def test_an_argument_may_be_returned() -> None:
    """What custom_op would refuse: the operator's result is its argument."""
    case = Case("vllm_pattern::sum_parts", lambda: call([numbers(3, 6)], "group"))
    for outcome in check(case, NAMESPACE):
        assert outcome.value["is input"] is not None


def decode() -> list[Tensor]:
    """Logits of a prompt, then of two single tokens."""
    torch.manual_seed(0)
    layers.reset()
    decoder = vllm_pattern.Decoder()
    with torch.no_grad():
        return [decoder(tokens) for tokens in (torch.arange(5), torch.tensor([7]), torch.tensor([3]))]


@pytest.mark.parametrize("target", [NAMESPACE, None], ids=["namespace", "everything"])
def test_decoding_gives_the_same_logits(target: Any) -> None:
    steps, blocks = 3, 2
    taken = same(decode, target)
    assert {name: calls for name, calls in taken.items() if name.startswith(NAMESPACE)} == {
        "vllm_pattern::add_and_norm_": {"direct": steps * blocks},
        "vllm_pattern::attend_into": {"direct": steps * blocks},
        "vllm_pattern::mix_experts": {"direct": steps * blocks},
        "vllm_pattern::sum_parts": {"direct": steps * blocks},
        "vllm_pattern::rms_norm": {"direct": steps},
        "vllm_pattern::quantize_rows": {"direct": steps},
    }


# On one rank sum_parts returns its argument, which compiled code warns of; where the variable CI is set, PyTorch raises
# instead.
@pytest.mark.filterwarnings("ignore:vllm_pattern..sum_parts")
@torch._functorch.config.patch(error_on_custom_op_aliasing=False)
def test_a_compiled_decoder_gives_the_same_logits() -> None:
    def decode_compiled() -> Tensor:
        torch.manual_seed(0)
        layers.reset()
        decoder = torch.compile(vllm_pattern.Decoder(), backend="aot_eager", fullgraph=True)
        torch._dynamo.reset()
        with torch.no_grad():
            return decoder(torch.arange(5))  # type: ignore[no-any-return]

    same(decode_compiled, NAMESPACE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_opcheck_passes_under_accelerate(case: Case) -> None:
    given = case.arguments()
    with accelerated(NAMESPACE):
        torch.library.opcheck(side_of(case.operator).overload, given.args, given.kwargs)


def test_a_kernel_registered_later_is_used_at_once() -> None:
    library = torch.library.Library("vllm_pattern_later", "FRAGMENT")

    def double(x: Tensor) -> Tensor:
        return x * 2

    def triple(x: Tensor) -> Tensor:
        return x * 3

    vllm_pattern.add_operator(double, library=library, key="CompositeExplicitAutograd")
    op = torch.ops.vllm_pattern_later.double
    with accelerated("vllm_pattern_later"):
        assert op(torch.ones(1)).item() == 2
        library.impl("double", triple, dispatch_key="CPU")
        assert op(torch.ones(1)).item() == 3
        assert dutyfree.stats()["vllm_pattern_later::double"].calls["direct"] == 2


def test_operators_registered_later_are_taken_too() -> None:
    with accelerated("vllm_pattern_new"):
        library = torch.library.Library("vllm_pattern_new", "FRAGMENT")

        def negate(x: Tensor) -> Tensor:
            return -x

        vllm_pattern.add_operator(negate, library=library)
        assert torch.ops.vllm_pattern_new.negate(torch.ones(1)).item() == -1
        assert dutyfree.stats()["vllm_pattern_new::negate"].calls["direct"] == 1
