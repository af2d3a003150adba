"""Tests that no right implementation is accused, and that the suite knows what each can do."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TrialMaker, composed
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Data, Optimizer
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants.sampler_view import sharding
from ddp_invariants.invariants.view import training
from ddp_invariants.records.verdict import Verdict
from ddp_invariants.search.crossing import CROSSED, crossed
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.module_use import ModuleUse
from ddp_invariants.situations.other_method import OtherMethod
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.resized import Resized

CONTROLS = str(Path(__file__).parents[1] / "helpers" / "controls.py")

# properties/ judges the reference by all rules, and the gallery judges torch's DDP.
WRAPPERS = {
    name: f"{CONTROLS}:{name}"
    for name in ("EqualSeeds", "ExplicitCall", "in_place", "TensorHooks", "FlatParameters")
}
SAMPLERS = {"torch": "torch", "SlicesOfTheOrder": f"{CONTROLS}:SlicesOfTheOrder"}
RULES = ["INIT-1", "INIT-2", "LOSS-2", "GRAD-2", "GRAD-7", "PARAM-3", "COMM-2", "COMM-3", "LIVE-2"]


@pytest.mark.parametrize("ddp", WRAPPERS.values(), ids=WRAPPERS)
def test_a_right_wrapper_is_not_accused_by_any_rule(make_trial: TrialMaker, ddp: str) -> None:
    """All rules are judged on every case of a right wrapper, and none fails or is refused."""
    trial = make_trial(ddp=ddp, cases=14)
    for rule in [*RULES, "INIT-4"]:
        if not trial.scope.excluded(rule):
            trial.certify(rule, cases_for(rule, trial.scope))
    for rule in training.rules:
        entry = trial.ledger[rule]
        assert entry.seen == 0, (rule, entry.failures)
        assert not any(" raised " in reason for reason in entry.unjudged), entry.unjudged
    assert trial.ledger["GRAD-3"].judged > 70


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_right_sampler_is_not_accused_by_any_rule(make_trial: TrialMaker, sampler: str) -> None:
    """All rules are judged on every case of a right sampler, and none fails.

    A sampler that cannot shuffle or drop is not asked to do so.
    """
    trial = make_trial(sampler=sampler, cases=60)
    for rule in ("SHARD-1", "SHARD-6", "SHARD-7"):
        trial.certify(rule, cases_for(rule, trial.scope))
    assert all(trial.ledger[rule].seen == 0 for rule in sharding.rules)


def test_what_a_sampler_does_not_take_is_not_asked_of_it(make_trial: TrialMaker) -> None:
    """A sampler that can neither drop nor shuffle is judged without both, as the ledger reports."""
    trial = make_trial(sampler=f"{CONTROLS}:SlicesOfTheOrder", cases=40)
    trial.certify("SHARD-3", cases_for("SHARD-3", trial.scope))
    assert trial.ledger["SHARD-3"].verdict is Verdict.HOLDS
    assert (
        trial.ledger["SHARD-3"].not_claimed == "not judged with drop_last and shuffle: not offered"
    )


def test_a_mean_for_each_forward_of_one_backward_is_not_accused(make_trial: TrialMaker) -> None:
    """Means of parts may round where the mean of the sums is exact, and stay within the bound."""
    linear = Layer("linear", 8)
    case = TrainingCase(
        model=Model(8, (linear, linear)),
        data=Data(samples=9),
        steps=2,
        accumulation=2,
        situations=(PassOrder("joint"),),
    )
    trial = make_trial(ddp="ddp_invariants.faults.unusual:InsideTheGraph", scope=Scope())
    findings = trial.findings(case)
    assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    assert not findings["GRAD-13"].unjudged


def test_copies_whose_gradients_are_nan_are_not_accused(make_trial: TrialMaker) -> None:
    """A sum of two NaNs has the bits of the first one; the float16 layer overflows."""
    layers = [Layer("linear", 4) for _ in range(6)]
    layers[0], layers[4] = Layer("linear", 8, bias=True), Layer("linear", 2, dtype="float16")
    case = TrainingCase(
        Model(8, (*layers, Layer("scale"))),
        world_size=3,
        data=Data(samples=4),
        steps=2,
        seed=3217896,
        situations=(ModuleUse(("wrapper copies",)),),
    )
    wrapper = composed("each ready doubled before registered forwards together kept copied")
    findings = make_trial(ddp=wrapper, scope=Scope()).findings(case)
    assert findings["MOD-3"].failure is None
    assert findings["MOD-3"].compared


@pytest.mark.parametrize("outputs", [5, 6, 7])
def test_a_pruned_layer_whose_parameter_lies_elsewhere_is_not_accused(
    make_trial: TrialMaker, outputs: int
) -> None:
    """Each forward computes a pruned layer's weight anew, in other memory than the parameter's.

    The kernels of torch round otherwise where a tensor does not begin at a cache line.
    """
    case = TrainingCase(
        Model(1, (Layer("linear", outputs), Layer("linear", 4))),
        steps=2,
        values="real",
        situations=(Actions((BetweenSteps("prune", layer=1),)),),
    )
    wrapper = composed("capped end nodes before backward forwards summed flattened copied")
    findings = make_trial(ddp=wrapper, scope=Scope()).findings(case)
    assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    assert findings["LOSS-1"].compared
    assert findings["GRAD-2"].compared


def test_a_module_with_hooks_in_place_offers_no_method_of_a_wrapper(
    make_trial: TrialMaker,
) -> None:
    """Torch calls a module's hooks around its forward alone, so no rule is about other methods."""
    trial = make_trial(ddp=f"{CONTROLS}:hooks_of_forwards", scope=Scope())
    findings = trial.findings(
        TrainingCase(situations=(OtherMethod(),), model=Model(1, (Layer("linear"),)))
    )
    assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    assert findings["CALL-3"].unjudged


