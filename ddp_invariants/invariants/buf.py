"""BUF: ranks keep equal buffers if the implementation promises it; forwards move them as usual."""

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.compare import apart, number
from ddp_invariants.invariants.diagnosis import kept
from ddp_invariants.invariants.draws import Draws
from ddp_invariants.invariants.exclusions import NO_BUFFERS, lacks
from ddp_invariants.invariants.reduced import TWO_RANKS
from ddp_invariants.invariants.rule import Script, Tally, Unjudged, not_about
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.oracle.balls import gamma
from ddp_invariants.records.evidence import Layout, Tensors
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.other_method import OtherMethod
from ddp_invariants.situations.own_buffers import OWN_BUFFERS, OwnBuffers

_SOURCE = "the documentation of torch.nn.parallel.DistributedDataParallel: broadcast_buffers"
_CHANGED = "a forward changes buffers differently than the unwrapped module does"
_NOT_ITS_OWN = (
    "with broadcast_buffers=False, a forward does not start from the buffers that the rank's own "
    "last forward left"
)
_FROM_INSIDE = Script(
    beyond="only code inside a forward sees the buffers at the start of the forward"
)

MOVED = "batches changed buffers differently"
EACH_MOVED = "a forward changed buffers"
NORMED = "a batch normalised by itself"
WRITTEN = "buffers written to between steps"


