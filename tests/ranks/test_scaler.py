"""Loss scalers: the scaled cases, the rules that judge them, and torch's own scaler."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from handmade import CASE, SCALE, WEIGHT, altered, everywhere, right
from hypothesis import given
from test_programs import DRAWN

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase, describe
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Exhausted, LossScale, Optimizer, Poison
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import ALL_RULES, judge
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.oracle import balls
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof.catalogue import Catalogue, CatalogueEntry, all_entries
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.records.verdict import NotJudged, violation_class
from ddp_invariants.search.scale import LARGE
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.scaler import Scaler
from ddp_invariants.situations.uneven import UnevenInputs

UNSCALED = "gradients unscaled before the step"
SCALED = replace(CASE, steps=4).with_situation(
    Poisoned(Poison(1, 1, "inf")), Scaler(LossScale(4, interval=1))
)
"""Rank 1 overflows at the second step; the scale goes from 16 to 32, 16, 32 and 64."""


def of_scales(evidence: TrainingEvidence, rank: int, scales: list[float]) -> TrainingEvidence:
    """Return the evidence with other loss scales on one rank."""
    ranks = list(evidence.ranks)
    ranks[rank] = replace(ranks[rank], scales=scales)
    return replace(evidence, ranks=tuple(ranks))


@pytest.mark.parametrize(
    "optimizer", [CASE.optimizer, Optimizer("adamw", log2_lr=-10, weight_decay=0.25)]
)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_right_evidence_of_a_loss_scale_breaches_no_rule(
    world_size: int, optimizer: Optimizer
) -> None:
    """Right evidence of a loss scale violates no rule.

    A skipped step does not count, neither for the momentum nor for Adam's number of steps.
    """
    poison = Poison(world_size - 1, 1, "inf")
    evidence = right(
        replace(
            SCALED.without(Poisoned), world_size=world_size, optimizer=optimizer
        ).with_situation(Poisoned(poison))
    )
    assert evidence.ranks[0].scales == [32.0, 16.0, 32.0, 64.0]
    findings = judge(evidence)
    assert {name: f.failure for name, f in findings.items() if f.failure} == {}
    assert not [name for name, f in findings.items() if f.crashed]
    assert findings["PARAM-6"].met >= set(ALL_RULES["PARAM-6"].needs) - {
        "more than one rank",
        UNSCALED,
    }
    # All four steps are compared; one of them moves nothing.
    assert (
        findings["PARAM-3"].compared
        > 3 * judge(right(replace(CASE, steps=1, world_size=world_size)))["PARAM-3"].compared
    )


@pytest.mark.parametrize(
    ("fact", "got", "alter"),
    [
        (
            "ranks skip different steps",
            "makes the step, rank 1 skips it; a gradient is not finite on rank 1; after synchronisation",
            lambda e: of_scales(e, 0, [32.0, 64.0, 128.0, 256.0]),
        ),
        (
            "ranks skip different steps",
            "it skips the step, rank 1 makes it; all gradients are finite",
            lambda e: of_scales(e, 0, [8.0, 4.0, 8.0, 16.0]),
        ),
        (
            "a step is made although a gradient overflows",
            "not finite on rank 1; after synchronisation they are finite on all ranks",
            lambda e: everywhere(
                of_scales(of_scales(e, 0, [32.0, 64.0]), 1, [32.0, 64.0]),
                "reduced",
                1,
                WEIGHT,
                np.zeros_like,
            ),
        ),
        (
            "a step is skipped although no gradient overflows",
            "it skips the step; all gradients are finite",
            lambda e: of_scales(of_scales(e, 0, [8.0]), 1, [8.0]),
        ),
        (
            "the loss scale does not follow from",
            "48, expected 32",
            lambda e: of_scales(of_scales(e, 0, [48.0]), 1, [48.0]),
        ),
        (
            "the loss scale does not follow from",
            "8, expected 16",
            lambda e: of_scales(e, 1, [32.0, 8.0, 16.0, 32.0]),
        ),
        (
            "a skipped step moves parameters",
            "",
            lambda e: altered(e, 1, "updated", 1, SCALE, lambda v: v * 2),
        ),
        (
            "a skipped step changes the optimizer's state",
            "",
            lambda e: everywhere(e, "state", 1, "momentum", lambda v: v * 2),
        ),
        (
            "with a loss scaler, parameters do not move as",
            "",
            lambda e: everywhere(e, "updated", 2, SCALE, lambda v: v + 1),
        ),
        (
            "with a loss scaler, the gradient is not the mean",
            "",
            lambda e: everywhere(e, "reduced", 0, SCALE, lambda v: v / 16),
        ),
    ],
)
def test_param6_fires(
    fact: str, got: str, alter: Callable[[TrainingEvidence], TrainingEvidence]
) -> None:
    """PARAM-6 fails for each wrong way to skip, scale or move, and names it."""
    failure = judge(alter(right(SCALED)))["PARAM-6"].failure
    assert failure is not None
    assert failure.fact.startswith(fact)
    assert got in failure.got


def test_scales_that_are_missing_prove_nothing() -> None:
    """If the scales are missing, the rule neither holds nor fails."""
    finding = judge(of_scales(right(SCALED), 1, []))["PARAM-6"]
    assert finding.failure is None
    assert "no evidence of the loss scale" in finding.unjudged


def test_what_may_overflow_or_not_is_left_to_the_ranks() -> None:
    """If only some right implementations overflow, the ranks may make the step or skip it.

    Two gradients of 2**127 overflow if they are summed first, but not if they are divided first.
    All ranks must still decide alike.
    """
    evidence = right(replace(SCALED.without(Poisoned), steps=1))
    for rank in (0, 1):
        evidence = altered(evidence, rank, "local", 0, WEIGHT, lambda v: np.full_like(v, 2.0**127))
    assert EvidenceView(evidence).overflows(0) is None
    made = everywhere(evidence, "reduced", 0, WEIGHT, lambda v: np.full_like(v, 2.0**127))
    started = evidence.ranks[0].tensors["forward", 0].by_name
    skipped = of_scales(of_scales(evidence, 0, [8.0]), 1, [8.0])
    for name, value in started.items():
        skipped = everywhere(
            skipped,
            "updated",
            0,
            name,
            lambda v, value=value: value.astype(v.dtype).reshape(v.shape),
        )
    skipped = everywhere(skipped, "state", 0, "momentum", np.zeros_like)
    assert [judge(variant)["PARAM-6"].failure for variant in (made, skipped)] == [None, None]
    parted = judge(of_scales(made, 1, [8.0]))["PARAM-6"].failure
    assert parted is not None
    assert "the order of summation decides whether gradients overflow" in parted.got


def test_unscaling_rounds_nothing_but_what_becomes_too_small() -> None:
    """Unscaling by a power of two is exact, unless the result is too small or too large.

    Below the smallest normal number, the error is at most that number.
    """
    form = balls.FORMATS["float32"]
    values = np.array([3.14159, -1e-30, 2.0**-149, 1e38], np.float32)
    for exponent in (-140, -30, 3, 120):
        ball = balls.scaled(balls.exactly(values.astype(np.float64)), 2.0**exponent, form)
        with np.errstate(over="ignore"):
            held = (values * np.float32(2.0**exponent)).astype(np.float64)
        known = np.isfinite(ball.radius)
        assert (np.abs(held - ball.centre)[known] <= ball.radius[known]).all()
        assert known[:3].all()
    assert balls.scaled(balls.exactly(values[:1].astype(np.float64)), 2.0**-30, form).radius[0] == 0


SPARSE = Model(2, (Layer("embedding", sparse=True), Layer("linear", 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LossScale(127), "log2_scale is 127, expected an integer from -30 to 126"),
        (lambda: LossScale(4, interval=0), "interval is 0"),
        (lambda: LossScale(4, log2_growth=0), "log2_growth is 0"),
        (lambda: LossScale(4, log2_backoff=0), "log2_backoff is 0"),
        (
            lambda: SCALED.with_situation(Scaler(LossScale(126, interval=1))),
            "a scale that stays between",
        ),
        (
            lambda: SCALED.with_situation(Scaler(LossScale(4, log2_backoff=60))),
            "a scale that stays between",
        ),
        (
            lambda: replace(SCALED, zero_grad="never"),
            "zero_grad is 'never', expected another value if a loss is scaled",
        ),
        (
            lambda: TrainingCase(SPARSE, situations=(Scaler(LossScale(4)),)),
            "null if a gradient is sparse, or of a dtype",
        ),
        (
            lambda: TrainingCase(
                Model(2, (Layer("linear"),)),
                optimizer=Optimizer(momentum=0.5, kernels="fused"),
                situations=(Scaler(LossScale(4)),),
            ),
            "SGD's fused kernels have momentum",
        ),
        (
            lambda: CASE.with_situation(Resized(1), Scaler(LossScale(4))),
            "a state is loaded that other ranks saved",
        ),
        (
            lambda: CASE.with_situation(UnevenInputs((Exhausted(1),)), Scaler(LossScale(4))),
            "if a rank runs out of batches",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(make: Callable[[], object], message: str) -> None:
    """The message names the field, its value, and the values allowed."""
    with pytest.raises(CaseError) as refused:
        make()
    assert message in str(refused.value)


def test_a_scaled_case_is_told_in_a_line() -> None:
    """The description names the scale and the fields that differ from their defaults."""
    assert "scaler=(log2_scale=4,interval=1)" in describe(SCALED)


def test_drawn_cases_are_scaled_and_become_simpler() -> None:
    """PARAM-6 draws a scaler for every case that can have one.

    Every scaled case has a simpler case without a scaler.
    """
    met: set[str] = set()

    @DRAWN
    @given(cases_for("PARAM-6", Scope()))
    def look_at(case: TrainingCase) -> None:
        # A case that was made large may have lost its scaler.
        large = any(is_large(case) for is_large in LARGE.values())
        assert (case.scaler is not None) == case.scalable or large
        met.update(
            name
            for name, is_so in (("poison", case.poison is not None), ("none", case.poison is None))
            if is_so
        )
        if case.scaler is not None:
            met.update(
                {f"scale {case.scaler.log2_scale > 100}", f"unscaled {case.scaler.unscaled}"}
            )
        assert (
            any(
                isinstance(candidate, TrainingCase) and candidate.scaler is None
                for candidate in simpler(case)
            )
            or case.scaler is None
        )

    look_at()
    assert met == {"poison", "none", "scale True", "scale False", "unscaled True", "unscaled False"}


def test_an_overflow_of_the_scale_itself_is_skipped(pool: Pool) -> None:
    """An overflow that the scale itself causes is skipped, and the next steps are made.

    The scale 2**122 times a gradient exceeds float32. The scale then falls by 2**40 at once.
    """
    scaler = LossScale(122, log2_backoff=40)
    case = TrainingCase(
        Model(4, (Layer("linear", 4), Layer("linear", 4))),
        data=Data(samples=8, batch_size=2),
        steps=3,
        log2_scale=4,
        situations=(Scaler(scaler),),
        seed=1,
    )
    evidence = pool.train(case, Ddp())
    assert [rank.scales for rank in evidence.ranks] == [[2.0**82, 2.0**82, 2.0**83]] * 2
    findings = judge(evidence)
    assert {name: finding.failure for name, finding in findings.items() if finding.failure} == {}
    assert findings["PARAM-6"].met >= {"a step skipped", "a step made after one that was skipped"}


@pytest.mark.parametrize(
    "case",
    [
        replace(
            SCALED.without(Poisoned), world_size=1, model=Model(2, (Layer("linear", 2),))
        ).with_situation(Poisoned(Poison(0, 1)), Clipping(0.5)),
        replace(
            SCALED.without(Poisoned),
            world_size=1,
            log2_scale=6,
            model=Model(2, (Layer("linear", 2),)),
            situations=(Scaler(LossScale(122, interval=4, log2_backoff=40)),),
        ),
    ],
    ids=["poisoned", "too large a scale"],
)
def test_a_world_of_one_rank_is_plain_training_with_a_loss_scale(
    pool: Pool, case: TrainingCase
) -> None:
    """With one rank, the scaler of the plain steps skips the same steps as the wrapper's."""
    findings = judge(pool.train(case, Ddp()))
    assert {name: finding.failure for name, finding in findings.items() if finding.failure} == {}
    # A norm may be added up in another order, so PARAM-4 judges no clipped step.
    assert findings["PARAM-4"].compared == (4 * 4 if case.clip is None else 0)
    assert (UNSCALED in findings["PARAM-6"].met) == (case.clip is not None)
    assert "a step skipped" in findings["PARAM-6"].met


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("keeps_what_it_finds", "a skipped step moves parameters"),
        ("ClearedByTheStep", "a step is skipped although no gradient overflows"),
        ("never_unscales", "never unscaled"),
    ],
)
def test_a_fault_beside_a_scaler_is_caught(make_trial: TrialMaker, name: str, words: str) -> None:
    """PARAM-6, which only a scaled case can violate, catches the fault and names it."""
    with pytest.raises(violation_class("PARAM-6"), match=words):
        make_trial(ddp=f"ddp_invariants.faults.scaled:{name}", cases=20).certify("PARAM-6")


