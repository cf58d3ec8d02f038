"""AutoTuner.agree: the ranks of a job end with the same tactics, use them at once, and save them.

The processes of a job run the functions named below one after the other, since starting them is what takes time; the
tests look at what each rank said of each function.
"""

import datetime
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dutyfree import AutoTuner, _core, _tuning_cache, autotune
from dutyfree._tuning_agreement import Ballot, elect
from dutyfree._tuning_cache import Choice
from tuned_runners import Runner, choices_of, operator, unique_operator

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this PyTorch has no gloo"),
]

FAST, SLOW = 0.0, 20.0
FLOATS = "cpu float32 [=]"
QUICK = {"repeats": 2, "warmup": 0}
tuner = AutoTuner.get()


def restored(name: str, tactic: str, us: float, size: int = 3) -> None:
    """A choice as if this rank had measured it."""
    _core.restore_choice(name, FLOATS, (size,), f"runner {tactic}", us)


def tactics(choices: list[Choice]) -> list[str]:
    return [choice.tactic.removeprefix("runner ") for choice in choices]


def used(chooser: Any, *sizes: int) -> list[str]:
    """What calls use, where a warning of a missing choice is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [chooser.choose(torch.ones(size))[1] for size in sizes]


def in_file(path: Path) -> dict[str, dict[str, str]]:
    """The tactics in a cache, by rank, then by operator and size."""
    sections = json.loads(path.read_text())["ranks"]
    return {
        rank: {
            f"{name} {entry['dims']}": entry["tactic"]
            for name, entries in section["operators"].items()
            for entry in entries
        }
        for rank, section in sections.items()
    }


# --- what three ranks do; each returns what JSON can hold -------------------------------------------------------------


def default_caches(rank: int, folder: Path) -> Any:
    """First of all: a process reads its default cache once."""
    path = folder / "default.json"
    _tuning_cache.save(path, [Choice("ranks::default", FLOATS, (3,), f"runner {'abb'[rank]}", 1.0)])
    dist.barrier()
    os.environ["DUTYFREE_TUNING_CACHE"] = str(path)
    changed = tactics(tuner.agree())
    del os.environ["DUTYFREE_TUNING_CACHE"]
    return changed, used(operator(Runner("runner", a=FAST, b=FAST), name="ranks::default"), 3)


def measured(rank: int, folder: Path) -> Any:
    runner = Runner("runner", **({"a": FAST, "b": SLOW} if rank == 0 else {"a": SLOW, "b": FAST}))
    chooser = operator(runner, name="ranks::measured")
    with autotune(**QUICK):
        before = chooser.choose(torch.ones(3))[1]
        changed = tactics(tuner.agree())
        during = chooser.choose(torch.ones(3))[1]
    again = tactics(tuner.agree())
    runs = dict(runner.runs)
    return before, changed, [during, *used(chooser, 3)], again, runner.runs == runs


def votes(rank: int, folder: Path) -> Any:
    restored("ranks::most", "bba"[rank], (5.0, 7.0, 1.0)[rank])
    restored("ranks::fastest", "abc"[rank], (5.0, 3.0, 4.0)[rank])
    restored("ranks::lowest", "bac"[rank], 4.0)
    tuner.agree()
    for name in ("most", "fastest", "lowest"):
        operator(Runner("runner", a=FAST, b=FAST, c=FAST), name=f"ranks::{name}").choose(torch.ones(3))
    return {choice.operator: (*tactics([choice]), choice.us) for choice in tuner.choices()}


def measured_by_one(rank: int, folder: Path) -> Any:
    """Rank 0 made the operator and listed other tactics, rank 1 made it and never called it, rank 2 makes it later."""

    class BySize(Runner):
        def tactics(self, *tensors: Any) -> list[str]:
            return ["a"] if tensors[0].numel() == 1 else ["a", "b"]

    runner = BySize("runner", a=FAST, b=FAST)
    chooser = operator(runner, name="ranks::one") if rank < 2 else None
    if chooser is not None and rank == 0:
        with pytest.warns(RuntimeWarning, match="no tuned tactic"):
            chooser.choose(torch.ones(1))
    restored("ranks::one", "b", 1.0, size=rank + 3)
    changed = sorted(choice.dims[0] for choice in tuner.agree())
    return changed, used(chooser or operator(runner, name="ranks::one"), 3, 4, 5), sum(runner.runs.values())


def raising_on_one(rank: int, folder: Path) -> Any:
    failure = ValueError("not here") if rank == 1 else FAST
    chooser = operator(Runner("runner", a=failure, b=SLOW), name="ranks::raising")
    with autotune(**QUICK):
        before = chooser.choose(torch.ones(3))[1]
        changed = tactics(tuner.agree())
    (choice,) = tuner.choices()
    # Agreeing again must not bring it back.
    return before, changed, [*used(chooser, 3), *tactics(tuner.agree())], choice.left_out


def raising_everywhere(rank: int, folder: Path) -> Any:
    chosen, out = ("a", "b") if rank == 0 else ("b", "a")
    if rank < 2:
        _core.restore_choice("ranks::odd", FLOATS, (3,), f"runner {chosen}", 1.0, {f"runner {out}": "not here"})
    restored("ranks::even", "ab"[rank % 2], 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        changed = tactics(tuner.agree())
    for name in ("odd", "even"):
        operator(Runner("runner", a=FAST, b=FAST), name=f"ranks::{name}").choose(torch.ones(3))
    texts = [str(warning.message) for warning in caught]
    return texts, changed, {choice.operator: choice.tactic for choice in tuner.choices()}


def lacking_on_one(rank: int, folder: Path) -> Any:
    """Rank 1's operator has no c, as a call without a choice shows for three elements and measuring for four."""
    costs = {"a": SLOW, "b": FAST} if rank == 1 else {"a": FAST, "b": FAST, "c": FAST}
    chooser = operator(Runner("runner", **costs), name="ranks::lacking")
    restored("ranks::lacking", "cca"[rank], 1.0)
    if rank == 1:
        with pytest.warns(RuntimeWarning, match="'runner c', which the operator does not have"):
            chooser.choose(torch.ones(3))
        with autotune(**QUICK):
            chooser.choose(torch.ones(4))
    else:
        restored("ranks::lacking", "c", 0.0, size=4)
    tuner.agree()
    return used(chooser, 3, 4)


