"""GRAD: after synchronisation every rank holds the mean of the ranks' local gradients.

A rank's local gradient is that of its twin: the unwrapped module with the same parameters, batch
and random state.
"""

import numpy as np

from ddp_invariants.cases.dtypes import LOW_PRECISION
from ddp_invariants.invariants import gradient_checks as checks
from ddp_invariants.invariants.diagnosis.predictions import LOW
from ddp_invariants.invariants.draws import ANY_WORLD, Draws
from ddp_invariants.invariants.exclusions import HIDDEN, LOSSY, OWNED, lacks
from ddp_invariants.invariants.reduced import (
    LOCAL_DIFFERED,
    TWO_RANKS,
    against,
    locals_differ,
    mean_at,
    mean_with,
    unowned,
)
from ddp_invariants.invariants.rule import LI, MEAN, MovedAfter, NotAbout, Script, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.verdict import Failure

_SOURCE = f"{LI}: all processes consume the same gradients, the average of their own"
_ONE_BACKWARD = lacks("runs one backward per step", "accumulation")

NOT_THE_MEAN = {
    "mean": "the gradient is not the mean of the ranks' local gradients",
    "sum": "the gradient is not the declared sum of the ranks' local gradients",
}
UNUSED = ("unused on all ranks", "unused on some ranks", "used at one step and not at another")
SOME_MICRO_STEPS = "used in some micro-steps only"
NO_SYNC = {"nested": "a nested no_sync", "error": "an exception inside no_sync"}
CROSSED = "gradients ready in another order on one rank"
CHANNELS_LAST = "channels_last parameter"


