"""Tests of the GRAD rules on handmade evidence."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from handmade import (
    CASE,
    SCALE,
    WEIGHT,
    Alteration,
    altered,
    everywhere,
    one_bit_up,
    raised_by_one,
    right,
)

from ddp_invariants.cases.case import NoSync
from ddp_invariants.cases.program import (
    Data,
    Optimizer,
    Poison,
    Unused,
)
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import ALL_RULES, judge
from ddp_invariants.records.evidence import (
    Moment,
)
from ddp_invariants.records.trace import Call
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.unused import UnusedLayers


@pytest.mark.parametrize(("moment", "rule"), [("reduced", "GRAD-1"), ("updated", "PARAM-1")])
def test_ranks_may_hold_different_nans_once_a_run_has_diverged(moment: Moment, rule: str) -> None:
    """A sum of NaNs has the bits of the first one, and each rank may begin with its own."""
    evidence = right(CASE)
    for rank in range(CASE.world_size):
        nan = np.copysign(np.float32(np.nan), np.float32(-1 if rank else 1))
        evidence = altered(evidence, rank, moment, 2, WEIGHT, partial(np.full_like, fill_value=nan))
    assert judge(evidence)[rule].failure is None
    other = altered(evidence, 1, moment, 2, WEIGHT, np.zeros_like)
    assert judge(other)[rule].failure is not None


ACCUMULATED = replace(CASE, accumulation=2, data=Data(samples=8, batch_size=2))


def test_right_accumulation_breaches_no_rule() -> None:
    """Two micro-steps are judged as one step on all their samples."""
    findings = judge(right(ACCUMULATED))
    assert {name: f.failure for name, f in findings.items() if f.failure} == {}
    assert findings["GRAD-8"].compared > 0
    assert findings["GRAD-12"].compared > 0


@pytest.mark.parametrize(
    ("no_sync", "condition"),
    [("nested", "a nested no_sync"), ("error", "an exception inside no_sync")],
)
def test_grad8_counts_how_no_sync_was_used(no_sync: NoSync, condition: str) -> None:
    """GRAD-8 needs a nested no_sync and an exception inside no_sync, and counts both."""
    findings = judge(right(ACCUMULATED.with_situation(NoSyncStyle(no_sync))))
    assert {name: f.failure for name, f in findings.items() if f.failure} == {}
    assert condition in findings["GRAD-8"].met
    assert condition in ALL_RULES["GRAD-8"].needs


@pytest.mark.parametrize("rule", ["GRAD-2", "GRAD-3", "GRAD-8", "GRAD-12"])
def test_a_lost_micro_step_is_a_breach_of_every_rule_about_the_mean(rule: str) -> None:
    """The gradient of half the samples violates every rule about the mean."""
    assert (
        judge(everywhere(right(ACCUMULATED), "reduced", 0, WEIGHT, lambda v: v / 2))[rule].failure
        is not None
    )


def test_grad8_wants_nothing_sent_by_a_backward_inside_no_sync() -> None:
    """A backward inside no_sync that sends violates GRAD-8; a forward that sends does not."""
    for sends in (True, False):
        quiet = [[[[2 * step], [2 * step + sends]]] for step in range(3)]
        early = [
            replace(rank, sent=[[Call("allreduce", "float32", 4, "SUM")] * 6], quiet=quiet)
            for rank in right(ACCUMULATED).ranks
        ]
        failure = judge(replace(right(ACCUMULATED), ranks=tuple(early)))["GRAD-8"].failure
        assert (failure is not None) == sends


UNUSED_AT = replace(CASE, steps=4).with_situation(
    UnusedLayers((Unused(4, step=1), Unused(4, rank=1, step=2)))
)
"""A case whose last factor no rank uses at step 1, and only rank 0 uses at step 2."""


IN_SOME_MICRO_STEPS = ACCUMULATED.with_situation(
    UnusedLayers((Unused(4, micro_step=1), Unused(4, rank=1, micro_step=0)))
)
"""A case whose last factor only rank 0 uses, and only in the first micro-step."""


def test_what_the_last_micro_step_passes_by_is_reduced_all_the_same() -> None:
    """The gradient of an earlier micro-step is in the mean, and a zero instead violates GRAD-8."""
    findings = judge(right(IN_SOME_MICRO_STEPS))
    assert {name: f.failure for name, f in findings.items() if f.failure} == {}
    assert findings["GRAD-8"].met >= {"used in some micro-steps only"}
    assert (
        judge(everywhere(right(IN_SOME_MICRO_STEPS), "reduced", 1, SCALE, lambda v: v * 0))[
            "GRAD-8"
        ].failure
        is not None
    )


@pytest.mark.parametrize(
    "optimizer", [CASE.optimizer, Optimizer("adamw", log2_lr=-10, weight_decay=0.25)]
)
@pytest.mark.parametrize("none", [True, False])
def test_right_evidence_of_unused_parameters_breaches_no_rule(
    optimizer: Optimizer, *, none: bool
) -> None:
    """None and zero are both right for a parameter that no rank uses.

    The update follows whichever of the two the gradient was.
    """
    findings = judge(right(replace(UNUSED_AT, optimizer=optimizer), none=none))
    assert {name: f.failure for name, f in findings.items() if f.failure} == {}
    assert findings["GRAD-9"].met >= set(ALL_RULES["GRAD-9"].needs)
    assert all(
        findings[rule].compared > 0
        for rule in ("GRAD-1", "GRAD-2", "GRAD-3", "GRAD-4", "GRAD-5", "LOSS-3", "PARAM-3")
    )


@pytest.mark.parametrize(
    ("alter", "rule", "words"),
    [
        (
            lambda e: altered(e, 1, "reduced", 2, SCALE, None),
            "GRAD-9",
            "not written back on ranks without a gradient of their own",
        ),
        (lambda e: everywhere(e, "reduced", 2, SCALE, None), "GRAD-9", ""),
        (lambda e: altered(e, 1, "reduced", 1, SCALE, None), "GRAD-9", ""),
        (lambda e: everywhere(e, "reduced", 1, SCALE, raised_by_one), "GRAD-9", ""),
        (lambda e: everywhere(e, "reduced", 2, SCALE, lambda v: v * 2), "GRAD-9", ""),
        (lambda e: everywhere(e, "updated", 1, SCALE, one_bit_up), "PARAM-3", ""),
    ],
)
def test_grad9_fires_on_unused_parameters(alter: Alteration, rule: str, words: str) -> None:
    """GRAD-9 fails on a wrong gradient of a parameter that some or all ranks do not use.

    The gradient must not be None if another rank uses the parameter, and must be zero or None on
    all ranks if none does. Another divisor is wrong as well.
    """
    failure = judge(alter(right(UNUSED_AT, none=False)))[rule].failure
    assert failure is not None
    assert words in failure.perhaps


def test_a_gradient_of_the_step_before_that_no_rank_uses_is_told_as_such() -> None:
    """A stale result and a buffer that is not cleared look alike; both are named."""
    evidence = right(UNUSED_AT, none=False)
    before = evidence.ranks[0].tensors["reduced", 0].by_name[SCALE]
    assert before.any()
    failure = judge(everywhere(evidence, "reduced", 1, SCALE, lambda _: before))["GRAD-9"].failure
    assert failure is not None
    assert failure.perhaps.startswith("no rank uses it, and it equals step 0's gradient: stale, or")


@pytest.mark.parametrize(
    ("declared", "factor", "fires"),
    [
        (Declarations(reduction="sum"), 1, True),
        (Declarations(reduction="sum"), 2, False),
        (Declarations(exactness="float16"), 1 + 2.0**-10, False),
        (Declarations(exactness="float16"), 3.0, True),
        (Declarations(), 1 + 2.0**-10, True),
    ],
)
def test_grad2_judges_what_is_declared(
    declared: Declarations, factor: float, *, fires: bool
) -> None:
    """GRAD-2 accepts a declared sum, and a declared rounding to float16 but nothing larger."""
    case = replace(CASE, values="real")
    evidence = everywhere(
        right(case), "reduced", 0, WEIGHT, lambda v: (v * factor).astype(np.float32)
    )
    findings = judge(evidence, declared)
    failure = findings["GRAD-2"].failure
    assert (failure is not None and "step 0" in failure.where and WEIGHT in failure.where) == fires


def test_an_owner_alone_need_hold_a_gradient() -> None:
    """Only an owner must hold a gradient; no gradient at all, or a wrong one, violates GRAD-2."""
    declared = Declarations(gradients="owner")
    owned = altered(right(), 1, "reduced", 0, WEIGHT, None)
    assert judge(owned, declared)["GRAD-2"].failure is None
    for wrong in (
        altered(owned, 0, "reduced", 0, WEIGHT, None),
        altered(owned, 0, "reduced", 0, WEIGHT, raised_by_one),
    ):
        assert judge(wrong, declared)["GRAD-2"].failure is not None


def test_silence_under_no_sync_is_counted_where_it_was_observed() -> None:
    """Plain process groups record nothing, so GRAD-8 counts its comparisons of values alone."""
    evidence = right(replace(CASE, accumulation=2))
    blind = replace(evidence, ranks=tuple(replace(rank, sent=[]) for rank in evidence.ranks))
    seen, unseen = (judge(each)["GRAD-8"].compared for each in (evidence, blind))
    assert seen > unseen > 0


def test_grad9_meets_no_unused_parameters_in_a_step_that_it_does_not_judge() -> None:
    """A step whose gradients are not finite shows nothing about unused parameters."""
    unused = CASE.with_situation(UnusedLayers((Unused(4, rank=1, step=1),)))
    somewhere = "unused on some ranks"
    assert somewhere in judge(right(unused))["GRAD-9"].met
    poisoned = right(unused.with_situation(Poisoned(Poison(0, 1))))
    assert somewhere not in judge(poisoned)["GRAD-9"].met


@pytest.mark.parametrize(
    ("value", "held", "fires"),
    [
        (np.nan, np.nan, False),
        (np.nan, 0.0, True),
        (np.nan, np.inf, True),
        (np.inf, np.inf, False),
        (np.inf, -np.inf, True),
        (-np.inf, np.nan, True),
    ],
)
def test_grad7_wants_the_very_value_that_is_not_finite(
    value: float, held: float, *, fires: bool
) -> None:
    """NaN must stay NaN, and an infinity must stay that infinity, on every rank."""
    evidence = right(CASE.with_situation(Poisoned(Poison(0, 2))))
    evidence = altered(evidence, 0, "local", 2, SCALE, lambda _: np.float32(value))
    evidence = everywhere(evidence, "reduced", 2, SCALE, lambda _: np.float32(held))
    finding = judge(evidence)["GRAD-7"]
    assert (finding.failure is not None) == fires
    assert finding.compared > 0


def test_grad7_asks_the_owner_of_a_gradient() -> None:
    """Another rank's own gradient has no meaning, but some rank must hold the value."""
    declared = Declarations(gradients="owner")
    evidence = right(CASE.with_situation(Poisoned(Poison(0, 2))))
    evidence = altered(evidence, 0, "local", 2, SCALE, lambda _: np.float32(np.nan))
    evidence = altered(evidence, 0, "reduced", 2, SCALE, lambda _: np.float32(np.nan))
    for held in (lambda _: np.float32(-7), None):
        finding = judge(altered(evidence, 1, "reduced", 2, SCALE, held), declared)["GRAD-7"]
        assert finding.failure is None
        assert finding.compared
    for held in (lambda _: np.float32(-7), None):
        lost = everywhere(evidence, "reduced", 2, SCALE, held)
        assert judge(lost, declared)["GRAD-7"].failure is not None