ACCUSED = {
    "products between the terms overflow": TrainingCase(
        Model(3, (Layer("linear", 4, bias=True), Layer("terms", 2), Layer("linear", 4))),
        world_size=4,
        data=Data(samples=6),
        steps=3,
        accumulation=2,
        optimizer=Optimizer(momentum=0.5, nesterov=True),
        values="real",
        log2_scale=8,
        seed=17616,
    ),
    "more ranks saved than one large batch has": replace(
        GENTLE, outside=1, accumulation=2, situations=(Resized(3),)
    ),
}
"""Cases in which the suite once accused the reference, or crashed."""


@pytest.mark.parametrize("case", ACCUSED.values(), ids=ACCUSED)
def test_a_case_that_accused_the_reference_does_so_no_more(
    make_trial: TrialMaker, case: TrainingCase
) -> None:
    """No rule fails, and none crashes."""
    findings = make_trial(scope=Scope()).findings(case)
    assert {rule for rule, each in findings.items() if each.failure or each.crashed} == set()
    assert findings["GRAD-12"].compared > 0


ALL_DISTANCES = range(1, len(CROSSED) // 2 + 1)
"""The distances in the table of capabilities at which all pairs lie."""


@pytest.mark.parametrize(
    "distances",
    [
        pytest.param((1, 5, 17), id="some"),
        pytest.param(ALL_DISTANCES, id="all", marks=pytest.mark.long),
    ],
)
def test_no_pair_of_capabilities_accuses_the_reference(
    make_trial: TrialMaker, distances: Iterable[int]
) -> None:
    """The probe of each capability is crossed with others, and every rule holds."""
    trial, ran = make_trial(), 0
    for number, name in enumerate(CROSSED):
        for distance in distances:
            other = CROSSED[(number + distance) % len(CROSSED)]
            if not (trial.scope.has(name) and trial.scope.has(other)):
                continue
            alone = trial.scope.fit(TRAINING[name].probe)
            case = crossed(alone, other, trial.scope)
            if case is alone:
                continue
            findings = trial.findings(trial.scope.fit(case))
            ran += 1
            wrong = {rule for rule, each in findings.items() if each.failure or each.crashed}
            assert wrong == set(), (name, other)
            assert not any(" raised " in each.unjudged for each in findings.values()), (name, other)
    assert ran > 0.7 * len(CROSSED) * len(list(distances))
