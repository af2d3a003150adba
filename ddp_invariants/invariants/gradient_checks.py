"""Checks of one step's gradients that need more than a comparison with a mean.

The judges of `grad.py` and `grad_schedule.py` call them. A rank's twin is the unwrapped module
with the same parameters, batch and random state.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.cases.layers import Model
from ddp_invariants.invariants.compare import apart, number, outside
from ddp_invariants.invariants.diagnosis import gradients, missing, uneven
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.recorded import flat_by_name
from ddp_invariants.invariants.reduced import TWO_RANKS, against, by_owner
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.oracle import training as oracle
from ddp_invariants.oracle.balls import Ball
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.crossed import Crossed
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.perturbation import Perturbed


def is_permuted(model: Model) -> bool:
    """Return whether a trained parameter's memory order differs from its index order.

    With one channel, both orders are equal.
    """
    return any(
        layer.layout == "channels_last" and width > 4 and not layer.frozen
        for width, layer in zip(model.widths(), model.layers, strict=False)
    )


def same_layout(view: EvidenceView, step: int, ball: Ball) -> Ball:
    """Return the oracle's ball if it has the twins' layout.

    The ball's parameters are those with a gradient; the twins' record has the same layout.

    Raises:
        Unjudged: The twins have gradients of other parameters.
    """
    if ball.centre.shape != (sum(view.layout(step).sizes),):
        raise Unjudged(
            "the unwrapped module has gradients of other parameters than the trainable ones"
        )
    return ball


def unfit_gradient(view: EvidenceView, tally: Tally, step: int, rank: int) -> Failure | None:
    """Return a failure if a rank's gradient does not fit its parameter; None if all fit."""
    rows = {row.name: row for row in view.evidence.ranks[0].structure_before}
    unused, trained = view.unused(step)[rank], view.trainable(step)
    for slot in view.every_rank("reduced", step)[rank].layout.slots:
        if slot.name not in rows or (slot.dtype is None and slot.name in unused):
            continue
        dtype, shape = rows[slot.name].dtype, rows[slot.name].shape
        tally.compared += 1
        where = (
            f"rank {rank} of {view.case.world_size}, step {step}, parameter "
            f"{slot.name!r} {tuple(shape)}"
        )
        if slot.name not in trained:
            tally.met.add("frozen parameter")
            if slot.dtype is not None:
                fact = "a frozen parameter has a gradient"
                return Failure("GRAD-4", fact, where, f"{slot.dtype} {slot.shape}")
            continue
        tally.meet({"0-d parameter": not shape, "zero-element parameter": 0 in shape})
        if slot.dtype is None:
            return Failure("GRAD-4", "a parameter that was used has no gradient", where, "None")
        if (slot.dtype, list(slot.shape)) != (dtype, list(shape)):
            return Failure(
                "GRAD-4",
                "a gradient does not fit its parameter",
                where,
                f"{slot.dtype} {slot.shape}, expected {dtype} {tuple(shape)}",
            )
    return None


def lost_nonfinite_value(
    view: EvidenceView,
    tally: Tally,
    rank: int,
    local_WP: FloatArray,
    left_WP: FloatArray,
) -> Failure | None:
    """Return a failure if a rank's gradient lacks a value that is not finite.

    If gradients lie with their owners, the owners' gradients are judged, whatever the rank.

    Args:
        view: The evidence view of the case, in which one step is poisoned.
        tally: Counts the comparisons.
        rank: The rank.
        local_WP: The twins' gradients of the poisoned step.
        left_WP: The gradients to which the program lets autograd add them; zero if it clears them.
    """
    assert view.case.poison is not None
    step = view.case.poison.step
    layout, tensors = view.layout(step), view.every_rank("reduced", step)[rank]
    summed_P, held_P = local_WP.sum(0), flat_by_name(tensors, layout)
    finite_P = np.abs(np.where(np.isfinite(local_WP), local_WP, 0)).sum(0) + np.abs(left_WP).sum(0)
    # If the finite terms might overflow by themselves, the order of summation decides which
    # infinity comes first. So it does if a gradient that is left in place has overflowed before.
    poisoned = ~np.isfinite(summed_P) & (finite_P <= view.form(layout).largest)

    def right(held: FloatArray) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = np.where(np.isnan(summed_P), np.isnan(held), held == summed_P)
        either: NDArray[np.bool_] = same | ~poisoned
        return either

    where = f"rank {rank} of {view.case.world_size}"
    if view.declared.gradients == "owner":
        held_P = by_owner(view, step, right)
        where = f"every rank of {view.case.world_size} that holds it"
    same = right(held_P)
    tally.compared += int(poisoned.sum())
    wrong = poisoned & ~same
    if not wrong.any():
        return None
    first = int(np.argmax(wrong))
    slot, place = layout.locate(first)
    failure = Failure(
        "GRAD-7",
        "a value that is not finite does not reach every rank",
        f"{where}, step {step}, parameter {slot.name!r} {slot.shape}",
        f"{number(held_P[first])} at {place}, expected {number(summed_P[first])}; "
        f"{int(wrong.sum())} of {int(poisoned.sum())} such elements differ",
    )
    return caused(failure, gradients.of_scrubbing(view, rank, summed_P, local_WP, held_P, wrong))


