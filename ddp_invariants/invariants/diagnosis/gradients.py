"""What a wrong gradient equals instead of the mean of the ranks' local gradients.

Suffixes: W ranks, K micro-steps; the dots after them stand for one parameter's shape.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import ROUNDOFF, FloatArray
from ddp_invariants.invariants.diagnosis import affected, events
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.diagnosis.predictions import CUT_OFF, FLOAT16_MAX, Prediction
from ddp_invariants.invariants.diagnosis.reductions import Asked, predictions
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Slot, Tensors
from ddp_invariants.records.verdict import Cause, Failure


def of_gradient(view: EvidenceView, failure: Failure, step: int, rank: int, name: str) -> Failure:
    """A breach about a parameter's gradient on a rank, with what may have caused it and what was sent of it."""
    told = replace(failure, event=events.of_gradient(view, step, rank, name))
    return caused(told, causes(view, step, rank, name))


def causes(view: EvidenceView, step: int, rank: int, name: str) -> list[Cause]:
    """What a parameter's gradient on a rank may be wrong by; empty where nothing fits, or it is right."""
    try:
        asked = _asked(view, step, name)
        found = (
            []
            if asked is None
            else [prediction for prediction in predictions(asked) if asked.fits(prediction)]
        )
        return [
            Cause(one.kind, _told(asked, one, rank), _affected(view, step, one))
            for one in found
            if asked is not None
        ]
    except (KeyError, ValueError, IndexError):
        return []  # The evidence is as odd as the gradient; the breach stands without a cause.


def is_wrong(view: EvidenceView, step: int, name: str) -> bool:
    """Whether a rank holds another gradient of a parameter than it must."""
    asked = _asked(view, step, name)
    return asked is not None and bool(asked.wrong_W.any())


def _slot(tensors: Tensors, name: str) -> Slot:
    return next(slot for slot in tensors.layout.slots if slot.name == name)


def _asked(view: EvidenceView, step: int, name: str) -> Asked | None:
    """The question about a parameter; None where a rank has no gradient of it, or one of another shape or not finite."""
    local = [view.noted("local", number) for number in view.micro_steps(step)]
    reduced = view.noted("reduced", step)
    if None in local or reduced is None:
        return None
    held = [tensors.by_name.get(name) for tensors in reduced]
    fresh = [
        tensors.by_name.get(name) for record in local if record is not None for tensors in record
    ]
    shapes = {None if one is None else one.shape for one in (*held, *fresh)}
    if (
        None in shapes
        or len(shapes) > 1
        or not all(np.isfinite(one).all() for one in fresh if one is not None)
    ):
        return None
    held_W = np.stack([one for one in held if one is not None])
    fresh_KW = np.stack([one for one in fresh if one is not None]).reshape(
        len(local), *held_W.shape
    )
    before = view.noted("reduced", step - 1) if step else None
    before_W = None
    if before is not None and all(name in tensors.by_name for tensors in before):
        before_W = np.stack([tensors.by_name[name] for tensors in before])
    kept = view.case.zero_grad == "never" and before_W is not None
    left_W = before_W if kept and before_W is not None else np.zeros_like(held_W)
    slot = _slot(reduced[0], name)
    return Asked(
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


def _told(asked: Asked, prediction: Prediction, rank: int) -> str:
    """The cause in words, about the rank of the breach or, where that one is right, about the first wrong one."""
    if asked.wrong_W[rank]:
        return prediction.words(rank)
    wrong = int(np.argmax(asked.wrong_W))
    return prediction.words(wrong).replace("it ", f"rank {wrong}'s ", 1)


def _affected(view: EvidenceView, step: int, cause: Prediction) -> str:
    """Which parameters are wrong with it, where that says something."""
    wrong, right = set(), set()
    for slot in view.layout(step).slots:
        asked = _asked(view, step, slot.name) if slot.elements else None
        if asked is None:
            continue
        if asked.wrong_W.any():
            wrong.add(slot.name)
        elif any(one.kind == cause.kind and asked.shows(one) for one in predictions(asked)):
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
    """Why a value that is not finite did not arrive.

    Args:
        view: Of the case.
        rank: Whose gradient is judged.
        summed_P: What IEEE arithmetic makes of the sum.
        local_WP: The twins' gradients.
        held_P: What the rank holds.
        wrong: The elements at which that is not what the sum is.
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
        f"it equals rank {rank}'s own local gradient: {arose} and was not reduced",
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
