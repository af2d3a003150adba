"""Samplers that a program asks in other ways, judged on handmade evidence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_invariants import situations
from ddp_invariants.cases.case import ShardCase, to_json
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.asked import differs_when_asked
from ddp_invariants.invariants.rule import Tally, Unjudged
from ddp_invariants.invariants.sampler_view import ShardView
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.shards import shards
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.asking import (
    WAYS,
    Abandoned,
    Concatenated,
    Interleaved,
    OneByOne,
    SetAgain,
    SetMeanwhile,
    UnsetEpoch,
)

SHARDS = [[0, 2], [1, 3]]
CASE = ShardCase(data=Data(samples=4))
PLAIN = {
    "lengths": [2, 2],
    "shards": [SHARDS],
    "again": SHARDS,
    "afresh": SHARDS,
    "reseeded": None,
    "touched": [],
    "batches": None,
    "promised": None,
    "worked": None,
    "orders": None,
    "refused": {},
}


def failure_of(way: Any, *asked: dict[str, Any]) -> Failure | None:
    """Return the failure of SHARD-4, by the answer of each process to a way to ask."""
    answers = tuple({**PLAIN, "asked": [answer]} for answer in (asked * 2)[:2])
    return judge(ShardEvidence(replace(CASE, situations=(way,)), answers))["SHARD-4"].failure


def yielded(*ranks: Any, raised: tuple[str, ...] = ("", "")) -> dict[str, Any]:
    """Return the answer of ranks with the indices of each iteration."""
    return {"got": list(ranks), "wanted": [None] * len(ranks), "raised": list(raised)}


def test_the_same_indices_are_right_in_every_way() -> None:
    """Each iteration repeats the epoch that was asked plainly."""
    assert failure_of(Abandoned(), yielded([[0, 2]], [[1, 3]])) is None
    assert failure_of(Interleaved(), yielded([[0, 2], [0, 2]], [[1, 3], [1, 3]])) is None


def test_an_iterator_that_another_one_disturbs_is_a_violation() -> None:
    """The second iterator misses what the first one took."""
    failure = failure_of(Interleaved(), yielded([[0, 2], [2]], [[1, 3], [1, 3]]))
    assert failure is not None
    assert failure.fact == Interleaved.fact
    assert failure.got == "[2], expected [0, 2], in iteration 1"


def test_a_way_that_all_ranks_refuse_is_no_violation() -> None:
    """A sampler need not permit two iterators; ranks that differ in that are wrong."""
    refused = yielded(None, None, raised=("RuntimeError: one only", "RuntimeError: one only"))
    assert failure_of(Interleaved(), refused) is None
    failure = failure_of(
        Interleaved(), yielded(None, [[1, 3], [1, 3]], raised=("RuntimeError: no", ""))
    )
    assert failure is not None
    assert failure.fact == "some ranks raise on a program that other ranks answer"


def test_without_set_epoch_the_ranks_need_only_fit_together() -> None:
    """Nobody said which epoch it is: another order is right, and two orders are not."""
    assert failure_of(UnsetEpoch(), yielded([[3, 1], [0, 2]], [[0, 2], [1, 3]])) is None
    failure = failure_of(UnsetEpoch(), yielded([[3, 1], [0, 2]], [[0, 2], [2, 3]]))
    assert failure is not None
    assert "do not fit together" in failure.fact
    failure = failure_of(
        UnsetEpoch(),
        yielded([[3, 1], [0, 2]], [[0, 2], [1, 3]]),
        yielded([[1, 3], [0, 2]], [[0, 2], [1, 3]]),
    )
    assert failure is not None
    assert failure.fact == "another process gets other indices from the same arguments"


def test_an_iteration_in_which_an_epoch_is_set_must_fit_together() -> None:
    """It goes on in its own order, and no rule says which order the next iteration has."""
    fitting, lost = ([[3, 1], [0, 2]], [[0, 2], [1, 3]]), ([[3, 1], [0, 2]], [[0, 3], [1, 3]])
    assert failure_of(SetMeanwhile(), yielded(*fitting)) is None
    failure = failure_of(SetMeanwhile(), yielded(*lost))
    assert failure is not None
    assert failure.fact == SetMeanwhile.fact
    assert [*SetMeanwhile(3).simpler()] == [SetMeanwhile()]
    with pytest.raises(CaseError, match="taken is 0"):
        replace(CASE, situations=(SetMeanwhile(0),))


def test_an_iteration_that_is_missing_is_not_judged() -> None:
    """The existing answers of ranks are compared, even if some ranks have one iteration less."""
    for got, failed in (([[3, 1], [0, 2]], False), ([[3, 1], [0, 3], [0, 2]], True)):
        answer = {**yielded(got, [[0, 2], [1, 3]]), "missing": ["it raises", ""]}
        answers = tuple({**PLAIN, "asked": [answer]} for _ in range(2))
        case = replace(CASE, situations=(UnsetEpoch(),))
        finding = judge(ShardEvidence(case, answers))["SHARD-4"]
        assert (finding.failure is not None) == failed
        assert finding.unjudged == ("" if failed else "it raises")


def test_a_missing_iteration_leaves_the_rule_of_other_ways_judged() -> None:
    """SHARD-9 judges no iteration without set_epoch, so it does not miss one."""
    answer = {**yielded([[0, 2]], [[1, 3]]), "missing": ["it raises", ""]}
    answers = tuple({**PLAIN, "asked": [answer]} for _ in range(2))
    view = ShardView(ShardEvidence(replace(CASE, situations=(UnsetEpoch(),)), answers))
    assert differs_when_asked(view, Tally(), "SHARD-9") is None
    for rule in ("SHARD-4", ""):
        with pytest.raises(Unjudged, match="it raises"):
            differs_when_asked(view, Tally(), rule)


SAVING = """
from torch.utils.data import DistributedSampler

