"""Wrappers beside others, in unusual surroundings, and in processes that have trained before."""

import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.proof.catalogue import all_entries
from ddp_invariants.records.verdict import Violation
from ddp_invariants.situations.capability import BASE, GENTLE
from ddp_invariants.situations.earlier import EarlierRuns
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.second import BESIDE, Second, SecondWrapper
from ddp_invariants.situations.surroundings import Surrounding, Surroundings

BY_SIZE = """
import torch.distributed as dist
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

kept = {}

class KeepsMemoryBySize(Reference):
    def _packed(self, bucket):
        packed = super()._packed(bucket)
        number = next(n for n, each in enumerate(self._buckets) if each is bucket)
        key = dist.get_rank(), number, packed.dtype, packed.numel()
        return kept.setdefault(key, packed.clone()).copy_(packed)
"""
FAULTS = "ddp_invariants.faults.several:"
CASE = replace(GENTLE, steps=3)
RIGHT = ("reference", "torch", f"{FAULTS}HooksDieWithTheWrapper", f"{FAULTS}PlansHoldPositions")
ALL: tuple[Surroundings | SecondWrapper, ...] = (
    *(SecondWrapper(use) for use in get_args(Second)),
    *(SecondWrapper(use, alike=True) for use in BESIDE),
    *(Surroundings((name,)) for name in get_args(Surrounding)),
    Surroundings(("deterministic", "anomaly", "no gradients")),
)


@pytest.mark.parametrize("ddp", RIGHT)
def test_a_right_wrapper_is_right_beside_others_and_in_any_surroundings(
    make_trial: TrialMaker, ddp: str
) -> None:
    """No rule fails, and the rule about the situation is judged."""
    trial = make_trial(ddp=ddp, scope=Scope())
    for situation in ALL:
        rule = "LIVE-6" if isinstance(situation, SecondWrapper) else "LIVE-7"
        findings = trial.really(CASE.with_situation(situation), rule=rule)
        failed = {name: found.failure for name, found in findings.items() if found.failure}
        assert failed == {}, situation
        assert findings[rule].met, situation


def test_a_deleted_control_communicates_no_more(make_trial: TrialMaker) -> None:
    """No right wrapper of the catalogue is kept alive by its hooks; most can be wrapped again."""
    case, judged = BASE.with_situation(SecondWrapper("again")), 0
    for control in all_entries():
        if not control.is_fault and not control.is_sampler:
            trial = make_trial(ddp=control.under_test[0].name, scope=Scope())
            finding = trial.findings(case, rule="LIVE-6")["LIVE-6"]
            # A lossy control is judged without its declarations here.
            assert finding.failure is None or "deleted" not in finding.failure.fact, control.name
            judged += bool(finding.met)
    assert judged > 50


def test_two_engines_run_their_own_backwards(make_trial: TrialMaker) -> None:
    """An engine's backward averages the gradients of its own model alone, so both are called."""
    trial = make_trial(ddp=str(Path(__file__).parents[1] / "helpers/shapes.py:WholeEngine"))
    for use in BESIDE:
        findings = trial.really(CASE.with_situation(SecondWrapper(use)), rule="LIVE-6")
        assert findings["LIVE-6"].failure is None, use
        assert findings["LIVE-6"].met, use


@pytest.mark.parametrize(
    ("fault", "situation", "words"),
    [
        ("HooksOutliveTheWrapper", SecondWrapper("again"), "a deleted wrapper still communicates"),
        ("SharesFlatTensors", SecondWrapper("joint"), "the gradient is not the mean"),
        ("OneReductionAtATime", SecondWrapper("joint"), "the gradient is not the mean"),
        ("PlanOfTheLastWrapper", SecondWrapper("crossed"), "the gradient is not the mean"),
        ("PlanOfTheLastWrapper", SecondWrapper("unused"), "the gradient is not the mean"),
        ("BroadcastsOnce", SecondWrapper("in turn"), "parameters differ between ranks"),
        ("WorldOfTheEnvironment", Surroundings(("outer environment",)), "an outer launcher's"),
        ("HooksWithGradientsOnly", Surroundings(("no gradients",)), "wrapped without gradients"),
        ("FlatOfTheDefaultDtype", Surroundings(("low default dtype",)), "default dtype of low"),
        ("OrderedSumsAreNoMeans", Surroundings(("deterministic",)), "deterministic algorithms"),
    ],
)
def test_a_fault_shows_in_its_situation_alone(
    make_trial: TrialMaker, fault: str, situation: SecondWrapper | Surroundings, words: str
) -> None:
    """The rule about the situation fails, and no rule fails without it."""
    rule = "LIVE-6" if isinstance(situation, SecondWrapper) else "LIVE-7"
    trial = make_trial(ddp=FAULTS + fault, scope=Scope())
    trial.pool.anew()
    assert {n: f.failure for n, f in trial.really(CASE).items() if f.failure} == {}
    trial.pool.anew()
    failure = trial.really(CASE.with_situation(situation), rule=rule)[rule].failure
    assert failure is not None
    assert words in failure.fact


