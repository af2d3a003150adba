"""LIVE: every case ends on every rank, all ranks learn of an error, a run leaves nothing behind."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from ddp_invariants.cases.program import BetweenStepsKind, InjectedFailure
from ddp_invariants.invariants import buf, grad, param, rng
from ddp_invariants.invariants.crashes import crash, crash_of, read
from ddp_invariants.invariants.draws import ANY_WORLD, FEW_RANKS, Draws
from ddp_invariants.invariants.endings import no_end, whereabouts
from ddp_invariants.invariants.exclusions import Exclusion, lacks
from ddp_invariants.invariants.rule import (
    MEAN,
    SEVERAL_RUNS,
    UNDISTURBED,
    NotAbout,
    Script,
    Tally,
    Unjudged,
    not_about,
)
from ddp_invariants.invariants.sampler_view import ShardView, sharding
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.verdict import Failure

_SOURCE = "no document: every program should end, and a caught exception should do no harm"


_DIVERGED = 0.25
"""The power of the largest number of a format above which a next step may exceed that number."""
ENDS = "LIVE-1"
"""The rule whose failure leaves every other rule without evidence."""


@training.rule(
    "LIVE-1",
    "Every case ends within its deadline on every rank.",
    source=_SOURCE,
    draws=Draws(world_sizes=ANY_WORLD),
    after="LIVE-3",
    needs_all=True,
    counts_when_injected=True,
    script=Script(checks=("last_forward",), follows_unused=True, follows_scaler=True),
    level="core",
)
def every_case_ends(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge ranks that hang or die; a rank that raises has ended."""
    if view.case.kills:
        raise NotAbout("a rank is killed on purpose")
    tally.compared += len(view.evidence.ranks)
    ranks = view.evidence.ranks
    raised = [
        (
            f"rank {rank} raised {e.raised.type} in {e.raised.phase} of step "
            f"{e.raised.step}: {e.raised.message}"
        )
        for rank, e in enumerate(ranks)
        if e.raised is not None
    ]
    if view.stopped:
        raise Unjudged(view.stopped)
    if view.incident is not None or not raised:
        return no_end(
            view.incident,
            view.case.world_size,
            "; ".join(raised),
            ranks,
            view.case.members,
        )
    if not all(rank.answered for rank in ranks):
        raise Unjudged(f"{'; '.join(raised)}; another rank recorded nothing")
    if len(raised) < len(ranks):
        return Failure(
            "LIVE-1",
            "some ranks raise and others do not",
            f"world size {len(ranks)}",
            "; ".join(raised),
        )
    if (
        view.noted("updated", 0) is not None
        and view.case.poison is None
        and view.case.injected_failure is None
        and not _may_diverge(view)
    ):
        return Failure(
            "LIVE-1",
            "training raises an exception after a step that succeeded",
            f"world size {len(ranks)}",
            "; ".join(raised),
        )
    failure = crash_of(view.evidence)
    if failure is not None:
        return failure
    # All ranks raised at the start, or at a value that is not finite: the implementation refuses.
    raise Unjudged(view.cut_short)


@partial(sharding.add, training.rules[ENDS])
def every_sampler_answers(view: ShardView, tally: Tally) -> Failure | None:
    """Judge a sampler that hangs, ends its process or crashes."""
    tally.compared += 1
    failure = no_end(view.evidence.incident, view.case.world_size, "")
    # There is nothing to deal: torch's own sampler divides by zero.
    if failure is not None or view.case.data.samples == 0:
        return failure
    failure = _raised_by_some(view)
    if failure is not None:
        return failure
    raised = [answer["raised"] for answer in view.evidence.answers if answer.get("raised")]
    # SHARD-9 judges what is raised while a state is saved or loaded.
    if len(raised) < len(view.evidence.answers) or raised[0]["phase"].startswith("resuming"):
        return None
    return crash(ENDS, {0: read(raised[0])}, view.where(view.case.epochs[-1]))


