"""Tests of the LIVE rules on handmade evidence: of hangs, exceptions, deaths and what is left behind."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from handmade import CASE, WEIGHT, altered, everywhere, one_bit_up, right

from ddp_invariants.cases.program import (
    InjectedFailure,
)
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.sampler_view import sharding
from ddp_invariants.invariants.view import training
from ddp_invariants.records.evidence import (
    Incident,
    ProgramDraw,
    RaisedError,
    RankEvidence,
    TrainingEvidence,
)
from ddp_invariants.situations.injected_failure import FailureInjection


def test_live1_alone_judges_samplers_and_training() -> None:
    """LIVE-1 has one row and two judges, since a sampler may hang as well; no other rule has two."""
    assert training.rules.keys() & sharding.rules.keys() == {"LIVE-1"}
    rows = [{**vars(rules.rules["LIVE-1"]), "judge": None} for rules in (training, sharding)]
    assert rows[0] == rows[1]


CAUGHT = CASE.with_situation(FailureInjection(InjectedFailure("backward error", 1)))


@pytest.mark.parametrize(
    ("surfaced", "judged", "fires"),
    [("UserError", True, False), ("", True, True), (None, False, False)],
)
def test_live2_wants_the_exception_to_reach_the_user(
    surfaced: str | None, *, judged: bool, fires: bool
) -> None:
    """A swallowed exception violates LIVE-2; an exception that was never raised leaves it open."""
    ranks = tuple(replace(rank, surfaced=surfaced) for rank in right(CAUGHT).ranks)
    finding = judge(replace(right(CAUGHT), ranks=ranks))["LIVE-2"]
    assert (finding.failure is not None) == fires
    assert bool(finding.compared) == judged


def test_live2_wants_every_step_right_afterwards() -> None:
    """A gradient that is not the mean after a caught exception violates LIVE-2."""
    evidence = everywhere(right(CAUGHT), "reduced", 1, WEIGHT, lambda v: 2 * v)
    ranks = tuple(replace(rank, surfaced="UserError") for rank in evidence.ranks)
    failure = judge(replace(evidence, ranks=ranks))["LIVE-2"].failure
    assert failure is not None
    assert failure.fact.startswith("after an exception was caught, the gradient is not the mean")


def test_live2_wants_the_updates_right_afterwards() -> None:
    """So does a wrong update, on one rank or on all, though all gradients are right."""
    for evidence in (
        altered(right(CAUGHT), 1, "updated", 2, WEIGHT, one_bit_up),
        everywhere(right(CAUGHT), "updated", 1, WEIGHT, np.zeros_like),
    ):
        ranks = tuple(replace(rank, surfaced="UserError") for rank in evidence.ranks)
        caught = replace(evidence, ranks=ranks)
        assert judge(replace(caught, unperturbed=right()))["LIVE-2"].failure is not None
        assert judge(caught)["LIVE-2"].failure is None  # Perhaps it was wrong before.
        wrong = everywhere(right(), "updated", 1, WEIGHT, np.zeros_like)
        assert judge(replace(caught, unperturbed=wrong))["LIVE-2"].failure is None


def test_live2_names_state_left_behind_if_nothing_else_explains_the_gradient() -> None:
    """The same case without the exception is right, so that only state can make the difference."""
    left = "state that the aborted"
    for change, named in ((lambda v: v + v % 3 + 1, left), (lambda v: 2 * v, "never divided")):
        evidence = everywhere(right(CAUGHT), "reduced", 1, WEIGHT, change)
        ranks = tuple(replace(rank, surfaced="UserError") for rank in evidence.ranks)
        alone = judge(replace(evidence, ranks=ranks))["LIVE-2"].failure
        assert alone is not None
        assert left not in alone.perhaps
        compared = replace(evidence, ranks=ranks, unperturbed=right())
        failure = judge(compared)["LIVE-2"].failure
        assert failure is not None
        assert named in failure.perhaps


def test_live2_wants_random_numbers_that_no_other_rank_draws() -> None:
    """Numbers that ranks share only after the exception violate LIVE-2."""

    def drawn(evidence: TrainingEvidence, *numbers: int) -> TrainingEvidence:
        return replace(
            evidence,
            ranks=tuple(
                replace(
                    rank, surfaced="UserError", program_draws=[ProgramDraw(2, [number, number])]
                )
                for rank, number in zip(evidence.ranks, numbers, strict=True)
            ),
        )

    for again, without, fires in (
        ((1, 1), (1, 2), True),
        ((1, 2), (1, 2), False),
        ((1, 1),) * 2 + (False,),
    ):
        evidence = replace(drawn(right(CAUGHT), *again), unperturbed=drawn(right(), *without))
        failure = judge(evidence)["LIVE-2"].failure
        assert (failure is not None) == fires
        if failure is not None:
            assert failure.fact.startswith("after an exception was caught, two ranks draw the same")


RAISED = RaisedError("backward", 1, "RuntimeError", "closed", "")


@pytest.mark.parametrize(
    ("change", "fires"),
    [({"raised": RAISED}, False), ({}, True), ({"raised": RAISED._replace(step=2)}, True)],
)
def test_live3_wants_the_others_to_fail(change: dict[str, Any], *, fires: bool) -> None:
    """Survivors of a dead rank must raise before the step is made, or they violate LIVE-3."""
    case = CASE.with_situation(FailureInjection(InjectedFailure("death", 1, 0)))
    survivor = right(case).ranks[1]
    steps = 3 if not change else change["raised"].step
    noted = {key: value for key, value in survivor.tensors.items() if key[1] < steps}
    ranks = (RankEvidence({}), replace(survivor, tensors=noted, **change))
    incident = Incident("died", {0: "was ended by SIGKILL"}, {}, 0.1)
    finding = judge(TrainingEvidence(case, ranks, incident))["LIVE-3"]
    assert (finding.failure is not None) == fires
    assert finding.compared == 1
    hung = replace(incident, ranks={**incident.ranks, 1: "gave no answer within 2.1 s"})
    assert (
        judge(TrainingEvidence(case, (RankEvidence({}), RankEvidence({})), hung))["LIVE-3"].failure
        is not None
    )


@pytest.mark.parametrize(
    ("counts", "fires"),
    [
        ([[5, 9, 0]] * 4, False),
        ([[5, 9, 0], [6, 9, 0], [6, 9, 0], [6, 9, 0]], False),
        ([[5, 9, 0], [6, 9, 0], [7, 9, 0], [8, 9, 0]], True),
        ([[5, 9, n] for n in range(4)], True),
    ],
)
def test_live4_wants_nothing_to_grow_with_every_run(
    counts: list[list[int]], *, fires: bool
) -> None:
    """LIVE-4 fails if a count grows with every run, and not if it grows once.

    A thread or descriptor that appears once was started on first use. If it appears every
    time, it is left behind.
    """
    case = replace(CASE, rounds=4)
    ranks = tuple(replace(rank, left=counts) for rank in right(case).ranks)
    assert (judge(replace(right(case), ranks=ranks))["LIVE-4"].failure is not None) == fires


def test_live1_an_exception_on_some_ranks_or_after_a_good_step_is_a_breach() -> None:
    """An exception on one rank alone, or after a good step, violates LIVE-1.

    An exception on every rank at the start is a refusal.
    """
    evidence = right()
    error = RaisedError("forward", 2, "RuntimeError", "no", "")
    late = [replace(rank, raised=error) for rank in evidence.ranks]
    assert (
        judge(replace(evidence, ranks=(evidence.ranks[0], late[1])))["LIVE-1"].failure is not None
    )
    assert judge(replace(evidence, ranks=tuple(late)))["LIVE-1"].failure is not None


def test_live1_does_not_blame_an_implementation_for_the_suites_own_limit_of_memory() -> None:
    """A rank that may not take as much memory as it asks for leaves LIVE-1 without a verdict."""
    evidence = right()
    error = RaisedError("forward", 2, "RuntimeError", "can't allocate memory", "", limited=True)
    stopped = replace(evidence.ranks[1], raised=error)
    finding = judge(replace(evidence, ranks=(evidence.ranks[0], stopped)))["LIVE-1"]
    assert finding.failure is None
    assert finding.unjudged == "rank 1: can't allocate memory"
