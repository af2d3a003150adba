"""Ranks whose loss reaches no trained parameter, also because the program freezes a layer."""

import pytest

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Unused
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.unused import UnusedLayers, unreached


def frozen(unused: int) -> TrainingCase:
    """Return a case in which rank 2 passes a layer by, and the other layer is frozen later."""
    situations = (
        UnusedLayers((Unused(unused, rank=2),)),
        Actions((BetweenSteps("freeze", 1, 1 - unused),)),
    )
    return TrainingCase(Model(1, (Layer("linear"),) * 2), 3, steps=2, situations=situations)


@pytest.mark.parametrize("unused", [0, 1])
def test_a_frozen_layer_may_leave_a_rank_nothing_to_train(pool: Pool, unused: int) -> None:
    """The inputs then require a gradient, so that every backward runs and no rank is blamed."""
    case = frozen(unused)
    assert unreached(case)
    findings = judge(pool.train(case, Ddp()))
    assert not {rule: each.failure for rule, each in findings.items() if each.failure}
    assert findings["PARAM-3"].compared


@pytest.mark.parametrize("unused", [0, 1])
def test_an_implementation_without_the_capability_gets_no_such_case(unused: int) -> None:
    """Every forward then reaches a parameter that is trained."""
    fitted = Scope(without=frozenset({"unreached"})).fit(frozen(unused))
    assert isinstance(fitted, TrainingCase)
    assert not unreached(fitted)
