"""Every planted fault is caught, by the rule that names it, in a case that shrinks; no control is accused."""

import ast
import re
from pathlib import Path

import pytest
from planted import SAMPLERS, WRAPPERS, Planted

from conftest import FAULTS, TrialMaker
from ddp_invariants import trial as trials
from ddp_invariants.case import ShardCase, TrainingCase
from ddp_invariants.invariants.shard import CHANCE_FREE
from ddp_invariants.ranks.pool import Pool
from ddp_invariants.strategies import cases_for, shard_cases, training_cases
from ddp_invariants.trial import Trial
from ddp_invariants.verdict import Inconclusive, Violation, violation_class


def caught(trial: Trial, rule: str) -> Violation:
    """The violation a trial ends with."""
    with pytest.raises(violation_class(rule)) as raised:
        trial.certify(rule, cases_for(rule, trial.scope))
    violation = raised.value
    assert isinstance(violation, Violation)
    return violation


@pytest.mark.parametrize("fault", WRAPPERS, ids=[f"{fault.name}_violates_{fault.rule}" for fault in WRAPPERS])
def test_fault(make_trial: TrialMaker, fault: Planted) -> None:
    """The fault's rule fires, with its cause where one is recognisable, and the case is small and confirmed."""
    violation = caught(make_trial(ddp=f"{FAULTS}:{fault.name}"), fault.rule)
    assert violation.report.startswith(f"{fault.rule} violated by {FAULTS}:{fault.name}: ")
    assert fault.cause in violation.breach.perhaps
    times = "[123] of 3" if fault.name == "TakesWhatHasArrived" else r"(\d) of \1"  # What depends on timing alone has a rate.
    assert re.search(f"confirmed in {times} runs in fresh processes", violation.report)
    assert isinstance(violation.case, TrainingCase)
    assert violation.case.world_size == 2 or fault.name in ("DividesByTwo", "ForgetsTheTail", "TakesWhatHasArrived")
    assert len(violation.case.model.layers) <= (3 if fault.name == "TiedHoldsUpAll" else 2)


@pytest.mark.parametrize("fault", SAMPLERS, ids=[f"{fault.name}_violates_{fault.rule}" for fault in SAMPLERS])
def test_sampler_fault(make_trial: TrialMaker, fault: Planted) -> None:
    """The fault's rule fires on a short dataset, with its cause."""
    violation = caught(make_trial(sampler=f"{FAULTS}:{fault.name}"), fault.rule)
    assert fault.cause in violation.breach.perhaps
    assert isinstance(violation.case, ShardCase)
    assert violation.case.world_size <= 3
    assert violation.case.data.samples <= CHANCE_FREE


def test_every_fault_is_in_the_table_or_has_a_test_of_its_own() -> None:
    """Bases aside, whose docstrings say that they are."""
    module = ast.parse(Path(FAULTS).read_text(encoding="utf-8"))
    planted = {node.name for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
               and "; base of the next" not in (ast.get_docstring(node) or "") and not node.name.startswith("_")}
    tested = {"HangsOnThree", "DiesInBackward", "NeverEnds", "RaisesOnWrap", "TrainsACopy"}
    assert planted == {fault.name for fault in (*WRAPPERS, *SAMPLERS)} | tested


@pytest.mark.parametrize("fault", ["HangsOnThree", "DiesInBackward"])
def test_fault_that_does_not_end_violates_live1_with_ranks_and_stacks(
        make_trial: TrialMaker, pool: Pool, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A hang or a death is LIVE-1's, names the ranks, shows where they were, and the ranks after it are usable."""
    pool.deadline = 1.5
    monkeypatch.setattr(trials, "SHRINK_SECONDS", 8.0)
    trial = make_trial(ddp=f"{FAULTS}:{fault}", cases=20)
    violation = caught(trial, "LIVE-1")
    assert "rank 1" in violation.report
    assert "faults.py" in violation.report or "ddp.py" in violation.report
    assert isinstance(violation.case, TrainingCase)
    assert violation.case.world_size == (3 if fault == "HangsOnThree" else 2)
    assert ("SIGABRT" in violation.report) == (fault == "DiesInBackward")
    trial = make_trial(cases=10)
    trial.certify("LIVE-1", training_cases(trial.scope))


def test_a_sampler_that_does_not_end_violates_live1(
        make_trial: TrialMaker, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rule was asked, within a few short deadlines."""
    pool.deadline = 1.5
    monkeypatch.setattr(trials, "SHRINK_SECONDS", 4.0)
    trial = make_trial(sampler=f"{FAULTS}:NeverEnds", cases=20)
    with pytest.raises(violation_class("LIVE-1"), match=r"faults\.py:NeverEnds: a rank hung"):
        trial.certify("SHARD-3", shard_cases(trial.scope))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", ["NoWait", "WaitsForTheLastOnly", "ForgetsOneWait", "DividesInFlight"])
def test_a_missing_wait_is_caught_whatever_the_timing(make_trial: TrialMaker, fault: str, seed: int) -> None:
    """With results withheld until they are waited for, no luck hides it; the report says what withholding showed."""
    trial = make_trial(ddp=f"{FAULTS}:{fault}", cases=20, seed=seed)
    violation = caught(trial, "COMM-3")
    assert "confirmed in 3 of 3 runs" in violation.report
    assert isinstance(violation.case, TrainingCase)
    assert violation.case.perturbation.kind == "withheld"
    assert ("a wait is missing" in violation.report) == (fault != "DividesInFlight")


def test_a_wrapper_that_trains_a_copy_cannot_be_judged_and_is_told_so(make_trial: TrialMaker) -> None:
    """What is watched must be what is trained."""
    trial = make_trial(ddp=f"{FAULTS}:TrainsACopy", cases=10)
    with pytest.raises(Inconclusive, match=r"it\s+trains\s+a\s+copy"):
        trial.certify("GRAD-2", training_cases(trial.scope))


def test_a_refusal_is_neither_a_violation_nor_a_pass(make_trial: TrialMaker) -> None:
    """An implementation that raises on every rank cannot be certified, and is not accused."""
    trial = make_trial(ddp=f"{FAULTS}:RaisesOnWrap", cases=10)
    with pytest.raises(Inconclusive, match="NotImplementedError in wrap of step 0"):
        trial.certify("GRAD-2", training_cases(trial.scope))


@pytest.mark.parametrize("fault", ["NoWait", "WaitsForTheLastOnly", "ForgetsOneWait"])
def test_what_comes_and_goes_is_shown_every_time_by_withholding(make_trial: TrialMaker, fault: str) -> None:
    """A rule about values catches a missing wait too, and says that timing decides."""
    trial = make_trial(ddp=f"{FAULTS}:{fault}", cases=40)
    with pytest.raises(violation_class("GRAD-2")) as raised:
        trial.certify("GRAD-2", training_cases(trial.scope, world_sizes=(2, 3), perturbed=("none", "withheld"), capped=True))
    violation = raised.value
    assert isinstance(violation, Violation)
    assert re.search(r"confirmed in ([23]) of 3 runs", violation.report)
    assert isinstance(violation.case, TrainingCase)
    if violation.case.perturbation.kind == "withheld":
        assert "only when results are withheld until they are waited for" in violation.report


def test_timing_that_changes_an_answer_violates_comm2(make_trial: TrialMaker) -> None:
    """The case is run with and without its perturbation, and the report says which it needs."""
    violation = caught(make_trial(ddp=f"{FAULTS}:NoWait", cases=40), "COMM-2")
    assert re.search(r"only when (results are withheld|rank \d starts its collectives|collectives start)", violation.report)
