"""Explanations of a gradient that is not the mean of the ranks' local gradients.

A rank's twin is the unwrapped module on the same batch. Suffixes: W ranks, K micro-steps; the dots
after them stand for one parameter's shape.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import ROUNDOFF, FloatArray
from ddp_invariants.invariants.diagnosis import affected, events
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.diagnosis.predictions import CUT_OFF, FLOAT16_MAX, Prediction
from ddp_invariants.invariants.diagnosis.reduced_gradient import ReducedGradient
from ddp_invariants.invariants.diagnosis.reductions import predictions
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Slot, Tensors
from ddp_invariants.records.verdict import Cause, Failure


def of_gradient(view: EvidenceView, failure: Failure, step: int, rank: int, name: str) -> Failure:
    """Add possible causes, and the reduction that carried it, to a failure about a gradient."""
    found = causes(view, step, rank, name)
    reduced = not found or any(cause.kind != "never reduced" for cause in found)
    event = events.of_gradient(view, step, rank, name, reduced=reduced)
    return caused(replace(failure, event=event), found)


def causes(view: EvidenceView, step: int, rank: int, name: str) -> list[Cause]:
    """Return the causes that predict a parameter's gradient on a rank.

    The list is empty if no cause fits, or if the gradient is right.
    """
    try:
        gradient = _gradient(view, step, name)
        fitting = (
            []
            if gradient is None
            else [prediction for prediction in predictions(gradient) if gradient.fits(prediction)]
        )
        misplaced = _misplaced(view, step) if any(each.kind == "zero" for each in fitting) else ""
        return [
            Cause("misplaced", misplaced)
            if prediction.kind == "zero" and misplaced
            else Cause(
                prediction.kind,
                _words(gradient, prediction, rank),
                _affected(view, step, prediction),
            )
            for prediction in fitting
            if gradient is not None
        ]
    except (KeyError, ValueError, IndexError):
        return []  # The evidence is too odd for a diagnosis; the failure gets no cause.


def is_wrong(view: EvidenceView, step: int, name: str) -> bool:
    """Return whether any rank holds a wrong gradient of a parameter."""
    gradient = _gradient(view, step, name)
    return gradient is not None and bool(gradient.wrong_W.any())


def _slot(tensors: Tensors, name: str) -> Slot:
    return next(slot for slot in tensors.layout.slots if slot.name == name)


def _gradient(view: EvidenceView, step: int, name: str) -> ReducedGradient | None:
    """Return a parameter's gradient on all ranks with its parts.

    Returns:
        None if a rank has no gradient, one of another shape, or a local gradient that is not
        finite.
    """
    local = [view.noted("local", number) for number in view.micro_steps(step)]
    reduced = view.noted("reduced", step)
    if None in local or reduced is None:
        return None
    held = [tensors.by_name.get(name) for tensors in reduced]
    fresh = [
        tensors.by_name.get(name) for record in local if record is not None for tensors in record
    ]
    shapes = {None if value is None else value.shape for value in (*held, *fresh)}
    if (
        None in shapes
        or len(shapes) > 1
        or not all(np.isfinite(value).all() for value in fresh if value is not None)
    ):
        return None
    held_W = np.stack([value for value in held if value is not None])
    fresh_KW = np.stack([value for value in fresh if value is not None]).reshape(
        len(local), *held_W.shape
    )
    before = view.noted("reduced", step - 1) if step else None
    before_W = None
    if before is not None and all(name in tensors.by_name for tensors in before):
        before_W = np.stack([tensors.by_name[name] for tensors in before])
    kept = view.case.zero_grad == "never" and before_W is not None
    left_W = before_W if kept and before_W is not None else np.zeros_like(held_W)
    slot = _slot(reduced[0], name)
    return ReducedGradient(
        view,
        step,
        name,
        held_W,
        fresh_KW,
        left_W,
        before_W,
        ROUNDOFF.get(slot.dtype or "", np.nan),
        slot.complex,
    )


def _misplaced(view: EvidenceView, step: int) -> str:
    """Return in words that a parameter has a gradient though no rank uses it; empty if none has."""
    for slot in view.layout(step).slots:
        gradient = _gradient(view, step, slot.name) if slot.elements else None
        if gradient is not None and not gradient.g_W.any() and gradient.held_W.any():
            return (
                f"it is zero, while {slot.name!r}, which no rank uses, has a gradient: written to "
                "the wrong parameter"
            )
    return ""


def _words(gradient: ReducedGradient, prediction: Prediction, rank: int) -> str:
    """Return a cause in words, about the failure's rank or else about the first wrong rank."""
    if gradient.wrong_W[rank]:
        return prediction.words(rank)
    wrong = int(np.argmax(gradient.wrong_W))
    text = prediction.words(wrong)
    return f"rank {wrong}'s {text.partition(' ')[2]}" if text.startswith(("it ", "its ")) else text


def _affected(view: EvidenceView, step: int, cause: Prediction) -> str:
    """Return the class of parameters that show this cause, in words, if there is such a class."""
    wrong, right = set(), set()
    for slot in view.layout(step).slots:
        gradient = _gradient(view, step, slot.name) if slot.elements else None
        if gradient is None:
            continue
        if gradient.wrong_W.any():
            wrong.add(slot.name)
        elif any(
            prediction.kind == cause.kind and gradient.shows(prediction)
            for prediction in predictions(gradient)
        ):
            right.add(slot.name)
    return affected.only(view, wrong, right)


def of_scrubbing(
    view: EvidenceView,
    rank: int,
    summed_P: FloatArray,
    local_WP: FloatArray,
    held_P: FloatArray,
    wrong: NDArray[np.bool_],
) -> list[Cause]:
    """Return the causes of a value that is not finite and did not arrive.

    Args:
        view: The evidence view of the case.
        rank: The rank whose gradient is judged.
        summed_P: The sum in IEEE arithmetic.
        local_WP: The twins' gradients.
        held_P: The values that the rank holds.
        wrong: A mask of the elements that differ from the sum.
    """
    poison = view.case.poison
    if poison is None:
        return []
    largest = float(np.finfo(np.float32).max)
    zeroed = np.where(np.isfinite(local_WP), local_WP, 0.0).mean(0)
    limited = np.nan_to_num(local_WP, nan=0.0, posinf=largest, neginf=-largest)
    arose = f"{poison.value} arose on rank {poison.rank}"
    scrubbed = (
        "scrubbed",
        f"{arose} and was scrubbed: it counts as zero, or as the largest number, in the mean",
    )
    alone = (
        "never reduced",
        f"it equals rank {rank}'s own local gradient: never reduced, though {arose}",
    )
    mean = limited.sum(0)
    explained = [
        (scrubbed, zeroed),
        (scrubbed, limited.mean(0)),
        (
            scrubbed,
            np.where(np.abs(mean) > largest, np.copysign(np.inf, mean), mean / len(local_WP)),
        ),
        (alone, local_WP[rank]),
        (("cut off", CUT_OFF), local_WP.clip(-FLOAT16_MAX, FLOAT16_MAX).mean(0)),
        (("zero", "it is zero: the gradient was lost"), np.zeros_like(summed_P)),
    ]

    def equals(value_P: FloatArray) -> bool:
        held, value = held_P[wrong], value_P[wrong]
        close = np.isfinite(value) & (np.abs(held - value) <= 2.0**-18 * np.abs(value))
        return bool(((held == value) | close | (np.isnan(held) & np.isnan(value))).all())

    return [Cause(*cause) for cause, value_P in explained if equals(value_P)]
