"""A layer in evaluation mode while the rest of the model trains."""

from dataclasses import replace

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, InjectedFailure, Optimizer
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.between_passes import BetweenPasses
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.evaluated_layer import KEPT_MODE, EvaluatedLayer
from ddp_invariants.situations.evaluation_mode import EvaluationMode
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.module_use import ModuleUse
from ddp_invariants.situations.resized import Resized

LAYERS = (
    Layer("linear", 4, bias=True),
    Layer("dropout"),
    Layer("batch_norm", bias=True),
    Layer("statistics"),
    Layer("dropout"),
    Layer("extremes"),
    Layer("linear", 2),
)
CASE = replace(GENTLE, model=Model(4, LAYERS), steps=3, optimizer=Optimizer(momentum=0.5))
FAULTS = "ddp_invariants.faults.modules"


def failed(make_trial: TrialMaker, ddp: str, case: TrainingCase) -> set[str]:
    """Return the rules that fail on a case; other buffers on each rank are right."""
    findings = make_trial(ddp=ddp, scope=Scope()).findings(case)
    assert KEPT_MODE in findings["MOD-2"].met
    assert findings["PARAM-3"].compared > 0
    return {rule for rule, each in findings.items() if each.failure} - {"BUF-1", "COMM-5"}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("layer", range(len(LAYERS)))
@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_right_wrappers_keep_the_mode_of_a_layer(
    make_trial: TrialMaker, ddp: str, layer: int, before: bool
) -> None:
    """A BatchNorm norms by its buffers, and the oracle knows its gradients, too."""
    case = CASE.with_situation(EvaluatedLayer(layer, before))
    assert failed(make_trial, ddp, case) == set()
    assert failed(make_trial, ddp, replace(case, accumulation=2)) == set()
    assert failed(make_trial, ddp, replace(case, world_size=1)) == set()


@pytest.mark.parametrize("since", [1, 2])
@pytest.mark.parametrize("layer", [0, 2, 3, 5])
@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_right_wrappers_keep_the_mode_of_a_layer_that_trained_before(
    make_trial: TrialMaker, ddp: str, layer: int, since: int
) -> None:
    """The statistics then differ between ranks, until the next forward makes them equal."""
    case = CASE.with_situation(EvaluatedLayer(layer, since=since))
    assert failed(make_trial, ddp, case) == set()
    assert failed(make_trial, ddp, replace(case, world_size=1)) == set()
    copied = ModuleUse(("names", "modes", "hooks", "copies", "wrapper copies"))
    assert failed(make_trial, ddp, case.with_situation(copied)) == set()
    saved = Actions((BetweenSteps("evaluation", 1), BetweenSteps("reload", 1)))
    assert failed(make_trial, ddp, case.with_situation(saved)) == set()


@pytest.mark.parametrize(
    "other",
    [
        Actions((BetweenSteps("evaluation", 1), BetweenSteps("forward only", 2))),
        Actions((BetweenSteps("reload", 1),)),
        ModuleUse(("names", "modes", "hooks", "copies", "wrapper copies")),
        Resized(1),
    ],
)
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_the_program_switches_the_layer_again_after_each_switch_of_the_whole_module(
    make_trial: TrialMaker, layer: int, other: Situation
) -> None:
    """The twin is switched likewise, and its buffers stay those of the module."""
    case = CASE.with_situation(EvaluatedLayer(layer), other)
    assert failed(make_trial, "reference", case) == set()


def test_an_evaluation_between_passes_leaves_the_layer_in_evaluation(
    make_trial: TrialMaker,
) -> None:
    """It suits models that compute the same in both modes."""
    case = replace(CASE, model=Model(4, (*LAYERS[:1], *LAYERS[-1:])))
    case = case.with_situation(EvaluatedLayer(1), BetweenPasses("evaluate"))
    assert failed(make_trial, "reference", case) == set()


@pytest.mark.parametrize(
    "other",
    [
        Actions((BetweenSteps("forward only", 1),)),
        Actions((BetweenSteps("buffers", 1),)),
        FailureInjection(InjectedFailure("forward error", step=1)),
    ],
)
@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_plain_training_lacks_the_other_forwards_that_moved_the_statistics(
    make_trial: TrialMaker, ddp: str, other: Situation
) -> None:
    """The norm uses the statistics once it is in evaluation mode, so PARAM-4 does not judge it."""
    layers = (Layer("linear", 4, bias=True), Layer("batch_norm", bias=True), Layer("linear", 2))
    plain = replace(GENTLE, model=Model(4, layers), steps=4, world_size=1)
    case = plain.with_situation(EvaluatedLayer(1, since=2), other)
    assert failed(make_trial, ddp, case) == set()
    findings = make_trial(ddp=ddp, scope=Scope()).findings(case)
    assert "plain training does not repeat" in findings["PARAM-4"].unjudged


@pytest.mark.parametrize(
    ("fault", "layer", "before", "rule"),
    [
        ("TrainsEveryPart", 0, False, "MOD-2"),
        ("TrainsEveryPart", 2, True, "MOD-2"),
        ("TrainsEveryPartAtFirst", 3, True, "MOD-2"),
        ("TrainsEveryPartForAMoment", 1, False, "LOSS-1"),
    ],
)
def test_a_wrapper_that_trains_the_layer_is_wrong(
    make_trial: TrialMaker, fault: str, layer: int, before: bool, rule: str
) -> None:
    """A layer that computes the same in both modes shows a switch by its mode alone."""
    case = CASE.with_situation(EvaluatedLayer(layer, before))
    assert rule in failed(make_trial, f"{FAULTS}:{fault}", case)


def test_a_mode_of_the_whole_module_excludes_that_of_a_layer() -> None:
    """The layer is one of the model."""
    plain = replace(CASE, model=Model(4, (Layer("linear", 4),)))
    with pytest.raises(CaseError, match="evaluated_layer is 0, expected null"):
        plain.with_situation(EvaluatedLayer(), EvaluationMode())
    with pytest.raises(CaseError, match=r"evaluated_layer.layer is 1, expected an integer"):
        plain.with_situation(EvaluatedLayer(1))
    for layer, before, accumulation in ((1, False, 1), (2, True, 1), (2, False, 2)):
        with pytest.raises(CaseError, match=r"evaluated_layer.since is 1, expected 0"):
            replace(CASE, accumulation=accumulation).with_situation(
                EvaluatedLayer(layer, before, since=1)
            )


def test_the_layer_stays_the_same_one_as_others_are_removed() -> None:
    """Without the layer itself, no layer is in evaluation."""
    assert EvaluatedLayer(2).without_layer(0) == EvaluatedLayer(1)
    assert EvaluatedLayer(2).without_layer(3) == EvaluatedLayer(2)
    assert EvaluatedLayer(2).without_layer(2) is None
    assert CASE.with_situation(EvaluatedLayer(1)).draws == (4,)
