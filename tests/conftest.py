"""Settings that every test shares."""

import gc
import os

import pytest
import torch

import dutyfree


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: needs a CUDA device; DUTYFREE_REQUIRE_CUDA=1 makes a skip a failure")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None or torch.cuda.is_available():
        return
    if os.environ.get("DUTYFREE_REQUIRE_CUDA") == "1":
        pytest.fail("DUTYFREE_REQUIRE_CUDA=1, but this PyTorch sees no CUDA device", pytrace=False)
    pytest.skip("needs a CUDA device, and this PyTorch sees none")


@pytest.fixture(autouse=True, scope="module")
def _collections_are_quick() -> None:
    # Tests that collect garbage would look through a million objects of torch's and pytest's each time.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _nvfp4_operators_are_accelerated(request: pytest.FixtureRequest) -> None:
    # dutyfree.ops accelerates its operators when it is imported; tests of restore() that ran before undid that.
    if "nvfp4" in request.module.__name__:
        dutyfree.accelerate("trtllm")
        dutyfree.accelerate("dutyfree")
