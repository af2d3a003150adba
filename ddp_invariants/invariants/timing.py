"""The comparison of a case's evidence with that of the same case with unchanged timing."""

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.invariants.compare import parted
from ddp_invariants.invariants.observed import require_observed
from ddp_invariants.invariants.rule import (
    UNDISTURBED,
    NotAbout,
    Tally,
    Unjudged,
)
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import RankEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.turns import behind


def _raised(evidence: TrainingEvidence) -> list[tuple[str, str, int] | None]:
    """Return the error type and place that ended each rank's run.

    The message is left out: it may hold addresses and ports.
    """
    return [
        None if rank.raised is None else (rank.raised.type, rank.raised.phase, rank.raised.step)
        for rank in evidence.ranks
    ]


def changed_timing(case: TrainingCase) -> str:
    """Return how a case changes the timing of collectives, in words; empty if it does not."""
    if case.perturbation.kind != "none":
        return case.perturbation.words
    turns = behind(case)
    return "" if turns is None else turns.sentence


def first_difference(
    changed: TrainingEvidence, usual: TrainingEvidence, tally: Tally, otherwise: str
) -> tuple[str, str] | None:
    """Compare the evidence of two runs bitwise, as far as both go.

    Args:
        changed: The evidence of the run that is judged.
        usual: The evidence of the other run.
        tally: Counts the tensors that are compared.
        otherwise: The circumstances of the other run, in words.

    Returns:
        The place and the values of the first difference; None if there is none.
    """
    for rank, (here, there) in enumerate(zip(changed.ranks, usual.ranks, strict=True)):
        for (moment, step), tensors in there.tensors.items():
            own = here.tensors.get((moment, step))
            if own is None:
                continue
            tally.compared += len(tensors.layout.slots)
            difference = parted(tensors, own, otherwise)
            if difference is not None:
                where = (
                    f"rank {rank} of {len(usual.ranks)}, {moment} of step {step}, "
                    f"{difference.place}"
                )
                return where, difference.words
    if _raised(changed) == _raised(usual):
        return None
    ended, usually = (EvidenceView(each).cut_short or "nothing raised" for each in (changed, usual))
    return f"world size {len(usual.ranks)}", f"{ended}; {otherwise.rstrip(',')}: {usually}"


def same_with_unchanged_timing(view: EvidenceView, tally: Tally, rule: str) -> Failure | None:
    """Compare all evidence bitwise with that of the same case in its usual timing.

    Raises:
        NotAbout: The case was not run a second time.
        Unjudged: One of the two runs was cut short, drew other random numbers, or sent nothing that
            was observed.
    """
    words, plain = changed_timing(view.case), view.without(*UNDISTURBED)
    if plain is None:
        raise NotAbout("the case was not run again with unchanged timing")
    unperturbed = EvidenceView(plain, view.declared)
    if view.incident is not None or plain.incident is not None:
        raise Unjudged(view.cut_short or unperturbed.cut_short)
    require_observed(view.evidence.ranks)
    _require_the_same_draws(view.evidence.ranks, plain.ranks)
    found = first_difference(view.evidence, plain, tally, "with unchanged timing")
    if found is not None:
        where, got = found
        raised = _raised(view.evidence) != _raised(plain) and where.startswith("world size")
        return Failure(
            rule,
            "the implementation raises under one timing only"
            if raised
            else "the result depends on timing",
            where,
            got,
            f"it changes when {words}",
        )
    if view.cut_short:
        raise Unjudged(view.cut_short)
    return None


def _require_the_same_draws(
    perturbed_W: tuple[RankEvidence, ...], plain_W: tuple[RankEvidence, ...]
) -> None:
    """Raise unless both runs drew the same random numbers; other draws would explain a difference.

    Raises:
        Unjudged: The runs drew other numbers. An exception was caught in one run alone, or threads
            draw from the same generator.
    """
    for perturbed, plain in zip(perturbed_W, plain_W, strict=True):
        for at, tensors in plain.tensors.items():
            if (
                at[0] == "drawn"
                and at in perturbed.tensors
                and perturbed.tensors[at].bits != tensors.bits
            ):
                raise Unjudged("the two runs drew different random numbers")
