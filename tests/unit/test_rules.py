"""Tests of the rules: each fails on handmade evidence of a violation, and not on right evidence."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from handmade import CASE, STRUCTURE, altered, everywhere, right

from ddp_invariants.cases.case import NoSync, ZeroGrad
from ddp_invariants.cases.dtypes import Dtype
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    BetweenSteps,
    Data,
    InjectedFailure,
    Optimizer,
    Perturbation,
    PerturbationKind,
    Poison,
    Unused,
)
from ddp_invariants.implementation.declarations import Buckets, Declarations, Gradients
from ddp_invariants.implementation.names import OPTIMIZER
from ddp_invariants.invariants import ALL_RULES, judge, param
from ddp_invariants.invariants.buckets import reductions_per_step
from ddp_invariants.invariants.comm import WITHHELD
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.sampler_view import sharding
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.oracle import balls
from ddp_invariants.records.evidence import (
    Defect,
    Incident,
    Layout,
    Moment,
    ProgramDraw,
    RaisedError,
    RankEvidence,
    Tensors,
    TrainingEvidence,
)
from ddp_invariants.records.trace import Call, LastCalls, label
from ddp_invariants.records.verdict import Verdict
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.second import Second, SecondWrapper
from ddp_invariants.situations.storage import ONE_STORAGE
from ddp_invariants.situations.unused import UnusedLayers

WEIGHT, SCALE = "layers.0.weight", "layers.4.factor"
Alteration = Callable[[TrainingEvidence], TrainingEvidence]


SHARED = replace(CASE, data=Data(samples=1))
"""A case in which both ranks get the only sample."""


Array = np.ndarray[Any, np.dtype[Any]]


def raised_by_one(value: Array) -> Array:
    """Return the values, each increased by one."""
    raised: Array = value + value.dtype.type(1)
    return raised


def one_bit_up(value: Array) -> Array:
    """Return the next larger float32 of every value."""
    raised: Array = np.nextafter(value, np.float32(99))
    return raised


def restructured(evidence: TrainingEvidence, column: str, value: object) -> TrainingEvidence:
    """Return evidence in which wrapping changed rank 1's first parameter.

    The parameter has another name, dtype, shape, flag or tying.
    """
    rows = [STRUCTURE[0]._replace(**{column: value}), *STRUCTURE[1:]]  # type: ignore[arg-type]  # any
    ranks = (evidence.ranks[0], replace(evidence.ranks[1], structure_after=rows))
    return replace(evidence, ranks=ranks)


def test_right_evidence_breaches_no_rule_and_meets_what_it_can() -> None:
    """On right evidence every rule holds or says why it cannot be judged."""
    findings = judge(right())
    assert {name: f.failure for name, f in findings.items() if f.failure} == {}
    unjudged = {name for name, f in findings.items() if f.unjudged}
    assert unjudged == {
        "INIT-4",
        "GRAD-7",
        "GRAD-8",
        "GRAD-12",
        "PARAM-4",
        "COMM-2",
        "COMM-3",
        "LIVE-2",
        "LIVE-3",
        "LIVE-4",
        "MEM-1",
        "GRAD-9",
        "GRAD-10",
        "GRAD-11",
        "GRAD-13",
        "LIVE-5",
        "LIVE-6",
        "LIVE-7",
        "LIVE-8",
        "STATE-1",
        "STATE-2",
        "PARAM-6",
        "PARAM-7",
        "RNG-1",
        "CALL-1",
        "CALL-2",
        "CALL-3",
        "CALL-4",
        "MOD-1",
        "MOD-2",
        "MOD-3",
        "MOD-4",
        "GPU-1",
    }
    assert findings["LOSS-2"].met == {"batches differed"}
    assert judge(right(SHARED))["LOSS-2"].met == {"ranks shared a batch"}
    assert findings["GRAD-4"].met == set(ALL_RULES["GRAD-4"].needs) - {ONE_STORAGE}
    assert findings["INIT-3"].met == set(ALL_RULES["INIT-3"].needs)


@pytest.mark.parametrize("zero_grad", ["set_to_none", "zero", "never", "mixed"])
@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(log2_lr=-10),
        Optimizer(log2_lr=-10, momentum=0.5, weight_decay=0.25),
        Optimizer("adamw", log2_lr=-10, weight_decay=0.25),
    ],
)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_right_evidence_holds_for_every_world_size_optimizer_and_clearing(
    world_size: int, optimizer: Optimizer, zero_grad: ZeroGrad
) -> None:
    """Right evidence violates no rule: the oracle's rounded centres lie inside its radii."""
    case = replace(
        CASE,
        world_size=world_size,
        optimizer=optimizer,
        zero_grad=zero_grad,
        data=Data(samples=9, batch_size=2),
    )
    findings = judge(right(case))
    assert {name: f.failure for name, f in findings.items() if f.failure} == {}
    assert findings["PARAM-3"].compared > 0


