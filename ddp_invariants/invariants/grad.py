"""GRAD: after synchronisation every rank holds the mean of the ranks' local gradients.

A rank's local gradient is that of its twin: the unwrapped module with the same parameters, batch
and random state.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.cases.layers import Model
from ddp_invariants.invariants.compare import number, outside, parted
from ddp_invariants.invariants.diagnosis import gradients, missing, uneven
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.diagnosis.predictions import LOW
from ddp_invariants.invariants.draws import ANY_WORLD, Draws
from ddp_invariants.invariants.exclusions import HIDDEN, LOSSY, OWNED, lacks
from ddp_invariants.invariants.recorded import flat_by_name
from ddp_invariants.invariants.rule import LI, MEAN, MovedAfter, NotAbout, Script, Tally, Unjudged
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.oracle import training as oracle
from ddp_invariants.oracle.balls import Ball
from ddp_invariants.records.evidence import Layout, Tensors
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.crossed import Crossed
from ddp_invariants.situations.failing import Failing
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.timing import Disturbed

_SOURCE = f"{LI}: all processes consume the same gradients, the average of their own"
_ONE_BACKWARD = lacks("one backward per step", "accumulation")

NOT_THE_MEAN = {
    "mean": "the gradient is not the mean of the ranks' local gradients",
    "sum": "the gradient is not the declared sum of the ranks' local gradients",
}
TWO_RANKS = "more than one rank"
UNUSED = ("unused on all ranks", "unused on some ranks", "used at one step and not at another")
LOCAL_DIFFERED = "local gradients differed between ranks"
SOME_MICRO_STEPS = "used in some micro-steps alone"
NO_SYNC = {"nested": "a nested no_sync", "error": "an exception inside no_sync"}
CROSSED = "gradients ready in another order on one rank"
CHANNELS_LAST = "channels_last parameter"


def _distinct(records: tuple[Tensors, ...]) -> list[int]:
    """Return the ranks to judge: the first rank, and every rank that holds other bits."""
    return [rank for rank, tensors in enumerate(records) if rank == 0 or tensors != records[0]]


def _against(
    view: EvidenceView, tally: Tally, rule: str, fact: str, step: int, expected: Ball
) -> Failure | None:
    """Compare the ranks' gradients after synchronisation with a ball in the twins' layout."""
    reduced, local = (
        view.every_rank("reduced", step),
        view.every_rank("local", view.micro_steps(step)[0]),
    )
    if view.declared.gradients == "owner":
        difference = outside(local[0], _owned(view, step, expected), expected, tally)
        return (
            None
            if difference is None
            else Failure(
                rule,
                fact,
                f"every rank of {view.case.world_size} that holds it, step {step}, "
                f"{difference.place}",
                difference.words,
            )
        )
    for rank in _distinct(reduced):
        held_P = flat_by_name(reduced[rank], local[rank].layout)
        difference = outside(local[rank], held_P, expected, tally)
        if difference is not None:
            failure = Failure(
                rule,
                fact,
                f"rank {rank} of {view.case.world_size}, step {step}, {difference.place}",
                difference.words,
            )
            return gradients.of_gradient(view, failure, step, rank, difference.name)
    return None


def _present(tensors: Tensors, layout: Layout) -> NDArray[np.bool_]:
    """Return a mask of the layout's elements that a record has. Shape (P,)."""
    return np.repeat([slot.name in tensors.by_name for slot in layout.slots], layout.sizes)


def _owned(view: EvidenceView, step: int, expected: Ball) -> FloatArray:
    """Return each parameter's gradient from the rank that owns it. Shape (P,).

    The owner is the rank with the right value, or else the first rank with a gradient. On any other
    rank, `.grad` has no meaning.
    """
    layout = view.layout(step)
    held_WP = np.stack(
        [flat_by_name(tensors, layout) for tensors in view.every_rank("reduced", step)]
    )
    present_WP = np.stack(
        [_present(tensors, layout) for tensors in view.every_rank("reduced", step)]
    )
    right_WP = present_WP & (np.abs(held_WP - expected.centre) <= expected.radius)
    held_P: FloatArray = held_WP[0].copy()
    for start, end in pairwise(layout.starts):
        owner = next(
            (rank for rank, right in enumerate(right_WP[:, start:end]) if right.all()),
            int(np.argmax(present_WP[:, start:end].any(1))),
        )
        held_P[start:end] = held_WP[owner, start:end]
    return held_P


