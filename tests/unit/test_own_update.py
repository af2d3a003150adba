"""An update that the suite does not know: what is compared of it, and what is not."""

from dataclasses import replace

import pytest
from handmade import CASE, WEIGHT, altered, right

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import ALL_RULES, judge, param
from ddp_invariants.invariants.exclusions import OWN_UPDATE
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Incident, TrainingEvidence
from ddp_invariants.records.verdict import Finding
from ddp_invariants.report.accounts import account
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.situations.exchanged import EXCHANGED, Exchanged
from ddp_invariants.upgrades.numbers import differing_numbers

OWN = Declarations(gradients="hidden", optimizer="own", update="own")
EXACT = replace(CASE, steps=2, data=Data(samples=4, batch_size=1), optimizer=Optimizer(log2_lr=-1))


def raised(case: TrainingCase, rank: int, step: int) -> TrainingEvidence:
    """Return right evidence of a case in which one rank holds another weight after a step."""
    return altered(right(case), rank, "updated", step, WEIGHT, lambda value: value + 1)


def exchanged(evidence: TrainingEvidence, usual: TrainingEvidence | None) -> Finding:
    """Return what PARAM-7 finds in two runs."""
    return judge(replace(evidence, unperturbed=usual), OWN)["PARAM-7"]


def test_equal_updates_of_exchanged_batches_are_compared_on_every_rank() -> None:
    """The oracle's two runs are right, and as many values are compared as the ranks hold."""
    case = EXACT.with_situation(Exchanged(1))
    finding = exchanged(right(case), right(EXACT))
    assert finding.failure is None
    assert finding.met == {EXCHANGED}
    assert finding.compared >= 2 * 8


def test_an_update_that_depends_on_who_computes_a_batch_is_a_violation() -> None:
    """The place is the first rank and step that differ."""
    failure = exchanged(raised(EXACT.with_situation(Exchanged(1)), 1, 0), right(EXACT)).failure
    assert failure is not None
    assert failure.where.startswith(f"rank 1 of 2, after step 0, parameter {WEIGHT!r}")
    assert "with every rank's own batches" in failure.got
    assert "count unequally" in failure.perhaps


def test_parameters_that_move_after_an_update_are_a_violation() -> None:
    """Each step must start from what the step before left."""
    case = EXACT.with_situation(Exchanged(1))
    undone = right(case)
    for rank in (0, 1):
        undone = altered(undone, rank, "forward", 1, WEIGHT, lambda value: value + 1)
    failure = exchanged(undone, right(EXACT)).failure
    assert failure is not None
    assert (failure.rule, failure.where[:26]) == ("PARAM-7", "rank 0 of 2, step 1, param")
    assert failure.fact.startswith("parameters change between one step's update and the next")


def test_nothing_is_compared_once_the_mean_is_rounded() -> None:
    """A third of a sum depends on the order of its terms, and an unknown update may enlarge that."""
    rounded = replace(EXACT, values="real", optimizer=Optimizer(log2_lr=-20))
    finding = exchanged(raised(rounded.with_situation(Exchanged(1)), 1, 1), right(rounded))
    assert finding.failure is None
    assert not finding.compared
    assert finding.unjudged == "the mean gradient is not exact"


def test_a_run_that_is_missing_or_cut_short_is_no_evidence() -> None:
    """Missing evidence is no verdict."""
    case = EXACT.with_situation(Exchanged(1))
    assert "not run" in exchanged(right(case), None).unjudged
    hung = replace(right(EXACT), incident=Incident("hung", {}, {}, 1.0))
    hung = replace(hung, ranks=tuple(replace(rank, tensors={}) for rank in hung.ranks))
    finding = exchanged(right(case), hung)
    assert finding.failure is None
    assert not finding.compared
    assert finding.unjudged


def test_an_exchange_needs_another_rank_and_leaves_the_global_batch_as_it_is() -> None:
    """Its batches are the others' in the order of ranks."""
    case = replace(EXACT, world_size=3)
    with pytest.raises(CaseError, match="exchanged"):
        case.with_situation(Exchanged(3))
    assert [*Exchanged(2).simpler()] == [Exchanged(1)]


def test_steps_of_an_unknown_update_are_judged_by_agreement() -> None:
    """PARAM-3, PARAM-4 and the bytes of its state would need to know it.

    But a step must start from what the last one left.
    """
    scope = Scope(declared=OWN)
    for rule in ("PARAM-3", "PARAM-4"):
        assert scope.excluded(rule) == OWN_UPDATE.reason
    assert not scope.excluded("PARAM-1")
    assert not scope.excluded("PARAM-7")
    assert "see PARAM-3" in Scope().excluded("PARAM-7")
    last = EXACT.steps - 1
    for step, moved in ((last, False), (0, True)):
        once = raised(EXACT, 1, step)
        everywhere = altered(once, 0, "updated", step, WEIGHT, lambda value: value + 1)
        failure = param.every_step(EvidenceView(everywhere, OWN), Tally())
        assert (failure is not None) == moved
    failure = param.every_step(EvidenceView(raised(EXACT, 1, 0), OWN), Tally())
    assert failure is not None
    assert failure.rule == "PARAM-1"
    assert ALL_RULES["PARAM-7"].level == "core"


def test_a_state_that_a_case_had_is_offered() -> None:
    """No capability says whether an unknown update keeps a state."""
    unclaimed = Scope(without=frozenset({"adam", "adamw", "momentum"}), declared=OWN).unclaimed
    ledger, condition = Ledger(), "optimizer with state"
    assert condition in account("PARAM-2", ledger, unclaimed).without
    ledger["PARAM-2"].met[condition] = 2
    seen = account("PARAM-2", ledger, unclaimed)
    assert condition not in seen.without
    assert seen.needs[condition] == 2


def test_other_numbers_after_an_unknown_update_have_no_bound() -> None:
    """Two versions may compute it in other steps; with torch's SGD such a difference is a change."""
    old = right(EXACT)
    new = altered(old, 0, "updated", 0, WEIGHT, lambda value: value * (1 + 2.0**-20))
    shown = differing_numbers(old, new, OWN, broken=False)
    assert [each.kind for each in shown] == ["unbounded"]
    known = replace(OWN, update="sgd")
    shown = differing_numbers(old, new, known, broken=False)
    assert [each.kind for each in shown] == ["number"]
