"""RNG-1 fails on handmade evidence of a program whose own random numbers repeat, and names the cause."""

from dataclasses import replace

import numpy as np
import pytest

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Data
from ddp_invariants.invariants import judge
from ddp_invariants.records.evidence import ProgramDraw, RankEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Finding
from ddp_invariants.situations.between_steps import Actions

CASE = TrainingCase(
    model=Model(2, (Layer("linear", 2),)), world_size=2, data=Data(samples=4), steps=3, seed=7
)
PLACES = CASE.steps + 1
Numbers = list[list[int]]


def stream(seed: int, places: int = PLACES) -> Numbers:
    """Return what a program draws before each step, and after the last, after a seed."""
    generator = np.random.RandomState(seed % 2**32)
    words = generator.randint(0, 2**32, (places, 2, 2), np.uint32).tolist()
    return [[(high * 2**32 + low) % 2**63 for high, low in place] for place in words]


OWN = [stream(numbers.seed(CASE, rank)) for rank in range(2)]


def finding_of(by_rank: list[Numbers], case: TrainingCase = CASE) -> Finding:
    """Return the finding of RNG-1 on ranks whose programs drew these numbers."""
    ranks = tuple(
        RankEvidence({}, program_draws=[ProgramDraw(*each) for each in enumerate(mine)])
        for mine in by_rank
    )
    return judge(TrainingEvidence(case, ranks))["RNG-1"]


def test_numbers_of_their_own_are_right() -> None:
    """Each place is compared between ranks, and all places of a rank with each other."""
    finding = finding_of(OWN)
    assert finding.failure is None
    assert not finding.unjudged
    assert finding.compared == PLACES + 2 * PLACES * (PLACES - 1) // 2


@pytest.mark.parametrize(
    ("by_rank", "words"),
    [
        ([stream(42)] * 2, "every rank is seeded alike"),
        ([OWN[0]] * 2, "all ranks were given the state of rank 0's generator"),
        (
            [[OWN[rank][0], *stream(42, 1) * 3] for rank in range(2)],
            "every rank is seeded alike, and anew in every step",
        ),
        (
            [[OWN[rank][0], *stream(rank, 1) * 3] for rank in range(2)],
            "each rank is seeded anew in every step",
        ),
        (
            [[*OWN[rank][:2], *stream(42, 2)] for rank in range(2)],
            "every rank is seeded alike in step 1",
        ),
        ([[*OWN[0][:2], OWN[1][2], OWN[0][3]], OWN[1]], ""),
    ],
)
def test_numbers_that_repeat_are_told_with_what_predicts_them(
    by_rank: list[Numbers], words: str
) -> None:
    """A repeat is reported with its cause, or with no cause if none predicts it."""
    failure = finding_of(by_rank).failure
    assert failure is not None
    assert failure.perhaps == words


def test_the_place_of_a_repeat_is_told() -> None:
    """The earliest repeat between ranks is named, and the last place is after the last step."""
    failure = finding_of([[*OWN[0][:3], OWN[1][3]], OWN[1]]).failure
    assert failure is not None
    assert failure.where == "ranks 0 and 1 of 2, after the last step"
    assert failure.got.startswith("126 of 126 random bits are equal")


def test_a_rebuilt_wrapper_may_seed_its_rank_again() -> None:
    """A rank may repeat its numbers after its wrapper was rebuilt."""
    again = [stream(rank, 2) * 2 for rank in range(2)]
    rebuilt = replace(CASE, situations=(Actions((BetweenSteps("reload", 2),)),))
    assert finding_of(again).failure is not None
    assert finding_of(again, rebuilt).failure is None


def test_evidence_without_the_programs_numbers_is_not_judged() -> None:
    """Evidence of an older version has no such numbers."""
    assert finding_of([[], []]).unjudged == "no layer draws random numbers"
