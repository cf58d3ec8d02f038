"""Where the C++ headers and the CMake package are: ``get_include`` and ``cmake_dir``."""

from pathlib import Path

_PACKAGE = Path(__file__).parent
# A wheel carries both folders; in a checkout, which is built in place, they are where the repository has them.
_ROOT = _PACKAGE if (_PACKAGE / "cmake").is_dir() else _PACKAGE.parents[1]


def get_include() -> str:
    """The folder for the compiler's include path: it holds ``dutyfree/op.h``."""
    return str(_ROOT / "include")


def cmake_dir() -> str:
    """The folder for CMake's ``dutyfree_ROOT``: it holds ``dutyfreeConfig.cmake``, for ``find_package(dutyfree)``."""
    return str(_ROOT / "cmake")
