"""Right wrappers that a rule has once accused: each is run on a case that showed it."""

from dataclasses import replace
from pathlib import Path

import pytest
import right_sharded
import right_wrappers
from probed import Discover

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    BetweenSteps,
    Data,
    Exhausted,
    LossScale,
    Optimizer,
    Unused,
)
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Declarations, declare
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.autocast import Autocast
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.earlier import EarlierRuns
from ddp_invariants.situations.evaluated_layer import EvaluatedLayer
from ddp_invariants.situations.group_options import GroupOptions
from ddp_invariants.situations.module_use import ModuleUse
from ddp_invariants.situations.other_method import OtherMethod
from ddp_invariants.situations.own_buffers import OwnBuffers
from ddp_invariants.situations.scaler import Scaler
from ddp_invariants.situations.uneven import UnevenInputs
from ddp_invariants.situations.unused import UnusedLayers

FILE = Path(__file__).parents[1] / "helpers" / "right_wrappers.py"
BATCHES = Data(samples=8, batch_size=2)
TWO = Model(4, (Layer("linear", 4, bias=True), Layer("linear", 4)))
BUFFERED = Model(4, (Layer("linear", 4), Layer("statistics"), Layer("linear", 4)))
MIXED = Model(4, (Layer("linear", 4), Layer("linear", 4, dtype="bfloat16"), Layer("linear", 4)))
FROZEN = Model(4, (Layer("linear", 4), Layer("linear", 4, frozen=True)))
WIDENING = Model(1, (Layer("linear", 1), Layer("linear", 8), Layer("linear", 6)))
TRANSPOSED = Model(
    8, (Layer("linear", 8, layout="transposed"), Layer("linear", 7, bias=True), Layer("linear", 9))
)
WIDE = Model(8, (Layer("linear", 8),) * 3)
SOMETIMES = (Unused(1, rank=1, step=1), Unused(0, rank=1, step=2))
TIED = Model(4, (Layer("linear", 4), Layer("linear", 4, tied=0), Layer("linear", 4)))
ROOTED, ROOTED_FROZEN = (
    Model(4, (Layer("linear", 4), Layer("scale", frozen=frozen), Layer("linear", 4)), "rooted")
    for frozen in (False, True)
)
NORMED = Model(4, (Layer("linear", 4), Layer("batch_norm"), Layer("linear", 4)))
BRANCHED = Model(4, (Layer("branches"), Layer("linear", 4)))
SHARDED = Model(16, (Layer("linear", 32), Layer("linear", 16, frozen=True), Layer("linear", 16)))
LOW = Model(16, (Layer("linear", 32, dtype="bfloat16"), Layer("linear", 16, dtype="bfloat16")))
THREE, FOUR = (Model(4, (Layer("linear", 4),) * count) for count in (3, 4))
ONE_FROZEN = Model(4, (*FOUR.layers[:2], Layer("linear", 4, frozen=True), Layer("linear", 4)))
WITH_BIASES = Model(4, (Layer("linear", 4, bias=True),) * 3)
LARGEST_FROZEN = Model(4, (Layer("linear", 2), Layer("linear", 8, frozen=True), Layer("norm")))
LATER, ADDING = (
    GroupOptions(log2_later=-2),
    Actions((BetweenSteps("unfreeze", 1, 2),), adds=True),
)
ADAM = Optimizer(kind="adam", log2_lr=-3)
RELOADED = (Actions((BetweenSteps("reload", 1),)),)
FINE = Optimizer(log2_lr=-3)
CAST, CAST_WITH_GRADIENTS, UNFROZEN, FREEZING = (
    (Actions((action,)),)
    for action in (
        BetweenSteps("cast", 1),
        BetweenSteps("cast", 1, keeps=True),
        BetweenSteps("unfreeze", 1, 1),
        BetweenSteps("freeze", 1, 1),
    )
)


