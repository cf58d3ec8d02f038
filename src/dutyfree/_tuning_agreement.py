"""One tactic for all ranks of a torch.distributed job: what each rank has, and which tactic wins.

Every rank gets what every rank has and counts it for itself. So the rule knows nothing but what was exchanged, and no
rank has to tell the others what came out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dutyfree import _core, _tuning_cache
from dutyfree._tuning_cache import Choice

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# (operator, configuration, dims)
Key = tuple[str, str, tuple[int, ...]]
# Of the keys that a warning names.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Ballot:
    """What one rank brings.

    Attributes:
        choices: Those in use, and those that wait for a call that lists their tactic.
        listed: The tactics that its calls had to choose from, by key, where one had to choose: it can't run others.
    """

    choices: list[Choice] = field(default_factory=list)
    listed: dict[Key, list[str]] = field(default_factory=dict)

    @classmethod
    def of_this_process(cls) -> "Ballot":
        choices = [Choice(*fields) for fields in [*_core.tuning_choices(), *_core.waiting_choices()]]
        return cls(choices, {(name, text, dims): names for name, text, dims, names in _core.listed_tactics()})

    def as_plain(self) -> dict[str, Any]:
        """In JSON's types, so that nothing of this process is pickled."""
        return {
            "choices": [
                [*choice.key[:2], list(choice.dims), choice.tactic, choice.us, _tuning_cache.shortened(choice.left_out)]
                for choice in self.choices
            ],
            "listed": [[*key[:2], list(key[2]), names] for key, names in self.listed.items()],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Ballot":
        return cls(
            [Choice(operator, text, tuple(dims), *rest) for operator, text, dims, *rest in plain["choices"]],
            {(operator, text, tuple(dims)): names for operator, text, dims, names in plain["listed"]},
        )


@dataclass(frozen=True)
class Agreement:
    """What came out.

    Attributes:
        choices: What all ranks use from now on.
        undecided: The keys for which every tactic that a rank chose can't be run by another.
        changed: Those of ``choices`` whose tactic this rank did not have.
    """

    choices: list[Choice]
    undecided: list[Key]
    changed: list[Choice]


def place_in(group: "ProcessGroup | None") -> tuple[int, int]:
    """This process's rank in the group, and the group's size.

    Raises:
        RuntimeError: torch.distributed is not initialised.
        ValueError: The process is not in the group.
    """
    if not _tuning_cache.torch_distributed_ready():
        raise RuntimeError(
            "AutoTuner.agree(): torch.distributed is not initialised, so there are no ranks to agree with. Call "
            "torch.distributed.init_process_group() first, or leave agree() out where the program is one process."
        )
    import torch.distributed

    rank = torch.distributed.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"AutoTuner.agree(): this process, rank {torch.distributed.get_rank()}, is not in the group. All ranks of "
            f"a group call it with that group, and no others."
        )
    return rank, torch.distributed.get_world_size(group)


def exchange(ballot: Ballot, group: "ProcessGroup | None", size: int) -> list[Ballot]:
    """Every rank's, by rank. A collective; what torch.distributed raises comes through."""
    import torch.distributed

    gathered: list[Any] = [None] * size
    torch.distributed.all_gather_object(gathered, ballot.as_plain(), group=group)
    return [Ballot.from_plain(plain) for plain in gathered]


def elect(ballots: Sequence[Ballot]) -> tuple[list[Choice], list[Key]]:
    """For each key, the tactic that most ranks chose; of those the one with the least time; then the lowest rank's.

    A tactic that raised on a rank, or that a rank lacks, is out. The time of what was elected is the least of the ranks
    that chose it, and ``left_out`` has what raised on any rank, with the reason of the lowest. Returns the elected
    choices, and the keys for which every tactic is out.
    """
    cast: dict[Key, list[Choice]] = {}
    left_out: dict[Key, dict[str, str]] = {}
    for ballot in ballots:
        for choice in ballot.choices:
            cast.setdefault(choice.key, []).append(choice)
            for name, reason in choice.left_out.items():
                left_out.setdefault(choice.key, {}).setdefault(name, reason)
    elected: list[Choice] = []
    undecided: list[Key] = []
    for key, votes in cast.items():
        reasons = left_out.get(key, {})
        listed = [ballot.listed[key] for ballot in ballots if key in ballot.listed]
        usable = [vote for vote in votes if vote.tactic not in reasons and all(vote.tactic in each for each in listed)]
        if not usable:
            undecided.append(key)
            continue
        count = Counter(vote.tactic for vote in usable)
        least: dict[str, float] = {}
        for vote in usable:
            least[vote.tactic] = min(vote.us, least.get(vote.tactic, vote.us))
        # The first of equals, and the votes are in the order of the ranks.
        tactic = min(count, key=lambda name: (-count[name], least[name]))
        elected.append(Choice(*key, tactic, least[tactic], reasons))
    return elected, undecided


def agree(group: "ProcessGroup | None") -> Agreement:
    """Exchanges, elects and puts into use. A group of one is left as it is.

    Raises what ``place_in`` and ``exchange`` raise, with nothing changed.
    """
    rank, size = place_in(group)
    if size == 1:
        return Agreement([], [], [])
    # A call that lacks a tactic would read it later, over what was agreed.
    _core.load_default_cache()
    ballots = exchange(Ballot.of_this_process(), group, size)
    elected, undecided = elect(ballots)
    known = {choice.key: choice for choice in ballots[rank].choices}
    changed = []
    for choice in elected:
        ours = known.get(choice.key)
        if ours != choice or ours.left_out != choice.left_out:
            _core.restore_choice(*choice.key, choice.tactic, choice.us, choice.left_out)
        if ours is None or ours.tactic != choice.tactic:
            changed.append(choice)
    return Agreement(elected, undecided, changed)


def warning_of(keys: list[Key]) -> str:
    """What to say of undecided keys."""
    named = "; ".join(f"{operator} {list(dims)} of '{text}'" for operator, text, dims in keys[:_MOST_NAMED])
    more = f"; and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return (
        f"AutoTuner.agree(): no tactic that a rank chose can be run by all of them for {named}{more}. Each raised on "
        f"another rank, or that one has none of its name. Every rank keeps its own choice."
    )
