"""What one registration does in the LTX-2 workload, in a process of its own: prints it as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.pattern_matcher import (
    CallFunction,
    KeywordArg,
    Match,
    PatternMatcherPass,
    register_graph_pattern,
)

from dutyfree.workloads.ltx2 import Sizes, register

SIZES = Sizes(blocks=2)
STEPS = 3
GEMM_ARGUMENTS = ("act_fp4", "weight", "act_sf", "weight_scale", "alpha", "output_dtype")


def run(registration: str) -> dict[str, Any]:
    operators = register(registration)
    import dutyfree
    from dutyfree import ops
    from dutyfree.workloads.ltx2.denoise import Denoising
    from dutyfree.workloads.ltx2.model import make_model

    torch.set_num_threads(1)
    model = make_model(SIZES)
    dutyfree.reset_stats()
    denoising = Denoising(model, SIZES, STEPS)
    while not denoising.done:
        denoising.step()
    video, audio = denoising.latents()
    stats = dutyfree.stats()
    layers = [module for module in model.modules() if isinstance(module, ops.NVFP4Linear)]
    return {
        "latents": [hashlib.sha256(latents.numpy().tobytes()).hexdigest() for latents in (video, audio)],
        "finite": bool(video.isfinite().all() and audio.isfinite().all()),
        "layers": len(layers),
        "static": all(layer.input_scale is not None for layer in layers),
        "stands for": [ops.tunable_fp4_quantize is operators.quantize, ops.nvfp4_gemm is operators.gemm],
        "paths": {name: stats[name].calls for name in stats if name.startswith("trtllm::")},
        "kernels": stats["dutyfree::nvfp4_gemm"].calls["direct"],
        **in_graphs(model, (video, audio)),
    }


def in_graphs(model: torch.nn.Module, eager: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """What torch.compile makes of a step, and what a graph pattern for nvfp4_gemm finds in it."""
    from dutyfree.workloads.ltx2.denoise import Denoising
    from dutyfree.workloads.ltx2.model import compile_blocks

    targets: list[list[str]] = []
    replaced: Counter[str] = Counter()
    # Not found where nothing has registered it: then nothing matches.
    gemm = getattr(torch.ops.trtllm, "nvfp4_gemm", None)
    patterns = PatternMatcherPass()
    if gemm is not None:

        @register_graph_pattern(
            CallFunction(gemm.default, *(KeywordArg(name) for name in GEMM_ARGUMENTS)), pass_dict=patterns
        )
        def replace(match: Match, **arguments: Any) -> None:
            def by_our_name(
                act_fp4: Any, weight: Any, act_sf: Any, weight_scale: Any, alpha: Any, output_dtype: Any
            ) -> Any:
                return torch.ops.dutyfree.nvfp4_gemm.default(act_fp4, weight, act_sf, weight_scale, alpha, output_dtype)

            replaced["matches"] += 1
            match.replace_by_example(by_our_name, [arguments[name] for name in GEMM_ARGUMENTS])

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        targets.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        patterns.apply(graph.graph)
        replaced["left"] += sum("trtllm.nvfp4_gemm" in str(node.target) for node in graph.graph.nodes)
        replaced["instead"] += sum("dutyfree.nvfp4_gemm" in str(node.target) for node in graph.graph.nodes)
        graph.recompile()
        return graph

    compile_blocks(model, backend=aot_autograd(fw_compiler=backend))
    denoising = Denoising(model, SIZES, STEPS)
    while not denoising.done:
        denoising.step()
    difference = max(float((one - other).abs().max()) for one, other in zip(denoising.latents(), eager, strict=True))
    return {"targets": targets, "replaced": dict(replaced), "difference": difference}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
