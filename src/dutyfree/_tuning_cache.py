"""The file that keeps tuned choices: JSON, one section a rank, each with the machine that it was made on.

A file is parsed and checked, never evaluated. It is replaced as a whole, under a lock beside it, so that a reader needs
no lock and processes that save at the same time lose nothing. What can't be read is renamed, not deleted; what is no
regular file, a device or a pipe, is left alone. Through a symbolic link, its target is read and replaced.
"""

import contextlib
import fcntl
import json
import math
import os
import secrets
import shutil
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dutyfree import _core, _machine

FORMAT = "dutyfree tuning"
SCHEMA = 1
_MOST_DIMS = 64
# Above all ranks that a file may have.
_RANKS = 10**9
# What is kept of why a tactic was left out.
_LONGEST_REASON = 500
# Of lists and objects in a machine's description; this version's has two.
_DEEPEST_MACHINE = 8


class DamagedError(ValueError):
    """A file that is not what this module writes."""


class ForeignError(ValueError):
    """A file that another version of this module wrote."""


class NotAFileError(OSError):
    """A path that no file can have or replace."""


@dataclass(frozen=True)
class Choice:
    """A tactic that was measured.

    Attributes:
        operator: ``"namespace::name"``.
        configuration: The operator's configuration; with Python runners, then their tensors' devices, types and
            dimensions, those that are bucketed as ``~``.
        dims: The sizes, bucketed where the operator says so.
        tactic: The chosen tactic's name.
        us: Its time in microseconds; once ranks agreed, the least that one measured which chose it.
        left_out: Tactics that raised, and what they said; once ranks agreed, on any of them.
    """

    operator: str
    configuration: str
    dims: tuple[int, ...]
    tactic: str
    us: float
    left_out: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        return self.operator, self.configuration, self.dims

    def as_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "configuration": self.configuration,
            "dims": list(self.dims),
            "tactic": self.tactic,
            "us": round(self.us, 3),
        }
        if self.left_out:
            entry["left_out"] = shortened(self.left_out)
        return entry


def shortened(left_out: dict[str, str]) -> dict[str, str]:
    """What is kept of the reasons: enough to tell them apart."""
    return {name: reason[:_LONGEST_REASON] for name, reason in left_out.items()}


@dataclass(frozen=True)
class Section:
    """One rank's part of a file."""

    machine: object
    choices: list[Choice]


@dataclass(frozen=True)
class Contents:
    """A file's sections by rank, and why others of it can't be used."""

    sections: dict[int, Section] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)


def default_path() -> Path:
    """``$DUTYFREE_TUNING_CACHE``, or ``dutyfree/tuning.json`` in the user's cache folder."""
    given = os.environ.get("DUTYFREE_TUNING_CACHE")
    if given:
        return Path(given)
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "dutyfree" / "tuning.json"


def load_default() -> None:
    """What the core calls when a process first lacks a tactic. DUTYFREE_TUNING_CACHE="" turns it off.

    Raises nothing but what a warning became: the call that lacks a tactic has one to fall back to.
    """
    if os.environ.get("DUTYFREE_TUNING_CACHE") == "":
        return
    try:
        path = default_path()
    except RuntimeError:  # there may be no folder for the user
        return
    try:
        load(path)
    except Warning:
        raise
    except Exception as error:
        _warned(f"The tuning cache {path} is not used: {type(error).__name__}: {error}.")


def this_rank() -> int:
    """torch.distributed's rank once it is initialised, else RANK's; 0 where that is no rank."""
    if torch_distributed_ready():
        import torch.distributed

        return max(torch.distributed.get_rank(), 0)
    try:
        rank = int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0
    return rank if 0 <= rank < _RANKS else 0


def check_rank(rank: int | None) -> int:
    """The rank, or this process's. ValueError where it is none."""
    if rank is None:
        return this_rank()
    if not 0 <= rank < _RANKS:
        raise ValueError(f"rank={rank}: a rank is a number from 0, below {_RANKS}.")
    return rank


def check_path(path: str | os.PathLike[str]) -> None:
    """OSError where saving to a path would fail or replace something else than a file: a device, a pipe, a folder."""
    if not os.fspath(path):
        raise NotAFileError("The tuning cache's path is empty.")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _check_regular(Path(path))