@training.rule(
    "BUF-1",
    "Every step's forward starts from equal buffers on all ranks, although different batches "
    "changed them.",
    needs=(TWO_RANKS, MOVED),
    source=_SOURCE,
    applies="capability",
    draws=Draws(least_steps=2, buffers=True, evaluations=True, evaluated_layer=12),
    excluded=(NO_BUFFERS, lacks("leaves each rank its own buffers", "equal_buffers")),
    after="INIT-4",
    script=_FROM_INSIDE,
)
def equal_when_a_forward_starts(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare bitwise from the second step on; the first step is judged by INIT-2.

    Only cases in which no earlier forward ran under no_sync are judged. A step whose first attempt
    failed is not judged: an implementation may synchronise buffers after a forward.
    """
    case = view.case
    not_about(
        {
            "one rank": case.world_size == 1,
            "a rank dies": case.kills,
            "under no_sync each rank keeps its own buffers": case.accumulation > 1
            and not view.synchronised_each,
            "no buffers": not case.model.has_buffers,
            "another method than the wrapper's forward runs": case.get(OtherMethod) is not None,
            "the program asks for no broadcasts of buffers": case.get(OwnBuffers) is not None,
        }
    )
    tally.met.add(TWO_RANKS)
    # Buffers that a backward synchronises are not equal after a forward alone.
    alone = _steps_after_a_forward_alone(case)
    for step in view.steps("forward buffers")[1:]:
        if step in alone:
            continue
        left, started = (
            view.every_rank("left buffers", step - 1),
            view.every_rank("forward buffers", step),
        )
        tally.meet({MOVED: any(tensors != left[0] for tensors in left)})
        for rank, tensors in enumerate(started[1:], start=1):
            tally.compared += sum(tensors.layout.sizes)
            difference = apart(started[0], tensors, "rank 0 holds")
            if difference is not None:
                failure = Failure(
                    "BUF-1",
                    "buffers differ between ranks when a forward starts",
                    f"rank {rank} of {case.world_size}, step {step}, "
                    f"{difference.place.replace('parameter', 'buffer', 1)}",
                    difference.words,
                )
                return kept.of_buffer(view, failure, step, rank, difference.name)
    return None


def _steps_after_a_forward_alone(case: TrainingCase) -> set[int]:
    """Return the steps before which a forward ran whose backward never came, or failed."""
    steps = {action.step for action in case.between_steps if action.kind == "forward only"}
    return steps | ({case.injected_failure.step} if case.injected_failure is not None else set())


@training.rule(
    "BUF-2",
    "A forward in training changes buffers as the unwrapped module's forward does. Each element "
    "from which the next forward starts lies between the values that the ranks' twins hold, or has "
    "a value that the program wrote since. A running variance may also contain the variance of the "
    "ranks' means. If the program asks for no broadcasts, only the rank's "
    "own twin counts.",
    needs=(EACH_MOVED, NORMED, WRITTEN, OWN_BUFFERS),
    source=_SOURCE,
    applies="capability",
    draws=Draws(least_steps=2, buffers=True, written=True, evaluated_layer=12, own_buffers=4),
    excluded=(NO_BUFFERS,),
    after="LOSS-1",
    script=_FROM_INSIDE,
)
def moved_as_the_modules(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge steps of one forward, from the buffers each rank started the step with.

    The twin is the unwrapped module, run on the same batch from the same buffers. The allowed range
    lies between the values that the ranks' twins left. It contains a broadcast value, a plain or
    weighted mean, and a rank's own value. A variance of all ranks' samples together is the mean of
    the variances and the variance of the means, which may exceed each rank's variance. If all ranks
    agree on a count, only that count lies in the range. A mean is computed in the buffer's dtype, so
    the bound allows the rounding of W terms and a division. After a reload the ranks' own buffers
    are not required of a new wrapper that broadcasts in its first forward.
    """
    case = view.case
    not_about(
        {
            "no buffers": not case.model.has_buffers,
            "buffers may be synchronised between the forwards of a step": case.accumulation > 1,
            "no rule fixes whose buffers count after a rank runs out of batches": bool(
                case.exhausted
            ),
        }
    )
    forwards = _steps_after_a_forward_alone(case)
    written = {action.step for action in case.between_steps if action.kind == "buffers"}
    reloaded = {action.step for action in case.between_steps if action.kind == "reload"}
    for step in view.steps("forward buffers")[1:]:
        # An extra forward moved the buffers before they were recorded.
        if step in forwards:
            continue
        began, twins = (
            view.every_rank("forward buffers", step - 1),
            view.every_rank("twin buffers", step - 1),
        )
        moved = any(before != after for before, after in zip(began, twins, strict=True))
        if step in written:
            twins = view.every_rank("written buffers", step)
            tally.met.add(WRITTEN)
        own = case.get(OwnBuffers) is not None and not (
            step in reloaded and view.declared.init == "first_forward"
        )
        tally.meet(
            {
                EACH_MOVED: moved,
                NORMED: moved and case.model.norms_batches,
                OWN_BUFFERS: own and any(twin != twins[0] for twin in twins[1:]),
            }
        )
        for rank, started in enumerate(view.every_rank("forward buffers", step)):
            # A new replica starts from its own values of what no saved state holds.
            lost = case.model.unsaved if step in reloaded else frozenset[str]()
            allowed = twins[rank : rank + 1] if own else twins
            wrong = _not_between(allowed, started, lost, tally)
            if wrong is not None:
                name, words = wrong
                slot = next(slot for slot in started.layout.slots if slot.name == name)
                failure = Failure(
                    "BUF-2",
                    _NOT_ITS_OWN if own else _CHANGED,
                    f"rank {rank} of {case.world_size}, step {step}, buffer {name!r} {slot.shape}",
                    words,
                )
                return (
                    kept.of_writing(view, failure, step, rank, name)
                    if step in written
                    else kept.of_move(view, failure, step, rank, name)
                )
    return None


def _not_between(
    twins: tuple[Tensors, ...], started: Tensors, lost: frozenset[str], tally: Tally
) -> tuple[str, str] | None:
    """Return the first buffer with an element outside the range of the twins' buffers, with words.

    Args:
        twins: The buffers of each rank's twin.
        started: The buffers of a rank.
        lost: The names of the buffers that have other values than the twins left.
        tally: The counts of what is compared.

    Returns:
        The buffer's name and the difference in words; None if every element lies in the range.
    """
    layout = started.layout
    if any(
        [slot.name for slot in twin.layout.slots] != [slot.name for slot in layout.slots]
        or twin.layout.sizes != layout.sizes
        for twin in twins
    ):
        raise Unjudged(
            "the buffers at a forward's start have other names or sizes than the module's"
        )
    twins_WP = np.stack([twin.values_P for twin in twins])
    compared = np.array([slot.name not in lost for slot in layout.slots], dtype=bool)
    known_P = np.isfinite(twins_WP).all(0) & np.repeat(compared, layout.sizes)
    tally.compared += int(known_P.sum())
    slack_P, lift_P = _rounding(layout, twins_WP), _variance_of_means(layout, twins_WP)
    most_P = twins_WP.max(0) + lift_P
    wrong_P: NDArray[np.bool_] = known_P & ~(
        (started.values_P >= twins_WP.min(0) - slack_P) & (started.values_P <= most_P + slack_P)
    )
    if not wrong_P.any():
        return None
    first = int(np.argmax(wrong_P))
    slot, place = layout.locate(first)
    left = sorted({float(value) for value in (*twins_WP[:, first], most_P[first])})
    expected = (
        number(left[0]) if len(left) == 1 else f"between {number(left[0])} and {number(left[-1])}"
    )
    return (
        slot.name,
        f"{number(started.values_P[first])} at {place}, the unwrapped modules left {expected}",
    )


def _variance_of_means(layout: Layout, twins_WP: FloatArray) -> FloatArray:
    """Return how far the variance of the ranks' means may lift each running variance.

    Numbers between a and b have a variance of at most (b - a)² / 4, with any weights that add up to
    one. The result also contains the rounding of a sum of squares, from which a square is taken.
    """
    lift_P = np.zeros(twins_WP.shape[1])
    places = {
        slot.name: slice(start, start + size)
        for slot, start, size in zip(layout.slots, layout.starts, layout.sizes, strict=False)
    }
    for name, place in places.items():
        means = places.get(f"{name.removesuffix('running_var')}running_mean", slice(0))
        if not name.endswith("running_var") or means.stop - means.start != place.stop - place.start:
            continue
        means_WP = twins_WP[:, means]
        rounding_P = gamma(2 * len(twins_WP) + 2, layout.roundoff_P[place])
        lift_P[place] = np.ptp(means_WP, axis=0) ** 2 / 4 + rounding_P * (means_WP**2).sum(0)
    return lift_P


def _rounding(layout: Layout, twins_WP: FloatArray) -> FloatArray:
    """Return the largest rounding error of a weighted mean over the ranks.

    The mean takes W products, W additions and a division. Integers have no rounding.
    """
    terms = 2 * len(twins_WP) + 1
    rounding_P = (
        gamma(terms, layout.roundoff_P) * np.abs(twins_WP).sum(0) + terms * layout.smallest_P
    )
    return np.where(np.isnan(layout.roundoff_P), 0.0, rounding_P)
