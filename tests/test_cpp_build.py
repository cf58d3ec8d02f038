"""dutyfree.build: what makes it compile, what it keeps, and processes that build at once or die.

The sources here include no header of torch's, so that they compile in a tenth of a second.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dutyfree
from cpp_libraries import EMPTY
from dutyfree import cpp_build


class Workshop:
    """A source, a folder for libraries and a compiler that notes what it is called for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = folder / "kept"
        self.log = folder / "log"
        self.compiler = folder / "compiler"
        self.source = folder / "source.cpp"
        self.source.write_text(EMPTY)
        self.slow = folder / "slow"  # while this exists, compiling takes long
        self.compiler.write_text(
            "#!/bin/sh\n"
            f'case " $* " in *" -c "*) echo "$*" >>{self.log}; while [ -e {self.slow} ]; do sleep 0.02; done ;; esac\n'
            'exec c++ "$@"\n'
        )
        self.compiler.chmod(0o755)

    def build(self, **options: object) -> dutyfree.Operators:
        return dutyfree.build("shop", [self.source], build_directory=self.kept, **options)  # type: ignore[arg-type]

    def compiled(self) -> int:
        """How many sources the compiler has been called for."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def files(self) -> list[str]:
        return sorted(path.name for path in self.kept.rglob("*") if path.is_file())

    def in_a_new_process(self, **environment: str) -> "subprocess.Popen[str]":
        code = (
            "import dutyfree, sys\n"
            f"print(dutyfree.build('shop', {str(self.source)!r}, build_directory={str(self.kept)!r})._path)"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "CXX": str(self.compiler), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_a_compiler(self) -> None:
        deadline = time.monotonic() + 60
        while self.compiled() == 0:
            assert time.monotonic() < deadline, "no compiler was started"
            time.sleep(0.02)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path)
    monkeypatch.setenv("CXX", str(workshop.compiler))
    return workshop


def test_the_same_again_runs_no_compiler(shop: Workshop) -> None:
    first = shop.build()
    assert shop.compiled() == 1
    again = shop.build()
    assert shop.compiled() == 1
    assert again == first
    assert again._path == first._path
    assert shop.files() == ["headers.json", "shop.so"]


def test_the_same_in_a_new_process_runs_no_compiler(shop: Workshop) -> None:
    path = shop.build()._path
    output, errors = shop.in_a_new_process().communicate(timeout=120)
    assert output.strip() == path, errors
    assert shop.compiled() == 1


def test_a_changed_source_is_compiled(shop: Workshop) -> None:
    before = shop.build()._path
    shop.source.write_text(EMPTY + "// changed\n")
    assert shop.build()._path != before
    assert shop.compiled() == 2
    shop.source.write_text(EMPTY)
    assert shop.build()._path == before
    assert shop.compiled() == 2


def test_changed_flags_and_libraries_are_compiled(shop: Workshop) -> None:
    shop.build()
    shop.build(extra_cflags=["-DSOMETHING"])
    assert shop.compiled() == 2
    linked = shop.folder / "linked.o"
    subprocess.run(["c++", "-c", "-xc++", "/dev/null", "-o", linked], check=True)
    shop.build(extra_ldflags=[str(linked)])
    assert shop.compiled() == 3
    subprocess.run(["c++", "-c", "-g", "-xc++", "/dev/null", "-o", linked], check=True)
    shop.build(extra_ldflags=[str(linked)])
    assert shop.compiled() == 4


def test_another_torch_or_compiler_is_compiled_for(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.build()
    shop.compiler.write_text(shop.compiler.read_text().replace("exec", 'case "$1" in --version) echo 99 ;; esac\nexec'))
    shop.build()
    assert shop.compiled() == 2
    monkeypatch.setattr("torch.version.git_version", "another")
    shop.build()
    assert shop.compiled() == 3


def test_an_edited_header_is_compiled(shop: Workshop) -> None:
    includes = shop.folder / "with space"
    includes.mkdir()
    (includes / "direct.h").write_text('#include "indirect.h"\n')
    (includes / "indirect.h").write_text("// one\n")
    shop.source.write_text('#include "direct.h"\n' + EMPTY)
    before = shop.build(extra_include_paths=[includes])._path
    assert shop.build(extra_include_paths=[includes])._path == before
    assert shop.compiled() == 1
    (includes / "indirect.h").write_text("// two\n")
    assert shop.build(extra_include_paths=[includes])._path != before
    assert shop.compiled() == 2
    (includes / "indirect.h").write_text("// one\n")
    assert shop.build(extra_include_paths=[includes])._path == before
    assert shop.compiled() == 2
    (includes / "indirect.h").unlink()
    with pytest.raises(RuntimeError, match=r"indirect\.h"):
        shop.build(extra_include_paths=[includes])


def test_a_header_that_appears_before_the_one_that_was_found_is_compiled(shop: Workshop) -> None:
    first, second = shop.folder / "first", shop.folder / "second"
    first.mkdir()
    (second / "part").mkdir(parents=True)
    (second / "part" / "header.h").write_text("")
    shop.source.write_text("#include <part/header.h>\n" + EMPTY)
    shop.build(extra_include_paths=[first, second])
    (first / "part").mkdir()
    (first / "part" / "header.h").write_text("")
    shop.build(extra_include_paths=[first, second])
    assert shop.compiled() == 2


def test_dutyfrees_own_headers_count(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shop.folder / "own" / "dutyfree"
    own.mkdir(parents=True)
    (own / "op.h").write_text("")
    monkeypatch.setattr(cpp_build, "get_include", lambda: str(own.parent))
    shop.source.write_text('#include "dutyfree/op.h"\n' + EMPTY)
    shop.build()
    (own / "op.h").write_text("// edited\n")
    shop.build()
    assert shop.compiled() == 2


def test_a_header_that_is_edited_while_it_is_compiled_is_compiled_again(shop: Workshop) -> None:
    header = shop.folder / "header.h"
    header.write_text('#define TEXT "it is before"\n')
    shop.source.write_text('#include "header.h"\n' + EMPTY + "extern const char text[] = TEXT;\n")
    edit = f"echo '#define TEXT \"it is after\"' >{header}"
    shop.compiler.write_text(
        "#!/bin/sh\n"
        'case " $* " in\n'
        f'  *" -c "*) echo "$*" >>{shop.log}; c++ "$@"; status=$?\n'
        f"    [ $(wc -l <{shop.log}) -gt 1 ] || {edit}; exit $status ;;\n"
        "esac\n"
        'exec c++ "$@"\n'
    )
    library = Path(shop.build()._path)
    assert b"it is after" in library.read_bytes()
    assert shop.compiled() == 2
    shop.build()
    assert shop.compiled() == 2


def test_a_clock_that_is_behind_ends_all_the_same(shop: Workshop) -> None:
    header = shop.folder / "header.h"
    header.write_text("")
    os.utime(header, (2**33, 2**33))
    shop.source.write_text('#include "header.h"\n' + EMPTY)
    shop.build()
    assert (
        shop.compiled() == 2
    )  # the header looks edited; that the second compilation saw the same shows that it was not


def test_a_failing_compile_shows_the_compilers_output_and_leaves_nothing(shop: Workshop) -> None:
    shop.source.write_text('#error "this is the mistake"\n')
    with pytest.raises(RuntimeError, match=r"shop: the compiler failed with exit status 1(.|\n)*this is the mistake"):
        shop.build()
    assert list(shop.kept.iterdir()) == []
    shop.source.write_text(EMPTY + "int missing(); int used = missing();\n")
    with pytest.raises(RuntimeError, match="missing"):
        shop.build(extra_ldflags=["-Wl,-z,defs"])
    assert list(shop.kept.iterdir()) == []


def test_several_sources_are_one_library(shop: Workshop) -> None:
    other = shop.folder / "other.cpp"
    other.write_text("int other() { return 3; }\n")
    shop.source.write_text(EMPTY + "int other(); int used = other();\n")
    operators = dutyfree.build("shop", [shop.source, other], build_directory=shop.kept, extra_ldflags=["-Wl,-z,defs"])
    assert shop.compiled() == 2
    assert len(operators) == 0


def test_processes_that_build_the_same_compile_it_once(shop: Workshop) -> None:
    shop.slow.touch()
    processes = [shop.in_a_new_process() for _ in range(4)]
    shop.wait_for_a_compiler()
    time.sleep(0.5)  # the others are waiting by now, or will find the library
    shop.slow.unlink()
    results = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, results
    assert len({output for output, _ in results}) == 1
    assert shop.compiled() == 1
    assert shop.files() == ["headers.json", "shop.so"]


def test_a_build_whose_process_was_killed_holds_up_none(shop: Workshop) -> None:
    shop.slow.touch()
    killed = shop.in_a_new_process()
    shop.wait_for_a_compiler()
    killed.kill()  # its compiler lives on
    killed.communicate(timeout=60)
    assert [name for name in shop.files() if name.endswith(".lock")], "it was killed before it had the lock"
    shop.slow.unlink()
    started = time.monotonic()
    shop.build()
    assert time.monotonic() - started < 20  # a tenth of a second; a lock of the dead would last for ever
    assert shop.compiled() == 2
    assert shop.files() == ["headers.json", "shop.so"]
    assert not list(shop.kept.rglob(".unfinished-*"))


def test_a_damaged_entry_is_made_anew(shop: Workshop) -> None:
    library = Path(shop.build()._path)
    (library.parent / "headers.json").write_text("{")
    assert Path(shop.build()._path) == library
    assert shop.compiled() == 2
    assert json.loads((library.parent / "headers.json").read_text()) is not None


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUTYFREE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cpp_build.default_folder() == tmp_path / "xdg" / "dutyfree" / "build"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cpp_build.default_folder() == Path.home() / ".cache" / "dutyfree" / "build"
    monkeypatch.setenv("DUTYFREE_CACHE", str(tmp_path / "chosen"))
    assert cpp_build.default_folder() == tmp_path / "chosen" / "build"


def test_arguments_that_can_not_be_built_raise(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"name='\.\./x'"):
        dutyfree.build("../x", shop.source)
    with pytest.raises(ValueError, match="shop: there are no sources"):
        dutyfree.build("shop", [])
    with pytest.raises(FileNotFoundError, match=r"absent\.cpp"):
        dutyfree.build("shop", shop.folder / "absent.cpp")
    with pytest.raises(TypeError, match="extra_cflags is one string"):
        shop.build(extra_cflags="-O3")
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(RuntimeError, match="no-such-compiler is not found"):
        shop.build()
    assert not shop.kept.exists()


def test_verbose_prints_commands(shop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    shop.build(verbose=True)
    assert f"-c {shop.source}" in capfd.readouterr().err
    shop.build(verbose=True)
    assert "shop.so is up to date" in capfd.readouterr().err