def torch_distributed_ready() -> bool:
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def load(path: Path, rank: int | None = None) -> str | None:
    """Takes the choices in the section of ``rank``, or of rank 0 where a file has none for this one.

    Returns why nothing was taken, None where it was. A refusal and a damaged file also warn; a missing file does not.
    """
    name = check_rank(rank)
    try:
        path = _target(path)
        contents = _read(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} does not exist"
    except NotAFileError as error:
        return _warned(f"{error} It is not read.")
    except OSError as error:
        return _warned(f"The tuning cache {path} can't be read: {error}.")
    except DamagedError as error:
        return _warned(_set_aside(path, error))
    except ForeignError as error:
        return _warned(_refusal(path, str(error)))
    used = name if name in contents.sections else 0
    section = contents.sections.get(used)
    for damaged in {name, used} & set(contents.damaged):
        _warned(f"The section of rank {damaged} in the tuning cache {path} is not used: {contents.damaged[damaged]}.")
    if section is None:
        return f"{path} has no section for this rank"
    difference = _machine.difference(section.machine, _machine.describe())
    if difference is not None:
        return _warned(_refusal(path, difference))
    for choice in section.choices:
        _core.restore_choice(*choice.key, choice.tactic, choice.us, choice.left_out)
    return None


def save(path: Path, choices: list[Choice], rank: int | None = None) -> None:
    """Adds the choices to the section of ``rank``; those of the same operator, configuration and sizes are replaced."""
    name = check_rank(rank)
    check_path(path)
    path = _target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = _machine.describe()
    with _locked(path):
        contents = Contents()
        try:
            contents = _read(path)
        except FileNotFoundError:
            pass
        except DamagedError as error:
            _warned(_rename(path, error))
        except ForeignError as error:
            _keep_copy(path, str(error))
        if contents.damaged:
            _copy_aside(path, contents.damaged)
        sections = contents.sections
        known = sections.get(name)
        merged = {choice.key: choice for choice in choices}
        if known is not None:
            difference = _machine.difference(known.machine, machine)
            if difference is None:
                merged = {each.key: each for each in known.choices} | merged
                machine = _machine.union(known.machine, machine)
            else:
                _keep_copy(path, difference)
        sections[name] = Section(machine, list(merged.values()))
        _write(path, sections)


# --- reading ---------------------------------------------------------------------------------------------------------


def _target(path: Path) -> Path:
    """The file that a symbolic link leads to, or should; other paths as they are."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _check_regular(path: Path) -> None:
    try:
        status = path.stat()
    except ValueError as error:  # a zero in it
        raise NotAFileError(f"The tuning cache {str(path)!r} is no file: {error}.") from None
    _check_status(path, status)


def _check_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotAFileError(f"The tuning cache {path} is {_kind(status.st_mode)}, not a regular file.")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _bytes_of(path: Path) -> bytes:
    """What is in a regular file. Opens nothing else, since that may wait or have effects of its own."""
    _check_regular(path)
    # Another process may have put a pipe there meanwhile.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        _check_status(path, os.fstat(file.fileno()))
        return file.read()


def _read(path: Path) -> Contents:
    text = _bytes_of(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it is not JSON ({error})") from error
    _expect(isinstance(document, dict) and document.get("format") == FORMAT, "it is no tuning cache of dutyfree")
    if document.get("schema") != SCHEMA:
        raise ForeignError(f"its schema is {document.get('schema')!r}, and {SCHEMA} here")
    ranks = document.get("ranks")
    _expect(isinstance(ranks, dict), "it has no ranks")
    contents = Contents()
    for name, section in ranks.items():
        if name.startswith("-"):  # earlier versions wrote a section for RANK=-1, which is no one's
            continue
        rank, read = _rank_of(name), _section_of(section)
        if _is_description(read.machine):
            contents.sections[rank] = read
        else:
            contents.damaged[rank] = "its machine is described by what is no JSON, or too deep"
    return contents


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise DamagedError(otherwise)


def _rank_of(name: str) -> int:
    _expect(name.isascii() and name.isdecimal() and len(name) < 10, f"rank {name[:20]!r} is no number")
    return int(name)


def _section_of(section: object) -> Section:
    _expect(isinstance(section, dict), "a rank's section is no object")
    assert isinstance(section, dict)
    operators = section.get("operators")
    _expect(isinstance(operators, dict), "a rank's section has no operators")
    assert isinstance(operators, dict)
    choices = []
    for operator, entries in operators.items():
        _expect(isinstance(entries, list), "an operator's choices are no list")
        choices += [_choice_of(_text(operator), entry) for entry in entries]
    return Section(section.get("machine"), choices)


def _choice_of(operator: str, entry: object) -> Choice:
    _expect(isinstance(entry, dict), "a choice is no object")
    assert isinstance(entry, dict)
    left_out = entry.get("left_out", {})
    _expect(isinstance(left_out, dict), "what is left out is no object")
    return Choice(
        operator,
        _text(entry.get("configuration")),
        _sizes(entry.get("dims")),
        _text(entry.get("tactic")),
        _time(entry.get("us")),
        {_text(name): _text(reason) for name, reason in left_out.items()},
    )


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_DIMS or not all(map(_is_size, value)):
        raise DamagedError("sizes are no integers")
    return tuple(value)


def _time(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise DamagedError("a time is no number")
    return float(value)


def _is_description(value: object, depth: int = 0) -> bool:
    """Whether a machine's section can be written again: Python reads NaN and Infinity, which no JSON has."""
    if isinstance(value, (dict, list)):
        parts = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST_MACHINE and all(_is_description(part, depth + 1) for part in parts)
    return not isinstance(value, float) or math.isfinite(value)