ALTERATIONS: list[tuple[str, str, Alteration]] = [
    ("INIT-1", "another value", lambda e: altered(e, 1, "forward", 0, WEIGHT, raised_by_one)),
    ("INIT-1", "source rank moved", lambda e: altered(e, 0, "forward", 0, SCALE, raised_by_one)),
    (
        "INIT-2",
        "another buffer",
        lambda e: altered(e, 1, "forward buffers", 0, "layers.5.count", raised_by_one),
    ),
    ("INIT-3", "renamed", lambda e: restructured(e, "name", "module.layers.0.weight")),
    ("INIT-3", "dtype", lambda e: restructured(e, "dtype", "float64")),
    ("INIT-3", "shape", lambda e: restructured(e, "shape", [4])),
    ("INIT-3", "frozen", lambda e: restructured(e, "requires_grad", value=False)),
    ("INIT-3", "untied", lambda e: restructured(e, "first_name", "layers.2.weight")),
    ("INIT-3", "source value", lambda e: altered(e, 0, "wrapped", 0, WEIGHT, raised_by_one)),
    ("LOSS-1", "loss is not the twin's", lambda e: altered(e, 1, "loss", 1, "loss", raised_by_one)),
    (
        "LOSS-2",
        "same loss on different batches",
        lambda e: replace(
            e,
            ranks=(
                e.ranks[0],
                replace(
                    e.ranks[1],
                    tensors={**e.ranks[1].tensors, ("loss", 0): e.ranks[0].tensors["loss", 0]},
                ),
            ),
        ),
    ),
    ("LOSS-3", "mean is off", lambda e: altered(e, 1, "loss", 2, "loss", raised_by_one)),
    ("GRAD-1", "another gradient", lambda e: altered(e, 1, "reduced", 1, WEIGHT, raised_by_one)),
    ("GRAD-1", "None on one rank", lambda e: altered(e, 1, "reduced", 1, SCALE, None)),
    (
        "GRAD-1",
        "another dtype on one rank",
        lambda e: altered(e, 1, "reduced", 0, WEIGHT, lambda v: v.astype(np.float64)),
    ),
    (
        "GRAD-2",
        "agreed, but not the mean",
        lambda e: everywhere(e, "reduced", 2, WEIGHT, raised_by_one),
    ),
    (
        "GRAD-2",
        "agreed, but NaN",
        lambda e: everywhere(e, "reduced", 0, WEIGHT, lambda v: v * np.float32(np.nan)),
    ),
    ("GRAD-2", "one last bit", lambda e: everywhere(e, "reduced", 0, WEIGHT, one_bit_up)),
    ("GRAD-2", "one rank only", lambda e: altered(e, 1, "reduced", 0, WEIGHT, raised_by_one)),
    (
        "GRAD-3",
        "twins and ranks agree on a wrong value",
        lambda e: everywhere(
            everywhere(e, "reduced", 1, WEIGHT, raised_by_one), "local", 1, WEIGHT, raised_by_one
        ),
    ),
    (
        "GRAD-4",
        "another dtype",
        lambda e: everywhere(e, "reduced", 0, WEIGHT, lambda v: v.astype(np.float64)),
    ),
    (
        "GRAD-4",
        "another shape",
        lambda e: everywhere(e, "reduced", 0, WEIGHT, lambda v: v.reshape(4)),
    ),
    ("GRAD-4", "used, yet None", lambda e: everywhere(e, "reduced", 0, SCALE, None)),
    (
        "GRAD-5",
        "right first, wrong later",
        lambda e: everywhere(e, "reduced", 1, WEIGHT, raised_by_one),
    ),
    ("GRAD-6", "wrong under a cap", lambda e: everywhere(e, "reduced", 0, WEIGHT, raised_by_one)),
    ("PARAM-1", "another parameter", lambda e: altered(e, 1, "updated", 2, WEIGHT, raised_by_one)),
    ("PARAM-2", "another momentum", lambda e: altered(e, 1, "state", 1, "momentum", raised_by_one)),
    (
        "PARAM-3",
        "agreed, but another step",
        lambda e: everywhere(e, "updated", 0, WEIGHT, raised_by_one),
    ),
    ("PARAM-3", "agreed, one last bit", lambda e: everywhere(e, "updated", 0, SCALE, one_bit_up)),
    (
        "BUF-1",
        "another buffer",
        lambda e: altered(e, 1, "forward buffers", 2, "layers.5.running", raised_by_one),
    ),
    (
        "BUF-2",
        "a count went on by another number",
        lambda e: everywhere(e, "forward buffers", 1, "layers.5.count", lambda value: value + 2),
    ),
    (
        "BUF-2",
        "a mean that is none",
        lambda e: everywhere(e, "forward buffers", 2, "layers.5.running", raised_by_one),
    ),
    (
        "BUF-2",
        "what is no number",
        lambda e: altered(
            e, 1, "forward buffers", 1, "layers.5.running", lambda value: value * np.float32(np.nan)
        ),
    ),
    (
        "PARAM-5",
        "a frozen one moved",
        lambda e: everywhere(e, "updated", 2, "layers.1.factor", raised_by_one),
    ),
    (
        "LIVE-1",
        "hung",
        lambda e: replace(
            e, incident=Incident("hung", {1: "gave no answer"}, {1: "File x.py"}, 20.0)
        ),
    ),
]


