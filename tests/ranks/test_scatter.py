"""Samplers whose first rank sends data to the others.

The ranks are asked together, and the data they hold are recognised by value.
"""

from dataclasses import replace

import pytest
from probed import Discover

from conftest import TrialMaker
from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.result import Standing
from ddp_invariants.errors import LoadFailure
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.decoding import together
from ddp_invariants.records.evidence import FOREIGN, OWN
from ddp_invariants.records.verdict import NotJudged, Violation
from ddp_invariants.search.strategies import cases_for

SCATTERED = "ddp_invariants.faults.scattered:"
EACH = ("SHARD-1", "SHARD-2", "SHARD-3", "SHARD-4", "SHARD-6", "SHARD-8")


def held(pool: Pool, name: str, **case: object) -> list[list[int]]:
    """Return the samples that every rank holds in the first epoch of a small case."""
    sampler = Sampler(SCATTERED + name)
    pool.describe(sampler)
    evidence = pool.shards(
        ShardCase(**{"data": Data(samples=6), **case}),  # type: ignore[arg-type]  # checked there
        sampler,
    )
    assert evidence.incident is None
    first, second = evidence.answers
    assert first["shards"] == second["shards"]
    shards: list[list[int]] = first["shards"][0]
    return shards


def test_ranks_hold_what_the_first_one_has_sent(pool: Pool) -> None:
    """A sample is recognised by its value, wherever it stands in the data that were sent.

    Data that a rank made itself, and data that belong to nobody, are marked as such.
    """
    assert held(pool, "Scatters") == [[0, 1, 2], [3, 4, 5]]
    assert held(pool, "ScattersPadded", world_size=3, data=Data(samples=4)) == [
        [0, 3],
        [1, 0],
        [2, 1],
    ]
    assert held(pool, "ScattersObjects", data=Data(samples=3)) == [[0, 2], [1]]
    assert held(pool, "CutsItsOwn") == [[0, 2, 4], [OWN] * 3]
    assert held(pool, "SendsIndices") == [[FOREIGN] * 3] * 2


@pytest.mark.parametrize("name", ["Scatters", "ScattersPadded", "ScattersObjects"])
def test_right_ones_are_not_accused(make_trial: TrialMaker, name: str) -> None:
    """A right sampler violates no rule at any world size.

    If the sampler needs it, the drawn datasets are divisible by the world size.
    """
    trial = make_trial(sampler=SCATTERED + name, cases=20)
    for rule in EACH:
        if not trial.scope.excluded(rule):
            trial.certify(rule, cases_for(rule, trial.scope))
            assert trial.ledger[rule].judged >= 20
            assert not any(" raised " in reason for reason in trial.ledger[rule].unjudged)
    with pytest.raises(NotJudged, match="takes no rank"):
        trial.certify("SHARD-7", cases_for("SHARD-7", trial.scope))


@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        (
            "CutsItsOwn",
            "SHARD-8",
            "a rank holds its own data, not the data that the first rank sent",
        ),
        (
            "SendsHalfPrecision",
            "SHARD-8",
            "a rank holds data of no rank: an index, or data that were changed on the way",
        ),
        ("RefusesOnTheFirst", "LIVE-1", "a rank hung"),
    ],
)
def test_a_wrong_one_is_caught(make_trial: TrialMaker, name: str, rule: str, words: str) -> None:
    """A wrong sampler is caught, and the failure is confirmed in new processes."""
    trial = make_trial(sampler=SCATTERED + name, cases=20)
    trial.pool.deadline = 1.5
    target = rule if rule.startswith("SHARD") else "SHARD-1"
    with pytest.raises(Violation) as raised:
        trial.certify(target, cases_for(target, trial.scope))
    assert raised.value.failure.rule == rule
    assert words in str(raised.value)
    assert "runs in fresh processes" in str(raised.value)


def test_unequal_parts_are_refused_by_every_rank(pool: Pool, discovered: Discover) -> None:
    """If every rank refuses unequal parts, datasets are drawn that the world size divides.

    Such a refusal is no violation.
    """
    discovery = discovered(pool, Ddp(), Sampler(SCATTERED + "Scatters"), 4)
    uneven = next(probed for probed in discovery.sampler_probes if probed.capability == "uneven")
    assert (uneven.standing, uneven.words) == (
        Standing.REFUSED,
        "ValueError: 7 samples are no equal parts for 2 ranks",
    )
    fitted = discovery.scope(3).fit_shards(ShardCase(world_size=8, data=Data(samples=7)))
    assert (fitted.world_size, fitted.data.samples) == (3, 9)


def test_what_takes_no_data_cannot_scatter(pool: Pool) -> None:
    """A sampler that scatters but takes no data is refused in one sentence."""
    with pytest.raises(
        LoadFailure, match="declares layout = 'scatter' and takes no data as dataset"
    ):
        pool.describe(
            Sampler("ddp_invariants.faults.iterables:Split", declares={"layout": "scatter"})
        )


def test_a_rank_that_raises_alone_is_heard(pool: Pool) -> None:
    """If one rank raises, its error is the answer, and the rules lack their evidence.

    The ranks' parts are joined into one answer.
    """
    sampler = Sampler(SCATTERED + "Scatters")
    pool.describe(sampler)
    evidence = pool.shards(ShardCase(data=Data(samples=3)), sampler)
    assert [answer["raised"]["type"] for answer in evidence.answers] == ["ValueError"] * 2
    assert judge(evidence)["SHARD-1"].failure is None
    part = {
        "raised": None,
        "warned": [],
        "lengths": [1],
        "again": [[0]],
        "afresh": [[0]],
        "reseeded": None,
        "batches": None,
        "promised": None,
        "worked": None,
        "resumed": None,
        "shards": [[[0]]],
        "touched": ["numpy"],
    }
    whole = together([part, {**part, "shards": [[[1]]], "touched": []}])
    assert (whole["shards"], whole["lengths"], whole["touched"]) == (
        [[[0], [1]]],
        [1, 1],
        ["numpy"],
    )
    raised = {
        "raised": {"phase": "iteration", "type": "KeyError", "message": "3", "step": 0},
        "warned": [],
    }
    lone = replace(evidence, answers=(together([part, raised]),) * 2)
    failure = judge(lone)["LIVE-1"].failure
    assert failure is not None
    assert failure.fact == "some ranks raise and others do not"
    assert "rank 1 raised KeyError: 3; 1 of 2 ranks raise" in failure.got
