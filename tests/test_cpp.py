"""Runs the C++ tests (tests/cpp) one by one, each as a test of its own."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch  # noqa: F401  (the module links torch's libraries)

MODULE = "dutyfree_cpp_tests"
BUILT = (
    Path(__file__).parents[1] / "build" / "dev" / "tests" / "cpp" / (MODULE + sysconfig.get_config_var("EXT_SUFFIX"))
)


def load() -> ModuleType:
    if MODULE in sys.modules:
        return sys.modules[MODULE]
    spec = importlib.util.spec_from_file_location(MODULE, BUILT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[MODULE] = module
    return module


def names() -> list[str]:
    return load().names() if BUILT.exists() else []


def test_cpp_tests_are_built() -> None:
    assert names(), f"{BUILT} is missing or empty; `make test` builds it"


@pytest.mark.parametrize("name", names())
def test_cpp(name: str) -> None:
    assert load().run(name) == 0, f"{name} failed, see GoogleTest's report in the captured output"
