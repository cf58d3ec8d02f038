"""Prints, as CMake `set` commands, what a build needs to know about the torch that is installed: dutyfree's own build,
and that of a library that uses dutyfree/op.h.

find_package(Torch) is not used: it pulls in the CUDA toolkit where torch was built with CUDA, and costs more than this.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        print(
            f"This is compiled against the torch that is installed, and {sys.executable} cannot import torch "
            f"({error}). Install torch first, then run: pip install --no-build-isolation .",
            file=sys.stderr,
        )
        return 1
    major, minor = str(torch.__version__).split("+")[0].split(".")[:2]
    facts = {
        "TORCH_VERSION": str(torch.__version__),
        "TORCH_MAJOR": major,
        "TORCH_MINOR": minor,
        "TORCH_INCLUDE_DIRS": ";".join(cpp_extension.include_paths()),
        "TORCH_LIBRARY_DIR": str(Path(torch.__file__).parent / "lib"),
        "TORCH_CXX11_ABI": str(int(torch._C._GLIBCXX_USE_CXX11_ABI)),
    }
    for name, value in facts.items():
        print(f"set({name} [==[{value}]==])")
    return 0


if __name__ == "__main__":
    sys.exit(main())
