"""LOSS: every rank sees its own batch, and the wrapper leaves the forward alone."""

from itertools import combinations

import numpy as np

from ddp_invariants.cases.formats import LARGEST, ROUNDOFF
from ddp_invariants.invariants.compare import number
from ddp_invariants.invariants.diagnosis import losses
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.oracle.balls import gamma
from ddp_invariants.records.verdict import Failure

CAST = "a forward under autocast"


@training.rule(
    "LOSS-1", "Each rank's loss is bitwise its unwrapped twin's on its own batch.", (CAST,)
)
def loss_is_the_twins(view: EvidenceView, tally: Tally) -> Failure | None:
    """The wrapper neither mixes ranks nor changes the forward."""
    tally.met |= {CAST} if view.case.autocast else set()
    for micro in view.all_micro_steps("loss"):
        for rank, tensors in enumerate(view.every_rank("loss", micro)):
            tally.compared += 1
            half = len(tensors.bits) // 2
            if tensors.bits[:half] != tensors.bits[half:]:
                wrapped, twin = tensors.values_P
                failure = Failure(
                    "LOSS-1",
                    "a rank's loss is not its own forward's",
                    f"rank {rank} of {view.case.world_size}, {view.at(micro)}",
                    f"{number(wrapped)}, the unwrapped twin's is {number(twin)}",
                )
                return losses.of_loss(view, failure, micro, tensors.layout.slots[0].dtype)
    return None


@training.rule(
    "LOSS-2",
    "Ranks whose batches differ report different losses, ranks with the same batch the same.",
    ("batches differed", "ranks shared a batch"),
)
def losses_differ_as_batches_do(view: EvidenceView, tally: Tally) -> Failure | None:
    """By the samples' tags (draws.Dataset) two batches' losses are equal with a chance below 1e-9.

    Of the same batch, where a forward draws no random numbers: these are each rank's own (RNG-1).
    """
    for micro in view.all_micro_steps("loss"):
        at = step, _ = divmod(micro, view.case.accumulation)
        if step >= view.clean_steps:
            break
        held = view.every_rank("forward", step)
        losses = [tensors.values_P[0] for tensors in view.every_rank("loss", micro)]
        if not np.isfinite(losses).all():
            break
        indices = view.batches[micro].indices
        for one, other in combinations(range(len(losses)), 2):
            where = f"ranks {one} and {other} of {len(losses)}, {view.at(micro)}"
            if sorted(indices[one]) != sorted(indices[other]):
                tally.compared += 1
                tally.met.add("batches differed")
                # A tag is a multiple of 2**-40: far larger losses swallow it.
                if losses[one] == losses[other] and abs(losses[one]) < 2.0**12:
                    return Failure(
                        "LOSS-2",
                        "ranks with different batches report the same loss",
                        where,
                        f"{number(losses[one])} on both; samples {indices[one].tolist()} and "
                        f"{indices[other].tolist()}",
                        "the loss was averaged over the ranks, or all ranks were "
                        "given one rank's batch",
                    )
            elif (
                not view.case.model.draws
                and view.case.passed_by(one, *at) == view.case.passed_by(other, *at)
                and (indices[one] == indices[other]).all()
                and held[one] == held[other]
            ):
                tally.compared += 1
                tally.met.add("ranks shared a batch")
                if losses[one] != losses[other]:
                    return Failure(
                        "LOSS-2",
                        "ranks with the same batch and parameters report different losses",
                        where,
                        f"{number(losses[one])} and {number(losses[other])} on samples {indices[one].tolist()}",
                    )
    return None


@training.rule(
    "LOSS-3",
    "With equal batch sizes the mean of the ranks' losses is the loss of the global batch.",
)
def mean_loss_is_the_global_batchs(view: EvidenceView, tally: Tally) -> Failure | None:
    """Against float64 on the global batch, within the forward's derived bound."""
    for micro in view.all_micro_steps("loss"):
        step, part = divmod(micro, view.case.accumulation)
        truth, noted = view.truth(step).losses[part], view.every_rank("loss", micro)
        radius = float(truth.radius) + _own_rounding(view, noted[0].layout.slots[0].dtype, micro)
        if not np.isfinite(radius):
            continue
        tally.compared += 1
        mean = float(np.mean([tensors.values_P[0] for tensors in noted]))
        error = abs(mean - float(truth.centre))
        if radius > 0:
            tally.worst = max(tally.worst, error / radius)
        if not error <= radius:
            return Failure(
                "LOSS-3",
                "the mean of the ranks' losses is not the loss of the global batch",
                f"all {view.case.world_size} ranks, {view.at(micro)}",
                f"{number(mean)}, expected {number(float(truth.centre))}; off by {error:.2g} "
                f"({radius:.2g} allowed)",
            )
    return None


def _own_rounding(view: EvidenceView, dtype: str | None, micro: int) -> float:
    """What a loss that the implementation computes by itself may be off by, if that is in a dtype lower than float64.

    Targets t are cast down, then differences d squared, summed over batch and outputs and divided:
    to first order u (terms d**2 + 2 |d| |t|) in the mean, and by Cauchy and Schwarz mean |d| <=
    sqrt(loss); to second order (u t)**2.
    """
    if dtype in (None, "float64"):
        return 0.0
    batch, truth = view.batches[micro], view.truth(micro // view.case.accumulation)
    terms = batch.targets_WBO.shape[1] * batch.targets_WBO.shape[2] + 6
    loss = float(truth.losses[micro % view.case.accumulation].most)
    largest = float(np.abs(batch.targets_WBO).max(initial=0.0))
    if terms * (loss + largest**2) > LARGEST[dtype]:
        return float("inf")
    rounding = float(gamma(terms, ROUNDOFF[dtype]))
    return rounding * (loss + 4 * largest * float(np.sqrt(loss))) + (rounding * largest) ** 2
