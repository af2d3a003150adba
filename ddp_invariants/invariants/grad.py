"""GRAD, the values: every rank holds the mean of the ranks' local gradients.

A rank's local gradient is that of its twin: the unwrapped module with the same parameters, batch
and random state.
"""

import numpy as np

from ddp_invariants.cases.dtypes import DTYPES, LOW_PRECISION
from ddp_invariants.invariants import gradient_checks as checks
from ddp_invariants.invariants.diagnosis.predictions import LOW
from ddp_invariants.invariants.draws import ANY_WORLD, Draws
from ddp_invariants.invariants.exclusions import HIDDEN, OWNED, lacks
from ddp_invariants.invariants.recorded import flat_by_name
from ddp_invariants.invariants.reduced import (
    LOCAL_DIFFERED,
    TWO_RANKS,
    against,
    locals_differ,
    mean_at,
    mean_with,
    unowned,
)
from ddp_invariants.invariants.rule import (
    LI,
    MEAN,
    MovedAfter,
    NotAbout,
    Script,
    Tally,
    Unjudged,
    first_failure,
)
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.faint_loss import FAINT_LOSS, FaintLoss
from ddp_invariants.situations.storage import ONE_STORAGE, OneStorage

SOURCE = f"{LI}: all processes consume the same gradients, the average of their own"

NOT_THE_MEAN = {
    "mean": "the gradient is not the mean of the ranks' local gradients",
    "sum": "the gradient is not the declared sum of the ranks' local gradients",
}
CROSSED = "gradients ready in another order on one rank"
CHANNELS_LAST = "channels_last parameter"


