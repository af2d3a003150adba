"""LOSS-1 judges the random numbers that a wrapper leaves to its module."""

from dataclasses import replace

import pytest
from handmade import CASE, right

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.program import BetweenSteps
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.loss import DISPLACED
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.passes import PassOrder

FAULTS = "ddp_invariants.faults.seeded:"
DRAWING = replace(TRAINING["dropout"].probe, steps=4)
RETAINED = replace(DRAWING, accumulation=2, situations=(PassOrder("retained"),))


@pytest.mark.parametrize(
    "ddp", ["reference", f"{FAULTS}SeedsEachRank", f"{FAULTS}DrawsNumbersOfItsOwn"]
)
def test_a_wrapper_may_draw_outside_its_forward(make_trial: TrialMaker, ddp: str) -> None:
    """Numbers that it draws on construction, or after its module did, displace none."""
    trial = make_trial(ddp=ddp, scope=Scope())
    for case in (DRAWING, RETAINED):
        findings = trial.really(case)
        assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}


def test_numbers_drawn_before_the_module_violate_loss_1(make_trial: TrialMaker) -> None:
    """The failure names the first forward whose numbers differ."""
    trial = make_trial(ddp=f"{FAULTS}DrawsBeforeItsModule", scope=Scope())
    failure = trial.really(DRAWING)["LOSS-1"].failure
    assert failure is not None
    assert failure.fact == DISPLACED
    assert "step 2" in failure.where


def judged(
    *replayed: tuple[int, bool], case: TrainingCase = CASE, init: str = "first_forward"
) -> Failure | None:
    """Return the failure of LOSS-1 where rank 1 drew these numbers."""
    evidence = right(case)
    ranks = evidence.ranks[0], replace(evidence.ranks[1], replayed=list(replayed))
    declared = Declarations(init=init)  # type: ignore[arg-type]  # one of its values
    return judge(replace(evidence, ranks=ranks), declared)["LOSS-1"].failure


def test_a_wrapper_that_starts_late_may_draw_in_its_first_forward_alone() -> None:
    """A wrapper that is rebuilt starts again."""
    assert judged((0, False), (1, True)) is None
    assert judged((0, False), init="wrap") is not None
    assert judged((1, False)) is not None
    reloaded = CASE.with_situation(Actions((BetweenSteps("reload", 1),)))
    assert judged((0, False), (CASE.accumulation, False), case=reloaded) is None