def _raised_by_some(view: ShardView) -> Failure | None:
    """Return a failure if the samplers of some ranks raise and those of others do not.

    The other ranks go on, and wait for these ranks in their next collective.
    """
    for answer in view.evidence.answers:
        raising = answer.get("raising", [])
        by_rank = {rank: text for rank, text in enumerate(raising) if text}
        if by_rank and len(by_rank) < len(raising):
            rank, text = next(iter(by_rank.items()))
            return Failure(
                ENDS,
                "some ranks raise and others do not",
                view.where(view.case.epochs[-1]),
                f"rank {rank} raised {text}; {len(by_rank)} of {len(raising)} ranks raise",
            )
    return None


FORWARD_ERROR, BACKWARD_ERROR = "an exception in forward", "an exception in backward"


@training.rule(
    "LIVE-2",
    "An exception in the user's forward or backward reaches the user. After all ranks have "
    "caught the exception, the next step is right, and no rank draws another rank's random numbers.",
    needs=(FORWARD_ERROR, BACKWARD_ERROR),
    source=_SOURCE,
    applies="capability",
    draws=Draws(
        world_sizes=FEW_RANKS,
        least_steps=2,
        some_buffers=True,
        injected_failures=("forward error", "backward error"),
    ),
    of_reduced=("agreement", "values"),
    excluded=(lacks("does not continue after an exception", "forward_error", "backward_error"),),
    after="COMM-1",
    needs_all=True,
    costs=2,
    repeats_undisturbed=lambda case: case.injected_failure is not None,
    counts_when_injected=True,
    script=Script(checks=(*MEAN, "surfaced")),
    level="robust",
)
def steps_after_a_caught_exception_are_right(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases with an injected exception: it must reach the user, and every step must be right.

    If the same case without the exception is wrong too, the exception is not the cause.
    """
    plan = view.case.injected_failure
    if plan is None or plan.kind == "death":
        raise NotAbout("the case injects no exception")
    for rank, evidence in enumerate(view.evidence.ranks):
        if evidence.surfaced is None:
            raise Unjudged(view.cut_short or "no injected exception was raised")
        tally.compared += 1
        if not evidence.surfaced:
            return Failure(
                "LIVE-2",
                "an exception does not reach the user",
                f"rank {rank} of {view.case.world_size}, step {plan.step}",
                f"the {plan.kind.split()[0]} raised, but the call returned",
            )
    tally.met.add(FORWARD_ERROR if plan.kind == "forward error" else BACKWARD_ERROR)
    # Of hidden gradients and of lossy values, the steps are judged.
    visible = view.declared.gradients != "hidden" and view.declared.exactness != "lossy"
    judge = grad.mean_of_the_local_gradients if visible else param.every_step
    failure, without = judge(view, tally), view.without(*UNDISTURBED)
    undisturbed = None if without is None else EvidenceView(without, view.declared)
    if failure is None and undisturbed is not None and visible:
        failure = _of_the_updates(view, undisturbed, tally)
    if failure is None and undisturbed is not None:
        failure = _buffers_of_their_own(view, undisturbed, tally) or _numbers_of_another(
            view, undisturbed, tally
        )
    elif (
        failure is not None and undisturbed is not None and judge(undisturbed, Tally()) is not None
    ):
        raise Unjudged(f"the case is wrong without the exception, too ({failure.rule})")
    if failure is None and view.cut_short:
        raise Unjudged(view.cut_short)
    if failure is not None and not failure.perhaps and undisturbed is not None:
        # The same case is right without the exception.
        failure = replace(failure, perhaps=_LEFT_BEHIND.format(plan.kind.split()[0]))
    return failure and failure.told_by("LIVE-2", "after an exception was caught")


def _of_the_updates(view: EvidenceView, undisturbed: EvidenceView, tally: Tally) -> Failure | None:
    """Return a failure if updates are wrong, but all are right without the exception."""

    def wrong(judged: EvidenceView, counted: Tally) -> Failure | None:
        failure = param.identical_on_all_ranks(judged, counted)
        if failure is not None or judged.declared.update == "own":
            return failure
        return param.trajectory_of_single_process_training(judged, counted)

    try:
        failure = wrong(view, tally)
        alone = failure is not None and wrong(undisturbed, Tally()) is None
        return failure if alone else None
    except (NotAbout, Unjudged):
        return None


def _buffers_of_their_own(
    view: EvidenceView, undisturbed: EvidenceView, tally: Tally
) -> Failure | None:
    """Return a failure, without a cause, if ranks keep equal buffers except after an exception."""
    try:
        without = Tally()
        if buf.equal_when_a_forward_starts(undisturbed, without) or buf.MOVED not in without.met:
            return None
        failure = buf.equal_when_a_forward_starts(view, tally)
        return failure and replace(failure, perhaps="")
    except (NotAbout, Unjudged):
        return None


def _numbers_of_another(
    view: EvidenceView, undisturbed: EvidenceView, tally: Tally
) -> Failure | None:
    """Return a failure if the program draws numbers twice, but not without the exception."""
    if rng.of_the_program(undisturbed, Tally()) is not None:
        return None
    return rng.of_the_program(view, tally)


_LEFT_BEHIND = (
    "the wrapper goes on with state that the aborted {} left behind, such as counts of ready "
    "gradients or started reductions: reset the state when the next forward begins"
)


@training.rule(
    "LIVE-3",
    "If a rank dies, the other ranks fail with an error. They never hang, and never finish with "
    "wrong parameters.",
    needs=("a rank died",),
    source=_SOURCE,
    draws=Draws(world_sizes=FEW_RANKS, perturbed=("none",), injected_failures=("death",)),
    excluded=(
        Exclusion(
            "runs over NCCL, which reports a dead rank only after a timeout of minutes",
            lambda claims: claims.backend.carrier == "nccl",
        ),
    ),
    after="LIVE-2",
    needs_all=True,
    costs=4,
    counts_when_injected=True,
    level="robust",
)
def others_fail_when_a_rank_dies(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases in which a rank is killed as a step starts.

    No other rank can have that step's mean. A rank that fails with an error is ended too, as the
    exception would end it. The next rank then waits for that rank, not for the killed one.
    """
    plan, incident, world_size = view.case.injected_failure, view.incident, view.case.world_size
    if plan is None or plan.kind != "death" or world_size == 1:
        raise NotAbout("no rank dies")
    if incident is None or incident.kind != "died":
        raise Unjudged(view.cut_short or "the run ended before the rank was killed")
    where = f"rank {plan.rank} of {world_size} was killed at step {plan.step}"
    for rank in range(len(view.evidence.ranks)):
        if rank == plan.rank:
            continue
        tally.compared += 1
        number = view.case.members[rank]
        if number in incident.ranks and number not in incident.statuses:
            return Failure(
                "LIVE-3",
                "a rank does not notice that another died",
                where,
                whereabouts(incident, number),
                "",
                incident.stacks.get(number, ""),
            )
        if incident.statuses.get(number):
            continue  # Ending the process with an error counts as a failure, as required.
        failure = _went_on(view, rank, plan, where)
        if failure is not None:
            return failure
    tally.met.add("a rank died")
    return None


def _went_on(view: EvidenceView, rank: int, plan: InjectedFailure, where: str) -> Failure | None:
    """Return a failure if a rank trained on after another rank was killed.

    Raises:
        Unjudged: The rank recorded nothing, or raised before.
    """
    evidence = view.evidence.ranks[rank]
    if not evidence.answered:
        raise Unjudged(f"rank {rank} recorded nothing")
    if evidence.raised is None:
        return Failure(
            "LIVE-3",
            "a rank finishes although another rank died",
            where,
            f"rank {rank} went on to the end and raised nothing",
        )
    if evidence.raised.step < plan.step:
        raise Unjudged(f"rank {rank} raised {evidence.raised.type} before the rank was killed")
    if evidence.at("updated", plan.step) is not None:
        return Failure(
            "LIVE-3",
            "a rank makes a step although another rank died",
            where,
            f"rank {rank} updated its parameters at step {plan.step} and raised "
            f"{evidence.raised.type} later",
        )
    return None


_KINDS = ("threads", "open descriptors", "child processes")
ENOUGH_ROUNDS = 4
"""Number of runs after which a count that grew every time is taken to grow for ever.

The first run does not count, nor does a single growth.
"""


@training.rule(
    "LIVE-4",
    "A run leaves no more threads, file descriptors or processes than there were before it.",
    needs=("a run repeated",),
    source=_SOURCE,
    draws=Draws(world_sizes=FEW_RANKS, rounds=4),
    after="COMM-5",
    needs_all=True,
    costs=4,
    counts_when_injected=True,
    script=SEVERAL_RUNS,
    level="robust",
)
def nothing_is_left_behind(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases that repeat the run in the same processes: a leak grows after every run."""
    if view.case.rounds < ENOUGH_ROUNDS:
        raise NotAbout("the case is not repeated often enough")
    if view.incident is not None:
        raise Unjudged(view.cut_short)
    for rank, evidence in enumerate(view.evidence.ranks):
        tally.met.add("a run repeated")
        # The last counts were taken after a wait, since a thread may end a moment after its run.
        for kind, column in zip(_KINDS, zip(*evidence.left, strict=True), strict=False):
            tally.compared += 1
            counts, settled = column[: view.case.rounds], column[-1]
            grew = all(before < after for before, after in pairwise(counts))
            if grew and settled > counts[0]:
                return Failure(
                    "LIVE-4",
                    f"every run leaves {kind} behind",
                    f"rank {rank} of {view.case.world_size}",
                    f"{' then '.join(map(str, counts))} {kind} after each of {len(counts)} runs "
                    "in one process",
                )
    if view.cut_short:
        raise Unjudged(view.cut_short)
    return None


INTERLUDES: dict[BetweenStepsKind, str] = {
    "evaluation": "an evaluation",
    "evaluation with gradients": "an evaluation with gradients",
    "inference": "an evaluation under inference mode",
    "forward only": "a forward without a backward",
    "learning rate": "a new learning rate",
    "decay": "less momentum and weight decay",
    "freeze": "a layer frozen",
    "unfreeze": "a layer unfrozen",
    "cast": "parameters cast and cast back",
    "copy": "a deep copy",
    "assign": "parameters assigned",
    "weights": "parameters halved",
    "prune": "a layer pruned",
}


@training.rule(
    "LIVE-5",
    "Steps stay right after all ranks do one of these between two steps: an evaluation, a "
    "forward without a backward, a lower learning rate, momentum or weight decay, a layer frozen "
    "or unfrozen, parameters cast and cast back, a deep copy, a state assigned as new tensors, "
    "parameters halved, or a layer pruned.",
    needs=tuple(INTERLUDES.values()),
    source=_SOURCE,
    applies="capability",
    draws=Draws(
        clipped=True,
        scaled=8,
        autocast=8,
        between_steps=(
            "evaluation",
            "forward only",
            "learning rate",
            "freeze",
            "unfreeze",
            "cast",
            "copy",
            "assign",
            "evaluation with gradients",
            "decay",
            "inference",
            "weights",
            "prune",
        ),
    ),
    of_reduced=("values",),
    excluded=(
        lacks(
            "supports no action between steps",
            "evaluation",
            "evaluation_with_gradients",
            "inference_mode",
            "forward_only",
            "learning_rate",
            "decay",
            "freeze",
            "unfreeze",
            "cast",
            "copy",
            "assign",
            "weights_written",
            "pruned",
        ),
    ),
    after="PARAM-5",
    counts_when_injected=True,
)
def steps_after_other_actions_are_right(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases with between-steps actions: every step's gradients and update must be right."""
    case = view.case
    not_about(
        {
            "the case has no action between steps": not any(
                action.kind in INTERLUDES for action in case.between_steps
            ),
            "the implementation declares exactness = lossy": view.declared.exactness == "lossy",
        }
    )
    failure = param.every_step(view, tally)
    if failure is not None:
        past = [
            INTERLUDES[action.kind] for action in case.between_steps if action.kind in INTERLUDES
        ]
        return failure.told_by("LIVE-5", f"with {', '.join(dict.fromkeys(past))} between steps")
    done = view.steps("updated")
    tally.met |= {
        INTERLUDES[action.kind]
        for action in case.between_steps
        if action.kind in INTERLUDES and action.step in done
    }
    return None


def _may_diverge(view: EvidenceView) -> bool:
    """Return whether the numbers of a run are so large that a step may exceed their format.

    An implementation may refuse gradients that are not finite.
    """
    for rank in view.evidence.ranks:
        for (moment, _), tensors in rank.tensors.items():
            if moment in ("local", "reduced", "updated"):
                most_P = view.form(tensors.layout).largest ** _DIVERGED
                # A comparison with NaN is false.
                if not (np.abs(tensors.values_P) <= most_P).all():
                    return True
    return False