@pytest.mark.parametrize(
    ("rule", "alteration", "alter"),
    ALTERATIONS,
    ids=[f"{rule}-{title}" for rule, title, _ in ALTERATIONS],
)
def test_rule_fires(rule: str, alteration: str, alter: Alteration) -> None:
    """A violation of the rule is found, and named with rank, step or parameter."""
    failure = judge(alter(right()))[rule].failure
    assert failure is not None, alteration
    assert failure.rule == rule
    assert failure.fact
    assert "rank" in failure.where or "world size" in failure.where
    assert failure.got


def test_every_training_rule_has_a_breach_that_fires_it() -> None:
    """Every rule of training has a test that makes it fail."""
    tested_elsewhere = {
        "INIT-4",
        "GRAD-7",
        "GRAD-8",
        "GRAD-9",
        "GRAD-12",
        "PARAM-4",
        "COMM-1",
        "COMM-2",
        "COMM-3",
        "COMM-4",
        "COMM-5",
        "COMM-6",
        "LIVE-2",
        "LIVE-3",
        "LIVE-4",
        "MEM-1",
        "GRAD-11",
        "GRAD-13",
        "LIVE-5",
        "LIVE-6",
        "LIVE-7",
        "LIVE-8",
        "STATE-1",
        "STATE-2",
        "GRAD-10",
        "PARAM-6",
        "PARAM-7",
        "RNG-1",
        "CALL-1",
        "CALL-2",
        "CALL-3",
        "CALL-4",
        "MOD-1",
        "MOD-2",
        "MOD-3",
        "MOD-4",
        "GPU-1",
    }
    assert {rule for rule, _, _ in ALTERATIONS} | tested_elsewhere == set(training.rules)


def test_buf1_tells_which_buffers_a_rank_keeps_to_itself() -> None:
    """BUF-1 reports which buffers a rank keeps to itself.

    They are all buffers, those that forward assigns anew, or those that are not floating-point.
    """
    running, count, seen = (f"layers.5.{name}" for name in ("running", "count", "seen"))
    for names, words in (
        ([running, count, seen], ""),
        ([running], "only buffers that forward assigns anew"),
        ([count, seen], "only buffers that are not floating-point"),
    ):
        evidence = right()
        for step in (1, 2):
            for rank in (0, 1):
                for name in names:
                    evidence = altered(
                        evidence,
                        rank,
                        "forward buffers",
                        step,
                        name,
                        lambda value, moved=(rank + step - 1) % 2: np.full_like(value, moved),
                    )
        failure = judge(evidence)["BUF-1"].failure
        assert failure is not None
        assert failure.perhaps.startswith(
            "it is rank 1's own value after step 0: not synchronised in forward"
        )
        assert words in failure.perhaps


def test_loss2_fires_on_different_losses_of_a_shared_batch() -> None:
    """Ranks that get the same batch by padding must report the same loss."""
    assert (
        judge(altered(right(SHARED), 1, "loss", 1, "loss", raised_by_one))["LOSS-2"].failure
        is not None
    )


def test_init4_judges_equal_seeds_only_where_declared() -> None:
    """If ranks are built equal, INIT-4 is judged and INIT-1 is not."""
    evidence = right(replace(CASE, init="equal"))
    findings = judge(evidence)
    assert findings["INIT-1"].unjudged
    assert findings["INIT-4"].compared > 0
    assert (
        judge(altered(evidence, 1, "forward", 0, WEIGHT, raised_by_one))["INIT-4"].failure
        is not None
    )


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


@pytest.mark.parametrize(
    ("stage", "held", "fires"),
    [
        (1, [0, 16, 16, 28], False),
        (1, [28, 16, 300, 28], True),
        (1, [28, 300, 16, 28], True),
        (2, [28, 0, 16, 300], True),
        (2, [300, 0, 16, 20], False),
        (3, [300, 0, 16, 16], True),
    ],
)
def test_mem1_wants_a_share_of_what_the_stage_shards(
    stage: int, held: list[int], *, fires: bool
) -> None:
    """MEM-1 limits what the ZeRO stage shards; everything else may be whole.

    The four numbers are bytes of the module, own copies, the optimizer's state and gradients.
    """
    ranks = tuple(replace(rank, held=[held]) for rank in right().ranks)
    finding = judge(replace(right(), ranks=ranks), Declarations(zero=stage))["MEM-1"]
    assert (finding.failure is not None) == fires
    assert finding.compared


def test_comm5_takes_an_all_reduce_of_integers_for_no_gradient() -> None:
    """COMM-5 does not take an all-reduce of integers for a gradient bucket.

    With find_unused_parameters, torch sends which parameters are used after backward.
    """
    used = Call("allreduce", "int32", 4, "SUM", launched=1.89)
    sent = [
        [
            replaced
            for rank in right().ranks[:1]
            for call in rank.sent[0]
            for replaced in (
                [call._replace(launched=call.launched + 0.3)] if call.elements == 3 else []
            )
        ]
        + [used]
    ]
    ranks = tuple(replace(rank, sent=sent) for rank in right().ranks)
    assert judge(replace(right(), ranks=ranks))["COMM-5"].failure is None


