"""Libraries for the tests: those of tests/cpp_operators, compiled once a session, and small ones that need no torch."""

from pathlib import Path

import dutyfree

SOURCES = Path(__file__).parent / "cpp_operators"

# Enough for dutyfree.load_library to take it, and compiled in a tenth of a second: it has no operators.
EMPTY = "".join(
    f'extern "C" __attribute__((visibility("default"))) const char* {function}() {{ return ""; }}\n'
    for function in ("dutyfree_load_error", "dutyfree_defined_operators")
)


def build_operators(folder: Path, name: str = "operators") -> dutyfree.Operators:
    """One of tests/cpp_operators. Its own symbols are visible to other libraries, as they are by CMake's default."""
    return dutyfree.build(
        name, SOURCES / f"{name}.cpp", build_directory=folder, extra_cflags=["-O0", "-fvisibility=default"]
    )
