"""A loss that the program multiplies by a tiny number."""

from dataclasses import replace

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.program import LossScale, Optimizer
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.faint_loss import FAINT_LOSS, FaintLoss
from ddp_invariants.situations.scaler import Scaler


@pytest.mark.parametrize("optimizer", [Optimizer(momentum=0.5), Optimizer("adamw")], ids=str)
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_right_wrappers_hold_with_tiny_gradients(
    make_trial: TrialMaker, ddp: str, world_size: int, optimizer: Optimizer
) -> None:
    """All rules hold, and GRAD-3 is judged."""
    case = replace(BASE, world_size=world_size, values="real", optimizer=optimizer)
    for log2 in (-20, -80):
        findings = make_trial(ddp=ddp, scope=Scope()).findings(case.with_situation(FaintLoss(log2)))
        assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
        assert FAINT_LOSS in findings["GRAD-3"].met


def test_other_factors_and_a_scaler_are_refused() -> None:
    """A scaler would change the factor; a number that float32 cannot hold is not one."""
    for situations in ((FaintLoss(-200),), (FaintLoss(), Scaler(LossScale(8)))):
        with pytest.raises(CaseError, match=r"faint_loss|scaler"):
            replace(BASE, situations=situations)
