"""The file of tuned choices: what is refused, what is set aside, and that nothing is lost."""

import importlib.metadata
import json
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dutyfree import AutoTuner, _build_info, _core, _machine, _tuning_cache, autotune
from dutyfree._tuning_cache import Choice
from tuned_runners import Runner, choices_of, operator, unique_operator

FAST, SLOW = 0.0, 10.0


@pytest.fixture(autouse=True)
def nothing_chosen() -> Iterator[None]:
    _core.skip_default_cache()
    AutoTuner.get().clear()
    yield
    AutoTuner.get().clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuned.json"


def tuned(name: str | None = None, **options: Any) -> Any:
    """An operator that measured "b" for three elements."""
    chooser = operator(Runner("runner", a=SLOW, b=FAST), name=name, **options)
    with autotune(repeats=2, warmup=0):
        chooser.choose(torch.ones(3))
    return chooser


def operators_in(path: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())["ranks"][str(rank)]["operators"]
    return found


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def test_another_process_uses_what_was_saved(path: Path) -> None:
    """As another process does: the same operator is made anew, after its choices were loaded."""
    name = tuned().name
    AutoTuner.get().save(path)
    AutoTuner.get().clear()
    assert AutoTuner.get().load(path) is None
    runner = Runner("runner", a=SLOW, b=FAST)
    chooser = operator(runner, name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chooser.choose(torch.ones(3)) == (runner, "b")
    assert runner.runs == {"a": 0, "b": 0}


def test_the_context_loads_and_saves(path: Path) -> None:
    runner = Runner("runner", a=SLOW, b=FAST)
    chooser = operator(runner)
    for _ in range(2):
        with autotune(cache=path, repeats=2, warmup=0):
            chooser.choose(torch.ones(3))
        AutoTuner.get().clear()
    assert runner.runs == {"a": 2, "b": 2}
    assert [entry["tactic"] for entry in operators_in(path)[chooser.name]] == ["runner b"]


def test_nothing_is_written_where_nothing_was_measured(path: Path) -> None:
    with autotune(cache=path):
        pass
    assert not path.exists()


def test_a_file_that_is_missing_is_no_warning(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert AutoTuner.get().load(path) == f"{path} does not exist"


def test_saving_again_adds_and_replaces(path: Path) -> None:
    first = tuned()
    AutoTuner.get().save(path)
    AutoTuner.get().clear()
    second = tuned()
    _core.restore_choice(first.name, "cpu float32 [=]", (3,), "runner a", 7.0)
    AutoTuner.get().save(path)
    found = operators_in(path)
    assert set(found) == {first.name, second.name}
    assert [(entry["tactic"], entry["us"]) for entry in found[first.name]] == [("runner a", 7.0)]


def test_reasons_for_leaving_tactics_out_survive_a_process_that_only_loaded(path: Path) -> None:
    chooser = operator(Runner("runner", bad=ValueError("long " * 1000), good=FAST))
    with autotune(cache=path, repeats=1, warmup=0):
        chooser.choose(torch.ones(3))
    AutoTuner.get().clear()
    AutoTuner.get().load(path)
    AutoTuner.get().save(path)
    (entry,) = operators_in(path)[chooser.name]
    assert entry["left_out"]["runner bad"].startswith("long")
    assert len(entry["left_out"]["runner bad"]) < 1000
    assert AutoTuner.get().load(path) is None


def test_each_rank_has_a_section_and_an_absent_one_uses_the_firsts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = tuned()
    AutoTuner.get().save(path)
    AutoTuner.get().clear()
    _core.restore_choice(chooser.name, "cpu float32 [=]", (3,), "runner a", 1.0)
    monkeypatch.setenv("RANK", "3")
    AutoTuner.get().save(path)
    assert operators_in(path, 0)[chooser.name][0]["tactic"] == "runner b"
    assert operators_in(path, 3)[chooser.name][0]["tactic"] == "runner a"
    for rank, tactic in (("0", "runner b"), ("3", "runner a"), ("5", "runner b")):
        AutoTuner.get().clear()
        monkeypatch.setenv("RANK", rank)
        AutoTuner.get().load(path)
        assert choices_of(chooser) == {(3,): tactic}
    AutoTuner.get().load(path, rank=3)
    assert choices_of(chooser) == {(3,): "runner a"}


@pytest.mark.parametrize("rank", [-1, 10**9])
def test_a_rank_that_is_none_is_refused_before_anything_is_done(path: Path, rank: int) -> None:
    for use in (AutoTuner.get().save, AutoTuner.get().load, lambda path, rank: autotune(path, rank=rank).__enter__()):
        with pytest.raises(ValueError, match=f"rank={rank}: a rank is"):
            use(path, rank=rank)
    assert list(path.parent.iterdir()) == []


def test_a_section_of_a_negative_rank_damages_no_other(path: Path) -> None:
    chooser = tuned()
    AutoTuner.get().save(path)
    edited(path, lambda document: document["ranks"].update({"-1": document["ranks"]["0"]}))
    AutoTuner.get().clear()
    assert AutoTuner.get().load(path) is None
    assert choices_of(chooser) == {(3,): "runner b"}


OTHER_MACHINES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "version": (lambda machine: machine.update(dutyfree="0.0.1"), "dutyfree was 0.0.1 and is "),
    "torch": (lambda machine: machine.update(torch="1.0"), "torch was 1.0 and is "),
    "processor": (lambda machine: machine.update(cpu="abacus"), "cpu was abacus and is "),
    "features": (lambda machine: machine.update(features=["avx2"]), "features was avx2 and is "),
    "threads": (lambda machine: machine.update(threads=-1), "threads was -1 and is "),
    "nothing": (lambda machine: machine.clear(), "dutyfree was None and is "),
}


def test_devices_differ_only_where_both_processes_use_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not begun to use CUDA can't say what it will use."""
    none, h200, b200 = None, {"name": "H200", "capability": "9.0"}, {"name": "B200", "capability": "10.0"}
    tuned()
    for saved, loaded, accepted in (
        (h200, h200, True),
        (h200, none, True),
        (none, h200, True),
        (h200, b200, False),
    ):
        path.unlink(missing_ok=True)
        monkeypatch.setattr(_machine, "_device", lambda device=saved: device)
        AutoTuner.get().save(path)
        monkeypatch.setattr(_machine, "_device", lambda device=loaded: device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refused = AutoTuner.get().load(path)
        assert (refused is None) == accepted
        assert refused is None or "device was " in refused
        if accepted:
            AutoTuner.get().save(path)
            assert json.loads(path.read_text())["ranks"]["0"]["machine"]["device"] == (loaded or saved), "not forgotten"


def test_describing_the_machine_does_not_begin_to_use_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*_: Any) -> None:
        raise AssertionError("this would make a CUDA context")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", begun)
    monkeypatch.setattr(torch.cuda, "get_device_name", begun)
    assert _machine.describe()["device"] is None


def test_the_version_is_the_extensions_and_needs_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version("dutyfree")

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert _machine.describe()["dutyfree"] == installed
    monkeypatch.delattr(_build_info, "DUTYFREE_VERSION")
    assert _machine.describe()["dutyfree"] == "unknown"


@pytest.mark.parametrize("other", OTHER_MACHINES)
def test_choices_of_another_machine_or_version_are_refused_with_the_reason(path: Path, other: str) -> None:
    edit, reason = OTHER_MACHINES[other]
    chooser = tuned()
    AutoTuner.get().save(path)
    AutoTuner.get().clear()
    edited(path, lambda document: edit(document["ranks"]["0"]["machine"]))
    with pytest.warns(RuntimeWarning, match="another machine or version") as caught:
        refused = AutoTuner.get().load(path)
    assert refused == str(caught[0].message)
    assert reason in refused
    assert choices_of(chooser) == {}
    assert path.exists()


def test_choices_of_another_machine_are_kept_beside_those_that_replace_them(path: Path) -> None:
    name = tuned().name
    AutoTuner.get().save(path)
    AutoTuner.get().save(path, rank=1)
    edited(path, lambda document: document["ranks"]["0"]["machine"].update(cpu="abacus"))
    before = path.read_text()
    AutoTuner.get().clear()
    other = tuned().name
    with pytest.warns(RuntimeWarning, match="abacus"):
        AutoTuner.get().save(path)
    assert set(operators_in(path)) == {other}
    assert set(operators_in(path, 1)) == {name}, "another rank's section is its own matter"
    assert path.with_name("tuned.json.replaced").read_text() == before


def test_a_file_of_another_schema_is_refused_and_kept(path: Path) -> None:
    tuned()
    AutoTuner.get().save(path)
    edited(path, lambda document: document.update(schema=99, ranks=None))
    with pytest.warns(RuntimeWarning, match="schema is 99"):
        assert AutoTuner.get().load(path) is not None
    assert path.exists()
    with pytest.warns(RuntimeWarning, match="schema is 99"):
        AutoTuner.get().save(path)
    assert json.loads(path.with_name("tuned.json.replaced").read_text())["schema"] == 99
    assert AutoTuner.get().load(path) is None


def entry_of(document: dict[str, Any]) -> dict[str, Any]:
    (entries,) = document["ranks"]["0"]["operators"].values()
    found: dict[str, Any] = entries[0]
    return found


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "other format": lambda document: document.update(format="shopping list"),
    "no ranks": lambda document: document.pop("ranks"),
    "a rank that is no number": lambda document: document["ranks"].update(zero=document["ranks"]["0"]),
    "a rank that is no object": lambda document: document["ranks"].update({"1": 3}),
    "no operators": lambda document: document["ranks"]["0"].pop("operators"),
    "choices that are no list": lambda document: document["ranks"]["0"]["operators"].update(op=3),
    "a choice that is no object": lambda document: document["ranks"]["0"]["operators"].update(op=[3]),
    "no tactic": lambda document: entry_of(document).pop("tactic"),
    "a tactic with a zero": lambda document: entry_of(document).update(tactic="a\0b"),
    "a tactic that is no text": lambda document: entry_of(document).update(tactic="\ud800"),
    "sizes that are no integers": lambda document: entry_of(document).update(dims=[True, 2.5]),
    "sizes out of range": lambda document: entry_of(document).update(dims=[2**63]),
    "too many sizes": lambda document: entry_of(document).update(dims=[1] * 65),
    "a time that is no number": lambda document: entry_of(document).update(us="__import__('os').abort()"),
    "a time that is not finite": lambda document: entry_of(document).update(us=float("nan")),
    "a time that no float holds": lambda document: entry_of(document).update(us=10**400),
    "reasons that are no texts": lambda document: entry_of(document).update(left_out={"a": 3}),
}
TEXTS = {
    "empty": b"",
    "cut": b'{"format": "dutyfree tuning", "schema": 1, "ranks": {"0"',
    "binary": bytes(range(256)),
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "a long number": b"9" * 10_000,
}


