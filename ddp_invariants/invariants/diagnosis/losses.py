"""Explanations of a rank's loss that is not the loss of its own forward.

A rank's twin is the unwrapped module on the same batch. Suffixes: W ranks, B batch, O outputs.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import ROUNDOFF, FloatArray, coarsest
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.oracle import training
from ddp_invariants.oracle.balls import Ball
from ddp_invariants.records.verdict import Cause, Failure
from ddp_invariants.situations.autocast import Autocast

_Guess = tuple[Cause, FloatArray, FloatArray | float]
"""A cause, the losses it predicts, shape (W,), and their tolerance."""


def of_loss(view: EvidenceView, failure: Failure, micro: int, dtype: str | None) -> Failure:
    """Add the possible causes to a failure about the ranks' losses at a micro-step."""
    pairs = np.stack([tensors.values_P for tensors in view.every_rank("loss", micro)])
    if pairs.shape[1] != 2 or not np.isfinite(pairs).all():
        return failure
    held_W, twins_W = pairs.T
    roundoff = 4 * len(held_W) * ROUNDOFF.get(dtype or "float64", 0.0) * np.abs(twins_W).sum()
    wrong_W = held_W != twins_W
    try:
        guesses = [
            *_of_evaluation(view, micro, held_W, wrong_W),
            *_of_the_losses(twins_W, float(roundoff)),
            *_of_the_outputs(view, micro, float(roundoff)),
        ]
    except (KeyError, ValueError, IndexError):
        return failure  # The evidence is too odd for a diagnosis; the failure gets no cause.
    return caused(
        failure,
        [
            cause
            for cause, expected_W, slack in guesses
            if (np.abs(held_W - expected_W) <= slack)[wrong_W].all()
            and (np.abs(twins_W - expected_W) > slack)[wrong_W].any()
        ],
    )


def _of_the_losses(twins_W: FloatArray, roundoff: float) -> Iterator[_Guess]:
    world_size = len(twins_W)
    mean = np.full(world_size, twins_W.mean())
    yield (
        Cause("loss averaged", "it is the mean of the ranks' losses: averaged over the ranks"),
        mean,
        roundoff,
    )
    yield Cause("loss summed", "it is the sum of the ranks' losses"), mean * world_size, roundoff
    yield (
        Cause(
            "loss divided",
            f"got / expected = 1/{world_size} = 1 / world size: divided by the number of ranks",
        ),
        twins_W / world_size,
        roundoff,
    )
    yield (
        Cause(
            "loss multiplied",
            f"got / expected = {world_size} = world size: multiplied by the number of ranks",
        ),
        twins_W * world_size,
        roundoff,
    )
    for source in range(world_size):
        yield (
            Cause(
                "loss of another",
                f"it is rank {source}'s loss: broadcast to all ranks, or all ranks received its "
                "batch",
            ),
            np.full(world_size, twins_W[source]),
            roundoff,
        )
    yield Cause("loss lost", "it is zero"), np.zeros(world_size), 0.0


def _of_evaluation(
    view: EvidenceView, micro: int, held_W: FloatArray, wrong_W: NDArray[np.bool_]
) -> Iterator[_Guess]:
    """Yield the cause that the module was in evaluation.

    It fits any loss if the model has batch norms and no wrong rank's running statistics moved.
    """
    step = micro // view.case.accumulation
    left = view.noted("left buffers", step)
    if left is None or not view.case.model.norms_batches:
        return
    began, twins = (
        view.every_rank("forward buffers", step),
        view.every_rank("twin buffers", step),
    )
    if all(began[rank] == left[rank] != twins[rank] for rank in np.flatnonzero(wrong_W)):
        yield (
            Cause(
                "evaluation",
                "running statistics did not move: the module was in evaluation, and normalized "
                "with them",
            ),
            held_W,
            0.0,
        )


def _of_the_outputs(view: EvidenceView, micro: int, roundoff: float) -> Iterator[_Guess]:
    """Yield the losses of outputs that ranks exchanged, against each rank's own targets."""
    case, step, batch = view.case, micro // view.case.accumulation, view.batch(micro)
    held = view.every_rank("forward", step)
    if step >= view.clean_steps or case.penalty or any(tensors != held[0] for tensors in held):
        return
    own_WBO = training.outputs(case, held[0].by_name, batch)
    shape = own_WBO.centre.shape

    def losses(centre: FloatArray, radius: FloatArray) -> tuple[FloatArray, FloatArray]:
        exchanged = Ball(np.broadcast_to(centre, shape), np.broadcast_to(radius, shape), 0.0)
        losses_W = training.losses(case, exchanged, batch)
        return losses_W.centre, losses_W.radius + roundoff

    if all(layer.kind != "attention" for layer in case.model.layers):
        switched = case.without(Autocast) if case.autocast else case.with_situation(Autocast())
        opposite = training.outputs(switched, held[0].by_name, batch)
        mode = "that is not under autocast" if case.autocast else "under autocast to bfloat16"
        yield (
            Cause("autocast", f"it is the loss of a forward {mode}"),
            *losses(opposite.centre, opposite.radius),
        )
    # The rounding of the lower dtype covers both dtypes that a result may have.
    rounding = 2 * len(shape) * coarsest(held[0].layout.dtypes)
    mean, radius = (
        own_WBO.centre.mean(0),
        own_WBO.radius.sum(0) + rounding * np.abs(own_WBO.centre).sum(0),
    )
    for kind, words, factor in (
        ("outputs averaged", "the forward's results were averaged over the ranks", 1),
        ("outputs summed", "the forward's results were summed over the ranks", shape[0]),
    ):
        yield (
            Cause(kind, f"it is the loss of other results: {words}"),
            *losses(mean * factor, radius * factor),
        )
    for source in range(shape[0]):
        yield (
            Cause(
                "outputs of another",
                f"it is the loss of rank {source}'s results: broadcast to all ranks",
            ),
            *losses(own_WBO.centre[source], own_WBO.radius[source]),
        )