@pytest.mark.parametrize("operation", ["MAX", "SUM"])
def test_a_reduction_of_flags_is_no_bucket(operation: str) -> None:
    """A float bitmap of used parameters is no bucket, whether it is summed or its maximum taken.

    The evidence has gradients of 0, 1, 2 and 4 elements, and the bitmap has four.
    """
    bitmap = Call("allreduce", "float32", 4, operation, launched=0.85)
    one_bucket = resent(right(replace(CASE, bucket_cap=1 << 20)), [*reduced((7, 0.7)), bitmap])
    findings = judge(one_bucket)
    assert findings["COMM-5"].unjudged
    assert findings["COMM-4"].compared
    assert findings["COMM-4"].failure is None
    assert reductions_per_step(one_bucket) == [1, 1, 1]


def test_comm3_counts_what_the_ranks_withhold() -> None:
    """The names that COMM-3 withholds are those of the ranks' module.

    The controller cannot import this module, so the names are written twice.
    """
    from ddp_invariants.ranks.groups.observed import IN_LISTS, IN_ONE

    assert {*WITHHELD} == {*IN_LISTS, *IN_ONE}


def test_comm6_observes_and_never_judges() -> None:
    """COMM-6 observes the bytes that are sent and never judges them.

    One all-reduce of all gradients is one ring all-reduce. Twice as many bytes are recorded, and no
    rule fails.
    """
    once = judge(right())["COMM-6"]
    twice = judge(
        replace(
            right(),
            ranks=tuple(
                replace(rank, sent=[[Call("allreduce", "float32", 7, "SUM")] * 12])
                for rank in right().ranks
            ),
        )
    )["COMM-6"]
    assert once.failure is None
    assert twice.failure is None
    assert max(twice.observed) == pytest.approx(2 * max(once.observed))


CALLS = [
    Call("broadcast", "uint8", 8, "from 0", site="ddp.py:3"),
    Call("allreduce", "float32", 4, "SUM", site="ddp.py:7"),
]
MAXIMUM, WIDER, SENT = (
    Call("allreduce", "float32", 4, "MAX"),
    Call("allreduce", "float64", 4, "SUM"),
    Call("send", "float32", 1, ""),
)


@pytest.mark.parametrize(
    ("theirs", "fires"),
    [
        (CALLS, False),
        (CALLS[:1], True),
        (CALLS[::-1], True),
        ([CALLS[0], MAXIMUM], True),
        ([CALLS[0], WIDER], True),
        ([*CALLS, SENT], False),
        ([], True),
    ],
)
def test_comm1_wants_one_sequence(theirs: list[Call], *, fires: bool) -> None:
    """COMM-1 compares kind, dtype, count, operation and length; point-to-point calls may differ."""
    evidence = right()
    ranks = (replace(evidence.ranks[0], sent=[CALLS]), replace(evidence.ranks[1], sent=[theirs]))
    assert (judge(replace(evidence, ranks=ranks))["COMM-1"].failure is not None) == fires


def test_comm1_tells_both_sequences_with_their_call_sites() -> None:
    """COMM-1 reports the calls and call sites of both ranks around the first call that differs."""
    evidence = right()
    other_calls = [CALLS[0], MAXIMUM._replace(site="b.py:9")]
    ranks = (
        replace(evidence.ranks[0], sent=[CALLS]),
        replace(evidence.ranks[1], sent=[other_calls]),
    )
    failure = judge(replace(evidence, ranks=ranks))["COMM-1"].failure
    assert failure is not None
    assert failure.where == "rank 1 of 2, call 2"
    assert failure.got == (
        "all_reduce (float32 x 4 MAX) at b.py:9, "
        "rank 0 issues all_reduce (float32 x 4 SUM) at ddp.py:7; "
        "2 calls in all, rank 0 2"
    )
    assert [line.split() for line in failure.notes.splitlines()][-1][:2] == [">", "2"]


@pytest.mark.parametrize(
    ("groups", "fires"),
    [
        (([[0, 1], [0]], [[0, 1], [1]]), False),  # Each rank is alone in its second group.
        (([[0, 1], [0, 1]], [[0, 1], [0, 1]]), True),
    ],
)
def test_comm1_compares_each_group_among_its_members(
    groups: tuple[list[list[int]], list[list[int]]], *, fires: bool
) -> None:
    """COMM-1 compares each group among its members; another group's calls are no difference."""
    sent = [CALLS, [CALLS[1]]], [CALLS, [WIDER]]
    ranks = tuple(
        replace(rank, sent=calls, groups=members)
        for rank, calls, members in zip(right().ranks, sent, groups, strict=True)
    )
    assert (judge(replace(right(), ranks=ranks))["COMM-1"].failure is not None) == fires


