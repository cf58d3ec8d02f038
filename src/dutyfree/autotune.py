"""Choosing among tactics by measuring them: ``autotune()`` and ``AutoTuner``."""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from dutyfree import _core, _tuning_agreement, _tuning_cache
from dutyfree._tuning_cache import Choice

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["AutoTuner", "Choice", "Miss", "Runner", "autotune"]

Candidate = tuple[str, tuple[Any, Any]]
Progress = Callable[[str, str, tuple[int, ...], str, int, int], None]
# What the core counts runs in.
MOST_RUNS = 2**31 - 1


class Runner(Protocol):
    """One way to do an operator's work, with tactics to choose from.

    ``name``, where it has one, is what a cache calls it; else its class's name is. Runs are repeated while tuning, so
    they may not use up their inputs.
    """

    def tactics(self, *tensors: Tensor | None) -> Sequence[Any]:
        """The tactics for such tensors: strings, numbers, None, or tuples of them. They must suit the whole bucket."""

    def __call__(self, *tensors: Tensor | None, tactic: Any) -> Any: ...


@dataclass(frozen=True)
class Miss:
    """Sizes that calls found no tuned tactic for.

    Attributes:
        operator: ``"namespace::name"``.
        configuration: As in :class:`Choice`.
        dims: As in :class:`Choice`.
        fallback: The tactic that calls use instead, or None where none came yet.
        unknown: The tactic that the cache names for it, where the operator has none with that name.
    """

    operator: str
    configuration: str
    dims: tuple[int, ...]
    fallback: str | None
    unknown: str | None


class AutoTuner:
    """The tactics that this process's operators chose. There is one: ``AutoTuner.get()``."""

    _only: "AutoTuner | None" = None

    def __init__(self) -> None:
        # What ranks agreed on, as (key, tactic), and how often they agreed on anything.
        self._agreed: set[tuple[_tuning_agreement.Key, str]] = set()
        self._agreements = 0

    @classmethod
    def get(cls) -> "AutoTuner":
        """The process's tuner."""
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def operator(
        self,
        name: str,
        runners: Sequence[Runner],
        *,
        dynamic: Sequence[tuple[int, int]] = (),
        configuration: str = "",
    ) -> _core.RunnerChooser:
        """An object whose ``choose(*tensors)`` returns ``(runner, tactic)``, for the operator's body to call.

        Make it once, when the operator is made. A choice is kept by the name, the configuration, the tensors' devices,
        types and sizes. Outside of tuning, the first runner's first tactic stands in where there is no choice.

        Args:
            name: ``"namespace::name"``.
            runners: In order of preference where times are equal.
            dynamic: Pairs (index of a tensor, index of its dimension) whose sizes share a choice from one power of two
                up to the next. Every other size counts exactly.
            configuration: All that decides between tactics beside the tensors, such as an output type.
        """
        if not runners:
            raise ValueError(f"{name}: at least one runner is needed.")
        named = list(zip(_runner_names(runners), runners, strict=True))
        # The tactic that has each name, in any call so far.
        meant: dict[str, Any] = {}

        def candidates(*tensors: Tensor | None) -> list[Candidate]:
            listed: dict[str, tuple[Any, Any]] = {}
            for runner_name, runner in named:
                for tactic in runner.tactics(*tensors):
                    text = f"{runner_name} {_tactic_name(name, tactic)}"
                    known = meant.setdefault(text, tactic)
                    # In tuples, which compare by identity first: a NaN is itself.
                    if text in listed or (known,) != (tactic,):
                        raise ValueError(
                            f"{name}: a file would name two tactics '{text}', {known!r} and {tactic!r}; each needs a "
                            f"name of its own."
                        )
                    listed[text] = (runner, tactic)
            return list(listed.items())

        return _core.RunnerChooser(name, configuration, tuple(tuple(pair) for pair in dynamic), candidates)

    def choices(self) -> list[Choice]:
        """What was measured or loaded and is in use."""
        return [Choice(*fields) for fields in _core.tuning_choices()]

    def misses(self) -> list[Miss]:
        """What calls found no choice for, and what a cache names that the operator does not have."""
        return [Miss(*fields) for fields in _core.tuning_misses()]

    def clear(self) -> None:
        """Forget every choice; files stay as they are."""
        self._agreed.clear()
        _core.forget_choices()

    def agree(self, group: "ProcessGroup | None" = None) -> list[Choice]:
        """Give every rank of a torch.distributed group the same tactics, from now on.

        A collective: all ranks of the group call it. For each operator, configuration and sizes that any of them has a
        choice for, measured or loaded, the tactic wins that most ranks chose; of several, the one with the least time;
        then the lowest rank's. A tactic that raised on any rank, or that one does not list for the sizes, can't win.
        Where that leaves none, each rank keeps its own, and a RuntimeWarning says so on all of them. A rank without a
        choice gets it, also of an operator that it has not made yet. In a group of one, nothing is done.

        Args:
            group: By default all ranks. With NCCL, each rank's device has to be set (``torch.cuda.set_device``).

        Returns:
            This rank's choices that have another tactic than before, or that it did not have.

        Raises:
            RuntimeError: torch.distributed is not initialised; or what it raises where a rank is gone or does not call
                this within the group's timeout. Nothing is changed then.
            ValueError: This process is not in the group.
        """
        agreement = _tuning_agreement.agree(group)
        if agreement.choices:
            self._agreed.update((choice.key, choice.tactic) for choice in agreement.choices)
            self._agreements += 1
        if agreement.undecided:
            warnings.warn(_tuning_agreement.warning_of(agreement.undecided), RuntimeWarning, stacklevel=2)
        return agreement.changed

    def load(self, path: str | os.PathLike[str] | None = None, *, rank: int | None = None) -> str | None:
        """Use the choices in a file; by default ``$DUTYFREE_TUNING_CACHE`` or ``~/.cache/dutyfree/tuning.json``.

        Returns:
            None, or why the file was not used: it is missing, damaged (then it is renamed), or of another machine or
            version. All but the first also warn.
        """
        _core.skip_default_cache()
        return _tuning_cache.load(_path(path), rank)

    def save(self, path: str | os.PathLike[str] | None = None, *, rank: int | None = None) -> None:
        """Add the choices to a file, which other processes may be doing too.

        What ranks agreed on is saved also where this one has no such operator yet.
        """
        waiting = [Choice(*fields) for fields in _core.waiting_choices()]
        agreed = [choice for choice in waiting if (choice.key, choice.tactic) in self._agreed]
        _tuning_cache.save(_path(path), [*self.choices(), *agreed], rank)

    def _changes(self) -> int:
        """What has more to save than before where it is greater than before."""
        return _core.measured_choices() + self._agreements


