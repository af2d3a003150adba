"""LIVE, continued: what else the program and its process do leaves training as it is."""

from dataclasses import replace

from ddp_invariants.invariants import param
from ddp_invariants.invariants.draws import FEW_RANKS, Draws
from ddp_invariants.invariants.exclusions import LOSSY, lacks
from ddp_invariants.invariants.rule import NotAbout, Tally
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import RankEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.second import BESIDE, SAME, SecondWrapper, condition

_SOURCE = "no document: a wrapper belongs to its module and its process group alone"


@training.rule(
    "LIVE-6",
    "Two wrappers in one program do not disturb one another: both models' steps are right, whether "
    "they are trained in turn, in the same backward, or one after the other; a module that is "
    "wrapped again is reduced once.",
    needs=tuple(dict.fromkeys(condition(use) for use in (*BESIDE, *SAME, "unused"))),
    source=_SOURCE,
    level="capability",
    draws=Draws(world_sizes=FEW_RANKS, least_steps=2, second=True),
    excluded=(lacks("takes no second wrapper", "beside", "wrapped_again"), LOSSY),
    after="LIVE-5",
    costs=2,
    repeats_undisturbed=lambda case: _is_wrapped_again(case.get(SecondWrapper)),
    without=(SecondWrapper,),
)
def second_wrappers_do_no_harm(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases with a second wrapper: every step of both models must be right."""
    second = view.case.get(SecondWrapper)
    if second is None:
        raise NotAbout("the program has one wrapper")
    failure = param.every_step(view, tally) or _sends_more(view, tally)
    if failure is None and (other := _other(view, second)) is not None:
        failure = param.every_step(other, tally) or param.identical_on_all_ranks(other, tally)
        failure = failure and replace(
            failure, where=f"the second model, {failure.where}", perhaps=""
        )
    if failure is not None:
        beside = "in a program with a second wrapper"
        return replace(failure, rule="LIVE-6", fact=f"{beside}, {failure.fact}")
    tally.met.add(condition(second.use))
    return None


def _is_wrapped_again(second: SecondWrapper | None) -> bool:
    return second is not None and second.use == "again"


def _other(view: EvidenceView, second: SecondWrapper) -> EvidenceView | None:
    """Return the evidence of the second model; None if it is not trained."""
    if second.use in (*SAME, "unused"):
        return None
    ranks = tuple(rank.beside or RankEvidence({}) for rank in view.evidence.ranks)
    evidence = TrainingEvidence(second.other(view.case), ranks, view.incident)
    return EvidenceView(evidence, view.declared)


def _sends_more(view: EvidenceView, tally: Tally) -> Failure | None:
    """Return a failure if a step sends more than without the first wrapper, which is deleted.

    A wrapper that hooks a module in place, and is no object of its own, cannot be deleted.
    """
    once = view.evidence.unperturbed
    if once is None or once.incident is not None or view.incident is not None:
        return None
    for rank, (twice, plain) in enumerate(zip(view.evidence.ranks, once.ranks, strict=True)):
        for step, (more, usual) in enumerate(zip(twice.marks, plain.marks, strict=False)):
            sent, expected = twice.sent_between(*more), plain.sent_between(*usual)
            tally.compared += len(expected)
            if len(sent) > len(expected):
                return Failure(
                    "LIVE-6",
                    "a deleted wrapper still communicates",
                    f"rank {rank} of {view.case.world_size}, step {step}",
                    f"{len(sent)} collectives, expected {len(expected)}, as without the wrapper "
                    "that was deleted before",
                )
    return None
