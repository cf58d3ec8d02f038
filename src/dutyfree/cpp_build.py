"""``build``: compiles C++ sources with operators into a shared library and loads it. For notebooks, tests and a first
try; a package uses CMake (docs/cpp.md).

What was built is kept, in one folder for everything that is known before the compiler runs (``_key``), and in it one
folder for each state of the headers that the sources turned out to include. Such a folder appears whole or not at all:
it is made under another name in the same file system and renamed.
"""

import concurrent.futures
import fcntl
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from dutyfree.cpp import Operators, load_library
from dutyfree.cpp_paths import get_include

StrPath = str | os.PathLike[str]

_TORCH = Path(torch.__file__).resolve().parent
_TORCH_INCLUDES = (_TORCH / "include", _TORCH / "include" / "torch" / "csrc" / "api" / "include")
_UNFINISHED = ".unfinished-"
_HEADERS = "headers.json"
# Environment variables that GCC and Clang take search paths from.
_SEARCH_PATHS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH")


def build(
    name: str,
    sources: StrPath | Sequence[StrPath],
    *,
    extra_cflags: Sequence[str] = (),
    extra_ldflags: Sequence[str] = (),
    extra_include_paths: Sequence[StrPath] = (),
    build_directory: StrPath | None = None,
    verbose: bool = False,
) -> Operators:
    """Compile C++ sources that use ``dutyfree/op.h`` into a shared library, and load it.

    The library is kept, and used again for the same torch, compiler, flags, sources and headers; then no compiler runs.
    Processes that build the same wait for one another; one that dies leaves nothing that others would wait for.

    Args:
        name: The library's file name, without ``.so``: letters, digits, ``_``, ``-`` and ``.``.
        sources: One path or several, compiled separately, ``MAX_JOBS`` at a time (as many as there are processors).
        extra_cflags: For the compiler, after ``-std=c++20 -O2 -fPIC -fvisibility=hidden`` and torch's own flags.
        extra_ldflags: For the linker, after torch's libraries.
        extra_include_paths: Folders in which headers are looked for, before dutyfree's and torch's.
        build_directory: Where libraries are kept. Else in ``$DUTYFREE_CACHE``, or ``dutyfree`` in
            ``$XDG_CACHE_HOME`` or ``~/.cache``. What is there may be deleted at any time.
        verbose: Print the commands and their output, to stderr.

    Returns:
        The operators, as :func:`dutyfree.load_library` returns them.

    Raises:
        ValueError: ``name`` is no file name, or there are no sources.
        FileNotFoundError: A source is missing.
        RuntimeError: There is no compiler (``$CXX``, else ``c++``), it failed (the text has its output), or the
            operators could not be registered; also when a changed source defines the operators that an earlier version
            of it has defined in this process.

    Example::

        >>> ops = dutyfree.build("my_ops", ["axpy.cpp"])
        >>> ops.axpy(x, y, 2.0)
    """
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise ValueError(f"name={name!r}: a library's name is made of letters, digits, '_', '-' and '.'.")
    job = _Job(
        name=name,
        sources=tuple(Path(source).resolve(strict=True) for source in _several(sources)),
        compiler=_compiler(),
        compiler_flags=(*_own_flags(), *_flags("extra_cflags", extra_cflags)),
        linker_flags=_flags("extra_ldflags", extra_ldflags),
        include_paths=tuple(Path(path).resolve() for path in extra_include_paths),
        verbose=verbose,
    )
    if not job.sources:
        raise ValueError(f"{name}: there are no sources to compile.")
    root = Path(build_directory).resolve() if build_directory is not None else default_folder()
    return load_library(_find_or_make(job, root))


def default_folder() -> Path:
    """Where :func:`build` keeps libraries unless told otherwise."""
    if chosen := os.environ.get("DUTYFREE_CACHE"):
        return Path(chosen).resolve() / "build"
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path there counts as none, says the XDG specification.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "dutyfree" / "build"


@dataclass(frozen=True)
class _Job:
    """One library to build. Paths are absolute."""

    name: str
    sources: tuple[Path, ...]
    compiler: tuple[str, ...]
    compiler_flags: tuple[str, ...]
    linker_flags: tuple[str, ...]
    include_paths: tuple[Path, ...]
    verbose: bool

    @property
    def search_paths(self) -> tuple[Path, ...]:
        """Where an #include of what is not torch's may be found."""
        return (*dict.fromkeys(source.parent for source in self.sources), *self.include_paths, Path(get_include()))


def _several(sources: StrPath | Sequence[StrPath]) -> Sequence[StrPath]:
    return [sources] if isinstance(sources, (str, os.PathLike)) else sources


def _flags(parameter: str, flags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(flags, str):
        raise TypeError(f"{parameter} is one string: expected a list with a string for each flag.")
    return tuple(flags)


def _own_flags() -> tuple[str, ...]:
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}")


def _compiler() -> tuple[str, ...]:
    """``$CXX``, which may have arguments, with its whole path."""
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    path = shutil.which(command[0])
    if path is None:
        raise RuntimeError(
            f"no C++ compiler: {command[0]} is not found. Install one (GCC 11, Clang 14 or newer), or set CXX."
        )
    return (path, *command[1:])


# --- what a library is known by ---------------------------------------------------------------------------------------