def nvfp4(rank: int, folder: Path) -> Any:
    """bf16_mm rounds otherwise than portable does, which shows in the result which one a call took."""
    from dutyfree import ops

    generator = torch.Generator().manual_seed(1)
    act, weight = (torch.randn(rows, 256, generator=generator) for rows in (4, 32))
    scales = [ops.global_scale(side) for side in (act, weight)]
    (x, x_sf), (w, w_sf) = (
        ops.tunable_fp4_quantize(side, scale, 16, True) for side, scale in zip((act, weight), scales, strict=True)
    )

    def product(backend: str = "cutlass,cublaslt,cuda_core") -> Any:
        return ops.nvfp4_gemm(x, w, x_sf, w_sf, 1 / (scales[0] * scales[1]), torch.bfloat16, 0, backend)

    with autotune(**QUICK):
        product()
    (choice,) = tuner.choices()
    ours = "portable" if rank == 0 else "bf16_mm"
    _core.restore_choice(*choice.key, ours, 1.0)
    before = torch.equal(product(), product(ours))
    changed = tactics(tuner.agree())
    agreed = torch.equal(product(), product("bf16_mm"))
    return before, changed, agreed, not torch.equal(product("bf16_mm"), product("portable"))


def saved(rank: int, folder: Path) -> Any:
    """Rank 2 neither measures anything nor makes the operator."""
    path = folder / "saved.json"
    with autotune(cache=path, **QUICK):
        if rank < 2:
            runner = Runner("runner", **({"a": FAST, "b": SLOW} if rank == 0 else {"a": SLOW, "b": FAST}))
            chooser = operator(runner, name="ranks::saved")
            chooser.choose(torch.ones(3))
            if rank == 1:
                chooser.choose(torch.ones(4))
        tuner.agree()
    dist.barrier()
    in_memory = {f"{choice.operator} [{choice.dims[0]}]": choice.tactic for choice in tuner.choices()}
    tuner.clear()
    tuner.load(path)
    return in_file(path), in_memory, tactics(tuner.agree())


