"""Gradients of which some are set to None before a step, and others zeroed in place."""

from dataclasses import replace

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import ZeroGrad
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.situations.capability import BASE

CASE = replace(BASE, steps=3)
MIXED = "some gradients set to None and others zeroed in place"


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    "ddp", ["reference", "torch", "ddp_invariants.faults.flattened:HandsBackViews"]
)
def test_gradients_cleared_in_two_ways_leave_nothing_behind(
    make_trial: TrialMaker, ddp: str, world_size: int
) -> None:
    """Right wrappers hold, and GRAD-5 is judged."""
    trial = make_trial(ddp=ddp, scope=Scope())
    data = replace(CASE.data, samples=12)
    findings = trial.findings(replace(CASE, world_size=world_size, data=data, zero_grad="mixed"))
    failed = {rule: each.failure for rule, each in findings.items() if each.failure}
    assert failed.keys() <= {"COMM-5"}  # One of the three communicates at the end of backward.
    assert MIXED in findings["GRAD-5"].met


@pytest.mark.parametrize("way", ["set_to_none", "zero", "never"])
def test_a_wrapper_that_asks_one_parameter_fails_only_where_ways_are_mixed(
    make_trial: TrialMaker, way: ZeroGrad
) -> None:
    """Each other way clears all gradients alike."""
    trial = make_trial(ddp="ddp_invariants.faults.flattened:AsksTheLastParameter", scope=Scope())
    assert trial.findings(replace(CASE, zero_grad=way))["GRAD-5"].failure is None
    assert trial.findings(replace(CASE, zero_grad="mixed"))["GRAD-5"].failure is not None