def test_memory_that_is_kept_by_size_shows_where_both_models_have_one_size(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """Another model of other sizes does not show it."""
    path = tmp_path / "by_size.py"
    path.write_text(BY_SIZE)
    trial = make_trial(ddp=f"{path}:KeepsMemoryBySize", scope=Scope())
    for alike in (False, True):
        case = CASE.with_situation(SecondWrapper("joint", alike=alike))
        failure = trial.really(case, rule="LIVE-6")["LIVE-6"].failure
        assert (failure is not None) == alike


def test_a_second_model_is_alike_only_without_buffers_and_beside_the_first() -> None:
    """Other models would change random numbers, or are not trained in the same steps."""
    buffered = replace(CASE, model=Model(4, (Layer("linear", 4), Layer("counter"))))
    for case, use in ((buffered, "joint"), (CASE, "again"), (CASE, "before")):
        with pytest.raises(CaseError, match="alike"):
            case.with_situation(SecondWrapper(use, alike=True))  # type: ignore[arg-type]  # a use
    assert SecondWrapper("joint") in SecondWrapper("joint", alike=True).simpler()


@pytest.mark.parametrize("ddp", ["reference", "torch", f"{FAULTS}PlansHoldPositions"])
def test_a_right_wrapper_gives_the_same_bits_after_earlier_runs(
    make_trial: TrialMaker, ddp: str
) -> None:
    """LIVE-8 compares a run after two others with a run in new processes."""
    runs = EarlierRuns((CASE, replace(BASE, seed=5, situations=(Surroundings(("anomaly",)),))))
    findings = make_trial(ddp=ddp, scope=Scope()).really(CASE.with_situation(runs), rule="LIVE-8")
    assert {name: found.failure for name, found in findings.items() if found.failure} == {}
    assert findings["LIVE-8"].met == {"a run after others"}


def test_a_rank_without_a_group_of_its_own_is_not_waited_for_between_runs(
    make_trial: TrialMaker,
) -> None:
    """A group of two ranks out of three saves a state; the ranks meet after each run all the same.

    Before, the two waited five seconds for the third, which looked like a hang.
    """
    runs = EarlierRuns((replace(BASE, world_size=3),))
    case = replace(CASE, world_size=3, situations=(Resized(2), runs))
    trial = make_trial(scope=Scope())
    trial.really(case)
    began = time.monotonic()
    findings = trial.really(case, rule="LIVE-8")
    assert time.monotonic() - began < 5
    assert {name: found.failure for name, found in findings.items() if found.failure} == {}


@pytest.mark.parametrize("fault", ["BroadcastsOnce", "PlansAreKeptByShapes"])
def test_what_is_left_in_a_process_violates_live_8(make_trial: TrialMaker, fault: str) -> None:
    """The same case with other values is enough of an earlier run."""
    case = CASE.with_situation(EarlierRuns((replace(CASE, seed=5),)))
    failure = make_trial(ddp=FAULTS + fault, scope=Scope()).really(case, rule="LIVE-8")
    assert failure["LIVE-8"].failure is not None


@pytest.mark.parametrize(
    ("fault", "rule"), [("BroadcastsOnce", "INIT-1"), ("PlansAreKeptByShapes", "GRAD-2")]
)
def test_a_failure_that_needs_an_earlier_run_is_reported_with_it(
    make_trial: TrialMaker, fault: str, rule: str
) -> None:
    """A failure that no case shows in fresh processes is LIVE-8's, with the fewest earlier runs."""
    trial = make_trial(ddp=FAULTS + fault, scope=Scope(max_world_size=2), cases=40)
    with pytest.raises(Violation) as raised:
        trial.certify(rule)
    violation = raised.value
    assert violation.failure.rule == "LIVE-8"
    assert isinstance(violation.case, TrainingCase)
    assert len(violation.case.earlier) == 1
    assert "a run depends on earlier runs of its processes" in str(violation)


@pytest.mark.parametrize(
    "situation",
    [
        Surroundings(()),
        Surroundings(("anomaly", "anomaly")),
        Surroundings(("no environment", "outer environment")),
        EarlierRuns(()),
        EarlierRuns((BASE.with_situation(EarlierRuns((BASE,))),)),
        EarlierRuns((replace(BASE, rounds=2),)),
    ],
    ids=str,
)
def test_situations_that_say_nothing_or_two_things_are_refused(
    situation: Surroundings | EarlierRuns,
) -> None:
    """A case names each surrounding once, one environment, and plain earlier runs."""
    with pytest.raises(CaseError):
        CASE.with_situation(situation)


def test_a_second_wrapper_is_refused_where_steps_are_not_plain() -> None:
    """Passes of two models are interleaved in steps of one forward and one backward."""
    with pytest.raises(CaseError, match="accumulation"):
        replace(CASE, accumulation=2).with_situation(SecondWrapper("joint"))


@pytest.mark.parametrize("rule", ["LIVE-5", "LIVE-6", "LIVE-7", "PARAM-6"])
def test_a_fault_that_needs_no_situation_is_told_without_one(
    make_trial: TrialMaker, rule: str
) -> None:
    """The property of a rule about a situation reports the rule of the fact."""
    trial = make_trial(ddp="ddp_invariants.faults.bucketed:NeverDivides", scope=Scope(), cases=20)
    with pytest.raises(Violation) as raised:
        trial.certify(rule)
    assert raised.value.failure.rule == "GRAD-2"
    assert isinstance(raised.value.case, TrainingCase)
    assert raised.value.case.situations == ()


def test_a_fault_that_needs_its_situation_is_told_with_it(make_trial: TrialMaker) -> None:
    """Without the situation the case is right, so the rule about the situation stays."""
    trial = make_trial(ddp=f"{FAULTS}WorldOfTheEnvironment", scope=Scope(), cases=60)
    with pytest.raises(Violation) as raised:
        trial.certify("LIVE-7")
    assert raised.value.failure.rule == "LIVE-7"
    assert raised.value.failure.retells == "GRAD-2"
