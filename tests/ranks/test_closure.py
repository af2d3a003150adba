"""CALL-4: a step that gets a closure is right as any other step."""

from dataclasses import replace
from pathlib import Path

import pytest
from handmade import CASE, right

from conftest import TrialMaker
from ddp_invariants.cases.program import LossScale, Optimizer
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import judge
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.closure import CLOSURE, Closure
from ddp_invariants.situations.scaler import Scaler

FAULTS = "ddp_invariants.faults.closures:"
HIDDEN = Scope(declared=Declarations(gradients="hidden"))
GIVEN = GENTLE.with_situation(Closure())


@pytest.mark.parametrize(
    "ddp",
    ["reference", "torch", f"{FAULTS}averages_what_the_closure_computes"],
)
def test_right_steps_with_a_closure_fail_no_rule(make_trial: TrialMaker, ddp: str) -> None:
    """The closure may clip, and an optimizer with state steps as without a closure."""
    trial = make_trial(ddp=ddp, scope=HIDDEN if FAULTS in ddp else Scope())
    for case in (
        GIVEN,
        replace(GIVEN, world_size=1),
        replace(GIVEN, optimizer=Optimizer("adamw", log2_lr=-9)),
        *(() if FAULTS in ddp else (GIVEN.with_situation(Clipping(0.0625)),)),
    ):
        findings = trial.really(case)
        assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
        assert CLOSURE in findings["CALL-4"].met


def test_main_gradients_reach_a_step_with_a_closure(make_trial: TrialMaker) -> None:
    """The optimizer steps with `.main_grad`, which exists only once the closure has run."""
    trial = make_trial(ddp="ddp_invariants.faults.main_grad:MainGrad", scope=Scope())
    findings = trial.really(GIVEN)
    assert findings["CALL-4"].failure is None
    assert CLOSURE in findings["CALL-4"].met


@pytest.mark.parametrize(
    ("fault", "fact"),
    [
        ("averages_before_the_closure", "parameters differ between ranks after an optimizer step"),
        ("drops_the_loss", "a step does not return the loss of its closure"),
        ("calls_the_closure_again", "a step does not call its closure once"),
    ],
)
def test_a_wrong_step_shows_with_a_closure_alone(
    make_trial: TrialMaker, fault: str, fact: str
) -> None:
    """The same steps without a closure fail no rule."""
    trial = make_trial(ddp=FAULTS + fault, scope=HIDDEN)
    plain = trial.really(GENTLE)
    assert {rule: each.failure for rule, each in plain.items() if each.failure} == {}
    failures = [each.failure for each in trial.really(GIVEN).values() if each.failure]
    assert any(failure.fact.endswith(fact) for failure in failures)


def test_a_step_without_the_argument_refuses(make_trial: TrialMaker) -> None:
    """An optimizer whose step takes nothing raises on all ranks, and nothing is accused."""
    findings = make_trial(
        ddp="ddp_invariants.faults.scaled:unscales_and_skips", scope=Scope()
    ).really(GIVEN)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert "step takes no closure" in findings["CALL-4"].unjudged


def test_another_argument_of_a_step_is_no_closure(make_trial: TrialMaker) -> None:
    """A step that takes something else refuses closures, whatever the argument is called."""
    ddp = str(Path(__file__).parents[1] / "helpers/shapes.py:steps_in_full")
    findings = make_trial(ddp=ddp, scope=HIDDEN).really(GIVEN)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert "step takes no closure" in findings["CALL-4"].unjudged


@pytest.mark.parametrize(
    ("noted", "fact"),
    [
        ((0, False), "a step does not call its closure once"),
        ((2, True), "a step does not call its closure once"),
        ((1, False), "a step does not return the loss of its closure"),
    ],
)
def test_call4_fires_on_each_way_to_treat_a_closure_wrongly(
    noted: tuple[int, bool], fact: str
) -> None:
    """The failure names the rank and the step."""
    evidence = right(CASE.with_situation(Closure()))
    ranks = (
        replace(evidence.ranks[0], closures=[(1, True), (1, True)]),
        replace(evidence.ranks[1], closures=[(1, True), noted]),
    )
    failure = judge(replace(evidence, ranks=ranks))["CALL-4"].failure
    assert failure is not None
    assert failure.fact == fact
    assert failure.where == "rank 1 of 2, step 1"


def test_call4_is_not_judged_without_the_notes_of_all_steps() -> None:
    """Missing evidence is no pass."""
    evidence = right(CASE.with_situation(Closure()))
    assert "did not note the closures" in judge(evidence)["CALL-4"].unjudged


def test_a_closure_computes_one_backward() -> None:
    """Several backwards, and a loss scaler that makes the step, exclude closures."""
    with pytest.raises(CaseError, match="several backwards"):
        replace(GIVEN, accumulation=2)
    with pytest.raises(CaseError, match="a scaler makes the step"):
        replace(GIVEN, situations=(Scaler(LossScale(4)), Closure()))
