"""Tests of the PARAM and STATE rules on handmade evidence."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from handmade import CASE, WEIGHT, altered, everywhere, one_bit_up, raised_by_one, right

from ddp_invariants.cases.dtypes import Dtype
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    BetweenSteps,
)
from ddp_invariants.implementation.declarations import Declarations, Gradients
from ddp_invariants.implementation.names import OPTIMIZER
from ddp_invariants.invariants import judge, param
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.oracle import balls
from ddp_invariants.records.evidence import (
    Layout,
    Moment,
    Tensors,
)
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.clipping import Clipping


@pytest.mark.parametrize(
    ("values", "holds"), [((np.nan, -np.nan), True), ((0.0, -0.0), True), ((np.nan, 1.0), False)]
)
def test_param3_what_moves_between_steps_is_a_value(
    values: tuple[float, float], *, holds: bool
) -> None:
    """A broadcast by a sum may change the sign of a zero, and a cast the bits of a NaN."""
    evidence = right(CASE)
    moments: list[tuple[Moment, int]] = [("updated", 1), ("forward", 2)]
    for (moment, step), value in zip(moments, values, strict=True):
        evidence = everywhere(
            evidence, moment, step, WEIGHT, partial(np.full_like, fill_value=value)
        )
    assert (param.moved_between(EvidenceView(evidence), Tally(), 2) is None) is holds


@pytest.mark.parametrize(
    ("declared", "factor", "fires"),
    [
        (Declarations(), 1 + 2.0**-9, True),
        (Declarations(main="float32"), 1 + 2.0**-9, False),
        (Declarations(main="float32"), 1 + 2.0**-5, True),
    ],
)
def test_param3_allows_for_a_copy_where_one_is_declared(
    declared: Declarations, factor: float, *, fires: bool
) -> None:
    """A declared float32 copy of a bfloat16 parameter allows two roundings in a step.

    One rounding comes before the step and one after it.
    """
    expected = EvidenceView(right(), declared).expected
    low = balls.FORMATS["bfloat16"]
    form = balls.Format(np.array([low.roundoff]), np.array([low.smallest]), np.array([low.largest]))
    gradient = balls.exactly(np.array([0.0]))
    updated = expected.updated(0, np.array([3.0]), gradient, form)
    assert (abs(3.0 * factor - updated.centre[0]) > updated.radius[0]) == fires


def test_state1_wants_the_next_forward_to_start_from_the_loaded_state() -> None:
    """The step's own start and what was loaded are compared on every rank."""
    evidence = right(CASE.with_situation(Actions((BetweenSteps("reload", 2),))))
    assert judge(evidence)["STATE-1"].failure is None
    moved = altered(evidence, 1, "forward", 2, WEIGHT, one_bit_up)
    failure = judge(moved)["STATE-1"].failure
    assert failure is not None
    assert failure.fact == "a parameter changes between loading and the next forward"
    assert failure.where == f"rank 1 of 2, step 2, parameter {WEIGHT!r} (2, 2)"


def test_param3_meets_only_what_can_change_a_step() -> None:
    """A limit that no norm reaches clips nothing, and the first step has no momentum yet."""
    finding = judge(right(CASE.with_situation(Clipping(2.0**20))))["PARAM-3"]
    assert finding.failure is None
    assert "momentum" in finding.met
    assert "gradients clipped" not in finding.met
    assert "momentum" not in judge(right(replace(CASE, steps=1)))["PARAM-3"].met


def test_param4_compares_with_plain_training_at_one_rank() -> None:
    """One bit away from plain training violates PARAM-4, at W = 1 only."""
    evidence = right(replace(CASE, world_size=1))
    assert judge(evidence)["PARAM-4"].met == {"one rank"}
    moved = altered(evidence, 0, "updated", 1, WEIGHT, one_bit_up)
    assert judge(moved)["PARAM-4"].failure is not None


def test_a_sum_over_one_rank_may_lose_the_sign_of_a_zero() -> None:
    """A sum that starts at zero makes 0 of -0; any other difference is wrong."""
    evidence = right(replace(CASE, world_size=1))
    evidence = altered(evidence, 0, "plain", 2, WEIGHT, lambda value: np.full_like(value, -0.0))
    evidence = altered(evidence, 0, "updated", 2, WEIGHT, np.zeros_like)
    finding = judge(evidence)["PARAM-4"]
    assert finding.failure is None
    assert finding.compared > 0
    moved = altered(evidence, 0, "updated", 2, WEIGHT, lambda value: value + 2.0**-120)
    assert judge(moved)["PARAM-4"].failure is not None


@pytest.mark.parametrize(
    ("dtype", "accumulation", "gradients", "about"),
    [
        ("bfloat16", 3, "hidden", False),
        ("bfloat16", 3, "all", False),
        ("bfloat16", 2, "hidden", True),
        ("float32", 3, "hidden", False),
        ("float32", 2, "all", True),
    ],
)
def test_three_gradients_may_be_added_in_a_wider_format(
    dtype: Dtype, accumulation: int, gradients: Gradients, *, about: bool
) -> None:
    """Three of them are then rounded once, and twice in plain training; PARAM-3 has a bound."""
    evidence = right(replace(CASE, world_size=1))
    model = Model(2, (Layer("linear", 2, dtype=dtype),))
    case = replace(evidence.case, model=model, accumulation=accumulation)
    finding = judge(replace(evidence, case=case), Declarations(gradients=gradients))["PARAM-4"]
    assert finding.about == about


@pytest.mark.parametrize("returned", [True, False])
def test_a_state_on_some_ranks_alone_is_no_violation_if_wrapping_returned_the_optimizer(
    returned: bool,
) -> None:
    """Such an optimizer may shard its state; any other optimizer steps alike on all ranks."""
    evidence = right()
    driven = {OPTIMIZER: "the one that wrapping returned"} if returned else {}
    empty = {
        key: Tensors(Layout(()), b"") for key in evidence.ranks[1].tensors if key[0] == "state"
    }
    ranks = [replace(rank, driven=driven) for rank in evidence.ranks]
    ranks[1] = replace(ranks[1], tensors={**ranks[1].tensors, **empty})
    finding = judge(replace(evidence, ranks=tuple(ranks)))["PARAM-2"]
    assert bool(finding.unjudged) == returned
    assert (finding.failure is None) == returned


def test_param3_a_step_must_start_where_the_one_before_ended() -> None:
    """A parameter that changes between an update and the next forward violates PARAM-3."""
    moved = everywhere(right(), "forward", 1, WEIGHT, raised_by_one)
    failure = judge(moved)["PARAM-3"].failure
    assert failure is not None
    assert failure.fact == "parameters change between one step's update and the next step's forward"