def case(model: Model, world_size: int = 2, **options: object) -> TrainingCase:
    """Return a case of three steps, unless it has another number of them."""
    return TrainingCase(model, world_size, **{"data": BATCHES, "steps": 3, **options})  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    ("name", "case", "rule"),
    [
        ("SavesErrors", case(FROZEN, situations=RELOADED), "STATE-1"),
        ("SavesASteps", case(TWO, situations=(ModuleUse(("names",)),)), "MOD-2"),
        ("BroadcastsWhatItLoads", case(BUFFERED, situations=RELOADED), "STATE-1"),
        (
            "BuffersAfterBackward",
            case(BUFFERED, situations=(Actions((BetweenSteps("forward only", 1),)),)),
            "BUF-1",
        ),
        ("AveragesBuffers", case(BUFFERED, bucket_cap=64), "COMM-4"),
        ("ListsTheModulesNames", case(BUFFERED, situations=(ModuleUse(("names",)),)), "MOD-2"),
        ("PoolsVariances", case(NORMED), "BUF-2"),
        ("Delegates", case(BUFFERED), "BUF-1"),
        ("Delegates", case(BUFFERED, situations=(OtherMethod(),)), "CALL-3"),
        ("CastsItself", case(TIED, situations=CAST), "LIVE-5"),
        ("CastsItself", case(TIED, situations=CAST_WITH_GRADIENTS, zero_grad="zero"), "LIVE-5"),
        ("ComputesParameters", case(ROOTED_FROZEN, situations=UNFROZEN), "LIVE-5"),
        ("ComputesParameters", case(ROOTED, situations=FREEZING), "LIVE-5"),
        ("RefusesWhatIsNotFinite", case(WIDENING, steps=6), ""),
        ("ReducesInPairs", case(TWO, 4, bucket_cap=64), "PARAM-3"),
        (
            "ClipsByAFlatNorm",
            case(TWO, 1, values="real", optimizer=FINE, situations=(Clipping(1.0),)),
            "PARAM-3",
        ),
        (
            "SumsBesideTheGradient",
            case(TWO, 1, accumulation=2, values="real", zero_grad="never"),
            "PARAM-3",
        ),
        ("SumsInFloat64", case(TWO, 1, accumulation=3, values="real", seed=5), "PARAM-3"),
        (
            "MainGradientsOfLowPrecision",
            case(MIXED, values="real", optimizer=FINE, situations=(Clipping(0.0625),)),
            "",
        ),
        (
            "MainGradientsOfLowPrecision",
            case(MIXED, values="real", optimizer=FINE, situations=(Scaler(LossScale(4)),)),
            "",
        ),
        (
            "JoinsByASum",
            case(TWO, values="faint", situations=(UnevenInputs((Exhausted(1, 1),)),)),
            "GRAD-11",
        ),
        (
            "AdoptsObjects",
            case(TRANSPOSED, data=Data(samples=1), steps=1, values="real"),
            "LOSS-1",
        ),
        (
            "KeepsItsBuffers",
            case(NORMED, data=Data(samples=1), situations=(OwnBuffers(), EvaluatedLayer(1))),
            "LOSS-1",
        ),
        ("FlattensLate", case(TRANSPOSED, accumulation=2, values="real"), "LOSS-1"),
        ("RegistersAgain", case(BRANCHED), "INIT-3"),
        ("LoadsBySum", case(TWO, values="faint", situations=RELOADED), "STATE-1"),
        ("LoadsBySum", case(TWO, values="faint", situations=(ModuleUse(("states",)),)), "MOD-4"),
        ("EachForwardBySum", case(TIED, values="faint", data=Data(16, 2)), "PARAM-3"),
        (
            "AddsToZeros",
            case(
                WIDE, values="faint", seed=1, log2_scale=-8, situations=(UnusedLayers(SOMETIMES),)
            ),
            "GRAD-1",
        ),
        (
            "JoinsUncached",
            case(
                TIED,
                values="real",
                situations=(Autocast(), UnevenInputs((Exhausted(1, 1),))),
            ),
            "GRAD-11",
        ),
        (
            "JoinsSums",
            case(TWO, 3, values="real", situations=(UnevenInputs((Exhausted(1, 1),)),)),
            "GRAD-11",
        ),
        (
            "JoinsByAFactor",
            case(TWO, 3, situations=(UnevenInputs((Exhausted(1, 1), Exhausted(2, 1))),)),
            "GRAD-11",
        ),
        (
            "ClipsWhatItIsGiven",
            case(TWO, values="real", optimizer=FINE, situations=(Clipping(1.0),)),
            "PARAM-3",
        ),
    ],
)
def test_it_is_not_accused(pool: Pool, name: str, case: TrainingCase, rule: str) -> None:
    """No rule fails, and the rule that failed is judged where it can be."""
    unlike_their_probes = {"COMM-5"}  # Claimed by no probe here.
    declared = declare(Declarations, getattr(getattr(right_wrappers, name), "declares", {}))
    findings = judge(pool.train(case, Ddp(f"{FILE}:{name}")), declared)
    failed = {each.rule: each.failure for each in findings.values() if each.failure}
    assert {*failed} <= unlike_their_probes, failed
    assert not rule or findings[rule].compared