@training.rule(
    "GRAD-1",
    "After synchronisation every gradient is bitwise identical on all ranks, and the same "
    "gradients are None on all ranks.",
    needs=(TWO_RANKS, LOCAL_DIFFERED, CROSSED),
    source=SOURCE,
    draws=Draws(crossed=True),
    of_reduced=("agreement",),
    excluded=(HIDDEN, OWNED),
    after="GRAD-13",
    script=Script(checks=("equal_gradients", "held"), follows_unused=True, follows_scaler=True),
    level="core",
)
def identical_on_all_ranks(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare bitwise but for the sign of zeros, on every step, including poisoned steps."""
    for step in view.steps("reduced"):
        reduced = view.every_rank("reduced", step)
        tally.meet({TWO_RANKS: len(reduced) > 1})
        differed = locals_differ(view, step)
        tally.meet({LOCAL_DIFFERED: differed, CROSSED: view.case.crossed is not None})
        failure = checks.first_rank_that_differs(view, tally, step)
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-2",
    "The gradient is the mean of the ranks' local gradients: to the last bit if the arithmetic is "
    "exact, otherwise within the rounding bound for W terms.",
    needs=(TWO_RANKS, LOCAL_DIFFERED, "three ranks", CHANNELS_LAST),
    source=SOURCE,
    of_reduced=("values",),
    excluded=(HIDDEN,),
    after="GRAD-5",
    script=Script(checks=MEAN, follows_unused=True),
    level="core",
)
def mean_of_the_local_gradients(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the exact mean of the gradients that the twins computed on the same batches."""
    tally.meet(
        {
            TWO_RANKS: view.case.world_size > 1,
            "three ranks": view.case.world_size == 3,
            CHANNELS_LAST: checks.is_permuted(view.case.model),
        }
    )
    for step in view.steps("reduced")[: view.clean_steps]:
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
    needs=(TWO_RANKS, FAINT_LOSS),
    source=(
        "the definition of data parallelism; bounds after Higham 2002, Accuracy and Stability of "
        "Numerical Algorithms, chapters 3 and 4"
    ),
    draws=Draws(world_sizes=ANY_WORLD, autocast=8, faint_loss=10),
    of_reduced=("values",),
    excluded=(HIDDEN,),
    after="GRAD-2",
    script=Script(checks=MEAN, follows_unused=True),
    level="core",
)
def gradient_of_the_global_batch(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the oracle, which shares no code with torch."""
    tally.meet(
        {
            TWO_RANKS: view.case.world_size > 1,
            FAINT_LOSS: view.case.get(FaintLoss) is not None,
        }
    )
    return first_failure(
        against(
            view,
            tally,
            "GRAD-3",
            "the gradient is not the global batch's",
            step,
            checks.same_layout(view, step, view.expected.truth(step).gradient),
        )
        for step in view.steps("reduced")
    )


@training.rule(
    "GRAD-4",
    "A gradient has its parameter's dtype and shape. Frozen parameters get no gradient. Tied, 0-d "
    "and zero-element parameters get their gradients.",
    needs=(
        "frozen parameter",
        "tied parameter",
        "0-d parameter",
        "zero-element parameter",
        ONE_STORAGE,
    ),
    source=SOURCE,
    draws=Draws(world_sizes=ANY_WORLD, every_kind=True, in_one_storage=4),
    excluded=(HIDDEN, OWNED),
    after="STATE-2",
    script=Script(checks=("fit",)),
    level="core",
)
def gradients_fit_their_parameters(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the structure recorded before wrapping."""
    rows = view.evidence.ranks[0].structure_before
    tally.meet(
        {
            "tied parameter": any(row.name != row.first_name for row in rows),
            ONE_STORAGE: view.case.get(OneStorage) is not None,
        }
    )
    return first_failure(
        checks.unfit_gradient(view, tally, step, rank)
        for step in view.steps("reduced")
        for rank in range(view.case.world_size)
    )


_KEPT = {
    "set_to_none": "zero_grad(set_to_none=True)",
    "zero": "zero_grad(set_to_none=False)",
    "never": "no zero_grad",
    "mixed": "some gradients set to None and others zeroed in place",
}


def _first_step_survived(failure: Failure) -> bool:
    """Return whether rounding explains the failure, which the first step's values survive by chance."""
    return any(cause.kind in LOW for cause in failure.causes)


@training.rule(
    "GRAD-5",
    "The gradient of step t depends on step t alone, for every way of clearing gradients. If the "
    "program leaves a gradient in place on purpose, the next gradient is added to it.",
    needs=tuple(_KEPT.values()),
    source=SOURCE,
    draws=Draws(least_steps=2),
    of_reduced=("values",),
    excluded=(HIDDEN,),
    after="GRAD-1",
    moved_after=MovedAfter("GRAD-2", _first_step_survived),
    script=Script(checks=MEAN, follows_unused=True),
    level="core",
)
def no_leftovers(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare every later step's gradient with the mean, if the first step's gradient was right.

    In that case a wrong later gradient must contain something left over.
    """
    steps = view.steps("reduced")[: view.clean_steps]
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
    "GRAD-7",
    "NaN or infinity on one rank reaches every rank.",
    needs=("a NaN", "an infinity"),
    source="IEEE 754: a sum is not finite if one of its terms is not",
    applies="capability",
    draws=Draws(poisoned=True),
    of_reduced=("values",),
    excluded=(HIDDEN, lacks("refuses values that are not finite", "nonfinite")),
    after="LIVE-7",
    script=Script(checks=("twin", "spread", "held"), follows_scaler=True),
)
def nonfinite_values_spread(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare each element with the sum that IEEE arithmetic gives."""
    poison = view.case.poison
    if poison is None:
        raise NotAbout("the case injects no value that is not finite")
    # A poisoned step has one micro-step.
    local_WP = np.stack([tensors.values_P for tensors in view.every_rank("local", poison.step)])
    left_WP = np.zeros_like(local_WP)
    if view.case.zero_grad == "never" and poison.step > 0:
        layout, kept = view.layout(poison.step), view.every_rank("reduced", poison.step - 1)
        left_WP = np.stack([flat_by_name(tensors, layout) for tensors in kept])
    tally.meet(
        {"a NaN": np.isnan(local_WP.sum(0)).any(), "an infinity": np.isinf(local_WP.sum(0)).any()}
    )
    return first_failure(
        checks.lost_nonfinite_value(view, tally, rank, local_WP, left_WP)
        for rank in range(1 if view.declared.gradients == "owner" else view.case.world_size)
    )


OF_A_KIND = (
    "a sparse gradient",
    "a gradient of low precision",
    "gradients of several dtypes",
    "a complex gradient",
)


@training.rule(
    "GRAD-10",
    "Gradients of every kind are the mean of the ranks' local gradients. The kinds are sparse "
    "gradients (returned sparse or dense), complex gradients (in both parts), gradients of low "
    "precision, and gradients of several dtypes in one model.",
    needs=(TWO_RANKS, *OF_A_KIND),
    source=SOURCE,
    applies="capability",
    draws=Draws(odd=True),
    of_reduced=("values",),
    excluded=(
        HIDDEN,
        lacks(
            "supports no gradients that are sparse, complex or of low precision",
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
        any(DTYPES[dtype].part for dtype in dtypes),
    )
    met = {name for name, is_met in zip(OF_A_KIND, are, strict=True) if is_met}
    if not met:
        raise NotAbout("all gradients are dense and of one dtype, float32 or float64")
    return mean_with(view, tally, "GRAD-10", met)
