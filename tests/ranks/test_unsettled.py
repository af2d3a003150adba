"""Tests of probes that fail: a session certifies nothing while such a failure is open."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import Session
from ddp_invariants import certification
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.certification import Implementation, certify
from ddp_invariants.discovery import probe
from ddp_invariants.discovery.capabilities import SHOWN, TRAINING
from ddp_invariants.discovery.result import Discovery, Probed, Standing
from ddp_invariants.discovery.unsettled import unsettled
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.records.verdict import Inconclusive, Violation
from ddp_invariants.situations.unused import unused_by_all

CRASHING = "tests/helpers/crashing.py:Asserts"
"""A sampler that crashes on uneven datasets, as its probe shows."""
SIDE = {"declares": {}, "torch": "2", "driven": []}
WRONG = Probed("accumulation", Standing.WRONG, "GRAD-2: the gradient is not the mean")


@pytest.mark.parametrize(
    ("probed", "rules"),
    [
        (WRONG, ["GRAD-2"]),
        (replace(WRONG, capability="no_sync"), ["GRAD-2"]),
        (replace(WRONG, capability="equal_buffers"), ["GRAD-2"]),
        (Probed("float64", Standing.CRASHED, "KeyError: float64"), ["LIVE-1"]),
        (Probed("short", Standing.CRASHED, "AssertionError: "), ["LIVE-1"]),
        (Probed("unset_epoch", Standing.CRASHED, "AttributeError: epoch"), ["SHARD-4"]),
        (replace(WRONG, declared=True), []),
        (replace(WRONG, expected="expected: an issue of torch"), []),
        (replace(WRONG, standing=Standing.REFUSED), []),
        (replace(WRONG, standing=Standing.RIGHT), []),
    ],
)
def test_a_failure_of_a_probe_is_open_unless_something_explains_it(
    probed: Probed, rules: list[str]
) -> None:
    """Declarations, expected deviations and refusals explain a probe; nothing else does."""
    side = "ddp_probes" if probed.capability not in ("short", "unset_epoch") else "sampler_probes"
    discovery = Discovery(SIDE, SIDE, **{side: (probed,)})  # type: ignore[arg-type]  # one side
    assert [each.failure.rule for each in unsettled(discovery, 4)] == rules


def test_a_failed_probe_keeps_what_it_alone_contains() -> None:
    """What is left out because a probe failed may be the very reason for its failure."""
    probes = (
        replace(WRONG, capability="unused"),
        Probed("unused_by_all", Standing.UNKNOWN, "it needs unused: wrong", lacks="unused"),
    )
    discovery = Discovery(SIDE, SIDE, ddp_probes=probes)
    assert not discovery.scope(4).has("unused_by_all")
    (failure,) = unsettled(discovery, 4)
    assert isinstance(failure.case, TrainingCase)
    assert unused_by_all(failure.case)


def test_every_training_capability_has_a_case_for_its_open_failure() -> None:
    """An open failure of any training capability can be replayed."""
    probes = tuple(
        replace(WRONG, capability=name, bucket_cap=100 * (name in ("bucketing", "overlap")))
        for name in (*TRAINING, *SHOWN)
    )
    assert len([*unsettled(Discovery(SIDE, SIDE, probes), 4)]) == len(TRAINING) + len(SHOWN)


def test_a_session_ends_with_the_broken_promise_that_no_test_judged(session: Session) -> None:
    """The probe's failure is stored, and repeats, if COMM-4 is not asked for."""
    named = ["--ddp", "tests/helpers/promising.py:IgnoresItsCapacity"]
    wanted = ["-k", "grad2", "--cases", "5", "--seed", "1"]
    done = session("pytest", "-p", "no:cacheprovider", "properties/", "-n", "0", *wanted, *named)
    assert done.returncode == 2, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert "drawn for other rules, failed COMM-4" in text
    stored = re.search(r"ddp-invariants replay (\w+) COMM-4", text)
    assert stored is not None
    assert "STILL VIOLATED" in session("ddp_invariants", "replay", stored[1]).stdout


def test_a_session_that_meets_no_case_of_a_failed_probe_is_inconclusive(session: Session) -> None:
    """A sampler that crashes in a probe is not certified by rules that never meet the crash."""
    # SHARD-10 is not claimed, but the sampler is probed for it.
    wanted = ["-k", "loss1 or shard10", "--cases", "10", "--seed", "290129482"]
    arguments = ["-p", "no:cacheprovider", "properties/", "-n", "0", *wanted]
    done = session("pytest", *arguments, "--sampler", CRASHING)
    assert done.returncode == 2, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    text = " ".join(done.stdout.split())
    assert "LIVE-1 inconclusive" in text
    assert "not confirmed, as its own test did not run to its end; first: " in text
    assert "the probe of the capability 'uneven'" in text
    assert "the session fails: probes, or cases drawn for other rules, failed LIVE-1" in text


def test_certify_probes_only_the_side_that_the_rules_are_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler is certified without probing the reference DDP, by the rules about samplers."""

    def refuse(*_: object) -> None:
        raise AssertionError("the DDP was probed")

    monkeypatch.setattr(probe, "of_ddp", refuse)
    under_test = Implementation(sampler="torch")
    assert certification._known((), under_test) == [
        rule for rule in ALL_RULES if rule.startswith("SHARD")
    ]
    assert certification._known((), Implementation("torch", sampler="torch")) == [*ALL_RULES]
    with Hosts() as hosts:
        ledger = certify(under_test, "SHARD-2", examples=5, store=tmp_path, hosts=hosts)
        assert ledger.entries["SHARD-2"].judged
        with pytest.raises(AssertionError, match="was probed"):
            certify(under_test, "GRAD-2", examples=1, store=tmp_path, hosts=hosts)


@pytest.mark.parametrize(
    ("name", "rule", "crash"),
    [("Asserts", "LIVE-1", "AssertionError"), ("LosesALine", "SHARD-4", "AttributeError")],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_property_of_a_rule_judges_the_cases_of_its_failed_probes(
    tmp_path: Path, name: str, rule: str, crash: str, seed: int
) -> None:
    """A crash that a probe has shown is a violation, though the property draws no case like it."""
    under_test = Implementation(sampler=f"tests/helpers/crashing.py:{name}")
    with Hosts() as hosts:
        certify(under_test, "SHARD-7", examples=3, store=tmp_path, hosts=hosts)
        with pytest.raises(Violation, match=crash) as caught:
            certify(under_test, rule, examples=1, seed=seed, store=tmp_path, hosts=hosts)
    assert caught.value.failure.rule == rule


def test_certify_raises_on_a_failed_probe_that_no_run_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python face raises for a requested rule alone, even if no case shows the failure."""
    under_test = Implementation(sampler=CRASHING)
    monkeypatch.setattr(certification, "suspects", lambda *_: ())
    with Hosts() as hosts:
        certify(under_test, "SHARD-7", examples=3, store=tmp_path, hosts=hosts)
        with pytest.raises(Inconclusive, match="the probe of the capability 'uneven'"):
            certify(under_test, "LIVE-1", examples=3, store=tmp_path, hosts=hosts)