def _unowned(view: EvidenceView, step: int) -> str:
    """Return the name of a parameter whose gradient no rank holds; empty if there is none."""
    reduced = view.every_rank("reduced", step)
    return next(
        (
            slot.name
            for slot in view.layout(step).slots
            if slot.elements and not any(slot.name in tensors.by_name for tensors in reduced)
        ),
        "",
    )


def _mean_at(view: EvidenceView, tally: Tally, rule: str, fact: str, step: int) -> Failure | None:
    """Compare a step's gradients with the mean of the twins' gradients."""
    failure = _against(view, tally, rule, fact, step, view.expected.local_means(step))
    if _locals_differ(view, step):
        tally.met.add(LOCAL_DIFFERED)
    return failure


def _locals_differ(view: EvidenceView, step: int) -> bool:
    records = [view.every_rank("local", number) for number in view.micro_steps(step)]
    return any(tensors != record[0] for record in records for tensors in record[1:])


@training.rule(
    "GRAD-1",
    "After synchronisation every gradient is bitwise identical on all ranks, and so is which are None.",
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
        tally.met |= {LOCAL_DIFFERED} if _locals_differ(view, step) else set()
        tally.met |= {CROSSED} if view.case.crossed is not None else set()
        for rank, tensors in enumerate(reduced[1:], start=1):
            tally.compared += sum(tensors.layout.sizes)
            difference = parted(reduced[0], tensors, "rank 0 holds")
            if difference is not None:
                failure = Failure(
                    "GRAD-1",
                    "gradients differ between ranks after synchronisation",
                    f"rank {rank} of {len(reduced)}, step {step}, {difference.place}",
                    difference.words,
                )
                return gradients.of_gradient(view, failure, step, rank, difference.name)
    return None


def _permuted(model: Model) -> bool:
    """Return whether a trained parameter's memory order differs from its index order.

    With one channel, both orders are equal.
    """
    return any(
        layer.layout == "channels_last" and width > 4 and not layer.frozen
        for width, layer in zip(model.widths(), model.layers, strict=False)
    )


@training.rule(
    "GRAD-2",
    "The gradient is the mean of the ranks' local gradients: to the last bit where that is exact, "
    "otherwise within the rounding bound for W terms.",
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
    tally.met |= {CHANNELS_LAST} if _permuted(view.case.model) else set()
    for step in view.steps("reduced"):
        if step >= view.clean_steps:
            break
        if view.declared.gradients == "owner" and (name := _unowned(view, step)):
            return Failure(
                "GRAD-2",
                "no rank holds the gradient of a parameter",
                f"step {step}, parameter {name!r}",
                "None on every rank, expected on the rank that owns it",
            )
        failure = _mean_at(view, tally, "GRAD-2", NOT_THE_MEAN[view.declared.reduction], step)
        if failure is not None:
            return failure
    return None


@training.rule(
    "GRAD-3",
    "The gradient is that of single-process training on the global batch, computed in float64.",
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
        failure = _against(
            view,
            tally,
            "GRAD-3",
            "the gradient is not the global batch's",
            step,
            _full(view, step, view.expected.truth(step).gradient),
        )
        if failure is not None:
            return failure
    return None


def _full(view: EvidenceView, step: int, ball: Ball) -> Ball:
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


@training.rule(
    "GRAD-4",
    "A gradient has its parameter's dtype and shape; frozen parameters get none; tied, 0-d and "
    "zero-element ones work.",
    needs=("frozen parameter", "tied parameter", "0-d parameter", "zero-element parameter"),
    source=_SOURCE,
    draws=Draws(world_sizes=ANY_WORLD, every_kind=True),
    excluded=(HIDDEN, OWNED),
    after="STATE-2",
    script=Script(checks=("fit",)),
)
def gradients_fit_their_parameters(view: EvidenceView, tally: Tally) -> Failure | None:
    """Compare with the structure recorded before wrapping."""
    rows = {row.name: row for row in view.evidence.ranks[0].structure_before}
    tally.met |= (
        {"tied parameter"} if any(row.name != row.first_name for row in rows.values()) else set()
    )
    for step in view.steps("reduced"):
        unused, trainable_names = view.unused(step), view.trainable(step)
        for rank, tensors in enumerate(view.every_rank("reduced", step)):
            for slot in tensors.layout.slots:
                if slot.name not in rows or (slot.dtype is None and slot.name in unused[rank]):
                    continue
                dtype, shape = rows[slot.name].dtype, rows[slot.name].shape
                trainable = slot.name in trainable_names
                tally.compared += 1
                where = (
                    f"rank {rank} of {view.case.world_size}, step {step}, parameter "
                    f"{slot.name!r} {tuple(shape)}"
                )
                if not trainable:
                    tally.met.add("frozen parameter")
                    if slot.dtype is not None:
                        return Failure(
                            "GRAD-4",
                            "a frozen parameter has a gradient",
                            where,
                            f"{slot.dtype} {slot.shape}",
                        )
                    continue
                tally.met |= {"0-d parameter"} if not shape else set()
                tally.met |= {"zero-element parameter"} if 0 in shape else set()
                if slot.dtype is None:
                    return Failure(
                        "GRAD-4", "a parameter that was used has no gradient", where, "None"
                    )
                if (slot.dtype, list(slot.shape)) != (dtype, list(shape)):
                    return Failure(
                        "GRAD-4",
                        "a gradient does not fit its parameter",
                        where,
                        f"{slot.dtype} {slot.shape}, expected {dtype} {tuple(shape)}",
                    )
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
    "Step t's gradient depends on step t alone, however gradients were cleared (or on what was left "
    "in place on purpose).",
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
    if _mean_at(view, Tally(), "GRAD-5", "", steps[0]) is not None:
        raise Unjudged("the first step's gradient is already wrong (GRAD-2)")
    for step in steps[1:]:
        tally.met.add(_KEPT[view.case.zero_grad])
        failure = _mean_at(
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
    "Whatever the bucket cap, the gradient stays within the bound of GRAD-2.",
    needs=("every parameter above the cap", "cap between", "cap above the model"),
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
    layout = view.layout(0)
    sizes = [slot.nbytes for slot in layout.slots if slot.nbytes]
    situation = (
        "every parameter above the cap"
        if cap < min(sizes)
        else "cap between"
        if cap < sum(sizes)
        else "cap above the model"
    )
    for step in view.steps("reduced"):
        if step >= view.clean_steps:
            break
        failure = _mean_at(
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
    source="IEEE 754: what is not finite stays so in a sum",
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
    local = view.every_rank("local", poison.step)
    local_WP = np.stack([tensors.values_P for tensors in local])
    summed_P = local_WP.sum(0)
    finite_P = np.abs(np.where(np.isfinite(local_WP), local_WP, 0)).sum(0)
    # If the finite terms might overflow by themselves, the order of summation decides which
    # infinity comes first.
    poisoned = ~np.isfinite(summed_P) & (finite_P <= view.form(local[0].layout).largest)
    tally.met |= {"a NaN"} if np.isnan(summed_P).any() else set()
    tally.met |= {"an infinity"} if np.isinf(summed_P).any() else set()
    for rank, tensors in enumerate(view.every_rank("reduced", poison.step)):
        held_P = flat_by_name(tensors, local[0].layout)
        if view.declared.gradients == "owner":
            held_P = np.where(_present(tensors, local[0].layout), held_P, summed_P)
        same = np.where(np.isnan(summed_P), np.isnan(held_P), held_P == summed_P)
        tally.compared += int(poisoned.sum())
        wrong = poisoned & ~same
        if wrong.any():
            first = int(np.argmax(wrong))
            slot, place = local[0].layout.locate(first)
            where = (
                f"rank {rank} of {view.case.world_size}, step {poison.step}, parameter "
                f"{slot.name!r} {slot.shape}"
            )
            failure = Failure(
                "GRAD-7",
                "a value that is not finite does not reach every rank",
                where,
                f"{number(held_P[first])} at {place}, expected {number(summed_P[first])}; "
                f"{int(wrong.sum())} of {int(poisoned.sum())} such elements differ",
            )
            return caused(
                failure, gradients.of_scrubbing(view, rank, summed_P, local_WP, held_P, wrong)
            )
    return None


@training.rule(
    "GRAD-8",
    "Inside no_sync gradients accumulate locally and nothing is reduced; the next synchronised backward "
    "yields the mean of the ranks' accumulated gradients, nested or left by an exception, too.",
    needs=(TWO_RANKS, "several micro-steps", SOME_MICRO_STEPS, *NO_SYNC.values()),
    source=f"{LI}: gradient accumulation, no_sync",
    level="capability",
    draws=Draws(accumulated=True, unused=True),
    excluded=(
        HIDDEN,
        LOSSY,
        _ONE_BACKWARD,
        lacks("has no no_sync: every micro-step is synchronised", "no_sync"),
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
        for rank, evidence in enumerate(view.evidence.ranks):
            spans = evidence.quiet[step] if step < len(evidence.quiet) else []
            # Forwards may send: they refresh buffers, and a lazy wrapper starts in one.
            sent = [call for starts, ends in spans for call in evidence.sent_between(starts, ends)]
            tally.compared += 1
            if sent:
                return Failure(
                    "GRAD-8",
                    "a backward inside no_sync communicates",
                    f"rank {rank} of {view.case.world_size}, step {step}",
                    f"{len(sent)} collectives, expected none; the first is {sent[0][0]} "
                    f"{sent[0][1]} x {sent[0][2]}",
                )
        failure = _mean_at(
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
    "A rank that does not use a parameter counts as zero in the mean, which every rank gets; where no "
    "rank uses it, all hold None or all zero.",
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
            None if view.declared.gradients == "owner" else _wrongly_none(view, tally, step, unused)
        )
        failure = failure or _mean_at(
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


def _wrongly_none(
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


def _mean_with(view: EvidenceView, tally: Tally, rule: str, met: set[str]) -> Failure | None:
    """Compare every step's gradients with the twins' mean, in the situations of a rule."""
    tally.met |= {TWO_RANKS} if view.case.world_size > 1 else set()
    for step in view.steps("reduced"):
        if step >= view.clean_steps:
            break
        failure = _mean_at(
            view,
            tally,
            rule,
            f"with {' and '.join(sorted(met))} the gradient is not the mean of the "
            "ranks' local gradients",
            step,
        )
        tally.met |= met
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
    "Gradients of every kind are the mean of the ranks' local gradients: sparse ones, as sparse or "
    "dense, complex ones in both parts, those of low precision, and those of several dtypes beside one another.",
    needs=(TWO_RANKS, *OF_A_KIND),
    source=_SOURCE,
    level="capability",
    draws=Draws(odd=True),
    excluded=(
        HIDDEN,
        LOSSY,
        lacks(
            "takes neither sparse gradients nor complex ones, nor those of low precision",
            "sparse",
            "bfloat16",
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
        "bfloat16" in dtypes,
        len(dtypes) > 1,
        "complex64" in dtypes,
    )
    met = {name for name, is_met in zip(OF_A_KIND, are, strict=True) if is_met}
    if not met:
        raise NotAbout("all gradients are dense and of one dtype, float32 or float64")
    return _mean_with(view, tally, "GRAD-10", met)


ONE_OUT, TWO_OUT = "a rank without batches", "two ranks left at different steps"


@training.rule(
    "GRAD-11",
    "Ranks with different numbers of batches finish; a step's gradient is the mean over the ranks, those "
    "without a batch counted as is declared, and all ranks end with one set of parameters.",
    needs=(ONE_OUT, TWO_OUT),
    source=(
        "the documentation of torch.distributed.algorithms.Join: by how many a sum is divided is the "
        "caller's choice"
    ),
    level="capability",
    draws=Draws(uneven=True),
    excluded=(HIDDEN, LOSSY, lacks("has no join: all ranks have as many batches", "join")),
    after="GRAD-9",
)
def uneven_batches(view: EvidenceView, tally: Tally) -> Failure | None:
    """Judge cases in which ranks run out of batches, step by step among the ranks with a batch."""
    case = view.case
    if not case.exhausted:
        raise NotAbout("all ranks have equally many batches")
    last = next(rank for rank in range(case.world_size) if case.steps_of(rank) == case.steps)
    for step in range(case.steps):
        active = [rank for rank in range(case.world_size) if step < case.steps_of(rank)]
        expected, layout = view.expected.mean_of(active, step)
        for rank in active:
            reduced = view.of_rank(rank, "reduced", step)
            local = view.of_rank(rank, "local", step)
            difference = outside(local, flat_by_name(reduced, layout), expected, tally)
            if difference is not None:
                averaged = (
                    "the ranks with a batch" if view.declared.divisor == "active" else "all ranks"
                )
                failure = Failure(
                    "GRAD-11",
                    f"with {len(active)} of {case.world_size} ranks left the gradient is not the "
                    f"mean over {averaged}",
                    f"rank {rank} of {case.world_size}, step {step}, {difference.place}",
                    difference.words,
                )
                return caused(failure, uneven.causes(view, step, rank, active, layout))
        tally.met |= {ONE_OUT} if len(active) < case.world_size else set()
    tally.met |= {TWO_OUT} if len({rank.steps for rank in case.exhausted}) > 1 else set()
    left = view.of_rank(last, "updated", case.steps - 1)
    for rank, tensors in enumerate(view.every_rank("joined")):
        tally.compared += sum(tensors.layout.sizes)
        difference = parted(left, tensors, f"rank {last} held after the last step")
        if difference is not None:
            return Failure(
                "GRAD-11",
                "the ranks end with different parameters",
                f"rank {rank} of {case.world_size}, {difference.place}",
                difference.words,
            )
    return None


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
    alone = case.without(NoSyncStyle, PassOrder, Crossed, Disturbed, Failing)
    plain = replace(alone, world_size=1, accumulation=1)
    for step in view.steps("reduced"):
        parts = [view.batch(number) for number in view.micro_steps(step)]
        if len({part.inputs_WBI.shape for part in parts}) > 1 or (
            case.zero_grad == "never" and step
        ):
            continue
        tally.met |= {"several micro-steps"} | ({TWO_RANKS} if case.world_size > 1 else set())
        truth = view.expected.truth(step).gradient
        joined = oracle.joined(parts)
        held = view.every_rank("forward", step)[0].by_name
        by_name = oracle.gradients(plain.at(step), held, joined, view.scale(step)).by_name
        balls = [
            by_name[slot.name] if slot.name in by_name else oracle.nothing(held[slot.name], 1)
            for slot in view.layout(step).slots
            if slot.dtype is not None
        ]
        centre_P = np.concatenate([ball.centre[0].ravel() for ball in balls])
        factor = case.world_size if view.declared.reduction == "sum" else 1
        radius_P = (
            factor * np.concatenate([ball.radius[0].ravel() for ball in balls]) + truth.radius
        )
        samples = joined.inputs_WBI.shape[1]
        failure = _against(
            view,
            tally,
            "GRAD-12",
            f"{case.accumulation} micro-steps on {case.world_size} ranks do not equal one step on "
            f"their {samples} samples",
            step,
            Ball(factor * centre_P, radius_P, truth.quantum),
        )
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
    "However a step's forwards and backwards follow one another, whatever of a forward backward "
    "computes again, however often a layer is called, and whatever gradients are part of the loss, the gradient is "
    "the mean of the ranks' local gradients.",
    needs=(TWO_RANKS, *PASSES.values(), *CHECKPOINTS.values(), TWICE, PENALTY),
    source=_SOURCE,
    level="capability",
    draws=Draws(passes=True),
    excluded=(
        HIDDEN,
        LOSSY,
        lacks(
            "every forward is followed by its backward, which computes nothing again",
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
    return _mean_with(view, tally, "GRAD-13", met)
