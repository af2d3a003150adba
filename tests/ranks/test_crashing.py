"""Tests of implementations that crash on some inputs: a crash is no refusal."""

import re
from pathlib import Path

import pytest

from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.discovery.unsettled import suspects
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Violation
from ddp_invariants.report.terminal import left_out_of
from ddp_invariants.search.trial import Options, Trial

CRASHING = "tests/helpers/crashing.py"


def _standings(
    pool: Pool, ddp: Ddp, sampler: Sampler, store: Path
) -> tuple[dict[str, Standing], Trial]:
    discovery = discover(pool, ddp, sampler, 4)
    probes = (*discovery.ddp_probes, *discovery.sampler_probes)
    scope = discovery.scope(4)
    standings = {probe.capability: probe.standing for probe in probes}
    options = Options(seed=1, cases=100, store=store, suspects=suspects(discovery, 4))
    return standings, Trial(pool, UnderTest(ddp, sampler, scope), options)


@pytest.mark.parametrize(
    ("name", "crashes", "tested", "rule", "error"),
    [
        ("ForgetsAName", "shuffle", "SHARD-1", "LIVE-1", "NameError: name 'shuffled'"),
        ("LosesALine", "unset_epoch", "SHARD-4", "SHARD-4", "AttributeError: "),
        ("LosesALineOfTorchs", "unset_epoch", "SHARD-4", "SHARD-4", "AttributeError: "),
        ("EndsEarly", "uneven", "SHARD-1", "LIVE-1", "RuntimeError: generator raised StopIt"),
        ("Asserts", "uneven", "SHARD-1", "LIVE-1", "AssertionError: "),
    ],
)
def test_a_sampler_that_crashes_on_some_inputs_is_violated(
    pool: Pool, tmp_path: Path, name: str, crashes: str, tested: str, rule: str, error: str
) -> None:
    """A sampler that crashes on some inputs is told with its traceback, and never certified."""
    standings, trial = _standings(pool, Ddp(), Sampler(f"{CRASHING}:{name}"), tmp_path)
    assert standings[crashes] is Standing.CRASHED
    with pytest.raises(Violation) as caught:
        trial.certify(tested)
    failure = caught.value.failure
    assert (failure.rule, failure.fact) == (
        rule,
        "the implementation crashes, which is no refusal",
    )
    assert failure.got.startswith(error)
    assert re.search(r"crashing\.py|utils/data/distributed\.py", failure.notes)


def test_a_sampler_that_refuses_some_inputs_is_judged_without_them(
    pool: Pool, tmp_path: Path
) -> None:
    """A sampler that raises on purpose is judged on the inputs that it takes, and is right there."""
    standings, trial = _standings(pool, Ddp(), Sampler(f"{CRASHING}:Refuses"), tmp_path)
    assert standings["uneven"] is standings["short"] is Standing.REFUSED
    assert Standing.CRASHED not in standings.values()
    trial.certify("SHARD-4")


def test_a_right_sampler_in_the_users_own_file_does_not_crash(pool: Pool, tmp_path: Path) -> None:
    """A right sampler in a user's file crashes nowhere, not even on an empty dataset."""
    standings, _ = _standings(pool, Ddp(), Sampler(f"{CRASHING}:Right"), tmp_path)
    assert Standing.CRASHED not in standings.values()


def test_a_wrapper_that_crashes_on_a_dtype_is_violated(pool: Pool, tmp_path: Path) -> None:
    """A wrapper whose table lacks a dtype crashes there, and LIVE-1 says so."""
    standings, trial = _standings(pool, Ddp(f"{CRASHING}:ForgetsADtype"), Sampler(), tmp_path)
    assert standings["float64"] is Standing.CRASHED
    assert standings["bfloat16"] is Standing.RIGHT
    with pytest.raises(Violation, match=r"KeyError: torch\.float64") as caught:
        trial.certify("GRAD-2")
    assert caught.value.failure.rule == "LIVE-1"
    assert not any(" raised " in reason for reason in trial.ledger["GRAD-2"].unjudged)


def test_a_crash_after_an_injected_exception_is_no_refusal(pool: Pool, tmp_path: Path) -> None:
    """The program catches the injected exception; the crash in the next forward is the wrapper's."""
    ddp = Ddp(f"{CRASHING}:CrashesAfterAnException")
    standings, trial = _standings(pool, ddp, Sampler(), tmp_path)
    assert standings["forward_error"] is Standing.CRASHED
    assert standings["backward_error"] is Standing.RIGHT
    with pytest.raises(Violation) as caught:
        trial.certify("LIVE-2")
    failure = caught.value.failure
    assert (failure.rule, failure.fact) == (
        "LIVE-1",
        "the implementation crashes, which is no refusal",
    )
    assert failure.got.startswith("AttributeError: 'NoneType' object has no attribute 'index'")
    assert "crashing.py" in failure.notes
    assert str(caught.value).startswith(f"LIVE-1 violated by {ddp} (seen while LIVE-2 was tested):")
    reasons = [*trial.ledger["LIVE-2"].unjudged]
    assert any(reason.startswith("rank 0 crashed with AttributeError in ") for reason in reasons)
    assert not any(" raised " in reason for reason in reasons)


def test_a_wrapper_may_refuse_to_go_on_after_an_exception(pool: Pool, tmp_path: Path) -> None:
    """A `raise` statement in the step after an exception is a refusal, as before."""
    ddp = Ddp(f"{CRASHING}:RefusesAfterAnException")
    standings, _ = _standings(pool, ddp, Sampler(), tmp_path)
    assert standings["forward_error"] is Standing.REFUSED
    assert standings["backward_error"] is Standing.RIGHT


def test_what_needs_a_wrong_capability_is_not_probed_and_says_why(pool: Pool) -> None:
    """Its probe would show the same failure again; it was listed as not offered."""
    ddp = Ddp("ddp_invariants.faults.buffers:NeverDividesThem")
    discovery = discover(pool, ddp, Sampler(), 4)
    probed = {probe.capability: probe for probe in discovery.ddp_probes}
    assert probed["buffers"].standing is Standing.WRONG
    for name in ("extremes", "shared_buffer", "batch_norm"):
        assert probed[name].standing is Standing.UNKNOWN
        assert probed[name].words == "it needs buffers: wrong"
        assert name in discovery.scope(4).without
    text = " ".join(left_out_of(discovery).split())
    assert "not probed (it needs buffers: wrong): extremes, shared_buffer, batch_norm" in text