@pytest.mark.parametrize("left", [np.inf, np.nan, 3.0e38])
def test_grad7_leaves_out_elements_that_overflowed_before(left: float) -> None:
    """An infinity that is added to a gradient left in place may become a NaN, or another infinity."""
    case = replace(CASE, zero_grad="never").with_situation(Poisoned(Poison(0, 2)))
    evidence = altered(right(case), 0, "local", 2, SCALE, lambda _: np.float32(-np.inf))
    evidence = everywhere(evidence, "reduced", 1, SCALE, lambda _: np.float32(left))
    evidence = everywhere(evidence, "reduced", 2, SCALE, lambda _: np.float32(np.nan))
    finding = judge(evidence)["GRAD-7"]
    assert finding.failure is None
    evidence = everywhere(evidence, "reduced", 1, SCALE, lambda _: np.float32(1))
    assert judge(evidence)["GRAD-7"].failure is not None


def test_poisoned_steps_are_left_to_grad7() -> None:
    """No rule about finite numbers compares at or after a poisoned step."""
    evidence = everywhere(
        right(CASE.with_situation(Poisoned(Poison(0, 1)))), "reduced", 1, WEIGHT, raised_by_one
    )
    findings = judge(evidence)
    assert findings["GRAD-2"].failure is None
    assert findings["GRAD-3"].failure is None
    assert findings["GRAD-2"].compared < judge(right())["GRAD-2"].compared
