"""Samplers whose dataset changes its length, judged on handmade evidence and asked in this process."""

from dataclasses import replace
from typing import Any

import pytest
from handmade import asked

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.shards import shards
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.asking import ChangedLength

FAULTS = "ddp_invariants.faults.lengths"
CASES = [
    ShardCase(
        world_size=w,
        data=Data(samples=n, shuffle=shuffle, drop_last=drop_last),
        epochs=epochs,
        situations=(ChangedLength(by),),
    )
    for w in (1, 2, 3)
    for n in (1, 4, 5, 6)
    for by in (-5, -2, -1, 1, 3)
    for shuffle, drop_last, epochs in ((True, False, (0, 1)), (False, True, (3,)))
]


def failed(sampler: str, case: ShardCase) -> tuple[dict[str, Any], Failure | None]:
    """Return the answer to the situation, and the failure of SHARD-4."""
    answer = shards(case, SamplerMaker(Sampler(sampler)), disturb=1)
    return answer, judge(ShardEvidence(case, (answer, answer)))["SHARD-4"].failure


@pytest.mark.parametrize(
    "sampler",
    ["reference", "torch", f"{FAULTS}:ReadsLengthAnew", f"{FAULTS}:RefusesChangedLength"],
)
def test_a_sampler_may_keep_to_a_length_or_read_it_anew_or_raise(sampler: str) -> None:
    """No right style is accused by a growing or shrinking dataset, and some cases are judged."""
    answered = 0
    for case in CASES:
        answer, failure = failed(sampler, case)
        assert failure is None, (case, failure)
        answered += "asked" in answer and None not in answer["asked"][0]["got"]
    assert answered > 10 or sampler.endswith("RefusesChangedLength")


@pytest.mark.parametrize("fault", ["OrderOfTheOldLength", "LenOfThePresent", "FirstRankAlone"])
def test_a_mixture_of_two_lengths_is_a_violation_that_nothing_else_shows(fault: str) -> None:
    """Each fault shows in several cases, and in none whose dataset keeps its length."""
    facts = []
    for case in CASES:
        _, failure = failed(f"{FAULTS}:{fault}", case)
        facts += [failure.fact] if failure is not None else []
        assert failed(f"{FAULTS}:{fault}", replace(case, situations=()))[1] is None
    assert len(facts) > 10
    assert set(facts) == {ChangedLength.fact}


CASE = ShardCase(data=Data(samples=4), situations=(ChangedLength(2),))


@pytest.mark.parametrize(
    ("got", "reason"),
    [
        ([[[0, 2], [2]], [[1, 3], [2]]], ""),
        ([[[0, 2, 4], [3]], [[1, 3, 5], [3]]], ""),
        ([[[4, 1], [2]], [[5, 0], [2]]], ""),
        ([[[0, 2], [3]], [[1, 3], [3]]], "len(sampler) is 3 on rank 0, which yields 2"),
        ([[[0, 2, 4], []], [[1, 3], []]], "different numbers of indices"),
        ([[[0], []], [[1], []]], "yield 2 indices; the lengths allow [4, 6]"),
        ([[[0, 2, 0], []], [[1, 3, 1], []]], "4 distinct indices of 6 samples"),
        ([[[0, 2, 4], []], [[1, 3, 6], []]], "outside the 6 samples"),
    ],
)
def test_the_reason_says_what_fits_no_length(got: list[list[list[int]]], reason: str) -> None:
    """The old shards, the new ones, or the present samples in the old places are right."""
    failure = judge(asked(CASE, got))["SHARD-4"].failure
    assert (failure is not None) == bool(reason)
    assert failure is None or (reason in failure.got and "changed length=2" in failure.where)


def test_a_change_is_drawn_only_to_lengths_that_the_sampler_deals() -> None:
    """A scope without uneven lengths drops a change to one; a change is made smaller."""
    uneven = replace(CASE, situations=(ChangedLength(1),))
    without = Scope(without=frozenset({"uneven"}))
    assert without.fit_shards(uneven).situations == ()
    assert without.fit_shards(CASE).situations == CASE.situations
    assert (
        Scope(without=frozenset({"short"}))
        .fit_shards(replace(CASE, situations=(ChangedLength(-3),)))
        .situations
        == ()
    )
    assert uneven in list(simpler(CASE))
    with pytest.raises(CaseError, match="not 0"):
        replace(CASE, situations=(ChangedLength(0),))