@contextlib.contextmanager
def autotune(
    cache: str | os.PathLike[str] | None = None,
    *,
    repeats: int = 10,
    warmup: int = 3,
    cold: bool = False,
    rank: int | None = None,
) -> Iterator[AutoTuner]:
    """Within it, a call that has no choice for its sizes measures the operator's tactics and keeps the fastest.

    It holds for the whole process, but not for the children that it forks: none of them measures until it enters a
    context itself. Contexts need not nest; of those that have not ended, the one entered last says how to measure. An
    exception, a ctrl-C too, ends it with what was measured until then kept and saved.

    Args:
        cache: A file to load before and to save after, if anything was measured or agreed on. None: choices stay in
            this process. An OSError at once where the path is of something else, such as a folder, a pipe or a device.
        repeats: Runs of each tactic that count; the fastest is its time.
        warmup: Runs before those.
        cold: Empty the caches before each run that counts.
        rank: The file's section; by default torch.distributed's rank, or RANK's, or 0.
    """
    if not 1 <= repeats <= MOST_RUNS or not 0 <= warmup <= MOST_RUNS:
        raise ValueError(
            f"repeats={repeats}, warmup={warmup}: at least one repeat and no negative warm-up are needed, and at most "
            f"{MOST_RUNS} of each."
        )
    _tuning_cache.check_rank(rank)
    if cache is not None:
        _tuning_cache.check_path(cache)
    tuner = AutoTuner.get()
    if cache is not None:
        tuner.load(cache, rank=rank)
    before = tuner._changes()
    context = _core.begin_tuning(warmup, repeats, cold, _progress())
    try:
        yield tuner
    except BaseException:
        _end(context)
        if cache is not None and tuner._changes() > before:
            # What went wrong first is what the program should see.
            with _as_warning():
                tuner.save(cache, rank=rank)
        raise
    _end(context)
    if cache is not None and tuner._changes() > before:
        tuner.save(cache, rank=rank)


def _end(context: int) -> None:
    if _core.end_tuning(context) is not None and sys.stderr is not None:
        # The program may have closed it.
        with contextlib.suppress(OSError, ValueError):
            print(end="\x1b[K", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _as_warning() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Where warnings are errors, too.
        with contextlib.suppress(Warning):
            warnings.warn(f"what was tuned could not be saved: {error}", RuntimeWarning, stacklevel=4)


def _progress() -> Progress | None:
    """What shows on a terminal which tactic is being measured."""
    try:
        if not sys.stderr.isatty():
            return None
    except (AttributeError, ValueError):  # a program without a console has none, or it is closed
        return None
    from rich.console import Console

    console = Console(stderr=True)

    def show(operator: str, configuration: str, dims: tuple[int, ...], tactic: str, index: int, count: int) -> None:
        # Not rich's live display: its thread would take the interpreter away from what is being timed.
        text = f"tuning {operator} {list(dims)}: {index + 1} of {count}, {tactic}"
        console.print(text[: console.width - 1], end="\x1b[K\r", markup=False, highlight=False)

    return show


def _path(path: str | os.PathLike[str] | None) -> Path:
    return _tuning_cache.default_path() if path is None else Path(path)


def _runner_names(runners: Sequence[Runner]) -> Iterator[str]:
    """A name for each, the same in every process: no two are equal, and none has an object's identity in it."""
    seen: dict[str, int] = {}
    for runner in runners:
        given = getattr(runner, "name", None)
        name = given if isinstance(given, str) else type(runner).__name__
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def _tactic_name(operator: str, tactic: object) -> str:
    if isinstance(tactic, tuple):
        return f"({', '.join(_tactic_name(operator, part) for part in tactic)})"
    if tactic is not None and not isinstance(tactic, (str, int, float)):
        raise TypeError(
            f"{operator}: a tactic is a string, a number, None or a tuple of them, so that a file can name it; "
            f"{tactic!r} is a {type(tactic).__name__}."
        )
    return str(tactic)
