"""The values that each explanation of a wrong gradient predicts on the ranks.

A rank's twin is the unwrapped module on the same batch. Suffixes: W ranks, K micro-steps; the dots
after them stand for one parameter's shape.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import ROUNDOFF, FloatArray
from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.invariants.diagnosis.predictions import (
    CUT_OFF,
    FLOAT16_MAX,
    LOW,
    Prediction,
    copied,
    everywhere,
    reordered,
    rounded_means,
)
from ddp_invariants.invariants.view import EvidenceView


@dataclass(frozen=True)
class ReducedGradient:
    """One parameter's gradient on all ranks, and its parts.

    Attributes:
        view: The evidence view of the case.
        step: The step.
        name: The parameter's name.
        held_W: The gradients that the ranks hold, shape (W, …).
        fresh_KW: The gradients that their twins computed, shape (K, W, …).
        left_W: The gradients left in place on purpose, shape (W, …); zero if gradients are cleared.
        before_W: The gradients that the ranks held after the step before; None at the first step.
        roundoff: Unit roundoff of the gradient's dtype.
        complex: True if the elements are complex; the last axis is then that of their parts.
    """

    view: EvidenceView
    step: int
    name: str
    held_W: FloatArray
    fresh_KW: FloatArray
    left_W: FloatArray
    before_W: FloatArray | None
    roundoff: float
    complex: bool = False

    @cached_property
    def g_W(self) -> FloatArray:
        """The gradients that must be reduced."""
        total: FloatArray = self.left_W + self.fresh_KW.sum(0)
        return total

    @cached_property
    def mean(self) -> FloatArray:
        """The mean over the ranks."""
        mean: FloatArray = self.g_W.mean(0)
        return mean

    @cached_property
    def users(self) -> list[int]:
        """The ranks that use the parameter at this step."""
        return [
            rank for rank, names in enumerate(self.view.unused(self.step)) if self.name not in names
        ]

    @property
    def summed(self) -> bool:
        """True if the implementation declares a sum."""
        return self.view.declared.reduction == "sum"

    @cached_property
    def right(self) -> FloatArray:
        """The value that every rank must hold."""
        right: FloatArray = self.mean * len(self.g_W) if self.summed else self.mean
        return right

    @cached_property
    def tolerance(self) -> FloatArray:
        """The tolerance of a prediction: that of the mean in `balls.mean_over_ranks`.

        Its terms are added up and not divided by the world size.
        """
        most: FloatArray = np.abs(self.fresh_KW).sum((0, 1)) + np.abs(self.left_W).sum(0)
        return (len(self.g_W) + len(self.fresh_KW) + 2) * self.roundoff * most

    @cached_property
    def wrong_W(self) -> NDArray[np.bool_]:
        """A mask of the ranks that hold a wrong value. NaN counts as wrong."""
        error_W = np.abs(self.held_W - self.right)
        return np.array([not (error <= self.tolerance).all() for error in error_W])

    def fits(self, prediction: Prediction) -> bool:
        """Return whether a prediction matches the value of every wrong rank."""
        close_W = prediction.close(self.held_W, self.tolerance)
        return bool(
            self.wrong_W.any() and (close_W if prediction.common else close_W[self.wrong_W]).all()
        )

    def shows(self, prediction: Prediction) -> bool:
        """Return whether a prediction differs from the right value."""
        return bool((np.abs(prediction.held_W - self.right) > self.tolerance).any())


def predictions(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield all known explanations; their order has no effect."""
    if gradient.users and gradient.wrong_W.any() and not gradient.wrong_W[gradient.users].any():
        yield Prediction(
            "not written back",
            np.zeros_like(gradient.g_W),
            lambda rank: (
                "it is zero, while the ranks that use it hold the mean: not written back on "
                f"ranks without a gradient of their own, such as rank {rank}"
            ),
            slack=0.0,
        )
    else:
        yield from _of_one_rank(gradient)
    yield from _of_another_divisor(gradient)
    yield from _of_some_ranks(gradient)
    yield from _of_unused(gradient)
    yield from _of_another_operation(gradient)
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


def _of_one_rank(gradient: ReducedGradient) -> Iterator[Prediction]:
    g_W, world_size = gradient.g_W, len(gradient.g_W)
    yield Prediction(
        "never reduced",
        g_W,
        lambda rank: f"it equals rank {rank}'s own local gradient: never reduced",
    )
    yield Prediction(
        "divided, not reduced",
        g_W / world_size,
        lambda rank: (
            f"it equals rank {rank}'s own local gradient / {world_size}: divided, but not "
            "reduced or not waited for"
        ),
    )
    yield everywhere(
        "zero", np.zeros_like(gradient.mean), world_size, "it is zero: the gradient was lost", 0.0
    )
    for source in range(world_size):
        yield copied(
            "broadcast",
            g_W,
            source,
            f"it equals rank {source}'s local gradient: broadcast instead of reduced",
        )


