"""GRAD, the schedule: however a step runs, every rank holds the mean of the local gradients.

A step may have several micro-steps and passes, leave out parameters or ranks, and cap its buckets.
"""

from ddp_invariants.invariants import gradient_checks as checks
from ddp_invariants.invariants.draws import Draws
from ddp_invariants.invariants.exclusions import HIDDEN, lacks
from ddp_invariants.invariants.grad import SOURCE
from ddp_invariants.invariants.reduced import TWO_RANKS, mean_at, mean_with
from ddp_invariants.invariants.rule import (
    LI,
    MEAN,
    NotAbout,
    Script,
    Tally,
    first_failure,
    not_about,
)
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.direct_forwards import DIRECT, DirectForwards
from ddp_invariants.situations.gradient_hooks import HOOKED, GradientHooks

_ONE_BACKWARD = lacks("runs one backward per step", "accumulation")

UNUSED = ("unused on all ranks", "unused on some ranks", "used at one step and not at another")
SOME_MICRO_STEPS = "used in some micro-steps only"
NO_SYNC = {
    "nested": "a nested no_sync",
    "error": "an exception inside no_sync",
    "interrupt": "an interruption inside no_sync",
}


@training.rule(
    "GRAD-6",
    "For every bucket capacity the gradient is the mean, within the bound of GRAD-2.",
    needs=(
        "every parameter above the cap",
        "cap between a parameter and the model",
        "cap above the model",
    ),
    source=SOURCE,
    applies="capability",
    draws=Draws(capped=True),
    of_reduced=("values",),
    excluded=(HIDDEN, lacks("takes no bucket capacity", "bucket_cap")),
    after="GRAD-3",
    script=Script(checks=MEAN, follows_unused=True),
    level="core",
)
def any_bucket_cap(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the mean again, on cases that set a bucket cap."""
    cap = view.case.bucket_cap
    if cap is None:
        raise NotAbout("the case sets no bucket cap")
    situation = checks.place_of_cap(view, cap)
    for step in view.steps("reduced")[: view.clean_steps]:
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
    "GRAD-8",
    "Inside no_sync gradients accumulate locally and nothing is reduced. The next synchronised "
    "backward yields the mean of the ranks' accumulated gradients. The same holds for a no_sync "
    "that is nested or left by an exception.",
    needs=(TWO_RANKS, "several micro-steps", SOME_MICRO_STEPS, *NO_SYNC.values()),
    source=f"{LI}: gradient accumulation, no_sync",
    applies="capability",
    draws=Draws(accumulated=True, unused=True),
    of_reduced=("values",),
    excluded=(
        HIDDEN,
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
    tally.meet(
        {
            TWO_RANKS: view.case.world_size > 1,
            SOME_MICRO_STEPS: any(unused.micro_step is not None for unused in view.case.unused),
        }
    )
    for step in view.steps("reduced"):
        tally.met |= {"several micro-steps"} | {
            NO_SYNC[how] for how in NO_SYNC if how == view.case.no_sync
        }
        failure = checks.sent_under_no_sync(view, tally, step) or mean_at(
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
    "other rank. If no rank uses the parameter, all ranks hold None or all ranks hold zero.",
    needs=(TWO_RANKS, *UNUSED),
    source=f"{LI}: globally unused parameters",
    applies="capability",
    draws=Draws(least_steps=2, unused=True),
    of_reduced=("values",),
    excluded=(lacks("supports no unused parameters", "unused"), HIDDEN),
    after="PARAM-6",
    script=Script(checks=(*MEAN, "equal_gradients"), follows_unused=True),
)
def unused_counts_as_zero(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases in which forwards skip layers.

    The case decides which layers each rank skips at each step.
    """
    if not view.case.unused:
        raise NotAbout("all ranks use all parameters")
    tally.meet({TWO_RANKS: view.case.world_size > 1})
    used_before = None
    for step in view.steps("reduced"):
        unused = view.unused(step)
        nowhere = frozenset.intersection(*unused)
        somewhere = frozenset.union(*unused) - nowhere
        if step >= view.clean_steps:
            break
        met = nowhere, somewhere, used_before is not None and used_before != unused
        tally.meet(dict(zip(UNUSED, met, strict=True)))
        used_before = unused
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


ONE_OUT, TWO_OUT = "a rank without batches", "two ranks left at different steps"


@training.rule(
    "GRAD-11",
    "Ranks with different numbers of batches finish. A step's gradient is the mean over the ranks, "
    "and ranks without a batch count as declared. All ranks end with the same parameters.",
    needs=(ONE_OUT, TWO_OUT),
    source=(
        "the documentation of torch.distributed.algorithms.Join: the caller chooses the divisor of a "
        "sum"
    ),
    applies="capability",
    draws=Draws(uneven=True),
    of_reduced=("values",),
    excluded=(HIDDEN, lacks("has no join, so all ranks need equally many batches", "join")),
    after="GRAD-9",
)
def uneven_batches(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases in which ranks run out of batches, step by step among the ranks with a batch."""
    case = view.case
    if not case.exhausted:
        raise NotAbout("all ranks have equally many batches")
    for step in range(case.steps):
        active = [rank for rank in range(case.world_size) if step < case.steps_of(rank)]
        failure = checks.wrong_mean_of_the_active(view, tally, active, step)
        failure = failure or checks.wrong_parameters_of_the_active(view, tally, active, step)
        if failure is not None:
            return failure
        tally.meet({ONE_OUT: any(rank.steps <= step for rank in case.exhausted)})
    tally.meet({TWO_OUT: len({rank.steps for rank in case.exhausted}) > 1})
    return checks.different_parameters_at_the_end(view, tally)


@training.rule(
    "GRAD-12",
    "A step of K micro-steps is one step on a global batch of K * W * B samples.",
    needs=(TWO_RANKS, "several micro-steps"),
    source=SOURCE,
    applies="capability",
    draws=Draws(accumulated=True),
    of_reduced=("values",),
    excluded=(HIDDEN, _ONE_BACKWARD),
    after="GRAD-6",
    script=Script(checks=MEAN),
)
def batch_arithmetic(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the oracle on all samples as one batch of one rank.

    Only steps whose batches all have equal sizes are judged.
    """
    case = view.case
    not_about(
        {
            "one micro-step per step": case.accumulation == 1,
            "one process cannot use a layer for only some samples": bool(case.unused),
            "all micro-steps use the same batch": case.passes == "retained",
            "a sample of each micro-step weighs its penalty": case.penalty == "weights",
            "batch norms normalize each rank's micro-step by itself, not the global batch as a "
            "whole": case.model.norms_batches,
        }
    )
    failure = first_failure(
        checks.not_one_large_batch(view, tally, step) for step in view.steps("reduced")
    )
    if failure is None and not tally.compared:
        raise NotAbout("no step had batches of equal size")
    return failure


PASSES = {
    "joint": "all forwards before one backward",
    "retained": "several backwards through one forward",
}
TWICE = "a layer called twice"
PENALTIES = {
    "inputs": "a penalty on gradients by the inputs",
    "weights": "a penalty on parameters",
}
LOSS_ONLY = "a parameter that only the loss uses"
CHECKPOINTS = {
    "plain": "a layer computed again in backward",
    "reentrant": "reentrant checkpoints",
}


@training.rule(
    "GRAD-13",
    "The gradient is the mean of the ranks' local gradients for every order of a step's forwards "
    "and backwards. It stays so if backward computes layers again, a forward calls a layer twice "
    "or runs it without a call, gradients or parameters are part of the loss, or the program's hooks "
    "change gradients.",
    needs=(
        *(TWO_RANKS, *PASSES.values(), *CHECKPOINTS.values()),
        *(TWICE, DIRECT, *PENALTIES.values(), LOSS_ONLY, HOOKED),
    ),
    source=SOURCE,
    applies="capability",
    draws=Draws(passes=True, direct_forwards=8, gradient_hooks=6),
    of_reduced=("values",),
    excluded=(
        HIDDEN,
        lacks(
            "runs each backward right after its forward, and computes no layer again",
            "joint",
            "retained",
            "penalty",
            "weight_penalty",
            "loss_only",
            "direct_forwards",
            "gradient_hooks",
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
    met |= {TWICE for layer in case.model.layers if layer.twice}
    met |= {PENALTIES[case.penalty]} if case.penalty else set()
    met |= {
        LOSS_ONLY for layer in case.model.layers if layer.kind == "loss_only" and not layer.frozen
    }
    met |= {DIRECT} if case.get(DirectForwards) is not None else set()
    met |= {HOOKED} if case.get(GradientHooks) is not None else set()
    if not met:
        raise NotAbout("every forward is followed by its backward, and backward recomputes nothing")
    return mean_with(view, tally, "GRAD-13", met)