def sent_under_no_sync(view: EvidenceView, tally: Tally, step: int) -> Failure | None:
    """Return a failure if a backward inside no_sync communicates; None if no backward does."""
    for rank, evidence in enumerate(view.evidence.ranks):
        spans = evidence.quiet[step] if step < len(evidence.quiet) else []
        # Forwards may send: they refresh buffers, and a lazy wrapper starts in one.
        sent = [call for starts, ends in spans for call in evidence.sent_between(starts, ends)]
        tally.compared += len(spans) if any(evidence.sent) else 0
        if sent:
            return Failure(
                "GRAD-8",
                "a backward inside no_sync communicates",
                f"rank {rank} of {view.case.world_size}, step {step}",
                f"{len(sent)} collectives, expected none; the first is {sent[0][0]} "
                f"{sent[0][1]} x {sent[0][2]}",
            )
    return None


def one_large_batch(view: EvidenceView, step: int) -> Ball:
    """Return the oracle's gradient of a step on all its samples as one batch of one rank."""
    case, truth = view.case, view.expected.truth(step).gradient
    alone = case.without(NoSyncStyle, PassOrder, Crossed, Perturbed, FailureInjection)
    plain = replace(alone, world_size=1, accumulation=1, situations=())
    for situation in alone.situations:  # One rank cannot be in those that name another one.
        plain = situation.fitted_or_left_out(plain)
    joined = oracle.joined([view.batch(number) for number in view.micro_steps(step)])
    held = view.every_rank("forward", step)[0].by_name
    by_name = oracle.gradients(plain.at(step), held, joined, view.scale(step)).by_name
    balls = [
        by_name[slot.name] if slot.name in by_name else oracle.nothing(held[slot.name], 1)
        for slot in view.layout(step).slots
        if slot.dtype is not None
    ]
    centre_P = np.concatenate([ball.centre[0].ravel() for ball in balls])
    factor = view.expected.divisor
    radius_P = factor * np.concatenate([ball.radius[0].ravel() for ball in balls]) + truth.radius
    return Ball(factor * centre_P, radius_P, truth.quantum)


def missing_gradient(
    view: EvidenceView, tally: Tally, step: int, unused: tuple[frozenset[str], ...]
) -> Failure | None:
    """Return a failure if only some ranks have a gradient, or none although a rank uses it."""
    reduced, world_size = view.every_rank("reduced", step), view.case.world_size
    for slot in view.layout(step).slots:
        name = slot.name
        without = [rank for rank, tensors in enumerate(reduced) if name not in tensors.by_name]
        users = [rank for rank, names in enumerate(unused) if name not in names]
        tally.compared += world_size if len(users) < world_size else 0
        if (
            slot.dtype is None
            or len(users) == world_size
            or not without
            or (not users and len(without) == world_size)
        ):
            continue
        fact = (
            "a parameter that some ranks use has no gradient on other ranks"
            if users
            else "a parameter that no rank uses has no gradient on some ranks and one on others"
        )
        failure = Failure(
            "GRAD-9",
            fact,
            f"rank {without[0]} of {world_size}, step {step}, parameter {name!r} {slot.shape}",
            f"None on rank{'s' if len(without) > 1 else ''} {', '.join(map(str, without))}; used "
            f"on {'rank ' + ', '.join(map(str, users)) if users else 'no rank'}",
        )
        return caused(failure, missing.causes(view, step, name, without, users))
    return None


def first_rank_that_differs(view: EvidenceView, tally: Tally, step: int) -> Failure | None:
    """Return the failure of the first rank whose gradients differ bitwise from rank 0's.

    All NaNs are equal, and zeros of either sign: a rank may add the mean to zeros of its own.
    """
    reduced = view.every_rank("reduced", step)
    for rank, tensors in enumerate(reduced[1:], start=1):
        tally.compared += sum(tensors.layout.sizes)
        difference = apart(reduced[0], tensors, "rank 0 holds")
        if difference is not None:
            failure = Failure(
                "GRAD-1",
                "gradients differ between ranks after synchronisation",
                f"rank {rank} of {len(reduced)}, step {step}, {difference.place}",
                difference.words,
            )
            return gradients.of_gradient(view, failure, step, rank, difference.name)
    return None