@pytest.mark.parametrize("damage", [*DAMAGES, *TEXTS])
def test_a_damaged_file_is_set_aside_and_tuning_goes_on(path: Path, damage: str) -> None:
    chooser = tuned()
    AutoTuner.get().save(path)
    AutoTuner.get().clear()
    if damage in TEXTS:
        path.write_bytes(TEXTS[damage])
    else:
        edited(path, DAMAGES[damage])
    before = path.read_bytes()
    with (
        pytest.warns(RuntimeWarning, match="is damaged: .* renamed to tuned.json.damaged"),
        autotune(cache=path, repeats=1, warmup=0),
    ):
        chooser.choose(torch.ones(3))
    assert path.with_name("tuned.json.damaged").read_bytes() == before
    assert choices_of(chooser) != {}
    assert set(operators_in(path)) == {chooser.name}


def test_saving_over_a_damaged_file_sets_it_aside_and_keeps_earlier_ones(path: Path) -> None:
    tuned()
    for number, aside in enumerate(("tuned.json.damaged", "tuned.json.damaged-1")):
        path.write_text(f"damage {number}")
        with pytest.warns(RuntimeWarning, match="damaged"):
            AutoTuner.get().save(path)
        assert path.with_name(aside).read_text() == f"damage {number}"
        assert AutoTuner.get().load(path) is None


