"""LIVE-6 and LIVE-7 judge whole cases: a part of the evidence proves nothing."""

from dataclasses import replace

from handmade import CASE, right

from ddp_invariants.cases.program import Perturbation
from ddp_invariants.invariants import judge
from ddp_invariants.records.evidence import RaisedError
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.second import SecondWrapper, condition
from ddp_invariants.situations.surroundings import Surroundings

AGAIN = CASE.with_situation(SecondWrapper("again"))


def test_a_deleted_wrapper_is_judged_with_a_run_without_it_alone() -> None:
    """Right steps do not show that a deleted wrapper sends nothing more."""
    finding = judge(right(AGAIN))["LIVE-6"]
    assert finding.unjudged == "the case was not run without the first wrapper"
    assert finding.met == frozenset()
    finding = judge(replace(right(AGAIN), unperturbed=right()))["LIVE-6"]
    assert finding.failure is None
    assert condition("again") in finding.met


def test_the_second_run_of_another_rule_is_no_evidence() -> None:
    """A run without a wrapper, or without delays, says nothing of the other."""
    delayed = AGAIN.with_situation(Perturbed(Perturbation("delays")))
    without = {"LIVE-6": delayed.without(SecondWrapper), "COMM-2": AGAIN}
    for rule, case in without.items():
        second = replace(right(CASE), case=case)
        raised = replace(second.ranks[0], raised=RaisedError("wrap", 0, "TypeError", "no", ""))
        second = replace(second, ranks=(raised, *second.ranks[1:]))
        findings = judge(replace(right(delayed), unperturbed=second))
        failed = {other for other, finding in findings.items() if finding.failure is not None}
        assert failed <= {rule}
        assert (failed == {rule}) == (rule == "COMM-2")


def test_each_way_to_wrap_a_model_twice_is_a_condition_of_its_own() -> None:
    """A wrapper that is kept shows nothing of one that is deleted."""
    kept = judge(right(CASE.with_situation(SecondWrapper("kept"))))["LIVE-6"]
    assert condition("kept") in kept.met
    assert condition("again") not in kept.met


def test_what_was_compared_before_the_evidence_ended_proves_nothing() -> None:
    """A run that raised after its first step is unjudged by rules about the whole of it."""
    situations = (SecondWrapper("kept"), "LIVE-6"), (Surroundings(("anomaly",)), "LIVE-7")
    for situation, rule in situations:
        evidence = right(CASE.with_situation(situation))
        raised = RaisedError("forward", 2, "RuntimeError", "no", "")
        ranks = tuple(
            replace(
                rank,
                raised=raised,
                tensors={at: held for at, held in rank.tensors.items() if at[1] < 2},
            )
            for rank in evidence.ranks
        )
        finding = judge(replace(evidence, ranks=ranks))[rule]
        assert "raised" in finding.unjudged, finding
        assert finding.compared == 0