@pytest.mark.parametrize(("theirs", "fires"), [(CALLS[:1], False), ([CALLS[0], WIDER], True)])
def test_comm1_of_a_hang_tells_calls_that_differ_and_not_what_is_missing(
    theirs: list[Call], *, fires: bool
) -> None:
    """After a hang, COMM-1 reports calls that differ, and no calls that are missing.

    A rank that hangs may have been about to issue the rest.
    """
    last_calls = LastCalls(
        len(theirs),
        0,
        tuple((number, label([0, 1], 0), call) for number, call in enumerate(theirs, start=1)),
    )
    incident = Incident("hung", {1: "gave no answer within 3.0 s"}, {}, 3.0, {1: last_calls})
    evidence = replace(
        right(),
        ranks=(replace(right().ranks[0], sent=[CALLS]), RankEvidence({})),
        incident=incident,
    )
    finding = judge(evidence)["COMM-1"]
    assert (finding.failure is not None) == fires
    assert bool(finding.unjudged) != fires


@pytest.mark.parametrize(("theirs", "fires"), [(CALLS[:1], False), ([CALLS[0], WIDER], True)])
def test_comm1_hears_calls_that_differ_before_every_rank_raised(
    theirs: list[Call], *, fires: bool
) -> None:
    """An error that follows from a mismatch is no refusal; a rank that raised early sent less."""
    error = RaisedError("backward", 0, "RuntimeError", "sizes differ", "")
    ranks = tuple(
        replace(rank, sent=[calls], raised=error)
        for rank, calls in zip(right().ranks, (CALLS, theirs), strict=True)
    )
    finding = judge(replace(right(), ranks=ranks))["COMM-1"]
    assert (finding.failure is not None) == fires
    assert bool(finding.unjudged) != fires


def test_a_process_group_nobody_sees_is_not_observed_and_nothing_holds() -> None:
    """If nobody sees the process group, rules about sent calls are not observed and do not hold."""
    case = CASE.with_situation(Perturbed(Perturbation("withheld")))
    blind = replace(
        right(case), ranks=tuple(replace(rank, sent=[[]]) for rank in right(case).ranks)
    )
    findings = judge(replace(blind, unperturbed=right()))
    for rule in ("COMM-1", "COMM-2", "COMM-3", "COMM-4", "COMM-5"):
        assert findings[rule].unjudged.startswith("not observed"), rule


def test_nothing_is_withheld_of_collectives_that_fill_lists() -> None:
    """COMM-2 then compares two runs, and has not met its condition."""
    case = CASE.with_situation(Perturbed(Perturbation("withheld")))
    evidence = right(case)
    assert judge(replace(evidence, unperturbed=right()))["COMM-2"].met == {"results withheld"}
    ranks = tuple(
        replace(rank, sent=[[call._replace(kind="allgather") for call in rank.sent[0]]])
        for rank in evidence.ranks
    )
    finding = judge(replace(evidence, ranks=ranks, unperturbed=right()))["COMM-2"]
    assert finding.compared
    assert not finding.met


def test_silence_under_no_sync_is_counted_where_it_was_observed() -> None:
    """Plain process groups record nothing, so GRAD-8 counts its comparisons of values alone."""
    evidence = right(replace(CASE, accumulation=2))
    blind = replace(evidence, ranks=tuple(replace(rank, sent=[]) for rank in evidence.ranks))
    seen, unseen = (judge(each)["GRAD-8"].compared for each in (evidence, blind))
    assert seen > unseen > 0


def test_comm2_compares_bits_with_the_unperturbed_run() -> None:
    """A bit that depends on timing violates COMM-2, which judges nothing without a second run."""
    case = CASE.with_situation(Perturbed(Perturbation("delays")))
    evidence = right(case)
    assert judge(evidence)["COMM-2"].unjudged
    finding = judge(replace(evidence, unperturbed=right()))["COMM-2"]
    assert finding.failure is None
    assert finding.compared
    assert finding.met == {"collectives delayed"}
    moved = altered(evidence, 1, "updated", 1, WEIGHT, one_bit_up)
    failure = judge(replace(moved, unperturbed=right()))["COMM-2"].failure
    assert failure is not None
    assert (
        failure.perhaps
        == "it changes when collectives start up to 1 ms late, each rank's at times of its own"
    )


@pytest.mark.parametrize(
    ("kind", "delayed"),
    [
        ("delays", "collectives are delayed"),
        ("late", "collectives are delayed"),
        ("slow communication", "a stream is delayed"),
        ("slow computation", "a stream is delayed"),
    ],
)
def test_comm5_names_what_is_delayed(kind: PerturbationKind, delayed: str) -> None:
    """COMM-5 does not judge perturbed timing, and says if collectives or a stream are delayed."""
    finding = judge(right(CASE.with_situation(Perturbed(Perturbation(kind)))))["COMM-5"]
    assert (finding.unjudged, finding.about) == (delayed, False)


def test_live1_alone_judges_samplers_and_training() -> None:
    """LIVE-1 has one row and two judges, since a sampler may hang as well; no other rule has two."""
    assert training.rules.keys() & sharding.rules.keys() == {"LIVE-1"}
    rows = [{**vars(rules.rules["LIVE-1"]), "judge": None} for rules in (training, sharding)]
    assert rows[0] == rows[1]


