"""BUF: buffers stay those of one model, where the implementation promises it, and move as its forwards move them."""

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.compare import number, parted
from ddp_invariants.invariants.diagnosis import kept
from ddp_invariants.invariants.grad import TWO_RANKS
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.oracle.balls import gamma
from ddp_invariants.records.evidence import Layout, Tensors
from ddp_invariants.records.verdict import Failure

MOVED = "batches moved buffers apart"
EACH_MOVED = "a forward moved buffers"
NORMED = "a batch normed by itself"
WRITTEN = "buffers written to between steps"


@training.rule(
    "BUF-1",
    "Every step's forward starts from equal buffers on all ranks, which their batches have moved apart.",
    (TWO_RANKS, MOVED),
)
def equal_when_a_forward_starts(view: EvidenceView, tally: Tally) -> Failure | None:
    """Bitwise, from the second step on (the first is INIT-2's), where no forward before it was under no_sync."""
    case = view.case
    if case.world_size == 1 or case.injected_failure is not None:
        raise NotAbout(
            "one rank" if case.world_size == 1 else "a forward that failed may have moved buffers"
        )
    if case.accumulation > 1 and not view.synchronised_each:
        raise NotAbout("under no_sync buffers are each rank's own")
    if not any(layer.buffers for layer in case.model.layers):
        raise NotAbout("no buffers")
    tally.met.add(TWO_RANKS)
    for step in view.steps("forward buffers")[1:]:
        left, started = (
            view.every_rank("left buffers", step - 1),
            view.every_rank("forward buffers", step),
        )
        tally.met |= {MOVED} if any(tensors != left[0] for tensors in left) else set()
        for rank, tensors in enumerate(started[1:], start=1):
            tally.compared += sum(tensors.layout.sizes)
            difference = parted(started[0], tensors, "rank 0 holds")
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


@training.rule(
    "BUF-2",
    "A forward in training moves buffers as the unwrapped module's does: what the next one starts from "
    "lies, element by element, between what the ranks' twins were left with, or what the program wrote since.",
    (EACH_MOVED, NORMED, WRITTEN),
)
def moved_as_the_modules(view: EvidenceView, tally: Tally) -> Failure | None:
    """On steps of one forward, from what each rank started it from.

    Between them lies what a broadcast makes of them, a mean, weighted or not, and what each rank
    keeps for itself; of a count that all ranks agree on, nothing else does. A mean is computed in
    the buffer's dtype: to what W terms and a division round.
    """
    case = view.case
    if not any(layer.buffers for layer in case.model.layers):
        raise NotAbout("no buffers")
    if case.accumulation > 1 or case.exhausted:
        raise NotAbout(
            "buffers may be synchronised between the forwards of a step"
            if case.accumulation > 1
            else "whose buffers count where ranks run out of batches is not fixed"
        )
    forwards = {one.step for one in case.between_steps if one.kind == "forward only"}
    forwards |= {case.injected_failure.step} if case.injected_failure is not None else set()
    written = {one.step for one in case.between_steps if one.kind == "buffers"}
    for step in view.steps("forward buffers")[1:]:
        if step in forwards:  # Which moved buffers, too, before this was noted.
            continue
        began, twins = (
            view.every_rank("forward buffers", step - 1),
            view.every_rank("twin buffers", step - 1),
        )
        moved = any(one != other for one, other in zip(began, twins, strict=True))
        if step in written:
            twins = view.every_rank("written buffers", step)
            tally.met.add(WRITTEN)
        tally.met |= ({EACH_MOVED} if moved else set()) | (
            {NORMED} if moved and case.model.norms_batches else set()
        )
        for rank, started in enumerate(view.every_rank("forward buffers", step)):
            found = _not_between(twins, started, tally)
            if found is not None:
                name, words = found
                slot = next(slot for slot in started.layout.slots if slot.name == name)
                failure = Failure(
                    "BUF-2",
                    "buffers move otherwise than the unwrapped module's",
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
    twins: tuple[Tensors, ...], started: Tensors, tally: Tally
) -> tuple[str, str] | None:
    """The first buffer with an element that lies between none of the ranks', and what it is; None where there is none."""
    layout = started.layout
    if any(
        [slot.name for slot in one.layout.slots] != [slot.name for slot in layout.slots]
        or one.layout.sizes != layout.sizes
        for one in twins
    ):
        raise Unjudged("the buffers a forward starts from are not those of the module")
    twins_WP = np.stack([one.values_P for one in twins])
    known_P = np.isfinite(twins_WP).all(0)
    tally.compared += int(known_P.sum())
    slack_P = _rounding(layout, twins_WP)
    wrong_P: NDArray[np.bool_] = known_P & ~(
        (started.values_P >= twins_WP.min(0) - slack_P)
        & (started.values_P <= twins_WP.max(0) + slack_P)
    )
    if not wrong_P.any():
        return None
    first = int(np.argmax(wrong_P))
    slot, place = layout.locate(first)
    left = sorted({float(one) for one in twins_WP[:, first]})
    expected = (
        number(left[0]) if len(left) == 1 else f"between {number(left[0])} and {number(left[-1])}"
    )
    return (
        slot.name,
        f"{number(started.values_P[first])} at {place}, the unwrapped modules left {expected}",
    )


def _rounding(layout: Layout, twins_WP: FloatArray) -> FloatArray:
    """What a weighted mean over the ranks may be off by: W products, as many additions, a division; of integers nothing."""
    terms = 2 * len(twins_WP) + 1
    rounding_P = (
        gamma(terms, layout.roundoff_P) * np.abs(twins_WP).sum(0) + terms * layout.smallest_P
    )
    return np.where(np.isnan(layout.roundoff_P), 0.0, rounding_P)
