"""Training in evaluation mode: gradients are reduced whatever the mode of the passes."""

from dataclasses import replace
from typing import get_args

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase, describe
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.evaluation_mode import EVALUATED, EvaluatedPasses, EvaluationMode
from ddp_invariants.situations.passes import PassOrder

CASE = replace(GENTLE, steps=3)
FAULTS = "ddp_invariants.faults.programs"
PASSES: tuple[EvaluatedPasses, ...] = get_args(EvaluatedPasses)


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("ddp", ["reference", "torch", "tests/helpers/shapes.py:in_place"])
def test_right_wrappers_train_in_evaluation_mode(
    make_trial: TrialMaker, ddp: str, passes: EvaluatedPasses
) -> None:
    """PARAM-3 counts such steps; a function that returns no wrapper leaves the module's mode."""
    findings = make_trial(ddp=ddp, scope=Scope()).findings(
        CASE.with_situation(EvaluationMode(passes, 1))
    )
    failed = {rule: each.failure for rule, each in findings.items() if each.failure}
    assert failed.keys() <= {"COMM-5"}
    assert EVALUATED in findings["PARAM-3"].met


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [("EvaluationPassesBy", {"both", "forward"}), ("HooksRestInEvaluation", {"backward"})],
)
def test_a_wrapper_that_asks_for_the_mode_fails_where_it_asks(
    make_trial: TrialMaker, fault: str, wrong: set[str]
) -> None:
    """The first step in evaluation mode is the first that is not reduced."""
    trial = make_trial(ddp=f"{FAULTS}:{fault}", scope=Scope())
    assert trial.findings(CASE)["GRAD-1"].failure is None
    for passes in PASSES:
        failure = trial.findings(CASE.with_situation(EvaluationMode(passes, 1)))["GRAD-1"].failure
        assert (failure is not None) == (passes in wrong)
        assert failure is None or "step 1" in failure.where


def test_an_evaluation_between_steps_does_not_end_the_mode(make_trial: TrialMaker) -> None:
    """The evaluation switches back to training, and the next step to evaluation again."""
    trial = make_trial(ddp=f"{FAULTS}:EvaluationPassesBy", scope=Scope())
    evaluated = CASE.with_situation(Actions((BetweenSteps("evaluation", 1),)))
    assert trial.findings(evaluated)["GRAD-1"].failure is None
    failure = trial.findings(evaluated.with_situation(EvaluationMode(first=1)))["GRAD-1"].failure
    assert failure is not None
    assert "step 1" in failure.where


@pytest.mark.parametrize("kind", ["statistics", "dropout"])
def test_a_layer_that_computes_otherwise_in_evaluation_is_refused(kind: str) -> None:
    """The result of single-process training is not known there."""
    layers = (Layer("linear", 4), Layer(kind))  # type: ignore[arg-type]  # a parameter of the test
    with pytest.raises(CaseError, match="computes differently in evaluation"):
        replace(CASE, model=Model(4, layers)).with_situation(EvaluationMode())


def test_only_alternating_passes_have_modes_of_their_own() -> None:
    """Between joint forwards and their backward, the mode stays."""
    joint = replace(CASE, accumulation=2).with_situation(PassOrder("joint"))
    assert "evaluation_mode=(passes=both)" in describe(joint.with_situation(EvaluationMode()))
    with pytest.raises(CaseError, match="do not alternate"):
        joint.with_situation(EvaluationMode("backward"))


def test_the_mode_becomes_simpler() -> None:
    """First the steps before it go, then the difference between the passes."""
    assert list(EvaluationMode("backward", 2).simpler()) == [
        EvaluationMode("backward"),
        EvaluationMode("both", 2),
    ]
    assert not list(EvaluationMode().simpler())


def test_a_case_keeps_the_steps_of_the_mode() -> None:
    """A case with fewer steps is refused."""
    with pytest.raises(CaseError, match=r"evaluation_mode\.first"):
        TrainingCase(CASE.model, steps=1).with_situation(EvaluationMode(first=1))