def _of_another_divisor(gradient: ReducedGradient) -> Iterator[Prediction]:
    mean, world_size = gradient.mean, len(gradient.g_W)
    if gradient.summed:
        yield everywhere(
            "divided",
            mean,
            world_size,
            f"got / expected = 1/{world_size} = 1 / world size: divided, though a sum is declared",
        )
        yield everywhere(
            "summed twice",
            mean * world_size**2,
            world_size,
            f"got / expected = {world_size} = world size: summed twice",
        )
        return
    yield everywhere(
        "summed",
        mean * world_size,
        world_size,
        f"got / expected = {world_size} = world size: summed, never divided",
    )
    yield everywhere(
        "divided twice",
        mean / world_size,
        world_size,
        f"got / expected = 1/{world_size} = 1 / world size: divided twice",
    )
    yield everywhere(
        "doubled", 2 * mean, world_size, "got / expected = 2: accumulated once too often"
    )
    for divisor in range(2, 9):
        if divisor != world_size:
            factor = world_size / divisor
            yield everywhere(
                f"divided by {divisor}",
                mean * factor,
                world_size,
                f"got / expected = {factor:.4g} = world size / {divisor}: the sum was divided by "
                f"{divisor}, not by {world_size}",
            )
    saved_by = gradient.view.case.saved_by
    if saved_by is not None and saved_by != world_size:
        yield everywhere(
            "divided by those that saved",
            mean * world_size / saved_by,
            world_size,
            f"got / expected = {world_size} / {saved_by}: the sum was divided by the number of "
            "ranks that saved the state",
        )
    for more, excess in ((-1, "one rank too few"), (1, "one rank too many")):
        if world_size + more > 1:
            yield everywhere(
                f"divided by {excess}",
                mean * world_size / (world_size + more),
                world_size,
                f"got / expected = {world_size} / {world_size + more}: the sum was divided by "
                f"{world_size + more}, {excess}",
            )


def _of_some_ranks(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield means over the wrong ranks: a subgroup, one rank left out, or one counted twice."""
    g_W, world_size = gradient.g_W, len(gradient.g_W)
    for rank in range(world_size):
        rest = gradient.mean - g_W[rank] / world_size
        yield everywhere(
            "left out",
            rest,
            world_size,
            f"it is the mean with rank {rank}'s gradient left out (counted as zero)",
        )
        twice = gradient.mean + g_W[rank] / world_size
        yield everywhere(
            "counted twice",
            twice,
            world_size,
            f"it is the mean with rank {rank}'s gradient counted twice",
        )
        yield everywhere(
            "counted twice",
            twice * world_size / (world_size + 1),
            world_size,
            f"it is the mean with rank {rank}'s gradient counted twice",
        )
        if world_size > 2 and rank in gradient.users:
            rest_of_ranks = [number for number in range(world_size) if number != rank]
            yield everywhere(
                "left out",
                g_W[rest_of_ranks].mean(0),
                world_size,
                f"it is the mean over ranks {rest_of_ranks} alone: rank {rank}'s gradient is "
                "left out",
            )
    for size in range(2, world_size) if world_size <= 6 else ():
        yield from _of_subgroups(gradient, size)


def _of_unused(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield values in which a rank that does not use the parameter does not count as zero."""
    world_size, users, summed = len(gradient.g_W), gradient.users, gradient.g_W.sum(0)
    if len(users) == world_size or gradient.left_W.any():
        return
    if users and not gradient.summed:
        yield everywhere(
            "divided by users",
            summed / len(users),
            world_size,
            f"it is the sum divided by {len(users)}, the ranks that use it, not by {world_size}",
        )
    view, idle = gradient.view, world_size - len(users)
    for step in range(gradient.step):
        local = [view.every_rank("local", number) for number in view.micro_steps(step)]
        own_W = np.sum(
            [[tensors.by_name[gradient.name] for tensors in record] for record in local], axis=0
        )
        reduced = view.every_rank("reduced", step)[0].by_name.get(gradient.name)
        left_out = [rank for rank in range(world_size) if rank not in users]
        for kept in ([] if reduced is None else [idle * reduced]) + [own_W[left_out].sum(0)]:
            value = (summed + kept) / (1 if gradient.summed else world_size)
            yield everywhere(
                "ghost",
                value,
                world_size,
                f"on a rank that does not use it, step {step}'s gradient counts instead of zero: "
                "left in a buffer that is not cleared",
                (world_size + 4) * gradient.roundoff * (np.abs(gradient.g_W).sum(0) + np.abs(kept)),
            )


def _of_subgroups(gradient: ReducedGradient, size: int) -> Iterator[Prediction]:
    """Yield means over groups of `size` neighbouring ranks, or over every `size`-th rank."""
    g_W, world_size = gradient.g_W, len(gradient.g_W)
    neighbours = [
        [rank // size == other_rank // size for other_rank in range(world_size)]
        for rank in range(world_size)
    ]
    every = [
        [rank % size == other_rank % size for other_rank in range(world_size)]
        for rank in range(world_size)
    ]
    for groups in (neighbours, every):
        means_W = np.stack([g_W[group].mean(0) for group in np.array(groups)])
        yield Prediction(
            "subgroup",
            means_W,
            lambda rank, groups=groups: (  # type: ignore[misc]  # bound by default
                f"it is the mean over ranks "
                f"{[member for member, same in enumerate(groups[rank]) if same]} alone: reduced "
                "in a part of the group"
            ),
            common=True,
        )


def _of_another_operation(gradient: ReducedGradient) -> Iterator[Prediction]:
    g_W, world_size = gradient.g_W, len(gradient.g_W)
    if world_size == 1:
        return
    for kind, reduced in (
        ("maximum", g_W.max(0)),
        ("minimum", g_W.min(0)),
        ("product", g_W.prod(0)),
        ("sum of squares", (g_W**2).sum(0)),
    ):
        slack = 2 * world_size * gradient.roundoff * np.abs(reduced)
        yield everywhere(
            kind,
            reduced,
            world_size,
            f"it is the {kind} over the ranks: reduced by another operation",
            slack,
        )
        yield everywhere(
            kind,
            reduced / world_size,
            world_size,
            f"it is the {kind} over the ranks / {world_size}: reduced by another operation, then "
            "divided",
            slack,
        )


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
