"""Explanations of a buffer that differs between ranks, or that forwards moved wrongly."""

import numpy as np

from ddp_invariants.cases.formats import ROUNDOFF, FloatArray
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.oracle.balls import gamma
from ddp_invariants.records.evidence import Moment, Tensors
from ddp_invariants.records.verdict import Cause, Failure
from ddp_invariants.situations.own_buffers import OwnBuffers


def of_buffer(view: EvidenceView, failure: Failure, step: int, rank: int, name: str) -> Failure:
    """Add the cause to a failure about a buffer at a step's start."""
    own, synchronised = set[str](), set[str]()
    for number in view.steps("forward buffers")[1:]:
        left, started = (
            view.every_rank("left buffers", number - 1),
            view.every_rank("forward buffers", number),
        )
        for buffer in left[0].by_name:
            if any(not _same(tensors, left[0], buffer) for tensors in left[1:]):
                kept = all(
                    _same(tensors, before, buffer)
                    for tensors, before in zip(started, left, strict=True)
                )
                own |= {buffer} if kept else set()
                equal = all(_same(tensors, started[0], buffer) for tensors in started[1:])
                synchronised |= {buffer} if equal else set()
    if name not in own:
        return failure
    return caused(
        failure,
        [
            Cause(
                "not synchronised",
                f"it is rank {rank}'s own value after step {step - 1}: not synchronised in forward",
                _only(view, own - synchronised, synchronised),
            )
        ],
    )


def of_move(view: EvidenceView, failure: Failure, step: int, rank: int, name: str) -> Failure:
    """Add the causes to a failure about a buffer with a value to which no forward moves it."""

    def of_all(moment: Moment, number: int = 0) -> FloatArray:
        return np.stack([tensors.by_name[name] for tensors in view.every_rank(moment, number)])

    started, world_size = view.every_rank("forward buffers", step)[rank], view.case.world_size
    held_P, dtype = (
        started.by_name[name],
        next(slot.dtype for slot in started.layout.slots if slot.name == name),
    )
    began_WP, left_WP = of_all("forward buffers", step - 1), of_all("twin buffers", step - 1)
    rounding_P = gamma(2 * world_size, ROUNDOFF.get(dtype or "", 0.0)) * np.abs(left_WP).sum(0)
    guesses = [
        (
            "broadcast",
            "it is another rank's value: the wrapper broadcasts what it was told to leave alone",
            view.case.get(OwnBuffers) is not None and _among(held_P, left_WP),
        ),
        (
            "not moved",
            (
                f"it is the value at the start of step {step - 1}: not moved, as in evaluation, or "
                "set back"
            ),
            _among(held_P, began_WP),
        ),
        (
            "reset",
            "it is a rank's initial value: reset",
            step > 1 and _among(held_P, of_all("built buffers")),
        ),
        ("zero", "it is zero", not held_P.any()),
        (
            "summed",
            "it is the sum of the values that the ranks' forwards left: summed, never divided",
            world_size > 1 and bool((np.abs(held_P - left_WP.sum(0)) <= rounding_P).all()),
        ),
        (
            "moved twice",
            "counts moved twice as far as by one forward: the forward ran twice",
            _twice(view, step, started),
        ),
    ]
    return caused(failure, [Cause(kind, words) for kind, words, fits in guesses if fits])


def of_writing(view: EvidenceView, failure: Failure, step: int, rank: int, name: str) -> Failure:
    """Add the cause to a failure about a buffer that does not hold the value the program wrote."""
    held_P = view.every_rank("forward buffers", step)[rank].by_name[name]
    left_WP = np.stack(
        [tensors.by_name[name] for tensors in view.every_rank("left buffers", step - 1)]
    )
    lost = Cause(
        "writing lost",
        f"it is the value that step {step - 1} left: the program's later write is lost",
    )
    return caused(failure, [lost] if _among(held_P, left_WP) else [])


def _twice(view: EvidenceView, step: int, started: Tensors) -> bool:
    """Return whether every count that the last forward moved is twice as far from its start.

    It is enough that this holds against the values of one rank.
    """
    counts = {slot.name for slot in started.layout.slots if slot.dtype == "int64"}
    for began, left in zip(
        view.every_rank("forward buffers", step - 1),
        view.every_rank("twin buffers", step - 1),
        strict=True,
    ):
        moved = [name for name in counts if not _same(began, left, name)]
        if moved and all(
            np.array_equal(
                started.by_name[name] - began.by_name[name],
                2 * (left.by_name[name] - began.by_name[name]),
            )
            for name in moved
        ):
            return True
    return False


def _among(held_P: FloatArray, values_WP: FloatArray) -> bool:
    return any(np.array_equal(held_P, value, equal_nan=True) for value in values_WP)


def _same(first: Tensors, second: Tensors, name: str) -> bool:
    return (
        name in first.by_name
        and name in second.by_name
        and np.array_equal(first.by_name[name], second.by_name[name], equal_nan=True)
    )


def _only(view: EvidenceView, own: set[str], synchronised: set[str]) -> str:
    """Return the common property of the unsynchronised buffers; empty if there is none."""
    dtypes = {
        row.name: row.dtype
        for row in view.evidence.ranks[0].structure_before
        if row.kind == "buffer"
    }
    if not own or not synchronised:
        return ""
    if all(name.endswith(".running") for name in own) and not any(
        name.endswith(".running") for name in synchronised
    ):
        return "only buffers that forward assigns anew: the list of buffers was made before"
    floats = {
        name for name in own | synchronised if dtypes.get(name, "").startswith(("float", "bfloat"))
    }
    return "only buffers that are not floating-point" if floats == synchronised else ""
