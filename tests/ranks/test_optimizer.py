"""Optimizers that a program makes before wrapping, and options that an inner optimizer must take over."""

from dataclasses import replace

import pytest
import torch

from conftest import TrialMaker
from ddp_invariants.cases.dtypes import Dtype
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Kernels, Optimizer
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.ranks.training.groups import ParameterGroups
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import BASE, GENTLE
from ddp_invariants.situations.group_options import GroupOptions
from ddp_invariants.situations.optimizer_first import MADE_FIRST, OptimizerFirst

FIRST = GENTLE.with_situation(OptimizerFirst())
ADAM = Optimizer("adam", beta_1=0.5, beta_2=0.25, epsilon=2.0**-6, amsgrad=True)
ACTIONS = (BetweenSteps("learning rate", 1), BetweenSteps("reload", 2))


@pytest.mark.parametrize("ddp", ["reference", "torch", "ddp_invariants.faults.flattened:Flattened"])
def test_right_wrappers_train_by_an_optimizer_made_before(make_trial: TrialMaker, ddp: str) -> None:
    """The optimizer knows the parameters, also after a lower rate and a reload."""
    trial = make_trial(ddp=ddp, scope=Scope())
    for world_size in (1, 2, 3):
        for case in (
            FIRST,
            replace(FIRST, steps=4).with_situation(Actions(ACTIONS)),
            FIRST.with_situation(GroupOptions()),
        ):
            findings = trial.findings(replace(case, world_size=world_size))
            failed = {name: each.failure for name, each in findings.items() if each.failure}
            assert failed.keys() <= {"COMM-5"}
            assert MADE_FIRST in findings["PARAM-3"].met


def test_parameters_that_are_assigned_get_an_optimizer_of_their_own(make_trial: TrialMaker) -> None:
    """The optimizer made before wrapping knows the parameters of then alone."""
    trial = make_trial(ddp="reference", scope=Scope())
    case = replace(FIRST, steps=2).with_situation(Actions((BetweenSteps("assign", 1),)))
    findings = trial.findings(case)
    assert not {name for name, each in findings.items() if each.failure}
    assert MADE_FIRST in findings["PARAM-3"].met


@pytest.mark.parametrize("ddp", ["ddp_invariants.faults.sharded:Sliced", "fsdp2"])
def test_an_implementation_with_its_own_optimizer_refuses_one_made_before(
    make_trial: TrialMaker, ddp: str
) -> None:
    """That is a refusal of all ranks, and no rule fails."""
    trial = make_trial(ddp=ddp, scope=Scope())
    findings = trial.really(FIRST)
    assert not {name for name, each in findings.items() if each.failure} - {"LIVE-1"}
    assert isinstance(trial.evidence, TrainingEvidence)
    assert {rank.raised.type for rank in trial.evidence.ranks if rank.raised} == {
        "NotImplementedError"
    }


def test_a_parameter_made_anew_has_no_group() -> None:
    """Its options are unknown; a zero in place of a rank's missing parameters may have any."""
    case = GENTLE.with_situation(GroupOptions())
    found = case.get(GroupOptions)
    assert found is not None
    groups = ParameterGroups(case, found)
    with pytest.raises(NotImplementedError, match="which have no groups"):
        groups([torch.nn.Parameter(torch.full((1,), 0.5))])
    assert len(groups([torch.nn.Parameter(torch.zeros(1))])) == 1


@pytest.mark.parametrize("kernels", ["default", "foreach", "fused"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64"])
def test_right_wrappers_keep_adams_constants(
    make_trial: TrialMaker, dtype: Dtype, kernels: Kernels
) -> None:
    """The oracle follows other constants, AMSGrad, steps that maximise, groups and a reload."""
    if kernels == "fused" and dtype in ("bfloat16", "complex64"):
        pytest.skip("torch has no such kernel")
    trial = make_trial(ddp="reference", scope=Scope())
    model = Model(4, (Layer("linear", 4), Layer("linear", 4, dtype=dtype), Layer("linear", 2)))
    for optimizer in (ADAM, replace(ADAM, kind="adamw", weight_decay=0.25, maximize=True)):
        case = replace(
            BASE, model=model, steps=4, values="real", optimizer=replace(optimizer, kernels=kernels)
        )
        actions = case.with_situation(Actions((BetweenSteps("reload", 2),)))
        for each in (case, actions, case.with_situation(GroupOptions())):
            findings = trial.findings(each)
            assert not {name: each.failure for name, each in findings.items() if each.failure}
            assert "other constants of Adam" in findings["PARAM-3"].met
