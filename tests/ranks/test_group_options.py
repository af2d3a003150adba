"""Groups of parameters keep their own options of the optimizer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Data, Optimizer
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.ranks.training.groups import ParameterGroups
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.group_options import GROUPED, GroupOptions
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.schedule import RateSchedule

FAULTS = "ddp_invariants.faults.modules:"
CASE = replace(GENTLE, steps=3, optimizer=Optimizer(log2_lr=-6, momentum=0.5, weight_decay=0.25))
GROUPS = CASE.with_situation(GroupOptions(decays=False))


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(log2_lr=-6),
        Optimizer(log2_lr=-6, momentum=0.5, weight_decay=0.25, nesterov=True),
        Optimizer("adamw", log2_lr=-6, weight_decay=0.25),
        Optimizer("adam", log2_lr=-6, weight_decay=0.25, kernels="fused"),
    ],
    ids=str,
)
@pytest.mark.parametrize("ddp", ["reference", "torch", f"{FAULTS}makes_the_groups_anew"])
def test_right_groups_follow_their_own_options(
    make_trial: TrialMaker, ddp: str, optimizer: Optimizer
) -> None:
    """PARAM-3 judges each parameter by its group, also after a lower rate and a reload."""
    trial = make_trial(ddp=ddp, scope=Scope())
    actions = [BetweenSteps("learning rate", 1), BetweenSteps("decay", 2)]
    actions += [] if "anew" in ddp else [BetweenSteps("reload", 1)]
    scheduled = GROUPS.with_situation(GroupOptions(log2_later=-3))
    for case in (GROUPS, replace(GROUPS, world_size=1), scheduled):
        for situated in (case, case.with_situation(Actions(tuple(actions)))):
            findings = trial.really(replace(situated, optimizer=optimizer))
            failed = {name: each.failure for name, each in findings.items() if each.failure}
            assert failed == {}
            assert GROUPED in findings["PARAM-3"].met


@pytest.mark.parametrize(
    ("fault", "options", "cause"),
    [
        ("makes_one_group", GroupOptions(), "options of parameter group 0, not of 1"),
        ("decays_all_alike", GroupOptions(decays=False), ""),
    ],
)
def test_lost_options_violate_param_3(
    make_trial: TrialMaker, fault: str, options: GroupOptions, cause: str
) -> None:
    """No rule fails where all groups have the same options."""
    trial = make_trial(ddp=FAULTS + fault, scope=Scope())
    findings = trial.really(CASE)
    assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    failure = trial.really(CASE.with_situation(options))["PARAM-3"].failure
    assert failure is not None
    assert cause in failure.perhaps


def test_groups_are_refused_where_something_else_changes_them() -> None:
    """A schedule sets the rate of all groups, and new tensors have no groups."""
    for situation in (RateSchedule((0, -1)), Actions((BetweenSteps("assign"),))):
        with pytest.raises(CaseError, match="group"):
            GROUPS.with_situation(situation)
    with pytest.raises(CaseError, match="a rate of"):
        replace(GROUPS, optimizer=Optimizer(log2_lr=-30))
    with pytest.raises(CaseError, match="a rate of"):
        replace(GROUPS, optimizer=Optimizer(log2_lr=-28)).with_situation(
            GroupOptions(-2, log2_later=-1)
        )


TRAINED_ONLY = """
from torch.nn.parallel import DistributedDataParallel

class TrainedOnly:
    def wrap(self, module, context):
        return DistributedDataParallel(module)

    def make_optimizer(self, wrapped, context):
        return context.optimizer([p for p in wrapped.parameters() if p.requires_grad])
"""
"""An adapter whose optimizer gets no frozen parameter."""
LATER = GroupOptions(log2_later=-2)


@pytest.mark.parametrize(
    ("ddp", "case"),
    [
        (
            "trained_only.py:TrainedOnly",
            replace(CASE, model=Model(2, (Layer("linear"), Layer("linear", frozen=True)))),
        ),
        ("reference", replace(CASE, data=Data(samples=8, batch_size=2)).with_situation(Resized(1))),
    ],
    ids=["no second group", "loaded"],
)
def test_a_rate_changes_where_its_group_is_and_when_it_should(
    make_trial: TrialMaker, tmp_path: Path, ddp: str, case: TrainingCase
) -> None:
    """A group may have no parameter, and a loaded optimizer has the rate of a later step."""
    (tmp_path / "trained_only.py").write_text(TRAINED_ONLY, encoding="utf-8")
    trial = make_trial(ddp=str(tmp_path / ddp) if ".py" in ddp else ddp)
    for options in (GroupOptions(), LATER):
        situated = case.with_situation(options)
        assert trial.scope.fit(situated) == situated
        findings = trial.really(situated)
        assert {name: each.failure for name, each in findings.items() if each.failure} == {}
        assert findings["PARAM-3"].compared


def test_a_rate_that_changes_in_the_second_group_alone_reaches_the_optimizer(
    make_trial: TrialMaker,
) -> None:
    """The optimizer hands on all rates if the first has changed, and no rate otherwise."""
    optimizer = "ddp_invariants.faults.optimizers:LooksAtTheFirstGroup"
    trial = make_trial(ddp=Ddp(optimizer=optimizer), scope=Scope())
    for situations in ((GroupOptions(),), (RateSchedule((0, -3)),)):
        findings = trial.findings(replace(CASE, situations=situations))
        assert {name: each.failure for name, each in findings.items() if each.failure} == {}
    failure = trial.findings(CASE.with_situation(GroupOptions(log2_later=-3)))["PARAM-3"].failure
    assert failure is not None
    assert "the learning rate of the first step" in failure.perhaps


class _Sharded(torch.Tensor):
    """A tensor of which a rank may hold no element."""


def test_other_tensors_are_refused_whatever_their_values_on_a_rank() -> None:
    """A rank's shard may be empty, and all ranks must raise alike."""
    module = nn.Linear(1, 1)
    ParameterGroups.mark(module)
    make = ParameterGroups(GROUPS, GroupOptions(decays=False))
    assert len(make(module.parameters())) == 2
    sharded = torch.zeros(1).as_subclass(_Sharded)
    for other in (sharded, nn.Parameter(sharded), torch.zeros(2), torch.ones(1)):
        with pytest.raises(NotImplementedError, match="other tensors than the module's"):
            make([other])
