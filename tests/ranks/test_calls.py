"""A wrapper passes on arguments, results and gradients of inputs in every form of a call."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from probed import Discover

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Data
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.call_shape import CallShape, InputForm, OutputForm
from ddp_invariants.situations.other_method import OTHER_METHOD, OtherMethod
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.second import SecondWrapper

CASE = TrainingCase(
    Model(2, (Layer("linear", 3, bias=True), Layer("linear", 2))),
    steps=9,
    data=Data(samples=12, batch_size=3),
)
FORMS = (
    *(CallShape((form,)) for form in get_args(InputForm)[1:]),
    *(CallShape(outputs=(form,)) for form in get_args(OutputForm)[1:]),
    CallShape(get_args(InputForm), get_args(OutputForm)),
)
FAULTS = {
    "DropsNamedArguments": (CallShape(("others",)), "CALL-1"),
    "DropsNamedNumbers": (CallShape(("option",)), "CALL-1"),
    "DropsWhatIsNone": (CallShape(("none",)), "CALL-1"),
    "TensorsBecomeNumbers": (CallShape(("number",)), "CALL-1"),
    "FirstTwoArguments": (CallShape(("others",)), "CALL-1"),
    "UnpacksContainers": (CallShape(("list",)), "CALL-1"),
    "ListOfTensors": (CallShape(outputs=("dict",)), "CALL-1"),
    "PlainTuples": (CallShape(outputs=("namedtuple",)), "CALL-1"),
    "ZeroForNone": (CallShape(outputs=("mixed",)), "CALL-1"),
    "DetachesTheRest": (CallShape(outputs=("tuple",)), "CALL-1"),
    "HooksTheFirstTensor": (CallShape(outputs=("list",)), "GRAD-1"),
    "HooksWhatOccursOnce": (CallShape(outputs=("twice",)), "GRAD-1"),
    "KnowsExactTypes": (CallShape(outputs=("dataclass",)), "GRAD-1"),
    "WaitsForEveryOutput": (CallShape(outputs=("nested",)), "GRAD-1"),
    "LooksOneLevelDeep": (CallShape(outputs=("deep",)), "GRAD-1"),
    "LogsTheLossInPlace": (CallShape(outputs=("loss",)), "LOSS-1"),
    "DetachesInputs": (CallShape(("trained",)), "CALL-2"),
    "ScalesInputGradients": (CallShape(("trained",)), "CALL-2"),
    "ReducesInputGradients": (CallShape(("trained",)), "CALL-2"),
    "HooksOnResultsStay": (CallShape(outputs=("parameter",)), "GRAD-8"),
}


@pytest.mark.parametrize(
    "ddp",
    [
        "reference",
        "torch",
        "ddp_invariants.faults.calls:Rebuilt",
        "ddp_invariants.faults.calls:NotesInputGradients",
    ],
)
def test_a_right_wrapper_passes_on_every_form(make_trial: TrialMaker, ddp: str) -> None:
    """No rule fails, and both rules about calls are judged where they apply."""
    trial = make_trial(ddp=ddp, scope=Scope())
    for shape in FORMS:
        steps = max(CASE.steps, len(shape.inputs))
        findings = trial.findings(replace(CASE, steps=steps).with_situation(shape))
        failures = {rule: each.failure for rule, each in findings.items() if each.failure}
        assert failures == {}, shape.words
        assert findings["CALL-1"].compared
        assert bool(findings["CALL-2"].compared) is shape.trains_inputs


def test_an_earlier_wrapper_of_the_same_model_is_called_in_the_form(
    make_trial: TrialMaker,
) -> None:
    """The program's calls have their form before the wrapper under test is made, too."""
    case = CASE.with_situation(CallShape(("trained", "dict"))).with_situation(
        SecondWrapper("again")
    )
    findings = make_trial(scope=Scope()).findings(case, rule="LIVE-6")
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert all(findings[rule].compared for rule in ("CALL-1", "CALL-2", "LIVE-6"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_in_its_form_alone(make_trial: TrialMaker, fault: str) -> None:
    """The plain call shows nothing; the form violates the rule."""
    trial = make_trial(ddp=f"ddp_invariants.faults.calls:{fault}", scope=Scope())
    shape, rule = FAULTS[fault]
    case = replace(CASE, steps=4, accumulation=2) if rule == "GRAD-8" else CASE
    plain = trial.findings(case)
    assert {name: each.failure for name, each in plain.items() if each.failure} == {}
    assert trial.findings(case.with_situation(shape))[rule].failure is not None


def test_a_wrapper_that_offers_other_methods_must_train_through_them(
    make_trial: TrialMaker,
) -> None:
    """Hooks on parameters do; a wrapper that is armed by its own forward does not."""
    case = CASE.with_situation(OtherMethod())
    trial = make_trial(ddp="ddp_invariants.faults.calls:HooksServeEveryMethod", scope=Scope())
    findings = trial.really(case)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert findings["CALL-3"].met >= {OTHER_METHOD}
    trial = make_trial(ddp="ddp_invariants.faults.calls:MethodsMissTheWrapper", scope=Scope())
    plain = trial.really(CASE)
    assert {rule: each.failure for rule, each in plain.items() if each.failure} == {}
    failure = trial.really(case)["CALL-3"].failure
    assert failure is not None
    assert failure.retells == "GRAD-2"


@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_a_wrapper_without_other_methods_is_not_judged_on_them(
    make_trial: TrialMaker, ddp: str
) -> None:
    """All ranks refuse at the first forward, and nothing is accused."""
    findings = make_trial(ddp=ddp, scope=Scope()).really(CASE.with_situation(OtherMethod()))
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert "does not offer the method" in findings["CALL-3"].unjudged


@pytest.mark.parametrize("passes", [(), (PassOrder("joint"),)])
def test_a_forward_between_steps_returns_no_loss(
    make_trial: TrialMaker, passes: tuple[PassOrder, ...]
) -> None:
    """The module keeps no targets of a training batch for a forward of another batch."""
    trial = make_trial(scope=Scope())
    actions = Actions((BetweenSteps("evaluation with gradients", 1), BetweenSteps("inference", 2)))
    case = replace(
        CASE,
        accumulation=2,
        data=Data(samples=16, batch_size=3),
        situations=(*passes, CallShape(outputs=("loss", "plain")), actions),
    )
    findings = trial.findings(case)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}


NESTED = '''
from torch import Tensor
from ddp_invariants.reference.ddp import DistributedDataParallel


class RefusesDicts(DistributedDataParallel):
    """Right: it takes no dict."""

    def forward(self, *args, **kwargs):
        if any(isinstance(each, dict) for each in args):
            raise NotImplementedError("give the tensors themselves")
        return super().forward(*args, **kwargs)


class DetachesNested(DistributedDataParallel):
    """Wrong: a tensor in a dict loses its graph."""

    def forward(self, *args, **kwargs):
        args = [
            {k: v.detach() if isinstance(v, Tensor) else v for k, v in each.items()}
            if isinstance(each, dict)
            else each
            for each in args
        ]
        return super().forward(*args, **kwargs)
'''


@pytest.mark.parametrize(
    ("name", "nested", "gradients"),
    [
        ("RefusesDicts", Standing.REFUSED, Standing.RIGHT),
        ("DetachesNested", Standing.RIGHT, Standing.WRONG),
    ],
)
def test_gradients_leave_through_a_dict_only_if_the_wrapper_takes_dicts(
    pool: Pool,
    discovered: Discover,
    tmp_path: Path,
    name: str,
    nested: Standing,
    gradients: Standing,
) -> None:
    """A refusal of dicts leaves the capability of input gradients to be judged with plain inputs."""
    path = tmp_path / "nested.py"
    path.write_text(NESTED, encoding="utf-8")
    discovery = discovered(pool, Ddp(f"{path}:{name}"), Sampler(), 4)
    found = {probed.capability: probed.standing for probed in discovery.ddp_probes}
    assert (found["nested_inputs"], found["input_gradients"]) == (nested, gradients)