def saved_though_nothing_changed(rank: int, folder: Path) -> Any:
    """Agreed before, so that the second time brings no news; the file has none of it yet."""
    path = folder / "unchanged.json"
    restored("ranks::unchanged", "b", 1.0)
    tuner.agree()
    with autotune(cache=path):
        changed = tactics(tuner.agree())
    with autotune(cache=folder / "untouched.json"):
        pass
    dist.barrier()
    return changed, in_file(path), (folder / "untouched.json").exists()


def nothing_to_agree_on(rank: int, folder: Path) -> Any:
    with autotune(cache=folder / "nothing.json"):
        changed = tuner.agree()
    return changed, (folder / "nothing.json").exists()


def loaded(rank: int, folder: Path) -> Any:
    """Sections that differ, loaded and agreed on before the operator is made."""
    path = folder / "loaded.json"
    tactic = f"runner {'abb'[rank]}"
    out = {"runner b": "not here"} if rank == 0 else {}
    choices = [Choice("ranks::loaded", FLOATS, (size,), tactic, 1.0, out if size == 4 else {}) for size in (3, 4)]
    _tuning_cache.save(path, choices)
    tuner.load(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuner.agree()
    return used(operator(Runner("runner", a=FAST, b=FAST), name="ranks::loaded"), 3, 4), len(caught)


def some_ranks(rank: int, folder: Path) -> Any:
    group = dist.new_group([0, 2])
    restored("ranks::some", "bab"[rank], 1.0)
    chooser = operator(Runner("runner", a=FAST, b=FAST, c=FAST), name="ranks::some")
    restored("ranks::some", "abc"[rank], (2.0, 0.5, 1.0)[rank])
    try:
        said: Any = tactics(tuner.agree(group))
    except ValueError as error:
        said = str(error)
    return said, used(chooser, 3)


THREE_RANKS = [
    default_caches,
    measured,
    votes,
    measured_by_one,
    raising_on_one,
    raising_everywhere,
    lacking_on_one,
    nvfp4,
    saved,
    saved_though_nothing_changed,
    nothing_to_agree_on,
    loaded,
    some_ranks,
]


def three_ranks() -> None:
    rank, folder = join()
    said = {}
    for function in THREE_RANKS:
        tuner.clear()
        said[function.__name__] = function(rank, folder)
    dist.destroy_process_group()
    print(json.dumps(said))


# --- starting them ----------------------------------------------------------------------------------------------------


def join() -> tuple[int, Path]:
    """This rank's number and the job's folder, in a process that `start` made."""
    rank, size, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(os.environ["FOLDER"])
    limit = datetime.timedelta(seconds=40)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=limit)
    return rank, folder