@pytest.mark.parametrize(
    "control",
    [entry for entry in Catalogue(all_entries()).select(["scaled"]) if not entry.is_fault],
    ids=lambda entry: entry.name,
)
def test_an_optimizer_that_sees_to_scaling_is_not_accused(
    make_trial: TrialMaker, control: CatalogueEntry
) -> None:
    """An optimizer that handles the scale itself violates no rule.

    The optimizer looks at all gradients, or it looks at a shard and asks the other ranks.
    """
    trial = make_trial(ddp=control.target, cases=20)
    trial.certify("PARAM-6")
    assert all(trial.ledger[rule].seen == 0 for rule in ALL_RULES)


@pytest.mark.parametrize("ddp", ["ddp_invariants.faults.functional:stepped"])
def test_what_synchronises_in_the_step_is_not_asked(make_trial: TrialMaker, ddp: str) -> None:
    """PARAM-6 is not judged for a wrapper that synchronises in the optimizer's step.

    A scaler would look at gradients that are not synchronised yet, so no scaler is offered.
    """
    trial = make_trial(ddp=ddp, cases=5)
    assert not trial.scope.has("scaler")
    with pytest.raises(NotJudged, match="supports no loss scaler"):
        trial.certify("PARAM-6")


def test_an_overflow_where_less_is_held_is_left_to_the_ranks() -> None:
    """If gradients travel in float16, a value above 65504 may become infinite or not."""
    evidence = everywhere(
        right(replace(SCALED.without(Poisoned), steps=1)),
        "local",
        0,
        WEIGHT,
        lambda v: np.full_like(v, 4e4),
    )
    assert EvidenceView(evidence).overflows(0) is False
    assert EvidenceView(evidence, Declarations(exactness="float16")).overflows(0) is None
    assert math.isfinite(EvidenceView(evidence).scale(0))