@training.rule(
    "GRAD-1",
    "After synchronisation every gradient is bitwise identical on all ranks, and the same "
    "gradients are None on all ranks.",
    needs=(TWO_RANKS, LOCAL_DIFFERED, CROSSED),
    source=_SOURCE,
    draws=Draws(crossed=True),
    excluded=(HIDDEN, OWNED),
    after="GRAD-13",
    script=Script(checks=("equal_gradients", "held"), follows_unused=True, follows_scaler=True),
)
def identical_on_all_ranks(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare bitwise, on every step, including poisoned steps."""
    for step in view.steps("reduced"):
        reduced = view.every_rank("reduced", step)
        tally.met |= {TWO_RANKS} if len(reduced) > 1 else set()
        tally.met |= {LOCAL_DIFFERED} if locals_differ(view, step) else set()
        tally.met |= {CROSSED} if view.case.crossed is not None else set()
        failure = checks.first_rank_that_differs(view, tally, step)
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-2",
    "The gradient is the mean of the ranks' local gradients: to the last bit if the arithmetic is "
    "exact, otherwise within the rounding bound for W terms.",
    needs=(TWO_RANKS, LOCAL_DIFFERED, "three ranks", CHANNELS_LAST),
    source=_SOURCE,
    excluded=(HIDDEN, LOSSY),
    after="GRAD-5",
    script=Script(checks=MEAN, follows_unused=True),
)
def mean_of_the_local_gradients(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the exact mean of the gradients that the twins computed on the same batches."""
    tally.met |= {TWO_RANKS} if view.case.world_size > 1 else set()
    tally.met |= {"three ranks"} if view.case.world_size == 3 else set()
    tally.met |= {CHANNELS_LAST} if checks.is_permuted(view.case.model) else set()
    for step in view.steps("reduced"):
        if step >= view.clean_steps:
            break
        if view.declared.gradients == "owner" and (name := unowned(view, step)):
            return Failure(
                "GRAD-2",
                "no rank holds the gradient of a parameter",
                f"step {step}, parameter {name!r}",
                "None on every rank, expected on the rank that owns it",
            )
        failure = mean_at(view, tally, "GRAD-2", NOT_THE_MEAN[view.declared.reduction], step)
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-3",
    "The gradient is the gradient of single-process training on the global batch, computed in "
    "float64.",
    needs=(TWO_RANKS,),
    source=(
        "the definition of data parallelism; bounds after Higham 2002, Accuracy and Stability of "
        "Numerical Algorithms, chapters 3 and 4"
    ),
    draws=Draws(world_sizes=ANY_WORLD, autocast=8),
    excluded=(HIDDEN, LOSSY),
    after="GRAD-2",
    script=Script(checks=MEAN, follows_unused=True),
)
def gradient_of_the_global_batch(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the oracle, which shares no code with torch."""
    tally.met |= {TWO_RANKS} if view.case.world_size > 1 else set()
    for step in view.steps("reduced"):
        failure = against(
            view,
            tally,
            "GRAD-3",
            "the gradient is not the global batch's",
            step,
            checks.same_layout(view, step, view.expected.truth(step).gradient),
        )
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-4",
    "A gradient has its parameter's dtype and shape; frozen parameters get none; tied, 0-d and "
    "zero-element parameters get theirs.",
    needs=("frozen parameter", "tied parameter", "0-d parameter", "zero-element parameter"),
    source=_SOURCE,
    draws=Draws(world_sizes=ANY_WORLD, every_kind=True),
    excluded=(HIDDEN, OWNED),
    after="STATE-2",
    script=Script(checks=("fit",)),
)
def gradients_fit_their_parameters(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the structure recorded before wrapping."""
    rows = view.evidence.ranks[0].structure_before
    tally.met |= {"tied parameter"} if any(row.name != row.first_name for row in rows) else set()
    for step in view.steps("reduced"):
        for rank in range(view.case.world_size):
            failure = checks.unfit_gradient(view, tally, step, rank)
            if failure is not None:
                return failure
    return None


_KEPT = {
    "set_to_none": "zero_grad(set_to_none=True)",
    "zero": "zero_grad(set_to_none=False)",
    "never": "no zero_grad",
}


def _first_step_survived(failure: Failure) -> bool:
    """Return whether rounding explains the failure, which the first step's values survive by chance."""
    return any(cause.kind in LOW for cause in failure.causes)


@training.rule(
    "GRAD-5",
    "The gradient of step t depends on step t alone, for every way of clearing gradients; a "
    "gradient that the program leaves in place on purpose is added.",
    needs=tuple(_KEPT.values()),
    source=_SOURCE,
    draws=Draws(least_steps=2),
    excluded=(HIDDEN, LOSSY),
    after="GRAD-1",
    moved_after=MovedAfter("GRAD-2", _first_step_survived),
    script=Script(checks=MEAN, follows_unused=True),
)
def no_leftovers(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare every later step's gradient with the mean, if the first step's gradient was right.

    In that case a wrong later gradient must contain something left over.
    """
    steps = [step for step in view.steps("reduced") if step < view.clean_steps]
    if len(steps) < 2:
        raise NotAbout("fewer than two steps")
    if mean_at(view, Tally(), "GRAD-5", "", steps[0]) is not None:
        raise Unjudged("the first step's gradient is already wrong (GRAD-2)")
    for step in steps[1:]:
        tally.met.add(_KEPT[view.case.zero_grad])
        failure = mean_at(
            view,
            tally,
            "GRAD-5",
            f"after {_KEPT[view.case.zero_grad]} a later step's gradient is wrong "
            "though the first step's was right",
            step,
        )
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-6",
    "Under every bucket cap the gradient stays within the bound of GRAD-2.",
    needs=(
        "every parameter above the cap",
        "cap between a parameter and the model",
        "cap above the model",
    ),
    source=_SOURCE,
    level="capability",
    draws=Draws(capped=True),
    excluded=(HIDDEN, LOSSY, lacks("takes no bucket capacity", "bucket_cap")),
    after="GRAD-3",
    script=Script(checks=MEAN, follows_unused=True),
)
def any_bucket_cap(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the mean again, on cases that set a bucket cap."""
    cap = view.case.bucket_cap
    if cap is None:
        raise NotAbout("the case sets no bucket cap")
    situation = checks.place_of_cap(view, cap)
    for step in view.steps("reduced"):
        if step >= view.clean_steps:
            break
        failure = mean_at(
            view,
            tally,
            "GRAD-6",
            f"with a bucket cap of {cap} bytes ({situation}) the gradient is not the "
            "mean of the ranks' local gradients",
            step,
        )
        tally.met.add(situation)
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-7",
    "NaN or infinity on one rank reaches every rank.",
    needs=("a NaN", "an infinity"),
    source="IEEE 754: a sum is not finite if one of its terms is not",
    level="capability",
    draws=Draws(poisoned=True),
    excluded=(HIDDEN, LOSSY, lacks("refuses values that are not finite", "nonfinite")),
    after="LIVE-5",
    script=Script(checks=("twin", "spread", "held"), follows_scaler=True),
)
def nonfinite_values_spread(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare each element with the sum that IEEE arithmetic gives."""
    poison = view.case.poison
    if poison is None:
        raise NotAbout("the case injects no value that is not finite")
    # A poisoned step has one micro-step.
    local_WP = np.stack([tensors.values_P for tensors in view.every_rank("local", poison.step)])
    tally.met |= {"a NaN"} if np.isnan(local_WP.sum(0)).any() else set()
    tally.met |= {"an infinity"} if np.isinf(local_WP.sum(0)).any() else set()
    for rank in range(view.case.world_size):
        failure = checks.lost_nonfinite_value(view, tally, rank, poison.step, local_WP)
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-8",
    "Inside no_sync gradients accumulate locally and nothing is reduced; the next synchronised "
    "backward yields the mean of the ranks' accumulated gradients. The same holds for a no_sync "
    "that is nested or left by an exception.",
    needs=(TWO_RANKS, "several micro-steps", SOME_MICRO_STEPS, *NO_SYNC.values()),
    source=f"{LI}: gradient accumulation, no_sync",
    level="capability",
    draws=Draws(accumulated=True, unused=True),
    excluded=(
        HIDDEN,
        LOSSY,
        _ONE_BACKWARD,
        lacks("has no no_sync, so it synchronises every micro-step", "no_sync"),
    ),
    after="GRAD-11",
    observed_groups=True,
    script=Script(checks=(*MEAN, "silence"), follows_unused=True),
)
def accumulation_without_communication(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases with several micro-steps, all but the last under no_sync."""
    if view.case.accumulation == 1 or view.synchronised_each or view.case.passes != "alternate":
        raise NotAbout("no backward ran under no_sync")
    tally.met |= {TWO_RANKS} if view.case.world_size > 1 else set()
    tally.met |= (
        {SOME_MICRO_STEPS}
        if any(unused.micro_step is not None for unused in view.case.unused)
        else set()
    )
    for step in view.steps("reduced"):
        tally.met |= {"several micro-steps"} | {
            NO_SYNC[how] for how in NO_SYNC if how == view.case.no_sync
        }
        failure = checks.sent_under_no_sync(view, tally, step)
        if failure is not None:
            return failure
        failure = mean_at(
            view,
            tally,
            "GRAD-8",
            "after no_sync the gradient is not the mean of the ranks' accumulated gradients",
            step,
        )
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-9",
    "A rank that does not use a parameter adds zero to the mean, and gets the mean like every "
    "other rank; if no rank uses the parameter, all ranks hold None or all hold zero.",
    needs=(TWO_RANKS, *UNUSED),
    source=f"{LI}: globally unused parameters",
    level="capability",
    draws=Draws(least_steps=2, unused=True),
    excluded=(lacks("takes no unused parameters", "unused"), HIDDEN, LOSSY),
    after="PARAM-6",
    script=Script(checks=(*MEAN, "equal_gradients"), follows_unused=True),
)
def unused_counts_as_zero(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases in which forwards skip layers.

    The case decides which layers each rank skips at each step.
    """
    if not view.case.unused:
        raise NotAbout("all ranks use all parameters")
    tally.met |= {TWO_RANKS} if view.case.world_size > 1 else set()
    used_before = None
    for step in view.steps("reduced"):
        unused = view.unused(step)
        nowhere = frozenset.intersection(*unused)
        somewhere = frozenset.union(*unused) - nowhere
        met = nowhere, somewhere, used_before is not None and used_before != unused
        tally.met |= {name for name, is_met in zip(UNUSED, met, strict=True) if is_met}
        used_before = unused
        if step >= view.clean_steps:
            break
        failure = (
            None
            if view.declared.gradients == "owner"
            else checks.missing_gradient(view, tally, step, unused)
        )
        failure = failure or mean_at(
            view,
            tally,
            "GRAD-9",
            "the gradient is not the mean over all ranks, with zero for the ranks that do not "
            "use the parameter",
            step,
        )
        if failure is not None:
            return failure
    return None


OF_A_KIND = (
    "a sparse gradient",
    "a gradient of low precision",
    "gradients of several dtypes",
    "a complex gradient",
)


@training.rule(
    "GRAD-10",
    "Gradients of every kind are the mean of the ranks' local gradients: sparse ones (returned "
    "sparse or dense), complex ones (in both parts), those of low precision, and those of several "
    "dtypes in one model.",
    needs=(TWO_RANKS, *OF_A_KIND),
    source=_SOURCE,
    level="capability",
    draws=Draws(odd=True),
    excluded=(
        HIDDEN,
        LOSSY,
        lacks(
            "takes no gradients that are sparse, complex or of low precision",
            "sparse",
            *LOW_PRECISION,
            "complex",
        ),
    ),
    after="GRAD-12",
    script=Script(checks=MEAN),
)
def gradients_of_every_kind(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the mean again, on cases with other gradients than dense float32 or float64."""
    case = view.case
    dtypes = {layer.dtype for layer in case.model.layers if layer.parameters and not layer.frozen}
    are = (
        case.sparse and not case.model.layers[0].frozen,
        not dtypes.isdisjoint(LOW_PRECISION),
        len(dtypes) > 1,
        "complex64" in dtypes,
    )
    met = {name for name, is_met in zip(OF_A_KIND, are, strict=True) if is_met}
    if not met:
        raise NotAbout("all gradients are dense and of one dtype, float32 or float64")
    return mean_with(view, tally, "GRAD-10", met)


ONE_OUT, TWO_OUT = "a rank without batches", "two ranks left at different steps"


@training.rule(
    "GRAD-11",
    "Ranks with different numbers of batches finish; a step's gradient is the mean over the "
    "ranks, and ranks without a batch count as declared; all ranks end with the same parameters.",
    needs=(ONE_OUT, TWO_OUT),
    source=(
        "the documentation of torch.distributed.algorithms.Join: the caller chooses the divisor of a "
        "sum"
    ),
    level="capability",
    draws=Draws(uneven=True),
    excluded=(HIDDEN, LOSSY, lacks("has no join, so all ranks need equally many batches", "join")),
    after="GRAD-9",
)
def uneven_batches(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases in which ranks run out of batches, step by step among the ranks with a batch."""
    case = view.case
    if not case.exhausted:
        raise NotAbout("all ranks have equally many batches")
    for step in range(case.steps):
        failure = checks.wrong_mean_of_the_active(view, tally, step)
        if failure is not None:
            return failure
        tally.met |= {ONE_OUT} if any(rank.steps <= step for rank in case.exhausted) else set()
    tally.met |= {TWO_OUT} if len({rank.steps for rank in case.exhausted}) > 1 else set()
    return checks.different_parameters_at_the_end(view, tally)


@training.rule(
    "GRAD-12",
    "A step of K micro-steps is one step on a global batch of K * W * B samples.",
    needs=(TWO_RANKS, "several micro-steps"),
    source=_SOURCE,
    level="capability",
    draws=Draws(accumulated=True),
    excluded=(HIDDEN, LOSSY, _ONE_BACKWARD),
    after="GRAD-6",
    script=Script(checks=MEAN),
)
def batch_arithmetic(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the oracle on all samples as one batch of one rank.

    Only steps whose batches all have equal sizes are judged.
    """
    case = view.case
    if case.accumulation == 1:
        raise NotAbout("one micro-step per step")
    if case.unused:
        raise NotAbout("one process cannot use a layer for only some samples")
    if case.passes == "retained":
        raise NotAbout("all micro-steps use the same batch")
    if case.model.norms_batches:
        raise NotAbout(
            "batch norms normalize each rank's micro-step by itself, not the global batch as a "
            "whole"
        )
    for step in view.steps("reduced"):
        failure = checks.not_one_large_batch(view, tally, step)
        if failure is not None:
            return failure
    if not tally.compared:
        raise NotAbout("no step had batches of equal size")
    return None


PASSES = {
    "joint": "all forwards before one backward",
    "retained": "several backwards through one forward",
}
TWICE = "a layer called twice"
PENALTY = "a penalty on gradients by the inputs"
CHECKPOINTS = {
    "plain": "a layer computed again in backward",
    "reentrant": "a backward within backward",
}


@training.rule(
    "GRAD-13",
    "The gradient is the mean of the ranks' local gradients for every order of a step's forwards "
    "and backwards. It stays so if backward computes layers again, a forward calls a layer twice, "
    "or gradients are part of the loss.",
    needs=(TWO_RANKS, *PASSES.values(), *CHECKPOINTS.values(), TWICE, PENALTY),
    source=_SOURCE,
    level="capability",
    draws=Draws(passes=True),
    excluded=(
        HIDDEN,
        LOSSY,
        lacks(
            "runs each backward right after its forward, and computes no layer again",
            "joint",
            "retained",
            "penalty",
            "twice",
            "checkpointed",
            "reentrant",
        ),
    ),
    after="GRAD-8",
)
def any_order_of_passes(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the mean again, on cases with other pass orders or with recomputed layers."""
    case = view.case
    met = {PASSES[case.passes]} if case.passes != "alternate" else set()
    met |= {
        CHECKPOINTS[layer.checkpoint] for layer in case.model.layers if layer.checkpoint != "none"
    }
    met |= {TWICE for layer in case.model.layers if layer.twice} | (
        {PENALTY} if case.penalty else set()
    )
    if not met:
        raise NotAbout("every forward is followed by its backward, and backward recomputes nothing")
    return mean_with(view, tally, "GRAD-13", met)
