"""Gradients that are averaged in the optimizer's step, where only parameters show the result."""

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.program import Unused
from ddp_invariants.discovery.not_offered import lacking_as_declared, lacking_as_driven
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants.view import training
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.unused import UnusedLayers, unused_by_all

FUNCTIONAL = "ddp_invariants.faults.functional:"


@pytest.mark.parametrize(
    ("layers", "kept"),
    [
        ((Unused(1),), ()),
        ((Unused(1, rank=0), Unused(1, rank=1)), (Unused(1, rank=0),)),
        ((Unused(2, rank=1, step=0),), (Unused(2, rank=1, step=0),)),
        ((Unused(3, step=1), Unused(2, rank=1)), (Unused(2, rank=1),)),
    ],
)
def test_some_rank_uses_each_layer_in_each_step(
    layers: tuple[Unused, ...], kept: tuple[Unused, ...]
) -> None:
    """Nobody sees whether a parameter that no rank uses gets a zero for its gradient."""
    case = BASE.with_situation(UnusedLayers(layers))
    fitted = Scope(without=frozenset({"unused_by_all"})).fit(case)
    assert isinstance(fitted, TrainingCase)
    assert not unused_by_all(fitted)
    assert fitted.unused == kept
    assert unused_by_all(case) == (kept != layers)


def test_what_ranks_must_run_alike_is_left_out() -> None:
    """Sharded parameters exist in a forward alone, which all ranks must run in one way."""
    hidden = lacking_as_declared({"lacks": ()}, Declarations(gradients="hidden"))
    assert {"unused", "freeze"}.isdisjoint(hidden)
    assert "unused_by_all" in hidden
    sharded = lacking_as_declared({"lacks": ()}, Declarations(gradients="hidden", zero=3))
    assert {"unused", "freeze", "unfreeze"} <= sharded


@pytest.mark.parametrize("moment", ["before each batch", "step"])
def test_gradients_that_a_call_may_clear_are_cleared_by_the_program(moment: str) -> None:
    """A method such as `zero_grad_buffer`, or an engine's step, may clear them."""
    assert "never_zeroed" in lacking_as_driven({moment: "a method"}, Declarations())
    assert "never_zeroed" not in lacking_as_driven({}, Declarations())


def test_a_right_one_is_not_accused(make_trial: TrialMaker, pool: Pool) -> None:
    """It meets layers that some ranks leave unused, and groups that are added after wrapping."""
    trial = make_trial(ddp=FUNCTIONAL + "averages_all", cases=40)
    for rule in ("PARAM-3", "LIVE-5"):
        trial.certify(rule, cases_for(rule, trial.scope))
    assert all(trial.ledger[rule].seen == 0 for rule in training.rules)
    lacking = {*pool.describe(Ddp(FUNCTIONAL + "averages_all"))["lacks"]}
    assert {"unused", "unfreeze_in_group"}.isdisjoint(lacking | trial.scope.without)