def test_a_good_file_that_replaced_a_damaged_one_is_not_set_aside(path: Path) -> None:
    """The reader saw the damaged file; before it has the lock, another process repairs it."""
    tuned()
    AutoTuner.get().save(path)
    text = _tuning_cache._set_aside(path, _tuning_cache.DamagedError("cut"))
    assert "Another process has replaced it" in text
    assert path.exists()


def test_a_tactic_that_the_operator_lacks_is_ignored_with_a_reason(path: Path) -> None:
    name = tuned().name
    AutoTuner.get().save(path)
    edited(path, lambda document: entry_of(document).update(tactic="runner withdrawn"))
    AutoTuner.get().clear()
    AutoTuner.get().load(path)
    assert AutoTuner.get().choices() == []
    assert [miss.unknown for miss in AutoTuner.get().misses()] == ["runner withdrawn"]
    runner = Runner("runner", a=SLOW, b=FAST)
    chooser = operator(runner, name=name)
    with pytest.warns(RuntimeWarning, match="the cache names 'runner withdrawn', which the operator does not have"):
        assert chooser.choose(torch.ones(3)) == (runner, "a")
    with autotune(repeats=2, warmup=0):
        assert chooser.choose(torch.ones(3)) == (runner, "b")


def test_a_folder_that_cannot_be_written_is_an_error_and_tuning_survives_it(tmp_path: Path) -> None:
    chooser = operator(Runner("runner", only=FAST))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), autotune(cache=tmp_path / "file" / "tuned.json", repeats=1, warmup=0):
        chooser.choose(torch.ones(3))
    assert choices_of(chooser) != {}
    assert not _core.is_tuning()


