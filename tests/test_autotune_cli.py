"""`dutyfree tune`: a program's operators, or given sizes, and the file that is left."""

import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dutyfree import AutoTuner, _core
from dutyfree.cli import app
from tuned_runners import Runner, operator

TESTS = Path(__file__).parent
PROGRAM = """
import sys
import torch
from tuned_runners import Runner, operator

chooser = operator(Runner("runner", slow=2.0, fast=0.0), name="my::gemm", dynamic=[(0, 0)])
for rows in sys.argv[1:]:
    if rows == "stop":
        raise KeyboardInterrupt
    print(__name__, rows, chooser.choose(torch.ones(int(rows), 64))[1])
"""


@pytest.fixture(autouse=True)
def nothing_chosen() -> Iterator[None]:
    _core.skip_default_cache()
    AutoTuner.get().clear()
    yield
    AutoTuner.get().clear()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "tuned_program.py"
    path.write_text(PROGRAM)
    return path


def tune(*arguments: object, folder: Path = TESTS, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dutyfree", "tune", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def sizes_in(path: Path) -> list[list[int]]:
    entries = json.loads(path.read_text())["ranks"]["0"]["operators"]["my::gemm"]
    assert {entry["tactic"] for entry in entries} == {"runner fast"}
    return [entry["dims"] for entry in entries]


def test_a_program_is_tuned_with_its_own_arguments(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / "tuned.json"
    finished = tune("--cache", cache, "--repeats", 2, program, 17, 31, 100)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["__main__ 17 fast", "__main__ 31 fast", "__main__ 100 fast"]
    assert sizes_in(cache) == [[16, 64], [64, 64]]
    assert "my::gemm" in finished.stderr
    assert "runner fast" in finished.stderr


def test_a_module_is_tuned(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / "tuned.json"
    finished = tune("--cache", cache, "-m", "tuned_program", 8, folder=program.parent)
    assert finished.stdout == "__main__ 8 fast\n", finished.stderr
    assert sizes_in(cache) == [[8, 64]]


def test_a_programs_options_are_its_own(tmp_path: Path) -> None:
    script = tmp_path / "options.py"
    script.write_text("import sys; print(sys.argv[1:])")
    finished = tune(script, "--help", "--cache", "x", "-m")
    assert finished.stdout == "['--help', '--cache', 'x', '-m']\n", finished.stderr
    assert "No tuned operator was called" in finished.stderr


def test_the_default_cache_is_what_programs_read(program: Path, tmp_path: Path) -> None:
    finished = tune(program, 8, DUTYFREE_TUNING_CACHE="", XDG_CACHE_HOME=str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    later = subprocess.run(
        [sys.executable, program, "9"],
        env={**os.environ, "PYTHONPATH": str(TESTS), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (later.stdout, later.stderr) == ("__main__ 9 fast\n", "")


def test_json_prints_the_choices_as_the_last_line(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / "tuned.json"
    finished = tune("--cache", cache, "--json", program, 8)
    printed = json.loads(finished.stdout.splitlines()[-1])
    assert printed["cache"] == str(cache)
    (choice,) = printed["choices"]
    assert (choice["operator"], choice["dims"], choice["tactic"]) == ("my::gemm", [8, 64], "runner fast")


def test_an_interrupted_program_keeps_what_was_measured(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / "tuned.json"
    finished = tune("--cache", cache, program, 8, "stop", 64)
    assert finished.returncode == 128 + signal.SIGINT
    assert sizes_in(cache) == [[8, 64]]


def test_a_program_that_fails_keeps_what_was_measured_and_its_error(program: Path, tmp_path: Path) -> None:
    cache = tmp_path / "tuned.json"
    finished = tune("--cache", cache, program, 8, "nonsense")
    assert finished.returncode == 1
    assert "ValueError: invalid literal" in finished.stderr
    assert sizes_in(cache) == [[8, 64]]


@pytest.fixture
def nvfp4(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The module of the NVFP4 operators' sizes, which records what it was asked for."""
    asked: list[Any] = []
    chooser = operator(Runner("runner", only=0.0))

    def tune_shapes(shapes: list[tuple[int, int, int]], dtype: torch.dtype) -> None:
        assert _core.is_tuning()
        asked.append((shapes, dtype))
        for m, n, _ in shapes:
            chooser.choose(torch.empty(m, n))

    module: Any = types.ModuleType("dutyfree.ops.tuning")
    module.tune_shapes = tune_shapes
    module.model_shapes = {"ltx2": [(2, 16, 16)]}.__getitem__
    monkeypatch.setitem(sys.modules, "dutyfree.ops", types.ModuleType("dutyfree.ops"))
    monkeypatch.setitem(sys.modules, "dutyfree.ops.tuning", module)
    return asked


def test_nvfp4_is_tuned_for_shapes_and_models(nvfp4: list[Any], tmp_path: Path) -> None:
    cache = tmp_path / "tuned.json"
    arguments = ["tune", "--cache", str(cache), "nvfp4", "--shape", "4,32,64", "--model", "ltx2", "--dtype", "float16"]
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0
    assert nvfp4 == [([(4, 32, 64), (2, 16, 16)], torch.float16)]
    assert cache.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to tune"),
        (["--shape", "1,2"], "three whole numbers M,N,K"),
        (["--shape", "1,2,x"], "three whole numbers M,N,K"),
        (["--shape", "0,2,3"], "sizes from 1"),
        (["--shape", "4,32,17"], "K is 17, and a multiple of 16"),
        (["--shape", f"{2**62},16,16"], "larger than any memory"),
        (["--shape", f"16,{2**62},16"], "larger than any memory"),
        (["--shape", f"16,16,{2**62}"], "larger than any memory"),
        (["--shape", f"{'9' * 5000},16,16"], "three whole numbers M,N,K"),
        (["--model", "abacus"], "abacus"),
    ],
)
def test_shapes_that_are_none_are_refused(nvfp4: list[Any], arguments: list[str], message: str) -> None:
    outcome = CliRunner().invoke(app, ["tune", "nvfp4", *arguments])
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.output.replace("│", " ").split())
    assert nvfp4 == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory.\nMore of it."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 34359738368 bytes."),
    ],
)
def test_sizes_that_do_not_fit_into_memory_are_an_error_in_one_line(
    nvfp4: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(sys.modules["dutyfree.ops.tuning"], "tune_shapes", fail)
    outcome = CliRunner().invoke(app, ["tune", "--cache", str(tmp_path / "c"), "nvfp4", "--shape", "4,32,64"])
    assert outcome.exit_code == 2
    assert "too large for this machine's memory" in " ".join(outcome.output.replace("│", " ").split())


def test_other_errors_of_the_operators_keep_their_traceback(
    nvfp4: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a kernel is wrong")

    monkeypatch.setattr(sys.modules["dutyfree.ops.tuning"], "tune_shapes", fail)
    with pytest.raises(RuntimeError, match="a kernel is wrong"):
        CliRunner().invoke(
            app, ["tune", "--cache", str(tmp_path / "c"), "nvfp4", "--shape", "4,32,64"], catch_exceptions=False
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "99999999999", "{program}"], "Invalid value for '--repeats'"),
        (["--warmup", "99999999999", "{program}"], "Invalid value for '--warmup'"),
        (["--rank", "1000000000", "{program}"], "Invalid value for '--rank'"),
        (["{folder}/missing.py"], "there is no program"),
        (["nvpf4"], "there is no program 'nvpf4', and no command of that name"),
        (["{folder}"], "has no __main__.py"),
        (["-m", "no_such_module"], "there is no module 'no_such_module'"),
        (["-m", "no_such_package.module"], "there is no module 'no_such_package.module'"),
        (["-m", ""], "there is no module ''"),
        (["--cache", "{folder}/pipe", "{program}"], "not a regular file"),
        (["--cache", "", "{program}"], "is a directory"),
    ],
)
def test_what_cannot_be_run_is_an_error_without_a_traceback(
    program: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    given = [argument.format(program=program, folder=tmp_path) for argument in arguments]
    outcome = CliRunner().invoke(app, ["tune", *given], env={"DUTYFREE_TUNING_CACHE": str(tmp_path / "cache")})
    assert outcome.exit_code == 2, outcome.output
    assert isinstance(outcome.exception, SystemExit)
    assert message in " ".join(outcome.output.replace("│", " ").split())


def test_a_default_cache_that_is_no_file_is_an_error_without_a_traceback(program: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    outcome = CliRunner().invoke(app, ["tune", str(program)], env={"DUTYFREE_TUNING_CACHE": str(tmp_path / "pipe")})
    assert outcome.exit_code == 2
    assert "not a regular" in " ".join(outcome.output.replace("│", " ").split())


def test_a_module_that_lacks_another_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "__init__.py").write_text("import no_such_module")
    finished = tune("--cache", tmp_path / "c", "-m", "lacking.main", folder=tmp_path)
    assert finished.returncode == 1
    assert "No module named 'no_such_module'" in finished.stderr


def test_help_shows_examples() -> None:
    outcome = CliRunner().invoke(app, ["tune", "--help"])
    assert outcome.exit_code == 0
    assert "dutyfree tune generate.py --steps 1" in outcome.output
    assert "dutyfree tune nvfp4 --shape" in outcome.output