def wrong_mean_of_the_active(
    view: EvidenceView, tally: Tally, active: list[int], step: int
) -> Failure | None:
    """Return a failure if a rank with a batch does not hold the declared mean of a step.

    If gradients lie with their owners, a rank without a batch may own any of them.
    """
    case = view.case
    if view.declared.gradients == "owner":
        return None
    expected, layout = view.expected.mean_of(active, step)
    averaged = "the ranks with a batch" if view.declared.divisor == "active" else "all ranks"
    for rank in active:
        reduced = view.of_rank(rank, "reduced", step)
        local = view.of_rank(rank, "local", view.micro_steps(step)[0])
        difference = outside(local, flat_by_name(reduced, layout), expected, tally)
        if difference is not None:
            failure = Failure(
                "GRAD-11",
                f"with {len(active)} of {case.world_size} ranks left the gradient is not the "
                f"{view.declared.reduction} over {averaged}",
                f"rank {rank} of {case.world_size}, step {step}, {difference.place}",
                difference.words,
            )
            return caused(failure, uneven.causes(view, step, rank, active, layout))
    return None


def wrong_parameters_of_the_active(
    view: EvidenceView, tally: Tally, active: list[int], step: int
) -> Failure | None:
    """Return a failure if the ranks with a batch start or end a step with wrong parameters.

    A step starts from what the step before has left. It ends with the same parameters on all of these
    ranks, and where the update is known, with those of single-process training.
    """
    case, fact = view.case, "ranks with a batch have wrong parameters once another rank has none"
    updated = [view.of_rank(rank, "updated", step) for rank in active]
    for rank, tensors in zip(active, updated, strict=True):
        pairs = [(updated[0], tensors, f"rank {active[0]} holds")]
        if step:
            left = view.of_rank(rank, "updated", step - 1)
            started = view.of_rank(rank, "forward", step)
            pairs.insert(0, (left, started, f"step {step - 1} left"))
        for expected, held, owner in pairs:
            tally.compared += sum(held.layout.sizes)
            difference = apart(expected, held, owner)
            if difference is not None:
                moment = "when its forward starts" if held is not tensors else "after its update"
                return Failure(
                    "GRAD-11",
                    fact,
                    f"rank {rank} of {case.world_size}, step {step}, {moment}, {difference.place}",
                    difference.words,
                )
    try:
        truth = view.expected.updated_by(active, step)
    except (NotAbout, Unjudged):
        return None
    local = view.of_rank(active[0], "local", view.micro_steps(step)[0])
    outlier = outside(local, flat_by_name(updated[0], local.layout), truth, tally)
    where = f"rank {active[0]} of {case.world_size}, step {step}, after its update"
    if outlier is None:
        return None
    return Failure("GRAD-11", fact, f"{where}, {outlier.place}", outlier.words)


def different_parameters_at_the_end(view: EvidenceView, tally: Tally) -> Failure | None:
    """Return a failure if a rank ends with other parameters than the rank with most batches."""
    case = view.case
    last = next(rank for rank in range(case.world_size) if case.steps_of(rank) == case.steps)
    left = view.of_rank(last, "updated", case.steps - 1)
    for rank, tensors in enumerate(view.every_rank("joined")):
        tally.compared += sum(tensors.layout.sizes)
        # They may be broadcast as a sum to which all other ranks add zero.
        difference = apart(left, tensors, f"rank {last} held after the last step")
        if difference is not None:
            return Failure(
                "GRAD-11",
                "the ranks end with different parameters",
                f"rank {rank} of {case.world_size}, {difference.place}",
                difference.words,
            )
    return None


def not_one_large_batch(view: EvidenceView, tally: Tally, step: int) -> Failure | None:
    """Return a failure if a step's gradient is not that of all its samples in one batch.

    A step with batches of different sizes is not judged.
    """
    case, parts = view.case, [view.batch(number) for number in view.micro_steps(step)]
    if len({part.inputs_WBI.shape for part in parts}) > 1 or (case.zero_grad == "never" and step):
        return None
    tally.meet({"several micro-steps": True, TWO_RANKS: case.world_size > 1})
    samples = sum(part.inputs_WBI.shape[0] * part.inputs_WBI.shape[1] for part in parts)
    fact = (
        f"{case.accumulation} micro-steps on {case.world_size} ranks do not equal one step on "
        f"their {samples} samples"
    )
    return against(view, tally, "GRAD-12", fact, step, one_large_batch(view, step))


def place_of_cap(view: EvidenceView, cap: int) -> str:
    """Return the condition that a bucket cap meets: below, between or above the gradients' sizes."""
    sizes = [slot.nbytes for slot in view.layout(0).slots if slot.nbytes]
    if cap < min(sizes):
        return "every parameter above the cap"
    return "cap between a parameter and the model" if cap < sum(sizes) else "cap above the model"
