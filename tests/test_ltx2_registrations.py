"""The LTX-2 workload by each registration: the same latents, the same graphs, and the paths that calls take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dutyfree.workloads.ltx2 import PLAIN, REGISTRATIONS
from isolated import run_isolated

Result = dict[str, Any]
CALLS = 28 * 2  # of each operator in a forward of two blocks
STEPS = 3


def _in_process(registration: str) -> Result:
    finished = subprocess.run(
        [sys.executable, "-X", "faulthandler", "ltx2_one_registration.py", registration],
        cwd=Path(__file__).parent,
        env=os.environ | {"DUTYFREE_TUNING_CACHE": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    result: Result = json.loads(finished.stdout)
    return result


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    # Two at a time: most of what they take is importing and tracing.
    with ThreadPoolExecutor(2) as pool:
        names = (PLAIN, *REGISTRATIONS)
        return dict(zip(names, pool.map(_in_process, names), strict=True))


def test_final_latents_are_bitwise_the_same(results: dict[str, Result]) -> None:
    latents = [tuple(result["latents"]) for result in results.values()]
    assert len(latents) == 5
    assert len(set(latents)) == 1
    assert latents[0][0] != latents[0][1]
    assert all(result["finite"] for result in results.values())


def test_every_linear_layer_of_the_blocks_is_nvfp4_with_a_static_scale(results: dict[str, Result]) -> None:
    for result in results.values():
        assert result["layers"] == CALLS
        assert result["static"]


@pytest.mark.parametrize("registration", [PLAIN, *REGISTRATIONS])
def test_layers_call_the_registration_and_it_calls_the_kernels(results: dict[str, Result], registration: str) -> None:
    assert results[registration]["stands for"] == [True, True]
    assert results[registration]["kernels"] == CALLS * STEPS


@pytest.mark.parametrize("registration", ["accelerated", "dutyfree"])
def test_every_call_is_direct(results: dict[str, Result], registration: str) -> None:
    paths = results[registration]["paths"]
    direct = {"direct": CALLS * STEPS, "autograd": 0, "boxed": 0, "pytorch": 0}
    assert paths == {"trtllm::nvfp4_gemm": direct, "trtllm::tunable_fp4_quantize": direct}


@pytest.mark.parametrize("registration", [PLAIN, "custom_op", "library"])
def test_no_call_of_the_others_passes_through_dutyfree(results: dict[str, Result], registration: str) -> None:
    assert all(not any(calls.values()) for calls in results[registration]["paths"].values())


def test_compiled_graphs_have_the_same_targets_and_no_break(results: dict[str, Result]) -> None:
    targets = results["custom_op"]["targets"]
    assert len(targets) == 1  # one graph a block, and one for all blocks
    assert targets[0].count("trtllm.nvfp4_gemm.default") == 28
    assert targets[0].count("trtllm.tunable_fp4_quantize.default") == 28
    for registration in REGISTRATIONS:
        assert results[registration]["targets"] == targets, registration
    kernels = [[target.replace("dutyfree.", "trtllm.") for target in graph] for graph in results[PLAIN]["targets"]]
    assert kernels == targets


@pytest.mark.parametrize("registration", REGISTRATIONS)
def test_a_pattern_of_six_arguments_matches_and_is_replaced(results: dict[str, Result], registration: str) -> None:
    assert results[registration]["replaced"] == {"matches": 28, "left": 0, "instead": 28}


def test_compiled_latents_are_within_tolerance(results: dict[str, Result]) -> None:
    # Traced graphs run by ATen: on torch 2.13 even bitwise the same, but decompositions may round otherwise.
    for registration, result in results.items():
        assert result["difference"] <= 0.01, registration


def register_twice() -> None:
    from dutyfree.workloads.ltx2 import register

    environment = dict(os.environ)
    first = register("dutyfree")
    assert os.environ == environment, "which processes that this one starts would have, too"
    assert register("dutyfree") is first
    with pytest.raises(RuntimeError, match=r"registered by 'dutyfree'; 'custom_op' takes another process"):
        register("custom_op")
    with pytest.raises(ValueError, match=r"'customop' is no registration: there are plain, custom_op"):
        register("customop")


def test_a_process_has_one_registration() -> None:
    run_isolated(register_twice)


def register_beside_anothers() -> None:
    import torch

    library = torch.library.Library("trtllm", "DEF")
    library.define("nvfp4_gemm(Tensor x) -> Tensor")
    from dutyfree.workloads.ltx2 import register

    for registration in ("library", "custom_op"):  # the second finds nothing that the first has left
        with pytest.raises(RuntimeError, match=r"this process has trtllm::nvfp4_gemm already"):
            register(registration)


def test_a_name_that_is_taken_is_one_clear_error() -> None:
    run_isolated(register_beside_anothers)


def register_too_late() -> None:
    import dutyfree.ops
    from dutyfree.workloads.ltx2 import register

    with pytest.raises(RuntimeError, match=r"dutyfree\.ops is imported"):
        register("library")
    assert dutyfree.ops.nvfp4_gemm._qualname == "trtllm::nvfp4_gemm"


def test_registering_after_dutyfree_ops_is_refused() -> None:
    run_isolated(register_too_late)