def test_an_error_of_the_program_is_not_hidden_by_one_of_saving(tmp_path: Path) -> None:
    chooser = operator(Runner("runner", only=FAST))
    (tmp_path / "file").write_text("")

    @autotune(cache=tmp_path / "file" / "tuned.json", repeats=1, warmup=0)
    def program() -> None:
        chooser.choose(torch.ones(3))
        raise ZeroDivisionError

    with pytest.warns(RuntimeWarning, match="could not be saved"), pytest.raises(ZeroDivisionError):
        program()


@pytest.fixture(params=["pipe", "socket", "folder", "link to a pipe"])
def no_file(request: pytest.FixtureRequest, path: Path) -> Iterator[Path]:
    """A path of something that a cache must neither wait for nor replace."""
    if request.param == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            # Its name may have about a hundred letters.
            folder = os.open(path.parent, os.O_RDONLY)
            bound.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)
            yield path
        return
    if request.param == "folder":
        path.mkdir()
    elif request.param == "pipe":
        os.mkfifo(path)
    else:
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to("pipe")
    yield path


def test_what_is_no_file_is_no_cache_and_stays(no_file: Path) -> None:
    before = no_file.lstat()
    tuned()
    with pytest.warns(RuntimeWarning, match=f"{no_file.parent}.* not a regular file. It is not read") as warned:
        assert "not a regular file" in str(AutoTuner.get().load(no_file))
    assert len(warned) == 1
    with pytest.raises(OSError, match="not a regular file"):
        AutoTuner.get().save(no_file)
    assert (no_file.lstat().st_ino, no_file.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert not [each for each in no_file.parent.iterdir() if "tuned.json." in each.name]


def test_what_is_no_file_is_refused_before_anything_is_measured(no_file: Path) -> None:
    context = autotune(cache=no_file)
    with pytest.raises(OSError, match="not a regular file"):
        context.__enter__()
    assert not _core.is_tuning()


@pytest.mark.parametrize(("cache", "message"), [("", "path is empty"), ("a\0b", "is no file")])
def test_a_text_that_is_no_path_is_refused_at_once(cache: str, message: str) -> None:
    with pytest.raises(OSError, match=message), autotune(cache=cache):
        pytest.fail("it was entered")


def test_a_default_cache_that_is_no_file_is_no_cache(no_file: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", FIRST_MISS.format(name="my::op")],
        cwd=Path(__file__).parent,
        env={**os.environ, "DUTYFREE_TUNING_CACHE": str(no_file)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.stdout == "a\n"
    assert finished.stderr.count("not a regular file") == 1


@pytest.mark.parametrize("exists", [True, False])
def test_saving_through_a_link_writes_its_target(path: Path, exists: bool) -> None:
    target = path.parent / "elsewhere" / "target.json"
    path.symlink_to(target)
    if exists:
        first = tuned()
        AutoTuner.get().save(target)
        target.chmod(0o600)
        AutoTuner.get().clear()
    chooser = tuned()
    AutoTuner.get().save(path)
    assert path.is_symlink()
    assert set(operators_in(target)) == ({first.name, chooser.name} if exists else {chooser.name})
    assert [each.name for each in path.parent.iterdir() if each.name.startswith("tuned.json.")] == []
    AutoTuner.get().clear()
    assert AutoTuner.get().load(path) is None
    assert choices_of(chooser) != {}


def test_a_damaged_file_behind_a_link_is_set_aside_where_it_is(path: Path) -> None:
    target = path.with_name("target.json")
    target.write_text("damage")
    path.symlink_to(target)
    with pytest.warns(RuntimeWarning, match="renamed to target.json.damaged"):
        AutoTuner.get().load(path)
    assert path.is_symlink()
    assert path.with_name("target.json.damaged").read_text() == "damage"


def test_links_in_a_circle_are_refused_at_once(path: Path) -> None:
    path.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"), autotune(cache=path):
        pytest.fail("it was entered")
    with pytest.warns(RuntimeWarning, match="can't be read"):
        AutoTuner.get().load(path)


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_saving_keeps_the_files_mode(path: Path, mode: int) -> None:
    tuned()
    AutoTuner.get().save(path)
    path.chmod(mode)
    AutoTuner.get().save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def deep(levels: int) -> Any:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


ODD_MACHINES: dict[str, Callable[[dict[str, Any]], object]] = {
    "NaN": lambda section: section["machine"].update(threads=float("nan")),
    "infinity": lambda section: section["machine"].update(features=["avx2", float("-inf")]),
    "deep": lambda section: section["machine"].update(features=deep(500)),
    "only a number": lambda section: section.update(machine=float("inf")),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("odd", ODD_MACHINES)
def test_an_odd_machine_costs_its_own_section_only(path: Path, odd: str, rank: int) -> None:
    first = tuned()
    for each in (0, 1, 2):
        AutoTuner.get().save(path, rank=each)
    edited(path, lambda document: ODD_MACHINES[odd](document["ranks"][str(rank)]))
    before = path.read_text()
    AutoTuner.get().clear()
    with pytest.warns(RuntimeWarning, match=f"section of rank {rank} .* is not used: its machine"):
        AutoTuner.get().load(path, rank=rank)
    assert path.read_text() == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert AutoTuner.get().load(path, rank=2) is None
    AutoTuner.get().clear()
    second = tuned()
    with pytest.warns(RuntimeWarning, match=f"damaged sections .rank {rank}: .*tuned.json.damaged"):
        AutoTuner.get().save(path)
    assert path.with_name("tuned.json.damaged").read_text() == before
    assert set(operators_in(path)) == ({second.name} if rank == 0 else {first.name, second.name})
    assert set(operators_in(path, 2)) == {first.name}
    assert set(json.loads(path.read_text())["ranks"]) == {"0", "1", "2"} - ({"1"} if rank == 1 else set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoTuner.get().save(path)


@pytest.mark.parametrize("strict", [False, True])
def test_no_error_of_saving_replaces_one_of_the_program(
    path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("Out of range float values are not JSON compliant")

    @autotune(cache=path, repeats=1, warmup=0)
    def program() -> None:
        operator(Runner("runner", only=FAST)).choose(torch.ones(3))
        raise ZeroDivisionError

    monkeypatch.setattr(_tuning_cache, "save", fail)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("error" if strict else "always")
        with pytest.raises(ZeroDivisionError):
            program()
    assert [str(each.message) for each in warned if "could not be saved: Out of range" in str(each.message)] or strict


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned()
    AutoTuner.get().save(path)
    before = path.read_text()
    tuned()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        AutoTuner.get().save(path)
    assert path.read_text() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["tuned.json", "tuned.json.lock"]


def test_others_may_read_the_file_as_the_umask_says(path: Path) -> None:
    tuned()
    before = os.umask(0o027)
    try:
        AutoTuner.get().save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_saving_leaves_the_umask_of_other_threads_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned()

    def touched(mask: int) -> int:
        raise AssertionError("the umask is the whole process's")

    monkeypatch.setattr(os, "umask", touched)
    AutoTuner.get().save(path)


def test_this_machine_is_described_alike_every_time() -> None:
    assert _machine.difference(json.loads(json.dumps(_machine.describe())), _machine.describe()) is None


PROCESSES, SAVES = 4, 15


def save_often(path: Path, process: int, rank: int) -> None:
    for number in range(SAVES):
        choice = Choice(f"process{process}::op{number}", "", (number,), "tactic", 1.0)
        _tuning_cache.save(path, [choice], rank)


@pytest.mark.parametrize("ranks", ["a rank each", "one rank"])
def test_processes_that_save_at_once_lose_nothing(path: Path, ranks: str) -> None:
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=save_often, args=(path, number, number if ranks == "a rank each" else 0))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    sections = json.loads(path.read_text())["ranks"]
    found = sorted(name for section in sections.values() for name in section["operators"])
    assert found == sorted(f"process{process}::op{number}" for process in range(PROCESSES) for number in range(SAVES))
    assert len(sections) == (PROCESSES if ranks == "a rank each" else 1)


TUNED_UNTIL_INTERRUPTED = """
import signal, sys
import torch
import dutyfree
from tuned_runners import Runner, operator

signal.signal(signal.SIGINT, signal.default_int_handler)
fast = operator(Runner("fast", only=0.0), name="my::fast")
slow = operator(Runner("slow", a=100.0, b=100.0), name="my::slow")
try:
    with dutyfree.autotune(cache=sys.argv[1], repeats=1000, warmup=0):
        fast.choose(torch.ones(3))
        print("measured", flush=True)
        slow.choose(torch.ones(3))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_reaches_the_program_and_keeps_what_was_measured(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TUNED_UNTIL_INTERRUPTED, str(path)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "measured\n"
        time.sleep(0.3)  # in the middle of a hundred seconds' measurement
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
    assert set(operators_in(path)) == {"my::fast"}


FIRST_MISS = """
import torch
from tuned_runners import Runner, operator

print(operator(Runner("runner", a=0.0, b=0.0), name="{name}").choose(torch.ones(3))[1])
"""


@pytest.mark.parametrize("setting", ["DUTYFREE_TUNING_CACHE", "XDG_CACHE_HOME", "off"])
def test_a_process_reads_the_default_cache_when_it_first_lacks_a_tactic(tmp_path: Path, setting: str) -> None:
    name = unique_operator()
    path = tmp_path / "dutyfree" / "tuning.json"
    _core.restore_choice(name, "cpu float32 [=]", (3,), "runner b", 1.0)
    operator(Runner("runner", a=FAST, b=FAST), name=name).choose(torch.ones(3))
    AutoTuner.get().save(path)
    environment = {name: value for name, value in os.environ.items() if name != "DUTYFREE_TUNING_CACHE"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    if setting == "DUTYFREE_TUNING_CACHE":
        environment |= {"XDG_CACHE_HOME": str(tmp_path / "none"), setting: str(path)}
    elif setting == "off":
        environment["DUTYFREE_TUNING_CACHE"] = ""
    finished = subprocess.run(
        [sys.executable, "-c", FIRST_MISS.format(name=name)],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == ("a\n" if setting == "off" else "b\n")
    assert ("has no tuned tactic" in finished.stderr) == (setting == "off")


READ_BY_ONE_OF_TWO_THREADS = """
import threading, time, warnings
import torch
from dutyfree import _core, _tuning_cache
from tuned_runners import Runner, operator

warnings.simplefilter("error")
reading = threading.Event()
reads = []

def read():
    reads.append(1)
    reading.set()
    time.sleep(0.5)
    chooser.choose(torch.ones(5))  # within it, no one waits for it
    _core.restore_choice("my::op", "cpu float32 [=]", (3,), "runner b", 1.0)

def choose():
    got.append(chooser.choose(torch.ones(3))[1])

got = []
_tuning_cache.load_default = read
chooser = operator(Runner("runner", a=0.0, b=0.0), name="my::op")
_core.restore_choice("my::op", "cpu float32 [=]", (5,), "runner b", 1.0)
threads = [threading.Thread(target=choose) for _ in range(2)]
threads[0].start()
reading.wait()
threads[1].start()
for thread in threads:
    thread.join()
print(len(reads), got)
"""


def in_a_process(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120
    )


def test_a_thread_that_misses_while_another_reads_the_default_cache_waits_for_it() -> None:
    finished = in_a_process(READ_BY_ONE_OF_TWO_THREADS)
    assert (finished.stdout, finished.stderr) == ("1 ['b', 'b']\n", "")


MISSED_WITHIN_THE_READING = """
import torch
from dutyfree import _tuning_cache
from tuned_runners import Runner, operator

chooser = operator(Runner("runner", a=0.0, b=0.0), name="my::op")
_tuning_cache.load_default = lambda: print("within", chooser.choose(torch.ones(3))[1])
print(chooser.choose(torch.ones(3))[1])
"""


def test_a_miss_within_the_reading_of_the_default_cache_does_not_wait_for_itself() -> None:
    assert in_a_process(MISSED_WITHIN_THE_READING).stdout == "within a\na\n"


READING_FAILS = """
import sys
import torch
from dutyfree import _machine, _tuning_cache
from tuned_runners import Runner, operator

def fail(*_):
    raise LookupError("no processor")

{fault}
print(operator(Runner("runner", a=0.0, b=0.0), name="my::op").choose(torch.ones(3))[1])
"""


@pytest.mark.parametrize("fault", ["_tuning_cache.load = fail", "_tuning_cache.load_default = fail"])
def test_a_default_cache_that_cannot_be_used_is_a_warning(fault: str) -> None:
    finished = in_a_process(READING_FAILS.format(fault=fault))
    assert finished.stdout == "a\n"
    assert "RuntimeWarning" in finished.stderr
    assert "no processor" in finished.stderr


def test_a_choice_that_is_loaded_before_its_operator_is_made_is_listed_until_then() -> None:
    name = unique_operator()
    _core.restore_choice(name, "cpu float32 [=]", (3,), "runner b", 1.0)
    assert [(miss.operator, miss.fallback, miss.unknown) for miss in AutoTuner.get().misses()] == [
        (name, None, "runner b")
    ]
    runner = Runner("runner", a=FAST, b=FAST)
    assert operator(runner, name=name).choose(torch.ones(3)) == (runner, "b")
    assert AutoTuner.get().misses() == []


def test_the_rank_is_torch_distributeds_once_it_is_initialised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    assert _tuning_cache.this_rank() == 7
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert _tuning_cache.this_rank() == 0
    finally:
        torch.distributed.destroy_process_group()
    for none in ("none", "-1", "9" * 20):
        monkeypatch.setenv("RANK", none)
        assert _tuning_cache.this_rank() == 0