def resent(evidence: TrainingEvidence, calls: list[Call]) -> TrainingEvidence:
    """Return evidence in which every step sent these calls, at times within the step."""
    sent = [
        call._replace(launched=step + call.launched)
        for step in range(evidence.case.steps)
        for call in calls
    ]
    return replace(evidence, ranks=tuple(replace(rank, sent=[sent]) for rank in evidence.ranks))


def reduced(*pieces: tuple[int, float]) -> list[Call]:
    """Return all-reduces with these element counts, started at these times within a step."""
    return [Call("allreduce", "float32", elements, "SUM", launched=at) for elements, at in pieces]


@pytest.mark.parametrize(
    ("cap", "calls", "declared", "fires"),
    [
        (16, reduced((3, 0.5), (4, 0.7)), "within", False),
        (16, reduced((7, 0.7)), "within", True),
        (16, reduced((1, 0.3), (2, 0.5), (4, 0.7)), "within", True),
        (1 << 20, reduced((7, 0.7)), "within", False),
        (1 << 20, reduced((3, 0.5), (4, 0.7)), "within", True),
        (8, reduced((3, 0.5), (4, 0.7)), "reach", False),
        (8, reduced((1, 0.2), (1, 0.3), (1, 0.4), (4, 0.7)), "reach", True),
        (16, reduced((2, 0.5), (60, 0.7)), "within", True),
    ],
)
def test_comm4_wants_the_buckets_of_a_greedy_filling(
    cap: int, calls: list[Call], declared: Buckets, *, fires: bool
) -> None:
    """COMM-4 wants as many reductions as a greedy filling makes, and none above the cap.

    The trained tensors have 4, 0, 8 and 16 bytes.
    """
    evidence = resent(right(replace(CASE, bucket_cap=cap)), calls)
    finding = judge(evidence, Declarations(buckets=declared))["COMM-4"]
    assert finding.compared
    assert (finding.failure is not None) == fires


@pytest.mark.parametrize(
    ("calls", "fires"), [(reduced((3, 0.5), (4, 0.7)), False), (reduced((3, 0.65), (4, 0.7)), True)]
)
def test_comm5_wants_a_reduction_before_the_last_gradient(
    calls: list[Call], *, fires: bool
) -> None:
    """COMM-5 wants a reduction that starts before the last gradient is computed.

    The last gradient of each step is computed 0.6 s after the step began.
    """
    finding = judge(resent(right(), calls))["COMM-5"]
    assert finding.compared
    assert (finding.failure is not None) == fires
    assert judge(resent(right(), reduced((7, 0.7))))["COMM-5"].unjudged


CAUGHT = CASE.with_situation(FailureInjection(InjectedFailure("backward error", 1)))


@pytest.mark.parametrize(
    ("surfaced", "judged", "fires"),
    [("UserError", True, False), ("", True, True), (None, False, False)],
)
def test_live2_wants_the_exception_to_reach_the_user(
    surfaced: str | None, *, judged: bool, fires: bool
) -> None:
    """A swallowed exception violates LIVE-2; an exception that was never raised leaves it open."""
    ranks = tuple(replace(rank, surfaced=surfaced) for rank in right(CAUGHT).ranks)
    finding = judge(replace(right(CAUGHT), ranks=ranks))["LIVE-2"]
    assert (finding.failure is not None) == fires
    assert bool(finding.compared) == judged


def test_live2_wants_every_step_right_afterwards() -> None:
    """A gradient that is not the mean after a caught exception violates LIVE-2."""
    evidence = everywhere(right(CAUGHT), "reduced", 1, WEIGHT, lambda v: 2 * v)
    ranks = tuple(replace(rank, surfaced="UserError") for rank in evidence.ranks)
    failure = judge(replace(evidence, ranks=ranks))["LIVE-2"].failure
    assert failure is not None
    assert failure.fact.startswith("after an exception was caught, the gradient is not the mean")


def test_live2_wants_the_updates_right_afterwards() -> None:
    """So does a wrong update, on one rank or on all, though all gradients are right."""
    for evidence in (
        altered(right(CAUGHT), 1, "updated", 2, WEIGHT, one_bit_up),
        everywhere(right(CAUGHT), "updated", 1, WEIGHT, np.zeros_like),
    ):
        ranks = tuple(replace(rank, surfaced="UserError") for rank in evidence.ranks)
        caught = replace(evidence, ranks=ranks)
        assert judge(replace(caught, unperturbed=right()))["LIVE-2"].failure is not None
        assert judge(caught)["LIVE-2"].failure is None  # Perhaps it was wrong before.
        wrong = everywhere(right(), "updated", 1, WEIGHT, np.zeros_like)
        assert judge(replace(caught, unperturbed=wrong))["LIVE-2"].failure is None


def test_live2_names_state_left_behind_if_nothing_else_explains_the_gradient() -> None:
    """The same case without the exception is right, so that only state can make the difference."""
    left = "state that the aborted"
    for change, named in ((lambda v: v + v % 3 + 1, left), (lambda v: 2 * v, "never divided")):
        evidence = everywhere(right(CAUGHT), "reduced", 1, WEIGHT, change)
        ranks = tuple(replace(rank, surfaced="UserError") for rank in evidence.ranks)
        alone = judge(replace(evidence, ranks=ranks))["LIVE-2"].failure
        assert alone is not None
        assert left not in alone.perhaps
        compared = replace(evidence, ranks=ranks, unperturbed=right())
        failure = judge(compared)["LIVE-2"].failure
        assert failure is not None
        assert named in failure.perhaps


