"""What a parameter or buffer that starts wrong equals instead of what rank 0 built.

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
    """A breach about what a rank holds when the first forward starts, with what may have caused it."""
    try:
        held_W, built_W = _stacked(started, name), _stacked(built, name)
        if held_W.shape != built_W.shape:
            return failure
        fitting = [
            one for one in _predictions(view, name, built, built_W) if _fits(one, held_W, built_W)
        ]
        return caused(
            failure,
            [
                Cause(one.kind, one.words(rank), _affected(view, one, built, started))
                for one in fitting
            ],
        )
    except (KeyError, ValueError, IndexError):
        return failure  # The evidence is as odd as the value; the breach stands without a cause.


def _stacked(records: Records, name: str) -> FloatArray:
    return np.stack([tensors.by_name[name] for tensors in records])


def _wrong_ranks(held_W: FloatArray, built_W: FloatArray) -> list[int]:
    return [
        rank
        for rank, held in enumerate(held_W)
        if not np.array_equal(held, built_W[0], equal_nan=True)
    ]


def _fits(prediction: Prediction, held_W: FloatArray, built_W: FloatArray) -> bool:
    """Whether it predicts what every rank holds that does not hold what it must."""
    wrong = _wrong_ranks(held_W, built_W)
    close_W = prediction.close(held_W, _tolerance(prediction, built_W))
    return bool(wrong and (close_W if prediction.common else close_W[wrong]).all())


def _tolerance(prediction: Prediction, built_W: FloatArray) -> FloatArray:
    """Copies are exact; what is computed is rounded, in float32 or better unless the ranks hold less."""
    most = np.abs(built_W).sum(0)
    computed = prediction.kind in ("averaged", "summed")
    return (len(built_W) + 2) * ROUNDOFF["float32"] * most if computed else np.zeros_like(most)


def _predictions(
    view: EvidenceView, name: str, built: Records, built_W: FloatArray
) -> Iterator[Prediction]:
    """All explanations known. The order does not decide."""
    world_size = len(built_W)
    yield Prediction(
        "never broadcast",
        built_W,
        lambda rank: f"rank {rank} still holds what it built: never broadcast",
    )
    for source in range(1, world_size):
        yield copied(
            "another source",
            built_W,
            source,
            f"it is what rank {source} built: the broadcast's source is rank "
            f"{source} of the group, not rank 0",
        )
    yield everywhere(
        "averaged",
        built_W.mean(0),
        world_size,
        "it is the mean of what the ranks built: averaged instead of broadcast",
    )
    yield everywhere(
        "summed",
        built_W.sum(0),
        world_size,
        "it is the sum of what the ranks built: reduced, not broadcast",
    )
    yield everywhere(
        "zero", np.zeros_like(built_W[0]), world_size, "it is zero: the value was lost"
    )
    for value, order in reordered(built_W[0]):
        yield everywhere(
            "reordered",
            value,
            world_size,
            f"it is what rank 0 built with its elements {order}: sent as they lie "
            "in memory, read by index, or the reverse",
        )
    yield from _of_strides(view, name, built_W)
    for other, value in built[0].by_name.items():
        if other != name and value.shape == built_W[0].shape:
            yield everywhere(
                "swapped",
                value,
                world_size,
                f"it is what rank 0 built as {other!r}, of equal shape: swapped",
            )


def _of_strides(view: EvidenceView, name: str, built_W: FloatArray) -> Iterator[Prediction]:
    """Of a tensor that is not contiguous, a collective writes as many elements as it has from where it starts in memory."""
    number = name.split(".")[1] if name.startswith("layers.") else ""
    layers = view.case.model.layers
    if (
        not number.isdigit()
        or not name.endswith("weight")
        or layers[int(number)].layout != "strided"
    ):
        return
    # Every other element in memory is its own: the first half of them arrives.
    arrived = (np.arange(built_W[0].size) < (built_W[0].size + 1) // 2).reshape(built_W[0].shape)
    left_W = np.where(arrived, built_W[0], built_W)
    if not arrived.all():
        yield Prediction(
            "strides ignored",
            left_W,
            lambda rank: (
                f"the parameter is not contiguous: only the first {int(arrived.sum())} of its "
                f"{arrived.size} elements arrived, the "
                f"others are still rank {rank}'s, since a collective on it as it lies ignores its strides (pytorch#192920): "
                "broadcast a contiguous copy and copy it back"
            ),
        )


def _affected(view: EvidenceView, cause: Prediction, built: Records, started: Records) -> str:
    """Which parameters are wrong with it, where that says something."""
    wrong, right = set(), set()
    for name in built[0].by_name:
        held_W, built_W = _stacked(started, name), _stacked(built, name)
        if _wrong_ranks(held_W, built_W):
            wrong.add(name)
        elif any(
            one.kind == cause.kind and (one.held_W != built_W[0]).any()
            for one in _predictions(view, name, built, built_W)
        ):
            right.add(name)
    return affected.only(view, wrong, right)
