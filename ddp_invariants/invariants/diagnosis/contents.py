"""Explanations of a wrong gradient by wrong contents: other steps, elements, precisions or parameters.

Suffixes: W ranks, K micro-steps; the dots after them stand for one parameter's shape.
"""

import math
from collections.abc import Iterator

import numpy as np

from ddp_invariants.cases.formats import ROUNDOFF
from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.invariants.diagnosis.predictions import (
    CUT_OFF,
    FLOAT16_MAX,
    LOW,
    Prediction,
    everywhere,
    reordered,
    rounded_means,
)
from ddp_invariants.invariants.diagnosis.reduced_gradient import ReducedGradient


def of_contents(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield all explanations of this module; their order has no effect."""
    yield from _of_accumulation(gradient)
    yield from _of_the_step_before(gradient)
    yield from _of_the_element_order(gradient)
    yield from _of_low_precision(gradient)
    yield from _of_a_limit(gradient)
    yield from _of_a_part(gradient)
    yield from _of_complex_numbers(gradient)
    yield from _of_another_parameter(gradient)
    yield from _of_crossing(gradient)
    yield from _of_withholding(gradient)


def _of_accumulation(gradient: ReducedGradient) -> Iterator[Prediction]:
    fresh_KW, world_size, count = gradient.fresh_KW, len(gradient.g_W), len(gradient.fresh_KW)
    if count == 1:
        return
    means_K = fresh_KW.mean(1)
    yield Prediction(
        "last micro-step only",
        gradient.left_W + fresh_KW[:-1].sum(0) + means_K[-1],
        lambda rank: (
            f"only the last micro-step was reduced: the earlier sum is still rank {rank}'s own"
        ),
    )
    yield Prediction(
        "first micro-step only",
        gradient.left_W + means_K[0] + fresh_KW[1:].sum(0),
        lambda rank: (
            f"only the first micro-step was reduced: the later sum is still rank {rank}'s own"
        ),
    )
    left = gradient.left_W.mean(0)
    yield everywhere(
        "micro-steps lost",
        left + means_K[-1],
        world_size,
        "it is the mean of the last micro-step alone: the earlier ones were lost",
    )
    yield everywhere(
        "last micro-step lost",
        left + means_K[:-1].sum(0),
        world_size,
        "it is the mean of all micro-steps but the last, which is lost",
    )
    if _reduces_each(gradient):
        yield everywhere(
            "stale in the step",
            left + means_K[:-1].sum(0),
            world_size,
            f"it equals this step's gradient after micro-step {count - 2}: stale",
        )
    yield everywhere(
        "micro-steps divided",
        gradient.mean / count,
        world_size,
        f"got / expected = 1/{count} = 1 / micro-steps: divided by their number once more",
    )
    yield everywhere(
        "micro-steps multiplied",
        gradient.mean * count,
        world_size,
        f"got / expected = {count} = micro-steps: the sum was not divided by their number",
    )
    sizes_K = np.array(
        [
            gradient.view.batches[number].inputs_WBI.shape[1]
            for number in gradient.view.micro_steps(gradient.step)
        ]
    )
    if len(set(sizes_K.tolist())) > 1:
        shares_K = sizes_K / sizes_K.sum() * count
        weighted = np.tensordot(shares_K, means_K, 1)
        yield everywhere(
            "weighted by size",
            left + weighted,
            world_size,
            f"micro-steps are weighted by their batch sizes {sizes_K.tolist()}",
        )


def _reduces_each(gradient: ReducedGradient) -> bool:
    """Return whether the backward of each micro-step of the step may send, so that a result is stale."""
    quiet = gradient.view.evidence.ranks[0].quiet
    silent = gradient.step < len(quiet) and bool(quiet[gradient.step])
    return gradient.view.case.passes != "joint" and not silent


def _of_the_step_before(gradient: ReducedGradient) -> Iterator[Prediction]:
    # If no rank uses the parameter, it can only hold a gradient that was left in place.
    if gradient.before_W is None or not gradient.users:
        return
    before = gradient.step - 1
    yield Prediction(
        "stale",
        gradient.before_W,
        lambda _: f"it equals step {before}'s gradient: stale",
        slack=0.0,
    )
    more = "added once more than intended" if gradient.left_W.any() else "not cleared"
    yield Prediction(
        "not cleared",
        gradient.right + gradient.before_W,
        lambda _: f"it is the mean plus step {before}'s gradient: {more}",
    )
    if gradient.left_W.any():
        yield Prediction(
            "cleared",
            gradient.right - gradient.left_W.mean(0),
            lambda _: (
                f"it is the mean without the gradient that step {before} left in place on "
                "purpose: cleared or overwritten"
            ),
        )


def _of_the_element_order(gradient: ReducedGradient) -> Iterator[Prediction]:
    world_size = len(gradient.g_W)
    known = [
        everywhere(
            "reordered",
            value,
            world_size,
            f"it is the mean with its elements {order}: packed as they lie in "
            "memory and unpacked by index, or the reverse",
        )
        for value, order in reordered(gradient.right, complex=gradient.complex)
    ]
    yield from known
    if any(gradient.fits(prediction) for prediction in known):
        return
    for wrong in np.flatnonzero(gradient.wrong_W):
        # Accept any order if chance cannot explain it: all values differ, and there are at least
        # four.
        held, right = np.sort(gradient.held_W[wrong].ravel()), np.sort(gradient.right.ravel())
        slack = float(gradient.tolerance.max(initial=0.0))
        if (
            held.size < 4
            or np.min(np.diff(right)) <= 2 * slack
            or not (np.abs(held - right) <= slack).all()
        ):
            return
    if gradient.wrong_W.any():
        yield Prediction(
            "reordered", gradient.held_W, lambda _: "it holds the mean's elements in another order"
        )


def _of_low_precision(gradient: ReducedGradient) -> Iterator[Prediction]:
    for dtype in LOW:
        if ROUNDOFF[dtype] > gradient.roundoff and len(gradient.g_W) > 1:
            values = [
                value * (len(gradient.g_W) if gradient.summed else 1)
                for value in rounded_means(gradient.g_W, gradient.mean, dtype)
            ]
            stacked = [np.broadcast_to(value, gradient.held_W.shape) for value in values]
            error = np.abs(gradient.held_W - gradient.right).max(initial=0.0)
            yield Prediction(
                dtype,
                stacked[0],
                lambda _, dtype=dtype, error=error: (  # type: ignore[misc]  # bound by default
                    f"it is the mean rounded to {dtype} on the way: off by {error:.2g} at most"
                ),
                tuple(stacked[1:]),
            )


def _of_a_limit(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield values cut off at the float16 limit: before the reduction, or after it."""
    terms = len(gradient.g_W) if gradient.summed else 1
    before = terms * gradient.g_W.clip(-FLOAT16_MAX, FLOAT16_MAX).mean(0)
    for value in (before, gradient.right.clip(-FLOAT16_MAX, FLOAT16_MAX)):
        yield everywhere("cut off", value, len(gradient.g_W), CUT_OFF)


def _of_a_part(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield values with a range of elements left out and the rest right.

    For complex elements the range covers both parts.
    """
    shape = gradient.right.shape[:-1] if gradient.complex else gradient.right.shape
    size, world_size = math.prod(shape), len(gradient.g_W)
    if size < 2:
        return
    right_W = np.abs(gradient.held_W - gradient.right) <= gradient.tolerance
    wrong = (
        np.flatnonzero((~right_W[gradient.wrong_W]).any(0).reshape(size, -1).any(1))
        if gradient.wrong_W.any()
        else np.arange(0)
    )
    if not 0 < wrong.size < size:
        return
    first, last = int(wrong[0]), int(wrong[-1])
    inside = np.zeros(size, bool)
    inside[first : last + 1] = True
    mask = np.repeat(inside, gradient.right.size // size).reshape(gradient.right.shape)
    for kind, own_W, words in (
        ("never reduced", gradient.g_W, "equal rank {}'s own local gradient: never reduced"),
        (
            "divided, not reduced",
            gradient.g_W / world_size,
            "equal rank {}'s own local gradient / W: never reduced",
        ),
        ("zero", np.zeros_like(gradient.g_W), "are zero: lost"),
    ):
        # Outside the range, the elements must show that the fault did not happen there. Otherwise
        # the fault may concern all elements.
        if (
            np.abs(own_W - gradient.right)[:, ~mask]
            > np.broadcast_to(gradient.tolerance, mask.shape)[~mask]
        ).any():
            yield Prediction(
                kind,
                np.where(mask, own_W, gradient.right),
                lambda rank, words=words: (  # type: ignore[misc]  # bound by default
                    f"it is right except for elements {first} to {last} of {size}, which "
                    f"{words.format(rank)}"
                ),
            )


def _of_complex_numbers(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield values with the real or imaginary parts left out or lost, or with the sign changed."""
    if not gradient.complex:
        return
    world_size, real, imaginary = len(gradient.g_W), np.array([1.0, 0.0]), np.array([0.0, 1.0])
    for part, mask, reduced in (("imaginary", imaginary, "real"), ("real", real, "imaginary")):
        kept = gradient.right * (1 - mask)
        only = f"only the {reduced} ones were reduced"
        yield everywhere(
            f"{part} zero", kept, world_size, f"its {part} parts are zero: {only}, or written back"
        )
        yield Prediction(
            f"{part} not reduced",
            kept + gradient.g_W * mask,
            lambda rank, part=part, only=only: (  # type: ignore[misc]  # bound by default
                f"its {part} parts are rank {rank}'s own: {only}"
            ),
        )
        yield Prediction(
            f"{part} divided",
            kept + gradient.g_W * mask / world_size,
            lambda rank, part=part, only=only: (  # type: ignore[misc]  # bound by default
                f"its {part} parts are rank {rank}'s own / {len(gradient.g_W)}: {only}"
            ),
        )
    yield everywhere(
        "conjugated",
        gradient.right * (real - imaginary),
        world_size,
        "it is the mean's complex conjugate",
    )


def _of_another_parameter(gradient: ReducedGradient) -> Iterator[Prediction]:
    view, world_size = gradient.view, len(gradient.g_W)
    local = [view.every_rank("local", number) for number in view.micro_steps(gradient.step)]
    for other_name in local[0][0].by_name:
        if other_name == gradient.name or any(
            t.by_name[other_name].shape != gradient.mean.shape for t in local[0]
        ):
            continue
        mean = np.sum(
            [np.mean([t.by_name[other_name] for t in record], axis=0) for record in local], axis=0
        )
        if np.any(mean):
            most = np.sum(
                [
                    np.sum([np.abs(t.by_name[other_name]) for t in record], axis=0)
                    for record in local
                ],
                axis=0,
            )
            yield everywhere(
                "swapped",
                mean,
                world_size,
                f"it equals the mean of {other_name!r}, of equal shape: swapped",
                (world_size + len(local) + 2) * gradient.roundoff * most,
            )


def _of_crossing(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield one rank's gradient mixed with that of the other branch.

    This happens if reductions are matched in the order in which gradients become ready.
    """
    crossed, stem = gradient.view.case.crossed, gradient.name.rpartition(".")[0]
    name = {f"{stem}.first": f"{stem}.second", f"{stem}.second": f"{stem}.first"}.get(gradient.name)
    if crossed is None or name is None or gradient.left_W.any():
        return
    records = [
        gradient.view.every_rank("local", number)
        for number in gradient.view.micro_steps(gradient.step)
    ]
    other_W = np.sum([[tensors.by_name[name] for tensors in record] for record in records], axis=0)
    mixed_W = np.stack(
        [
            np.where(
                np.reshape(
                    (np.arange(len(gradient.g_W)) == crossed) == (rank == crossed),
                    (-1, *[1] * gradient.mean.ndim),
                ),
                gradient.g_W,
                other_W,
            ).sum(0)
            for rank in range(len(gradient.g_W))
        ]
    )
    divisor = 1 if gradient.summed else len(gradient.g_W)
    yield Prediction(
        "crossed",
        mixed_W / divisor,
        lambda _: (
            f"it mixes the gradient with that of {name!r}, of equal shape: both become ready in "
            f"another order on rank {crossed}, and are reduced in that order"
        ),
        common=True,
    )


def _of_withholding(gradient: ReducedGradient) -> Iterator[Prediction]:
    if gradient.view.case.perturbation.kind != "withheld":
        return
    world_size = len(gradient.g_W)
    for factor in (1, world_size, 1 / world_size):
        yield everywhere(
            "withheld",
            np.full_like(gradient.mean, SENTINEL * factor),
            world_size,
            "it is the value of a buffer whose result is withheld: read before it was waited for",
        )