def test_live2_wants_random_numbers_that_no_other_rank_draws() -> None:
    """Numbers that ranks share only after the exception violate LIVE-2."""

    def drawn(evidence: TrainingEvidence, *numbers: int) -> TrainingEvidence:
        return replace(
            evidence,
            ranks=tuple(
                replace(
                    rank, surfaced="UserError", program_draws=[ProgramDraw(2, [number, number])]
                )
                for rank, number in zip(evidence.ranks, numbers, strict=True)
            ),
        )

    for again, without, fires in (
        ((1, 1), (1, 2), True),
        ((1, 2), (1, 2), False),
        ((1, 1),) * 2 + (False,),
    ):
        evidence = replace(drawn(right(CAUGHT), *again), unperturbed=drawn(right(), *without))
        failure = judge(evidence)["LIVE-2"].failure
        assert (failure is not None) == fires
        if failure is not None:
            assert failure.fact.startswith("after an exception was caught, two ranks draw the same")


RAISED = RaisedError("backward", 1, "RuntimeError", "closed", "")


@pytest.mark.parametrize(
    ("change", "fires"),
    [({"raised": RAISED}, False), ({}, True), ({"raised": RAISED._replace(step=2)}, True)],
)
def test_live3_wants_the_others_to_fail(change: dict[str, Any], *, fires: bool) -> None:
    """Survivors of a dead rank must raise before the step is made, or they violate LIVE-3."""
    case = CASE.with_situation(FailureInjection(InjectedFailure("death", 1, 0)))
    survivor = right(case).ranks[1]
    steps = 3 if not change else change["raised"].step
    noted = {key: value for key, value in survivor.tensors.items() if key[1] < steps}
    ranks = (RankEvidence({}), replace(survivor, tensors=noted, **change))
    incident = Incident("died", {0: "was ended by SIGKILL"}, {}, 0.1)
    finding = judge(TrainingEvidence(case, ranks, incident))["LIVE-3"]
    assert (finding.failure is not None) == fires
    assert finding.compared == 1
    hung = replace(incident, ranks={**incident.ranks, 1: "gave no answer within 2.1 s"})
    assert (
        judge(TrainingEvidence(case, (RankEvidence({}), RankEvidence({})), hung))["LIVE-3"].failure
        is not None
    )


@pytest.mark.parametrize(
    ("counts", "fires"),
    [
        ([[5, 9, 0]] * 4, False),
        ([[5, 9, 0], [6, 9, 0], [6, 9, 0], [6, 9, 0]], False),
        ([[5, 9, 0], [6, 9, 0], [7, 9, 0], [8, 9, 0]], True),
        ([[5, 9, n] for n in range(4)], True),
    ],
)
def test_live4_wants_nothing_to_grow_with_every_run(
    counts: list[list[int]], *, fires: bool
) -> None:
    """LIVE-4 fails if a count grows with every run, and not if it grows once.

    A thread or descriptor that appears once was started on first use. If it appears every
    time, it is left behind.
    """
    case = replace(CASE, rounds=4)
    ranks = tuple(replace(rank, left=counts) for rank in right(case).ranks)
    assert (judge(replace(right(case), ranks=ranks))["LIVE-4"].failure is not None) == fires


@pytest.mark.parametrize(
    ("defect", "second", "perhaps"),
    [
        ("not waited for", "", "a wait is missing"),
        ("not waited for", "kept", "the module's earlier wrapper still sends"),
        ("written to while in flight", "", "a buffer is used before its wait"),
    ],
)
def test_comm3_wants_every_result_waited_for(defect: str, second: Second, perhaps: str) -> None:
    """COMM-3 is judged only if results are withheld and a rank has results to withhold."""
    case = CASE.with_situation(Perturbed(Perturbation("withheld")))
    case = case.with_situation(SecondWrapper(second)) if second else case
    evidence = right(case)
    assert judge(
        replace(evidence, ranks=tuple(replace(rank, sent=[[]]) for rank in evidence.ranks))
    )["COMM-3"].unjudged
    ranks = tuple(replace(rank, sent=[CALLS]) for rank in evidence.ranks)
    assert judge(replace(evidence, ranks=ranks))["COMM-3"].compared > 0
    lists = [call._replace(kind="allgather") for call in CALLS]
    late = replace(ranks[1], sent=[lists], in_flight=[Defect(1, lists[1], defect)])
    failure = judge(replace(evidence, ranks=(ranks[0], late)))["COMM-3"].failure
    assert failure is not None  # Though no result of an all-gather into a list can be withheld.
    late = replace(ranks[1], in_flight=[Defect(1, CALLS[1], defect)])
    failure = judge(replace(evidence, ranks=(ranks[0], late)))["COMM-3"].failure
    assert failure is not None
    assert defect in failure.fact
    assert failure.perhaps.endswith(perhaps)


