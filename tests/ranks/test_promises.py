"""Tests of capabilities that a signature promises."""

from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.promises import promised
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Violation
from ddp_invariants.search.trial import Options, Trial
from ddp_invariants.situations.crossed import Crossed

PROMISING = "tests/helpers/promising.py"
FORGETS = f"{PROMISING}:EqualisesInEvaluationAlone"


@pytest.mark.parametrize(
    ("ddp", "standing"),
    [
        (Ddp(FORGETS), Standing.WRONG),
        (Ddp(FORGETS, (("broadcast_buffers", "False"),)), Standing.ABSENT),
        (Ddp("reference"), Standing.RIGHT),
    ],
    ids=["promised", "switched off", "reference"],
)
def test_buffers_that_the_signature_promises_to_equalise_are_judged(
    pool: Pool, ddp: Ddp, standing: Standing
) -> None:
    """An argument that is on by default claims equal buffers; one that is off claims nothing."""
    probes = discover(pool, ddp, Sampler(), 4).ddp_probes
    standings = {probe.capability: probe.standing for probe in probes}
    assert standings["equal_buffers"] is standing


@pytest.mark.parametrize(
    ("name", "bucketing", "overlap"),
    [
        ("IgnoresItsCapacity", Standing.WRONG, Standing.ABSENT),
        ("SendsAtTheEnd", Standing.RIGHT, Standing.WRONG),
        ("DeclaresThat", Standing.RIGHT, Standing.ABSENT),
    ],
)
def test_a_bucket_capacity_promises_buckets_that_are_sent_during_backward(
    pool: Pool, name: str, bucketing: Standing, overlap: Standing
) -> None:
    """A capacity without effect, and a backward without communication, break the promise."""
    discovery = discover(pool, Ddp(f"{PROMISING}:{name}"), Sampler(), 4)
    probes = {probe.capability: probe for probe in discovery.ddp_probes}
    assert (probes["bucketing"].standing, probes["overlap"].standing) == (bucketing, overlap)
    assert probes["overlap"].excused is (overlap is Standing.ABSENT)
    assert discovery.scope(4).excluded("COMM-4") == ""
    assert bool(discovery.scope(4).excluded("COMM-5")) is (overlap is Standing.ABSENT)


def test_a_broken_promise_is_a_violation(pool: Pool, tmp_path: Path) -> None:
    """The rule about overlap is violated, and not left out, if nothing is sent during backward."""
    ddp = Ddp(f"{PROMISING}:SendsAtTheEnd")
    scope = discover(pool, ddp, Sampler(), 4).scope(4)
    trial = Trial(pool, UnderTest(ddp, Sampler(), scope), Options(seed=1, cases=50, store=tmp_path))
    with pytest.raises(Violation, match="communication waits for the whole backward"):
        trial.certify("COMM-5")


@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_a_rank_with_another_order_may_compute_the_first_bucket_last(
    make_trial: TrialMaker, ddp: str
) -> None:
    """Overlap is judged where ranks compute gradients in one order, and not where a rank differs."""
    case = TrainingCase(Model(1, (Layer("branches"),)), steps=3, bucket_cap=1, data=Data(samples=8))
    trial = make_trial(ddp=ddp)
    assert trial.findings(case)["COMM-5"].compared
    for rank in (0, 1):
        finding = trial.findings(case.with_situation(Crossed(rank)))["COMM-5"]
        assert finding.failure is None
        assert finding.compared == 0


@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_the_models_own_parameter_may_hold_up_the_first_bucket(
    make_trial: TrialMaker, ddp: str
) -> None:
    """It comes first in the list of parameters, wherever its layer lies.

    Buckets that are filled in the order of that list then do not arrive in the order of backward.
    """
    trial = make_trial(ddp=ddp)
    for rooted, judged in (0, True), (2, False):
        layers = [Layer("linear", 4), Layer("linear", 4)]
        layers.insert(rooted, Layer("scale"))
        model = Model(4, tuple(layers), "rooted")
        finding = trial.findings(TrainingCase(model, steps=2, bucket_cap=64))["COMM-5"]
        assert finding.failure is None
        assert bool(finding.compared) is judged


def test_an_argument_given_counts_before_its_default() -> None:
    """A given argument decides, and an unknown signature promises nothing."""
    on = {"defaults": {"broadcast_buffers": "True"}}
    off: dict[str, dict[str, str]] = {"defaults": {}}
    assert promised(Ddp(), on) == {"equal_buffers"}
    assert promised(Ddp(), off) == set()
    assert promised(Ddp(arguments=(("broadcast_buffers", "False"),)), on) == set()
    assert promised(Ddp(), {"defaults": {"bucket_cap_mb": "None"}}) == {"bucketing", "overlap"}
    both = {"defaults": {"broadcast_buffers": "None", "forward_sync_buffers": "None"}}
    assert promised(Ddp(), both) == {"equal_buffers"}
    assert promised(Ddp(arguments=(("forward_sync_buffers", "False"),)), both) == set()
