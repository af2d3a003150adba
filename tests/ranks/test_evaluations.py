"""Evaluations between steps, and before the first one, are passed on like any forward."""

from dataclasses import replace

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, BetweenStepsKind, Data
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.call_shape import CallShape
from ddp_invariants.situations.module_use import ModuleUse

CASE = TrainingCase(
    Model(2, (Layer("linear", 4, bias=True), Layer("batch_norm"), Layer("linear", 2))),
    steps=3,
    data=Data(samples=18, batch_size=3),
)
KINDS: tuple[BetweenStepsKind, ...] = ("evaluation", "evaluation with gradients", "inference")
HOOKS, FORM = ModuleUse(("hooks",)), CallShape(("keyword", "plain"))
FAULTS: dict[str, tuple[BetweenSteps, tuple[Situation, ...], str]] = {
    "calls:RecordsInTrainingAlone": (
        BetweenSteps("evaluation with gradients", 1),
        (FORM,),
        "CALL-1",
    ),
    "modules:EvaluatesPastHooks": (BetweenSteps("inference", 1), (HOOKS,), "MOD-1"),
    "starts:StartsWithTheFirstForward": (BetweenSteps("evaluation", 0), (), "INIT-1"),
}


def evaluated(action: BetweenSteps, *situations: Situation) -> TrainingCase:
    """Return the case with an action and other situations."""
    case = CASE.with_situation(Actions((action,)))
    for situation in situations:
        case = case.with_situation(situation)
    return case


@pytest.mark.parametrize("ddp", ["reference", "torch"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 1])
def test_a_right_wrapper_passes_an_evaluation_on(
    make_trial: TrialMaker, ddp: str, kind: BetweenStepsKind, step: int
) -> None:
    """Its hooks fire as unwrapped, autograd records it or not, and training goes on."""
    findings = make_trial(ddp=ddp, scope=Scope()).findings(
        evaluated(BetweenSteps(kind, step), HOOKS, FORM)
    )
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    # A note for the evaluation and each of three steps, on two ranks; a run ends with a forward.
    assert findings["MOD-1"].compared == 8
    assert findings["CALL-1"].compared == 10


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_with_an_evaluation_alone(make_trial: TrialMaker, fault: str) -> None:
    """The other situations of the case show nothing; with the evaluation the rule fails."""
    action, situations, rule = FAULTS[fault]
    declared = Declarations(init="first_forward") if rule == "INIT-1" else Declarations()
    trial = make_trial(ddp=f"ddp_invariants.faults.{fault}", scope=Scope(declared=declared))
    case = evaluated(action, *situations)
    plain = trial.findings(case.without(Actions))
    assert {name: each.failure for name, each in plain.items() if each.failure} == {}
    assert trial.findings(case)[rule].failure is not None


def test_a_forward_in_training_mode_comes_after_the_first_step() -> None:
    """It moves buffers, and the start is judged as it is."""
    with pytest.raises(CaseError, match=r"between_steps\[0\].step is 0, expected .* from 1 to 2"):
        evaluated(BetweenSteps("forward only", 0))


@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_an_evaluation_whose_hooks_are_compared_repeats_no_draws(
    make_trial: TrialMaker, ddp: str
) -> None:
    """The last training step of the twin left it the numbers of a larger batch."""
    case = replace(
        CASE,
        model=Model(4, (Layer("linear", 4), Layer("dropout"), Layer("linear", 2))),
        steps=2,
        data=Data(samples=6, batch_size=2),
        situations=(Actions((BetweenSteps("evaluation"),)), ModuleUse(("hooks",))),
    )
    findings = make_trial(ddp=ddp, scope=Scope()).findings(case)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert findings["MOD-1"].compared