def start(function: Callable[[], None], size: int, folder: Path) -> list[Any]:
    """Runs a function of this module in as many processes; returns what each printed last, or None."""
    source = f"import test_autotune_ranks as module; module.{function.__name__}()"
    shared = {"WORLD_SIZE": str(size), "FOLDER": str(folder), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", source],
            cwd=Path(__file__).parent,
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    end = time.monotonic() + 120
    try:
        ended = [process.communicate(timeout=max(end - time.monotonic(), 0.1)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [
        f"rank {rank}, exit status {process.returncode}\n{errors}"
        for rank, (process, (_, errors)) in enumerate(zip(processes, ended, strict=True))
        if process.returncode != 0
    ]
    assert not failed, "\n".join(failed)
    return [json.loads(lines.splitlines()[-1]) if lines else None for lines, _ in ended]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], list[Any]]:
    """What each of three ranks said of a function."""
    ranks = start(three_ranks, 3, tmp_path_factory.mktemp("ranks"))
    return lambda function: [rank[function.__name__] for rank in ranks]


@pytest.fixture(autouse=True)
def nothing_chosen() -> Iterator[None]:
    _core.skip_default_cache()
    tuner.clear()
    yield
    tuner.clear()


Said = Callable[[Any], list[Any]]


# --- what has to come out ---------------------------------------------------------------------------------------------


def test_what_most_ranks_measured_is_used_by_all_of_them_at_once(said: Said) -> None:
    assert said(measured) == [
        ["a", ["b"], ["b", "b"], [], True],
        ["b", [], ["b", "b"], [], True],
        ["b", [], ["b", "b"], [], True],
    ]


def test_most_votes_then_the_least_time_then_the_lowest_rank_decide(said: Said) -> None:
    # The time is the least of those that chose it.
    expected = {"ranks::most": ["b", 5.0], "ranks::fastest": ["b", 3.0], "ranks::lowest": ["b", 4.0]}
    assert said(votes) == [expected] * 3


def test_what_one_rank_measured_reaches_all_even_before_their_operators_list_it(said: Said) -> None:
    assert said(measured_by_one) == [
        [[4, 5], ["b", "b", "b"], 0],
        [[3, 5], ["b", "b", "b"], 0],
        [[3, 4], ["b", "b", "b"], 0],
    ]


def test_a_tactic_that_raised_on_one_rank_does_not_win(said: Said) -> None:
    reasons = {"runner a": "ValueError: not here"}
    assert [rank[:3] for rank in said(raising_on_one)] == [
        ["a", ["b"], ["b"]],
        ["b", [], ["b"]],
        ["a", ["b"], ["b"]],
    ]
    for *_, left_out in said(raising_on_one):
        assert left_out.keys() == reasons.keys()
        assert "not here" in left_out["runner a"]


def test_where_no_tactic_is_left_each_rank_keeps_its_own_and_says_so(said: Said) -> None:
    for rank, (texts, changed, in_use) in enumerate(said(raising_everywhere)):
        assert len(texts) == 1
        assert (
            "no tactic that a rank chose can be run by all of them for ranks::odd [3] of 'cpu float32 [=]'" in texts[0]
        )
        assert changed == (["a"] if rank == 1 else []), "the other operator's"
        assert in_use["ranks::even"] == "runner a"
        assert in_use.get("ranks::odd") == ("runner a", "runner b", None)[rank]


def test_a_tactic_that_a_rank_lacks_does_not_win(said: Said) -> None:
    assert said(lacking_on_one) == [["a", "b"]] * 3


def test_nvfp4_gemm_takes_the_agreed_backend(said: Said) -> None:
    assert said(nvfp4) == [[True, ["bf16_mm"], True, True], [True, [], True, True], [True, [], True, True]]


def test_the_file_has_the_same_tactics_for_every_rank(said: Said) -> None:
    # Times differ, so one of two equal votes wins; rank 1 alone measured four elements.
    for sections, in_memory, changed in said(saved):
        assert list(sections) == ["0", "1", "2"]
        assert sections["0"] == sections["1"] == sections["2"]
        assert set(sections["0"]) == {"ranks::saved [3]", "ranks::saved [4]"}
        assert in_memory.items() <= sections["0"].items()
        assert changed == []
    assert [len(in_memory) for _, in_memory, _ in said(saved)] == [2, 2, 0]


def test_what_was_agreed_is_saved_where_it_changed_nothing(said: Said) -> None:
    section = {"ranks::unchanged [3]": "runner b"}
    assert said(saved_though_nothing_changed) == [[[], {"0": section, "1": section, "2": section}, False]] * 3


def test_ranks_without_choices_agree_on_nothing_and_save_nothing(said: Said) -> None:
    assert said(nothing_to_agree_on) == [[[], False]] * 3


def test_loaded_choices_count_with_what_was_left_out(said: Said) -> None:
    assert said(loaded) == [[["b", "a"], 0]] * 3


def test_a_default_cache_that_was_not_read_yet_counts(said: Said) -> None:
    assert said(default_caches) == [[["b"], ["b"]], [[], ["b"]], [[], ["b"]]]


def test_a_group_of_some_ranks_leaves_the_others_alone(said: Said) -> None:
    first, other, last = said(some_ranks)
    assert first == [["c"], ["c"]]
    assert last == [[], ["c"]]
    message, in_use = other
    assert "this process, rank 1, is not in the group" in message
    assert in_use == ["b"]


# --- ranks that do not come -------------------------------------------------------------------------------------------


def one_that_does_not_come() -> None:
    rank, folder = join()
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2))
    if rank == 1:
        while not (folder / "first").exists():
            time.sleep(0.05)
        os._exit(0)
    chooser = operator(Runner("runner", a=SLOW, b=FAST), name="ranks::alone")
    errors, seconds = [], []
    for each in (group, None):
        start = time.monotonic()
        try:
            with autotune(cache=folder / "alone.json", **QUICK):
                chooser.choose(torch.ones(3 + len(errors)))
                tuner.agree(each)
        except RuntimeError as error:
            errors.append(str(error))
        seconds.append(time.monotonic() - start)
        (folder / "first").touch()
    print(json.dumps([errors, seconds, used(chooser, 3, 4), in_file(folder / "alone.json")]), flush=True)
    os._exit(0)  # the group can't be ended without the other


