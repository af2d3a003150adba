"""Explanations of a parameter or buffer that does not start with the value rank 0 built.

Suffix: W ranks; the dots after it stand for one tensor's shape.
"""

from collections.abc import Iterator

import numpy as np

from ddp_invariants.cases.formats import ROUNDOFF, FloatArray
from ddp_invariants.invariants.diagnosis import affected
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.diagnosis.predictions import (
    Prediction,
    copied,
    everywhere,
    reordered,
)
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Tensors
from ddp_invariants.records.verdict import Cause, Failure

Records = tuple[Tensors, ...]


def of_start(
    view: EvidenceView, failure: Failure, rank: int, name: str, built: Records, started: Records
) -> Failure:
    """Add the possible causes to a failure about a rank's values when the first forward starts."""
    try:
        held_W, built_W = _stacked(started, name), _stacked(built, name)
        if held_W.shape != built_W.shape:
            return failure
        fitting = [
            prediction
            for prediction in _predictions(view, name, built, built_W)
            if _fits(prediction, held_W, built_W)
        ]
        return caused(
            failure,
            [
                Cause(
                    prediction.kind,
                    prediction.words(rank),
                    _affected(view, prediction, built, started),
                )
                for prediction in fitting
            ],
        )
    except (KeyError, ValueError, IndexError):
        return failure  # The evidence is too odd for a diagnosis; the failure gets no cause.


def _stacked(records: Records, name: str) -> FloatArray:
    return np.stack([tensors.by_name[name] for tensors in records])


def _wrong_ranks(held_W: FloatArray, built_W: FloatArray) -> list[int]:
    return [
        rank
        for rank, held in enumerate(held_W)
        if not np.array_equal(held, built_W[0], equal_nan=True)
    ]


def _fits(prediction: Prediction, held_W: FloatArray, built_W: FloatArray) -> bool:
    """Return whether a prediction matches the values of every rank that holds a wrong one."""
    wrong = _wrong_ranks(held_W, built_W)
    close_W = prediction.close(held_W, _tolerance(prediction, built_W))
    return bool(wrong and (close_W if prediction.common else close_W[wrong]).all())


def _tolerance(prediction: Prediction, built_W: FloatArray) -> FloatArray:
    """Return the tolerance of a prediction.

    Copies are exact. Computed values are rounded, in float32 or better unless the ranks hold a
    lower dtype.
    """
    most = np.abs(built_W).sum(0)
    computed = prediction.kind in ("averaged", "summed")
    return (len(built_W) + 2) * ROUNDOFF["float32"] * most if computed else np.zeros_like(most)


def _predictions(
    view: EvidenceView, name: str, built: Records, built_W: FloatArray
) -> Iterator[Prediction]:
    """Yield all known explanations; their order has no effect."""
    world_size = len(built_W)
    left_out = (
        "; a state_dict leaves this buffer out (persistent=False)"
        if name in view.case.model.unsaved
        else ""
    )
    yield Prediction(
        "never broadcast",
        built_W,
        lambda rank: f"rank {rank} still holds its own initial value: never broadcast{left_out}",
    )
    for source in range(1, world_size):
        yield copied(
            "another source",
            built_W,
            source,
            f"it is rank {source}'s initial value: the broadcast's source is rank {source} of the "
            "group, not rank 0",
        )
    yield everywhere(
        "averaged",
        built_W.mean(0),
        world_size,
        "it is the mean of the ranks' initial values: averaged instead of broadcast",
    )
    yield everywhere(
        "summed",
        built_W.sum(0),
        world_size,
        "it is the sum of the ranks' initial values: reduced, not broadcast",
    )
    yield everywhere(
        "zero", np.zeros_like(built_W[0]), world_size, "it is zero: the value was lost"
    )
    for value, order in reordered(built_W[0]):
        yield everywhere(
            "reordered",
            value,
            world_size,
            f"it is rank 0's initial value with its elements {order}: sent as they lie in memory, "
            "read by index, or the reverse",
        )
    yield from _of_strides(view, name, built_W)
    for other_name, value in built[0].by_name.items():
        if other_name != name and value.shape == built_W[0].shape:
            yield everywhere(
                "swapped",
                value,
                world_size,
                f"it is rank 0's initial value of {other_name!r}, of equal shape: swapped",
            )


_STRIDED = ("weight", "seen")
"""The ends of the names of tensors to which a layer's layout applies."""


def _of_strides(view: EvidenceView, name: str, built_W: FloatArray) -> Iterator[Prediction]:
    """Yield the explanation that a collective ignored the strides of a non-contiguous tensor.

    Such a collective writes as many elements as the tensor has, one after another in memory.
    """
    model = view.case.model
    index = model.index_of(name)
    if index is None or not name.endswith(_STRIDED) or model.layers[index].layout != "strided":
        return
    # Every second element in memory belongs to the tensor, so its first half arrives.
    arrived = (np.arange(built_W[0].size) < (built_W[0].size + 1) // 2).reshape(built_W[0].shape)
    left_W = np.where(arrived, built_W[0], built_W)
    if not arrived.all():
        yield Prediction(
            "strides ignored",
            left_W,
            lambda rank: (
                f"the tensor is not contiguous: only the first {int(arrived.sum())} of its "
                f"{arrived.size} elements arrived, the other elements are still rank {rank}'s "
                "own; a collective on the tensor itself ignores its strides (pytorch#192920): "
                "broadcast a contiguous copy and copy it back"
            ),
        )


def _affected(view: EvidenceView, cause: Prediction, built: Records, started: Records) -> str:
    """Return the class of parameters that show this cause, in words, if there is such a class."""
    wrong, right = set(), set()
    for name in built[0].by_name:
        held_W, built_W = _stacked(started, name), _stacked(built, name)
        if _wrong_ranks(held_W, built_W):
            wrong.add(name)
        elif any(
            prediction.kind == cause.kind and (prediction.held_W != built_W[0]).any()
            for prediction in _predictions(view, name, built, built_W)
        ):
            right.add(name)
    return affected.only(view, wrong, right)
