"""The model: diffusers' LTX-2 transformer with random weights, the linear layers of its blocks in NVFP4.

Import it after :func:`~dutyfree.workloads.ltx2.registrations.register`: it imports :mod:`dutyfree.ops`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dutyfree import ops
from dutyfree.workloads.ltx2.diffusers_parts import BLOCKS, transformer_class
from dutyfree.workloads.ltx2.inputs import Inputs
from dutyfree.workloads.ltx2.sizes import Sizes


def make_model(sizes: Sizes, seed: int = 0, device: torch.device | str = "cpu") -> nn.Module:
    """The model for inference in bfloat16, its blocks' linear layers ``NVFP4Linear`` with static input scales.

    The scales are of the largest activations of one forward with the inputs of the same seed. Biases are added after
    ``nvfp4_gemm``, whose calls have six arguments.

    Raises:
        ImportError: diffusers is missing, or is another release than the one that this is written for.
    """
    model = make_unquantized(sizes, seed, device)
    inputs = Inputs.random(sizes, seed, device)
    with _largest_inputs(model) as largest, torch.inference_mode():
        model(**inputs.forward_arguments(sizes))
    scales = {name: ops.global_scale(amax) for name, amax in largest.items()}
    replaced = ops.quantize_linears(model, skip=outside_blocks, input_scales=scales, fuse_bias=False)
    assert len(replaced) == sizes.linears, replaced
    return model


def make_unquantized(sizes: Sizes, seed: int = 0, device: torch.device | str = "cpu") -> nn.Module:
    """The model as diffusers makes it, in bfloat16; the weights follow from the seed."""
    transformer: Any = transformer_class()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = transformer(**sizes.config())
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, torch.bfloat16)
    return model.to(device).eval().requires_grad_(False)


def outside_blocks(name: str, linear: nn.Linear) -> bool:
    """The linear layers that stay as they are: those before and after the blocks."""
    return not name.startswith(f"{BLOCKS}.")


@contextmanager
def _largest_inputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The largest absolute input of each linear layer in the blocks, in the forwards that run inside."""
    largest: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            amax = args[0].abs().amax().float()
            largest[name] = torch.maximum(largest[name], amax) if name in largest else amax

        return hook

    handles = [
        child.register_forward_pre_hook(watch(name))
        for name, child in model.named_modules()
        if isinstance(child, nn.Linear) and not outside_blocks(name, child)
    ]
    try:
        yield largest
    finally:
        for handle in handles:
            handle.remove()


def compile_blocks(model: nn.Module, **options: Any) -> nn.Module:
    """Compile a block, once for all of them, without graph breaks; ``options`` are those of ``torch.compile``."""
    for block in model.get_submodule(BLOCKS).children():
        block.compile(fullgraph=True, **options)
    return model
