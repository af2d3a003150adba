"""Parameters that an optimizer gets when their layer is unfrozen move as the others do."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, BetweenStepsKind, Data, Optimizer
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.group_options import GroupOptions
from ddp_invariants.situations.module_use import ModuleUse

FAULTS = "ddp_invariants.faults.optimizers:"
PLAIN = TrainingCase(
    Model(2, (Layer("linear", 3), Layer("linear", 3, bias=True, frozen=True), Layer("linear", 2))),
    steps=4,
    values="real",
    data=Data(samples=16, batch_size=2),
    optimizer=Optimizer(momentum=0.5),
)
UNFREEZE = BetweenSteps("unfreeze", 2, 1)
CASE = PLAIN.with_situation(Actions((UNFREEZE,), adds=True))


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(),
        Optimizer(momentum=0.5, weight_decay=0.25, nesterov=True),
        Optimizer("adamw", weight_decay=0.25, kernels="foreach"),
        Optimizer("adam", weight_decay=0.25, amsgrad=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "ddp",
    [
        Ddp(),
        Ddp(optimizer="torch.distributed.optim:ZeroRedundancyOptimizer"),
        Ddp(optimizer=f"{FAULTS}Owned"),
    ],
    ids=str,
)
def test_a_right_optimizer_trains_a_layer_that_it_gets_later(
    make_trial: TrialMaker, ddp: Ddp, optimizer: Optimizer
) -> None:
    """All steps are judged, also where other options change before it gets the layer, or after."""
    trial = make_trial(ddp=ddp, scope=Scope())
    lowered = Actions((BetweenSteps("learning rate", 1), UNFREEZE), adds=True)
    decayed = Actions((UNFREEZE, BetweenSteps("decay", 2)), adds=True)
    for case in (
        CASE,
        replace(CASE, world_size=3),
        PLAIN.with_situation(lowered),
        PLAIN.with_situation(decayed),
    ):
        findings = trial.really(replace(case, optimizer=optimizer))
        assert {name: each.failure for name, each in findings.items() if each.failure} == {}
        # All 24 elements after each of four steps, and before each step but the first.
        assert findings["PARAM-3"].compared == case.world_size * 7 * 24


def test_an_optimizer_that_forgets_its_state_with_a_new_group_is_wrong(
    make_trial: TrialMaker,
) -> None:
    """It is right as long as it has the layer from the start."""
    trial = make_trial(ddp=Ddp(optimizer=f"{FAULTS}StartsAnewWithAGroup"), scope=Scope())
    early = PLAIN.with_situation(Actions((UNFREEZE,)))
    findings = trial.findings(early)
    assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    failure = trial.findings(CASE)["LIVE-5"].failure
    assert failure is not None
    assert "the optimizer's state of the steps before was lost" in failure.perhaps


GROUPLESS = """
import torch

class Groupless:
    declares = {"update": "sgd"}

    def __init__(self, params, lr=1.0, **options):
        inner = torch.optim.SGD(params, lr=lr, **options)
        self.step, self.zero_grad, self.state_dict = inner.step, inner.zero_grad, inner.state_dict
"""
"""An optimizer that shows no groups, and takes none."""


def test_an_optimizer_that_takes_no_group_is_not_accused(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """Nor is one over parameters that the ranks share."""
    (tmp_path / "groupless.py").write_text(GROUPLESS, encoding="utf-8")
    groupless = Ddp(optimizer=str(tmp_path / "groupless.py:Groupless"))
    shared = Ddp(optimizer=f"{FAULTS}Owned", declares={"zero": 3, "optimizer": "own"})
    for ddp, reason in (
        (groupless, "Groupless takes no group"),
        (shared, "ranks share the parameters"),
    ):
        findings = make_trial(ddp=ddp, scope=Scope()).findings(CASE)
        assert {name: each.failure for name, each in findings.items() if each.failure} == {}
        assert reason in findings["PARAM-3"].unjudged


ADAPTER = """
import torch.distributed as dist
from ddp_invariants.reference.ddp import DistributedDataParallel

class Owned:
    def __init__(self, parameters, context):
        self.parameters = [*parameters]
        own = self.parameters[dist.get_rank()::dist.get_world_size()]
        self.inner = context.optimizer(own) if own else None

    @property
    def param_groups(self):
        return self.inner.param_groups if self.inner else []

    def add_param_group(self, group):
        self.inner.add_param_group(group)

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        if self.inner:
            self.inner.step()
        for number, parameter in enumerate(self.parameters):
            dist.broadcast(parameter.data, number % dist.get_world_size())

class Adapter:
    declares = {"optimizer": "own"}

    def wrap(self, module, context):
        return DistributedDataParallel(module)

    def make_optimizer(self, wrapped, context):
        return Owned(wrapped.parameters(), context)
"""
"""An adapter whose optimizer has other parameters on each rank, and on some ranks none."""


@pytest.mark.parametrize("layers", [1, 3])
def test_an_adapters_optimizer_of_some_parameters_is_left_alone(
    make_trial: TrialMaker, tmp_path: Path, layers: int
) -> None:
    """No rank knows the others' parameters, so all of them refuse, and nobody waits."""
    (tmp_path / "owned.py").write_text(ADAPTER, encoding="utf-8")
    trial = make_trial(ddp=Ddp(str(tmp_path / "owned.py:Adapter")), scope=Scope())
    model = Model(2, (Layer("linear", 2),) * layers)
    plain = replace(PLAIN, model=model, optimizer=Optimizer())
    findings = trial.findings(plain)
    assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    assert findings["PARAM-3"].compared
    refused = trial.really(plain.with_situation(ModuleUse(("groups",))))
    assert {name: each.failure for name, each in refused.items() if each.failure} == {}
    assert "rank 0 raised NotImplementedError" in refused["PARAM-3"].unjudged
    assert "Owned takes no group of parameters" in refused["PARAM-3"].unjudged


@pytest.mark.parametrize("kind", ["reload", "assign"])
def test_groups_are_added_to_an_optimizer_that_lasts(kind: BetweenStepsKind) -> None:
    """A program that makes a new one has other parameters in its first group."""
    with pytest.raises(CaseError, match="a new optimizer would not have the groups"):
        PLAIN.with_situation(Actions((UNFREEZE, BetweenSteps(kind, 3)), adds=True))


def test_other_groups_exclude_groups_that_are_added() -> None:
    """The place of a parameter decides its group, and an added one has a group of its own."""
    with pytest.raises(CaseError, match="no groups that are added"):
        CASE.with_situation(GroupOptions())


def test_a_layer_that_was_never_frozen_is_not_added(make_trial: TrialMaker) -> None:
    """A simpler case may have no frozen layer left; one that stays frozen is never added."""
    layers = (Layer("linear", 3), Layer("linear", 3), Layer("scale", frozen=True))
    trial = make_trial(ddp=Ddp(optimizer=f"{FAULTS}Owned"), scope=Scope())
    findings = trial.findings(replace(CASE, model=Model(2, layers)))
    assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    assert findings["PARAM-3"].compared