def _is_size(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _text(value: object) -> str:
    _expect(isinstance(value, str) and "\0" not in value, "a text is missing")
    assert isinstance(value, str)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DamagedError("a text has a lone surrogate") from error
    return value


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(path: Path, sections: dict[int, Section]) -> None:
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "ranks": {str(rank): _section_json(section) for rank, section in sorted(sections.items())},
    }
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    # Beside it, so that the rename stays within one file system. Not tempfile's, which no one else may read.
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        with made.open("x") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _section_json(section: Section) -> dict[str, Any]:
    operators: dict[str, list[dict[str, Any]]] = {}
    for choice in sorted(section.choices, key=lambda choice: choice.key):
        operators.setdefault(choice.operator, []).append(choice.as_json())
    return {"machine": section.machine, "operators": operators}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    # A file of its own: the cache itself is replaced, and a lock on what was replaced locks no one out. It stays, since
    # removing it would have the same effect.
    with path.with_name(path.name + ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- damaged and foreign files ---------------------------------------------------------------------------------------


def _set_aside(path: Path, error: DamagedError) -> str:
    """Renames a damaged file, unless another process has replaced it meanwhile."""
    try:
        with _locked(path):
            try:
                _read(path)
            except FileNotFoundError:
                return f"The tuning cache {path} was damaged: {error}. Another process renamed it."
            except DamagedError:
                return _rename(path, error)
    except OSError as failure:
        return f"The tuning cache {path} is damaged: {error}. It can't be renamed: {failure}."
    return f"The tuning cache {path} was damaged: {error}. Another process has replaced it."


def _rename(path: Path, error: DamagedError) -> str:
    aside = _name_aside(path)
    path.rename(aside)
    return f"The tuning cache {path} is damaged: {error}. It was renamed to {aside.name}."


def _copy_aside(path: Path, damaged: dict[int, str]) -> None:
    """Copies a file of which some sections are about to be left out."""
    aside = _name_aside(path)
    shutil.copy2(path, aside)
    reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(damaged.items()))
    _warned(f"The tuning cache {path} had damaged sections ({reasons}); they are in {aside.name} now.")


def _name_aside(path: Path) -> Path:
    aside = path.with_name(path.name + ".damaged")
    number = 1
    while os.path.lexists(aside):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        number += 1
    return aside


def _refusal(path: Path, difference: str) -> str:
    return f"The tuning cache {path} is of another machine or version and is not used: {difference}."


def _keep_copy(path: Path, difference: str) -> None:
    """Copies a file whose section is about to be replaced."""
    kept = path.with_name(path.name + ".replaced")
    shutil.copy2(path, kept)
    _warned(f"{path} had choices of another machine or version ({difference}); they are in {kept.name} now.")


def _warned(text: str) -> str:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
    return text