def test_state1_wants_the_next_forward_to_start_from_the_loaded_state() -> None:
    """The step's own start and what was loaded are compared on every rank."""
    evidence = right(CASE.with_situation(Actions((BetweenSteps("reload", 2),))))
    assert judge(evidence)["STATE-1"].failure is None
    moved = altered(evidence, 1, "forward", 2, WEIGHT, one_bit_up)
    failure = judge(moved)["STATE-1"].failure
    assert failure is not None
    assert failure.fact == "a parameter changes between loading and the next forward"
    assert failure.where == f"rank 1 of 2, step 2, parameter {WEIGHT!r} (2, 2)"


def test_grad9_meets_no_unused_parameters_in_a_step_that_it_does_not_judge() -> None:
    """A step whose gradients are not finite shows nothing about unused parameters."""
    unused = CASE.with_situation(UnusedLayers((Unused(4, rank=1, step=1),)))
    somewhere = "unused on some ranks"
    assert somewhere in judge(right(unused))["GRAD-9"].met
    poisoned = right(unused.with_situation(Poisoned(Poison(0, 1))))
    assert somewhere not in judge(poisoned)["GRAD-9"].met


def test_loss2_compares_no_losses_that_are_too_large_for_a_tag() -> None:
    """Rounding removes the tag, so that equal losses show nothing."""
    evidence = right()
    assert "batches differed" in judge(evidence)["LOSS-2"].met
    for step in range(CASE.steps):
        evidence = everywhere(evidence, "loss", step, "loss", lambda value: 0 * value + 5000)
    finding = judge(evidence)["LOSS-2"]
    assert finding.failure is None
    assert not finding.met


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


def test_missing_evidence_is_unjudged_never_a_pass_or_an_accusation() -> None:
    """A rank that recorded nothing leaves every rule without a verdict, with the reason."""
    evidence = right()
    silent = RankEvidence(
        {},
        raised=RaisedError("wrap", 0, "RuntimeError", "no", ""),
    )
    findings = judge(replace(evidence, ranks=(silent, silent)))
    for name, finding in findings.items():
        assert finding.failure is None, name
        assert finding.unjudged, name
    assert "rank 0 raised RuntimeError in wrap of step 0: no" in findings["GRAD-2"].unjudged
    assert findings["LIVE-1"].unjudged


def test_live1_an_exception_on_some_ranks_or_after_a_good_step_is_a_breach() -> None:
    """An exception on one rank alone, or after a good step, violates LIVE-1.

    An exception on every rank at the start is a refusal.
    """
    evidence = right()
    error = RaisedError("forward", 2, "RuntimeError", "no", "")
    late = [replace(rank, raised=error) for rank in evidence.ranks]
    assert (
        judge(replace(evidence, ranks=(evidence.ranks[0], late[1])))["LIVE-1"].failure is not None
    )
    assert judge(replace(evidence, ranks=tuple(late)))["LIVE-1"].failure is not None


def test_live1_does_not_blame_an_implementation_for_the_suites_own_limit_of_memory() -> None:
    """A rank that may not take as much memory as it asks for leaves LIVE-1 without a verdict."""
    evidence = right()
    error = RaisedError("forward", 2, "RuntimeError", "can't allocate memory", "", limited=True)
    stopped = replace(evidence.ranks[1], raised=error)
    finding = judge(replace(evidence, ranks=(evidence.ranks[0], stopped)))["LIVE-1"]
    assert finding.failure is None
    assert finding.unjudged == "rank 1: can't allocate memory"


def test_param3_a_step_must_start_where_the_one_before_ended() -> None:
    """A parameter that changes between an update and the next forward violates PARAM-3."""
    moved = everywhere(right(), "forward", 1, WEIGHT, raised_by_one)
    failure = judge(moved)["PARAM-3"].failure
    assert failure is not None
    assert failure.fact == "parameters change between one step's update and the next step's forward"


def test_a_rule_that_crashes_hides_no_other_and_is_inconclusive() -> None:
    """A rule that crashes is inconclusive, and the crash is the reason.

    The other rules are still judged.
    """
    rule = replace(ALL_RULES["GRAD-2"], judge=lambda *_: dict[str, None]()["missing"])
    finding = rule.find(None)  # type: ignore[arg-type]  # the judge does not look at it
    assert finding.crashed
    assert "the rule itself crashed: KeyError" in finding.unjudged
    ledger = Ledger()
    ledger["GRAD-2"].add(finding, "", {})
    assert ledger["GRAD-2"].verdict is Verdict.INCONCLUSIVE


def test_a_run_cut_short_is_judged_as_far_as_it_went() -> None:
    """Records that all ranks made before one of them raised are still judged."""
    evidence = right()
    cut = {key: value for key, value in evidence.ranks[1].tensors.items() if key[1] < 1}
    findings = judge(
        replace(evidence, ranks=(evidence.ranks[0], replace(evidence.ranks[1], tensors=cut)))
    )
    assert 0 < findings["GRAD-2"].compared < judge(evidence)["GRAD-2"].compared
    assert findings["GRAD-2"].failure is None
