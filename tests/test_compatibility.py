"""What an import says where the extension does not fit what is installed."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dutyfree import _compatibility


def build(torch_version: str = "2.13.0+cpu", abi: bool = True, python: str = "3.11") -> ModuleType:
    module = ModuleType("_build_info")
    module.TORCH_VERSION = torch_version
    module.TORCH_CXX11_ABI = abi
    module.PYTHON_VERSION = python
    return module


def torch(version: str = "2.13.0+cpu", abi: bool = True) -> SimpleNamespace:
    return SimpleNamespace(__version__=version, _C=SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=abi))


def test_a_fitting_build_passes() -> None:
    _compatibility.check(build(), torch(), "3.11")


def test_a_local_version_label_does_not_count() -> None:
    _compatibility.check(build("2.13.0+cpu"), torch("2.13.0+cu130"), "3.11")


@pytest.mark.parametrize(
    ("built_for", "found", "python", "words"),
    [
        (build("2.14.1"), torch("2.13.0+cpu"), "3.11", "torch: found 2.13.0, expected 2.14.1"),
        (build(abi=False), torch(), "3.11", "C++11 ABI: found True, expected False"),
        (build(python="3.12"), torch(), "3.11", "Python: found 3.11, expected 3.12"),
    ],
)
def test_a_mismatch_names_found_expected_and_the_command(
    built_for: ModuleType, found: SimpleNamespace, python: str, words: str
) -> None:
    with pytest.raises(ImportError) as error:
        _compatibility.check(built_for, found, python)
    assert words in str(error.value)
    assert "pip install --no-build-isolation" in str(error.value)


def import_where(blocked: str, tmp_path: Path) -> str:
    """What ``import dutyfree`` prints in a process where ``blocked`` can't be found."""
    script = tmp_path / "blocked.py"
    script.write_text(
        "import sys, importlib.abc\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {blocked!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "try:\n    import dutyfree\nexcept ImportError as error:\n    print(error)\n"
    )
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout


def test_a_missing_torch_is_one_clear_error(tmp_path: Path) -> None:
    assert "dutyfree needs PyTorch: found none" in import_where("torch", tmp_path)