def _key(job: _Job) -> str:
    """A hash of everything that decides what the library is, but the headers: those are known once it is built."""
    linked = [flag for flag in job.linker_flags if Path(flag).is_file()]
    facts = {
        "torch": [torch.__version__, torch.version.git_version, str(_TORCH)],
        "compiler": [*job.compiler, _version_of(job.compiler)],
        "flags": [job.compiler_flags, job.linker_flags, [str(path) for path in job.search_paths]],
        "environment": [os.environ.get(name) for name in _SEARCH_PATHS],
        "sources": [[str(source), _hash_of(source)] for source in job.sources],
        "linked": [_hash_of(Path(flag)) for flag in linked],
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _version_of(compiler: tuple[str, ...]) -> str:
    # Asked for once a process for the same file: an upgrade of the compiler replaces it.
    status = Path(compiler[0]).stat()
    return _printed_version(compiler, status.st_ino, status.st_mtime_ns)


@functools.cache
def _printed_version(compiler: tuple[str, ...], *_file: int) -> str:
    return _run([*compiler, "--version"])


def _hash_of(path: Path) -> str | None:
    """None where there is no such file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


def _state_of(headers: Iterable[Path], search_paths: Sequence[Path]) -> dict[str, str | None]:
    """The hashes of headers, and of files that would be found in their place: those of the same name elsewhere on the
    search path, most of which are absent."""
    paths = set(headers)
    for folder in search_paths:
        for header in headers:
            if header.is_relative_to(folder):
                paths.update(other / header.relative_to(folder) for other in search_paths)
    return {str(path): _hash_of(path) for path in sorted(paths)}


def _find(job: _Job, folder: Path) -> Path | None:
    """The library, if it was built before with the headers as they are now."""
    for listing in sorted(folder.glob(f"*/{_HEADERS}")):
        if listing.parent.name.startswith(_UNFINISHED):
            continue
        try:
            state = json.loads(listing.read_text())
        except (OSError, ValueError):
            continue  # deleted meanwhile, or damaged
        library = listing.parent / f"{job.name}.so"
        if library.exists() and all(_hash_of(Path(path)) == known for path, known in state.items()):
            if job.verbose:
                print(f"dutyfree: {library} is up to date", file=sys.stderr)
            return library
    return None


# --- building it ------------------------------------------------------------------------------------------------------


def _find_or_make(job: _Job, root: Path) -> Path:
    state = None
    while True:
        key = _key(job)
        folder = root / f"{job.name}-{key}"
        if (found := _find(job, folder)) is not None:
            return found
        with _locked(root / f"{folder.name}.lock"), _unfinished(folder) as unfinished:
            if (found := _find(job, folder)) is not None:
                return found
            started = time.time_ns()
            headers = _compile(job, unfinished)
            before, state = state, _state_of(headers, job.search_paths)
            # What is kept has to be what its hashes say. A file that was edited meanwhile is compiled again.
            if _key(job) != key or (state != before and any(_modified(path) >= started for path in headers)):
                continue
            (unfinished / _HEADERS).write_text(json.dumps(state))
            kept = folder / hashlib.sha256(json.dumps(state).encode()).hexdigest()[:24]
            if kept.exists():
                shutil.rmtree(kept)  # _find did not accept it, so it is damaged
            unfinished.rename(kept)
            return kept / f"{job.name}.so"


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return time.time_ns()  # deleted just now


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time. The kernel releases the lock of a process that dies, so none is ever stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(path, file):
                continue  # whoever had the lock has removed the file, and perhaps another process has made a new one
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(file)


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """A new folder beside the finished ones, which is gone at the end unless it was renamed. The lock is held."""
    folder.mkdir(parents=True, exist_ok=True)
    for left_by_the_dead in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left_by_the_dead, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # where it is not empty
            folder.rmdir()


def _compile(job: _Job, folder: Path) -> list[Path]:
    """Make the library in ``folder``. Returns the files that the sources include, but torch's: it has a version."""
    own = [argument for path in (*job.include_paths, get_include()) for argument in ("-I", str(path))]
    torchs = [argument for path in _TORCH_INCLUDES for argument in ("-isystem", str(path))]
    objects = [folder / f"{number}.o" for number in range(len(job.sources))]
    compile_commands = [
        [
            *job.compiler,
            *job.compiler_flags,
            *own,
            *torchs,
            "-MD",
            "-MF",
            f"{made}.d",
            "-c",
            str(source),
            "-o",
            str(made),
        ]
        for source, made in zip(job.sources, objects, strict=True)
    ]
    link_command = [
        *(*job.compiler, "-shared", *map(str, objects), "-o", str(folder / f"{job.name}.so")),
        *(f"-L{_TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", *job.linker_flags),
    ]
    at_a_time = min(len(objects), int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1))
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as threads:
        list(threads.map(functools.partial(_run, name=job.name, verbose=job.verbose), compile_commands))
    _run(link_command, name=job.name, verbose=job.verbose)
    included = {path for made in objects for path in _dependencies(Path(f"{made}.d")) if not _is_torchs(path)}
    for made in objects:
        made.unlink()
        Path(f"{made}.d").unlink()
    return sorted(included - set(job.sources))


def _is_torchs(path: Path) -> bool:
    return path.is_relative_to(_TORCH)


def _dependencies(listing: Path) -> list[Path]:
    """The files in a Makefile rule that the compiler wrote: words behind a colon, spaces in them behind a backslash."""
    _, _, files = listing.read_text().replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\.|[^\s\\])+", files)
    return [Path(re.sub(r"\\([\s#])", r"\1", word).replace("$$", "$")).resolve() for word in words]


def _run(command: list[str], name: str = "", verbose: bool = False) -> str:
    if verbose:
        print(shlex.join(command), file=sys.stderr)
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    output = finished.stdout.decode(errors="replace")
    if finished.returncode != 0:
        raise RuntimeError(
            f"{name}: the compiler failed with exit status {finished.returncode}.\n{shlex.join(command)}\n{output}"
        )
    if verbose and output:
        print(output, file=sys.stderr, end="")
    return output
