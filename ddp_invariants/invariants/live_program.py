"""LIVE, continued: what else the program and its process do leaves training as it is."""

from dataclasses import replace

from ddp_invariants.invariants import param
from ddp_invariants.invariants.crashes import is_crash, is_deliberate
from ddp_invariants.invariants.draws import FEW_RANKS, Draws
from ddp_invariants.invariants.exclusions import lacks
from ddp_invariants.invariants.observed import require_observed
from ddp_invariants.invariants.rule import SEVERAL_RUNS, NotAbout, Tally, Unjudged
from ddp_invariants.invariants.timing import first_difference
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import RaisedError, RankEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.earlier import EarlierRuns
from ddp_invariants.situations.second import BESIDE, SAME, SecondWrapper, condition
from ddp_invariants.situations.surroundings import CONDITIONS, Surroundings

_SOURCE = "no document: a wrapper acts only on its module and its process group"
_WITHOUT_A_SECOND, _WITHOUT_EARLIER_RUNS = (SecondWrapper,), (EarlierRuns,)
"""The situations that the second runs of these rules leave out."""


@training.rule(
    "LIVE-6",
    "Two wrappers in one program do not disturb each other. Both models' steps are right if the "
    "models are trained in turn, in the same backward, or one after the other. If a module is "
    "wrapped again, its gradients are reduced once.",
    needs=tuple(dict.fromkeys(condition(use) for use in (*BESIDE, *SAME, "unused"))),
    source=_SOURCE,
    applies="capability",
    draws=Draws(world_sizes=FEW_RANKS, least_steps=2, second=True),
    of_reduced=("values",),
    excluded=(lacks("supports no second wrapper", "beside", "wrapped_again"),),
    after="LIVE-5",
    needs_all=True,
    costs=2,
    observed_groups=True,
    repeats_undisturbed=lambda case: _is_wrapped_again(case.get(SecondWrapper)),
    without=_WITHOUT_A_SECOND,
)
def second_wrappers_do_no_harm(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases with a second wrapper: every step of both models must be right."""
    second = view.case.get(SecondWrapper)
    if second is None:
        raise NotAbout("the program has one wrapper")
    failure = _every_step(view, tally)
    if failure is None and second.use == "again":
        failure = _sends_more(view, tally)
    if failure is None and (other := _other(view, second)) is not None:
        failure = _of_the_second_model(other, tally)
    if failure is not None:
        return failure.told_by("LIVE-6", "in a program with a second wrapper")
    tally.met.add(condition(second.use))
    return None


def _every_step(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge every step's gradients and update.

    Raises:
        Unjudged: The run was cut short, and the steps before are right.
    """
    failure = param.every_step(view, tally)
    if failure is None and view.cut_short:
        raise Unjudged(view.cut_short)
    return failure


def _of_the_second_model(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge the steps of the second model."""
    failure = param.identical_on_all_ranks(view, tally) or _every_step(view, tally)
    return failure and replace(failure, where=f"the second model, {failure.where}", perhaps="")


def _is_wrapped_again(second: SecondWrapper | None) -> bool:
    return second is not None and second.use == "again"


def _other(view: EvidenceView, second: SecondWrapper) -> EvidenceView | None:
    """Return the evidence of the second model; None if it is not trained."""
    if second.use in (*SAME, "unused", "smaller"):
        return None
    ranks = tuple(rank.beside or RankEvidence({}) for rank in view.evidence.ranks)
    evidence = TrainingEvidence(second.other(view.case), ranks, view.incident)
    return EvidenceView(evidence, view.declared)


def _sends_more(view: EvidenceView, tally: Tally) -> Failure | None:
    """Return a failure if a step sends more than without the first wrapper, which is deleted.

    A wrapper that hooks a module in place, and is no object of its own, cannot be deleted.

    Raises:
        Unjudged: The case was not run without the first wrapper, or a run was cut short, or no
            collective was observed.
    """
    once = view.without(*_WITHOUT_A_SECOND)
    if once is None:
        raise Unjudged("the case was not run without the first wrapper")
    if once.incident is not None or view.incident is not None:
        raise Unjudged(view.cut_short or EvidenceView(once).cut_short)
    require_observed(view.evidence.ranks)
    require_observed(once.ranks)
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
                    "hooks on parameters keep the deleted wrapper alive: let them hold it by a weak "
                    "reference, or remove their handles",
                )
    return None


@training.rule(
    "LIVE-7",
    "Steps are right in unusual surroundings: torch's deterministic algorithms, autograd's anomaly "
    "mode, a low default dtype, wrapping under torch.no_grad(), missing environment variables of a "
    "launcher or those of an outer launcher, and other process groups.",
    needs=tuple(CONDITIONS.values()),
    source="no document: a wrapper follows its arguments, and torch's settings change no gradient",
    applies="capability",
    draws=Draws(world_sizes=FEW_RANKS, surrounded=True),
    of_reduced=("values",),
    excluded=(
        lacks(
            "supports no unusual surroundings",
            "deterministic",
            "anomaly",
            "wrapped_without_gradients",
            "no_environment",
            "outer_environment",
            "other_groups",
        ),
    ),
    after="LIVE-6",
    needs_all=True,
)
def surroundings_do_no_harm(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases with unusual surroundings: every step's gradients and update must be right."""
    surroundings = view.case.get(Surroundings)
    if surroundings is None:
        raise NotAbout("the surroundings are usual")
    conditions = [CONDITIONS[name] for name in surroundings.unusual]
    failure = _every_step(view, tally)
    if failure is not None:
        return failure.told_by("LIVE-7", f"with {' and '.join(conditions)}")
    tally.met.update(conditions)
    return None


AFTER = "a run after others"


@training.rule(
    "LIVE-8",
    "A run gives the same bits with and without earlier runs in its processes.",
    needs=(AFTER,),
    source="no document: a program may train twice",
    draws=Draws(world_sizes=FEW_RANKS, perturbed=("none",), earlier=True),
    after="GPU-1",
    needs_all=True,
    costs=10,
    observed_groups=True,
    repeats_undisturbed=lambda case: case.get(EarlierRuns) is not None,
    without=_WITHOUT_EARLIER_RUNS,
    alone=True,
    script=SEVERAL_RUNS,
)
def earlier_runs_change_nothing(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare bitwise with the same case in new processes, which have run nothing before.

    A run that hangs is LIVE-1's. A wrapper may refuse to wrap again, by a `raise` statement on every
    rank; what a library raises then is no refusal.
    """
    earlier, alone = view.case.get(EarlierRuns), view.without(*_WITHOUT_EARLIER_RUNS)
    if earlier is None or alone is None:
        raise NotAbout("the case has no earlier runs, or was not run without them")
    if view.incident is not None or alone.incident is not None:
        raise Unjudged(view.cut_short or EvidenceView(alone).cut_short)
    if all(_refuses_to_wrap(rank.raised) for rank in view.evidence.ranks):
        raise Unjudged(f"a process with earlier runs is refused: {view.cut_short}")
    count = len(earlier.runs)
    runs = "another run" if count == 1 else f"{count} other runs"
    difference = first_difference(
        view.evidence, alone, tally, f"in new processes, without {runs} before,"
    )
    if difference is not None:
        where, got = difference
        return Failure("LIVE-8", "a run depends on earlier runs of its processes", where, got)
    if view.cut_short:
        raise Unjudged(view.cut_short)
    tally.met.add(AFTER)
    return None


def _refuses_to_wrap(error: RaisedError | None) -> bool:
    return (
        error is not None and error.phase == "wrap" and is_deliberate(error) and not is_crash(error)
    )