@pytest.mark.parametrize(
    ("name", "case", "rule"),
    [
        ("LeavesFrozen", case(SHARDED, init="equal"), "INIT-3"),
        ("Sharded32", case(LOW, init="equal", values="real", optimizer=ADAM), "MEM-1"),
        ("Sliced32", case(LOW, values="real", optimizer=ADAM), "MEM-1"),
        ("Sliced32", case(LOW, values="real", optimizer=Optimizer(momentum=0.5)), "MEM-1"),
        ("SlicedMomentum", case(TWO), "MEM-1"),
        ("Owned", case(WITH_BIASES, optimizer=Optimizer(momentum=0.5)), "MEM-1"),
        ("DealsFrozenToo", case(LARGEST_FROZEN, optimizer=Optimizer(momentum=0.5)), "MEM-1"),
        ("Owned", case(TWO, situations=(UnusedLayers((Unused(1, step=1),)),)), "GRAD-2"),
        ("Owned", case(TWO, situations=(Actions((BetweenSteps("freeze", 1, 1),)),)), "GRAD-2"),
        ("Contiguous", case(THREE, situations=(LATER,)), "PARAM-3"),
        ("Contiguous", case(FOUR, world_size=3, situations=(LATER,)), "PARAM-3"),
        ("Contiguous", case(ONE_FROZEN, world_size=3, situations=(ADDING,)), "PARAM-3"),
    ],
)
def test_it_may_shard(pool: Pool, name: str, case: TrainingCase, rule: str) -> None:
    """No rule fails by its declarations, and the rule that failed is judged."""
    declared = declare(Declarations, getattr(right_sharded, name).declares)
    file = FILE.with_name("right_sharded.py")
    findings = judge(pool.train(case, Ddp(f"{file}:{name}")), declared)
    # Some exchange gradients after the backward, as a probe would find out.
    scope = Scope(4, frozenset({"overlap"}), declared=declared)
    failed = {
        each.rule: each.failure
        for each in findings.values()
        if each.failure and not scope.excluded(each.rule)
    }
    assert not failed
    assert findings[rule].compared


def test_shards_of_gradients_may_keep_two_storages(pool: Pool) -> None:
    """FSDP2's gradients are views of one buffer, which those that are cleared in place keep."""
    declares = {"init": "seed", "gradients": "hidden", "zero": 3, "partition": "rows"}
    sharded, held = Ddp("torch.distributed.fsdp:fully_shard", declares=declares), {}
    for clearing in ("zero", "mixed"):
        evidence = pool.train(case(FOUR, init="equal", zero_grad=clearing), sharded)
        finding = judge(evidence, declare(Declarations, declares))["MEM-1"]
        assert finding.failure is None
        assert finding.compared
        held[clearing] = evidence.ranks[0].held[-1][3]
    assert held["mixed"] == 2 * held["zero"]


def test_a_parameter_that_no_layer_shows_is_missing_evidence(
    pool: Pool, discovered: Discover
) -> None:
    """A sharded parameter that is not seen whole proves nothing: neither a violation nor a refusal."""
    declared = declare(Declarations, right_sharded.ShowsNoParameter.declares)
    name = f"{FILE.with_name('right_sharded.py')}:ShowsNoParameter"
    findings = judge(pool.train(case(TWO, init="equal"), Ddp(name)), declared)
    assert not any(each.failure for each in findings.values())
    assert "no layer was seen to compute with the whole" in findings["LOSS-1"].unjudged
    probes = {
        each.capability: each for each in discovered(pool, Ddp(name), Sampler(), 2).ddp_probes
    }
    assert probes["bias"].standing is Standing.UNKNOWN
    assert probes["bias"].words.startswith("no layer was seen to compute with the whole")


def test_a_refusal_of_a_short_batch_is_a_refusal(pool: Pool, discovered: Discover) -> None:
    """No case with a last batch of another size is drawn then."""
    discovery = discovered(pool, Ddp(f"{FILE}:KeepsTheShape"), Sampler(), 2)
    probes = {probe.capability: probe.standing for probe in discovery.ddp_probes}
    assert probes["short_batch"] is Standing.REFUSED
    assert not discovery.scope(2).has("short_batch")


def test_gradients_in_parts_are_refused_with_any_bucket_cap(
    pool: Pool, discovered: Discover
) -> None:
    """A bucket of all gradients waits for other layers, until these are frozen."""
    probes = discovered(pool, Ddp(f"{FILE}:OneBucket"), Sampler(), 2).ddp_probes
    assert {p.capability: p.standing for p in probes}["in_parts"] is Standing.REFUSED


def test_a_refusal_after_earlier_runs_is_not_judged(make_trial: TrialMaker) -> None:
    """A wrapper that serves one run of a process is neither right nor wrong about LIVE-8."""
    runs = EarlierRuns((replace(GENTLE, seed=5),))
    trial = make_trial(ddp=f"{FILE}:OnlyOne", scope=Scope())
    finding = trial.really(GENTLE.with_situation(runs), rule="LIVE-8")["LIVE-8"]
    assert finding.failure is None
    assert "only one wrapper is supported" in finding.unjudged


def test_a_thread_may_end_after_its_run(pool: Pool) -> None:
    """A confirmation in new processes waits for it."""
    repeated = case(TWO, rounds=4)
    judged = judge(pool.train(repeated, Ddp(f"{FILE}:Lingers"), fresh=True))["LIVE-4"]
    assert judged.failure is None
    assert judged.compared