class Saving(DistributedSampler):
    def set_epoch(self, epoch):
        super().set_epoch(epoch)
        self.announced = epoch

    def state_dict(self):
        return {"epoch": self.TOLD}

    def load_state_dict(self, state):
        self.set_epoch(state["epoch"])
"""
"""A sampler that holds the epoch of a state under the name TOLD."""


@pytest.mark.parametrize(("attribute", "iterations"), [("epoch", 3), ("announced", 2)])
def test_a_state_that_cannot_be_saved_is_no_iteration(
    tmp_path: Path, attribute: str, iterations: int
) -> None:
    """SHARD-4 accuses no sampler that saves nothing before `set_epoch`, and is not judged."""
    path = tmp_path / "saving.py"
    path.write_text(SAVING.replace("TOLD", attribute))
    case = replace(CASE, situations=(UnsetEpoch(),), saved_after=0)
    answer = shards(case, SamplerMaker(Sampler(f"{path}:Saving")), disturb=1)
    assert [len(got) for got in answer["asked"][0]["got"]] == [iterations] * 2
    finding = judge(ShardEvidence(case, (answer, answer)))["SHARD-4"]
    assert finding.failure is None
    assert ("raises AttributeError" in finding.unjudged) == (iterations == 2)


ITERATING = """
from itertools import islice


def iterating(dataset, num_replicas, rank):
    return list(islice(dataset, rank, 1000, num_replicas))
"""
"""A sampler that takes the samples of its dataset one after another, if there is an end."""


def test_a_concatenated_dataset_has_an_end(tmp_path: Path) -> None:
    """A `for` loop over the dataset ends, as over any ConcatDataset."""
    path = tmp_path / "iterating.py"
    path.write_text(ITERATING)
    case = replace(CASE, situations=(Concatenated(),))
    answer = shards(case, SamplerMaker(Sampler(f"{path}:iterating")), disturb=1)
    assert answer["asked"][0]["got"] == [[[0, 2]], [[1, 3]]]
    assert judge(ShardEvidence(case, (answer, answer)))["SHARD-4"].failure is None


UNNAMED = """
class Unnamed:
    def __init__(self, n, /, *, rank, world_size):
        self.own = range(rank, n, world_size)

    def __iter__(self):
        return iter(self.own)
"""
"""A sampler that takes the length of the dataset by position alone."""


def test_an_argument_that_has_no_name_for_callers_is_given_by_position(tmp_path: Path) -> None:
    """A sampler is called by position where it must be; an exported script does the same."""
    path = tmp_path / "unnamed.py"
    path.write_text(UNNAMED)
    make = SamplerMaker(Sampler(f"{path}:Unnamed"))
    assert shards(CASE, make, disturb=1)["shards"] == [[[0, 2], [1, 3]]]
    assert make.describe().source["rows"][0] == ["", "SAMPLES"]
    assert not make.by_position


def test_a_fixed_argument_is_not_drawn() -> None:
    """A sampler that never shuffles, by an argument, is not asked to shuffle."""
    lacks = SamplerMaker(Sampler("torch", (("shuffle", "False"),))).describe().lacks
    assert "shuffle" in lacks
    assert "drop_last" not in lacks


def test_a_sampler_that_raises_in_one_process_is_no_crash_of_a_probe() -> None:
    """SHARD-4 reports it; a probe of a way to ask knows nothing then."""
    case = replace(CASE, situations=(Abandoned(),))
    answer = {**PLAIN, "asked": [yielded([[0, 2]], [[1, 3]])]}
    error = {"raised": {"type": "ValueError", "phase": "iteration", "message": "", "step": 0}}
    evidence = ShardEvidence(case, (answer, error))
    with pytest.raises(Unjudged, match="in the second process alone"):
        differs_when_asked(ShardView(evidence), Tally())
    failure = judge(evidence)["SHARD-4"].failure
    assert failure is not None
    assert failure.fact == "one process answers and another raises on the same arguments"


@pytest.mark.parametrize("way", WAYS)
def test_a_case_with_a_way_is_read_back_and_made_simpler(way: type) -> None:
    """Its JSON form keeps the way; the simplest case has none; a scope may take it out."""
    import json

    case = replace(CASE, situations=(way(),))
    assert situations.from_plain(json.loads(to_json(case))) == case
    assert CASE in list(simpler(case))
    assert Scope(without=frozenset({way.capability})).fit_shards(case).situations == ()  # type: ignore[attr-defined]  # a way


def test_a_way_out_of_range_is_refused() -> None:
    """Each kind occurs once, with numbers in range."""
    with pytest.raises(CaseError, match="each kind once"):
        replace(CASE, situations=(OneByOne(), OneByOne()))
    with pytest.raises(CaseError, match="taken is 0"):
        replace(CASE, situations=(Abandoned(0),))
    with pytest.raises(CaseError, match="number of epochs set before"):
        replace(CASE, situations=(SetAgain(()),))
