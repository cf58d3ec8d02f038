"""Checks, before the C++ core is loaded, that it was built for the torch and the Python that are here.

A core built for another torch may fail to load with an undefined symbol, or load and crash. One error that names both
versions and the command is what a user can act on.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

_REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps dutyfree (in a checkout: make build)"


def check(build: ModuleType, torch: ModuleType, python_version: str) -> None:
    """Raise ImportError unless ``build`` (the generated ``_build_info``) fits ``torch`` and ``python_version``.

    A local version label does not count: 2.13.0+cpu and 2.13.0+cu130 have the same C++ interface.
    """
    facts = [
        ("torch", build.TORCH_VERSION.partition("+")[0], torch.__version__.partition("+")[0]),
        ("torch's C++11 ABI", build.TORCH_CXX11_ABI, torch._C._GLIBCXX_USE_CXX11_ABI),
        ("Python", build.PYTHON_VERSION, python_version),
    ]
    wrong = [
        f"{name}: found {found}, expected {expected}" for name, expected, found in facts if str(expected) != str(found)
    ]
    if wrong:
        raise ImportError(
            "dutyfree's extension was built for something else than what is installed. "
            + "; ".join(wrong)
            + f". To build it for what is installed: {_REBUILD}"
        )


def check_here() -> None:
    """Check the installed core against this process."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise ImportError(
            "dutyfree needs PyTorch: found none, expected torch 2.13 to 2.15. To install it: pip install torch==2.13.0"
        ) from error
    if importlib.util.find_spec("dutyfree._build_info") is None or importlib.util.find_spec("dutyfree._core") is None:
        raise ImportError(f"dutyfree's extension is not built: found none. To build it: {_REBUILD}")
    build = importlib.import_module("dutyfree._build_info")
    check(build, torch, f"{sys.version_info.major}.{sys.version_info.minor}")


check_here()
