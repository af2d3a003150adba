"""The values that each explanation of a wrong gradient predicts on the ranks.

A rank's twin is the unwrapped module on the same batch. Suffixes: W ranks, K micro-steps; the dots
after them stand for one parameter's shape.
"""

from collections.abc import Iterator

import numpy as np

from ddp_invariants.invariants.diagnosis.contents import of_contents
from ddp_invariants.invariants.diagnosis.predictions import (
    Prediction,
    copied,
    everywhere,
)
from ddp_invariants.invariants.diagnosis.reduced_gradient import ReducedGradient
from ddp_invariants.situations.faint_loss import FaintLoss
from ddp_invariants.situations.gradient_hooks import GradientHooks


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
    yield from _of_a_penalty(gradient)
    yield from _of_another_operation(gradient)
    yield from of_contents(gradient)


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
    yield everywhere("halved", mean / 2, world_size, "got / expected = 1/2: halved")
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
        if world_size + more > 0:
            yield everywhere(
                f"divided by {excess}",
                mean * world_size / (world_size + more),
                world_size,
                f"got / expected = {world_size} / {world_size + more}: the sum was divided by "
                f"{world_size + more}, {excess}",
            )


def _of_some_ranks(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield means over the wrong ranks: a subgroup, or one rank that counts not once.

    A rank is left out, counts half, or counts twice.
    """
    g_W, world_size = gradient.g_W, len(gradient.g_W)
    for rank in range(world_size):
        rest = gradient.mean - g_W[rank] / world_size
        yield everywhere(
            "left out",
            rest,
            world_size,
            f"it is the mean with rank {rank}'s gradient left out (counted as zero)",
        )
        yield everywhere(
            "counted half",
            gradient.mean - g_W[rank] / 2 / world_size,
            world_size,
            f"it is the mean with half of rank {rank}'s gradient",
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
        if not users:
            if reduced is not None:
                yield everywhere(
                    "ghost",
                    reduced,
                    world_size,
                    f"no rank uses it, and it equals step {step}'s gradient: stale, or left in a "
                    "buffer that is not cleared",
                    0.0,
                )
            continue
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


def _of_a_penalty(gradient: ReducedGradient) -> Iterator[Prediction]:
    """Yield the value in which a penalty on parameters counts on its own rank alone.

    A gradient's part that comes from the penalty is the parameter times a number of each batch.
    """
    view, case = gradient.view, gradient.view.case
    if case.penalty != "weights" or gradient.summed or case.get(GradientHooks) is not None:
        return
    index = case.model.index_of(gradient.name)
    if index is not None and case.model.layers[index].kind == "loss_only":
        return  # The whole gradient comes from the penalty: "never reduced" says the same.
    micro_steps, faint = view.micro_steps(gradient.step), case.get(FaintLoss)
    share = 2.0 ** (faint.log2 if faint is not None else 0) / len(micro_steps)
    factor_W = share * np.sum([view.batches[n].targets_WBO[:, 0, 0] for n in micro_steps], axis=0)
    start = view.every_rank("forward", gradient.step)[0].by_name[gradient.name]
    part_W = np.multiply.outer(factor_W, start)
    yield Prediction(
        "penalty not reduced",
        gradient.mean - part_W.mean(0) + part_W,
        lambda rank: (
            f"its part from the penalty is rank {rank}'s own: only what comes through a forward was "
            "reduced"
        ),
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