def test_a_rank_that_does_not_come_is_an_error_for_the_others_and_costs_no_choice(tmp_path: Path) -> None:
    """Alive but elsewhere, then gone: within the group's timeout of 2 s, then at once, though the default's is 40 s."""
    (errors, seconds, in_use, sections), nothing = start(one_that_does_not_come, 2, tmp_path)
    assert nothing is None
    assert len(errors) == 2
    assert 1.5 < seconds[0] < 15
    assert seconds[1] < 15
    assert in_use == ["b", "b"]
    assert sections == {"0": {"ranks::alone [3]": "runner b", "ranks::alone [4]": "runner b"}}


# --- without other processes ------------------------------------------------------------------------------------------


def test_without_torch_distributed_it_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"not initialised.*init_process_group\(\) first, or leave agree\(\) out"):
        tuner.agree()


def test_a_group_of_one_is_left_as_it_is(tmp_path: Path) -> None:
    chooser = operator(Runner("runner", a=FAST, b=FAST))
    restored(chooser.name, "b", 1.0)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with autotune(cache=tmp_path / "tuned.json"):
            assert tuner.agree() == []
            assert tuner.agree(dist.group.WORLD) == []
    finally:
        dist.destroy_process_group()
    assert used(chooser, 3) == ["b"]
    assert not (tmp_path / "tuned.json").exists()


def test_a_choice_of_a_file_brings_its_reasons() -> None:
    name = unique_operator()
    _core.restore_choice(name, FLOATS, (3,), "runner b", 1.5, {"runner a": "not here"})
    (waiting,) = _core.waiting_choices()
    assert waiting == (name, FLOATS, (3,), "runner b", 1.5, {"runner a": "not here"})
    chooser = operator(Runner("runner", a=FAST, b=FAST), name=name)
    assert used(chooser, 3) == ["b"]
    assert choices_of(chooser) == {(3,): "runner b"}
    assert [choice.left_out for choice in tuner.choices()] == [{"runner a": "not here"}]
    assert _core.waiting_choices() == []


@pytest.mark.parametrize("left_out", [{"a": 1}, {1: "a"}, {"a": "\ud800"}])
def test_reasons_that_are_no_texts_are_refused(left_out: dict[Any, Any]) -> None:
    with pytest.raises((TypeError, UnicodeEncodeError)):
        _core.restore_choice(unique_operator(), FLOATS, (3,), "runner b", 1.5, left_out)
    assert _core.waiting_choices() == []


def elected(*ranks: tuple[str, float]) -> tuple[str, float]:
    """What comes of one operator's tactics and times, by rank."""
    ballots = [Ballot([Choice("an::op", "", (1,), tactic, us)]) for tactic, us in ranks]
    ((choice,), undecided) = elect(ballots)
    assert undecided == []
    return choice.tactic, choice.us


def test_an_election_does_not_depend_on_the_ranks_order_unless_all_is_equal() -> None:
    votes = [("a", 3.0), ("b", 9.0), ("b", 2.0), ("a", 8.0)]
    assert elected(*votes) == elected(*reversed(votes)) == ("b", 2.0)
    assert elected(("b", 1.0), ("a", 1.0)) == ("b", 1.0)
    assert elected(("a", 1.0), ("b", 1.0)) == ("a", 1.0)


def test_a_ballot_is_plain_data() -> None:
    choice = Choice("an::op", "text", (1, 2), "a", 1.23456789, {"b": "long " * 1000})
    ballot = Ballot([choice], {choice.key: ["a", "c"]})
    plain = ballot.as_plain()
    assert json.loads(json.dumps(plain)) == plain
    read = Ballot.from_plain(plain)
    assert read == ballot
    assert read.choices[0].left_out["b"].startswith("long")
    assert len(json.dumps(plain)) < 1000
