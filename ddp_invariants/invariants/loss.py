"""LOSS: every rank sees its own batch, and the wrapper leaves the forward alone."""

from itertools import combinations

import numpy as np

from ddp_invariants.cases.formats import LARGEST, ROUNDOFF
from ddp_invariants.invariants.compare import number
from ddp_invariants.invariants.diagnosis import losses
from ddp_invariants.invariants.draws import ANY_WORLD, Draws
from ddp_invariants.invariants.exclusions import BY_ITSELF, Exclusion
from ddp_invariants.invariants.rule import Script, Tally
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.oracle.balls import gamma
from ddp_invariants.records.verdict import Failure

_SOURCE = (
    "the definition of data parallelism: each rank computes on its own batch, with the model as it "
    "is"
)

CAST = "a forward under autocast"
DISPLACED = "a wrapper's forward changes the random numbers that its module draws"


@training.rule(
    "LOSS-1",
    "Each rank's loss is bitwise the loss of its unwrapped twin on the same batch, from the same state "
    "of the random number generator.",
    needs=(CAST,),
    source=_SOURCE,
    draws=Draws(world_sizes=ANY_WORLD, autocast=4, evaluated_layer=12),
    excluded=(BY_ITSELF,),
    after="CALL-1",
    script=Script(checks=("twin", "own_loss"), follows_scaler=True),
    level="core",
)
def loss_is_the_twins(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare each rank's loss bitwise with that of its unwrapped twin module.

    The wrapper must neither mix ranks nor change the forward, nor the random numbers in it.
    """
    tally.meet({CAST: view.case.autocast})
    for micro in view.all_micro_steps("loss"):
        for rank, tensors in enumerate(view.every_rank("loss", micro)):
            tally.compared += 1
            half = len(tensors.bits) // 2
            if tensors.bits[:half] != tensors.bits[half:]:
                wrapped, twin = tensors.values_P
                failure = Failure(
                    "LOSS-1",
                    "a rank's loss is not the loss of its own forward",
                    f"rank {rank} of {view.case.world_size}, {view.at(micro)}",
                    f"{number(wrapped)}, the unwrapped module's loss is {number(twin)}",
                )
                return losses.of_loss(view, failure, micro, tensors.layout.slots[0].dtype)
    return _displaced(view, tally)


def _displaced(view: EvidenceView, tally: Tally) -> Failure | None:
    """Return the failure if the module draws other numbers than it would without the wrapper.

    The twin repeats the numbers that the wrapped module drew. The module must draw the numbers that
    the default generator would give at the moment when the program calls the wrapper. A wrapper
    that starts at the first forward may do there what others do on construction.
    """
    case = view.case
    rebuilt = {
        action.step * case.accumulation for action in case.between_steps if action.kind == "reload"
    }
    starting = {0, *rebuilt} if view.declared.init == "first_forward" else set()
    for rank, evidence in enumerate(view.evidence.ranks):
        for micro, alike in evidence.replayed:
            tally.compared += 1
            if not alike and micro not in starting:
                return Failure(
                    "LOSS-1",
                    DISPLACED,
                    f"rank {rank} of {case.world_size}, {view.at(micro)}",
                    "other random numbers than the default generator gives next when the program "
                    "calls the wrapper",
                    "the wrapper draws from the default generator before its module does, or seeds it",
                )
    return None


@training.rule(
    "LOSS-2",
    "Ranks with different batches report different losses; ranks with the same batch report the "
    "same loss.",
    needs=("batches differed", "ranks shared a batch"),
    source=_SOURCE,
    excluded=(
        Exclusion(
            "computes a loss without tags, which are needed to distinguish batches",
            lambda claims: claims.declared.loss != "tagged",
        ),
    ),
    after="BUF-2",
    script=Script(checks=("losses_differ",), follows_dropout=False),
    level="core",
)
def losses_differ_as_batches_do(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare the losses of every two ranks.

    The samples' tags (cases.numbers.Dataset) make the losses of different batches equal with a chance below
    1e-9. Losses of equal batches are compared only if the forward draws no random numbers: each
    rank draws its own (RNG-1). The ranks' twins must also agree, since tensors that lie otherwise in
    memory are added up in another order, and ranks may hold buffers of their own.
    """
    for micro in view.all_micro_steps("loss"):
        at = step, _ = divmod(micro, view.case.accumulation)
        if step >= view.clean_steps:
            break
        held = view.every_rank("forward", step)
        losses, twins = zip(
            *(tensors.values_P[:2] for tensors in view.every_rank("loss", micro)), strict=True
        )
        if not np.isfinite(losses).all():
            break
        indices = view.batches[micro].indices
        for rank, other_rank in combinations(range(len(losses)), 2):
            where = f"ranks {rank} and {other_rank} of {len(losses)}, {view.at(micro)}"
            if sorted(indices[rank]) != sorted(indices[other_rank]):
                # A tag is a multiple of 2**-40; rounding removes it from much larger losses.
                if abs(losses[rank]) >= 2.0**12:
                    continue
                tally.compared += 1
                tally.met.add("batches differed")
                if losses[rank] == losses[other_rank]:
                    return Failure(
                        "LOSS-2",
                        "ranks with different batches report the same loss",
                        where,
                        f"{number(losses[rank])} on both; samples {indices[rank].tolist()} and "
                        f"{indices[other_rank].tolist()}",
                        "the loss was averaged over the ranks, or all ranks received one rank's "
                        "batch",
                    )
            elif (
                not view.case.draws
                and view.case.passed_by(rank, *at) == view.case.passed_by(other_rank, *at)
                and (indices[rank] == indices[other_rank]).all()
                and held[rank] == held[other_rank]
                and twins[rank] == twins[other_rank]
            ):
                tally.compared += 1
                tally.met.add("ranks shared a batch")
                if losses[rank] != losses[other_rank]:
                    return Failure(
                        "LOSS-2",
                        "ranks with the same batch and parameters report different losses",
                        where,
                        f"{number(losses[rank])} and {number(losses[other_rank])} on samples "
                        f"{indices[rank].tolist()}",
                    )
    return None


@training.rule(
    "LOSS-3",
    "With equal batch sizes the mean of the ranks' losses is the loss of the global batch.",
    source=_SOURCE,
    draws=Draws(world_sizes=ANY_WORLD),
    after="LOSS-2",
    script=Script(checks=("mean_loss",), follows_dropout=False),
    level="core",
)
def mean_loss_is_the_global_batchs(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with float64 on the global batch, within the forward's derived bound."""
    for micro in view.all_micro_steps("loss"):
        step, part = divmod(micro, view.case.accumulation)
        truth, noted = view.expected.truth(step).losses[part], view.every_rank("loss", micro)
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
    """Return the largest error of a loss that the implementation computes in a dtype below float64.

    The implementation casts the targets t down, squares the differences d, adds them up over batch
    and outputs, and divides. To first order the error of the mean is u (terms d**2 + 2 |d| |t|),
    and by Cauchy and Schwarz mean |d| <= sqrt(loss). To second order it is (u t)**2.
    """
    if dtype in (None, "float64"):
        return 0.0
    batch, truth = view.batches[micro], view.expected.truth(micro // view.case.accumulation)
    terms = batch.targets_WBO.shape[1] * batch.targets_WBO.shape[2] + 6
    loss = float(truth.losses[micro % view.case.accumulation].most)
    largest = float(np.abs(batch.targets_WBO).max(initial=0.0))
    if terms * (loss + largest**2) > LARGEST[dtype]:
        return float("inf")
    rounding = float(gamma(terms, ROUNDOFF[dtype]))
    return rounding * (loss + 4 * largest * float(np.sqrt(loss))) + (rounding * largest) ** 2
