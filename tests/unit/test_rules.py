"""Tests of the rules: each fails on handmade evidence of a violation, and not on right evidence."""

from dataclasses import replace

import numpy as np
import pytest
from handmade import (
    CASE,
    SCALE,
    STRUCTURE,
    WEIGHT,
    Alteration,
    altered,
    everywhere,
    one_bit_up,
    raised_by_one,
    right,
)

from ddp_invariants.cases.case import ZeroGrad
from ddp_invariants.cases.program import (
    Data,
    Optimizer,
)
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import ALL_RULES, judge
from ddp_invariants.invariants.view import training
from ddp_invariants.records.evidence import (
    Incident,
    RaisedError,
    RankEvidence,
    TrainingEvidence,
)
from ddp_invariants.records.verdict import Verdict
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.situations.storage import ONE_STORAGE

SHARED = replace(CASE, data=Data(samples=1))
"""A case in which both ranks get the only sample."""


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


def test_loss2_compares_no_losses_that_are_too_large_for_a_tag() -> None:
    """Rounding removes the tag, so that equal losses show nothing."""
    evidence = right()
    assert "batches differed" in judge(evidence)["LOSS-2"].met
    for step in range(CASE.steps):
        evidence = everywhere(evidence, "loss", step, "loss", lambda value: 0 * value + 5000)
    finding = judge(evidence)["LOSS-2"]
    assert finding.failure is None
    assert not finding.met


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
