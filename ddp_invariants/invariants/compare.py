"""Comparisons that say where things part: bitwise between ranks, and against a ball."""

from dataclasses import dataclass

import numpy as np

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.oracle.balls import Ball
from ddp_invariants.records.evidence import Slot, Tensors


@dataclass(frozen=True)
class Difference:
    """Where two things part: the tensor's name (empty for all of them), the place and the difference in words."""

    name: str
    place: str
    words: str


def parted(one: Tensors, other: Tensors, what: str) -> Difference | None:
    """Where two records differ in any bit.

    Args:
        one: What was expected.
        other: What was got.
        what: Whose the expected one is, such as "rank 0 holds".

    Returns:
        The first difference; None when all bits agree.
    """
    if one.layout is other.layout and one.bits == other.bits:
        return None
    if len(one.layout.slots) != len(other.layout.slots):
        return Difference(
            "", "all tensors", f"{len(other.layout.slots)} tensors, {what} {len(one.layout.slots)}"
        )
    start_one = start_other = 0
    for expected, got in zip(one.layout.slots, other.layout.slots, strict=True):
        size_one, size_other = expected.nbytes, got.nbytes
        bits_one, bits_other = (
            one.bits[start_one : start_one + size_one],
            other.bits[start_other : start_other + size_other],
        )
        start_one, start_other = start_one + size_one, start_other + size_other
        if expected != got:
            return Difference(
                expected.name, _place(expected), f"{_kind(got)}, {what} {_kind(expected)}"
            )
        if bits_one != bits_other:
            return _bit_difference(one, other, expected, what, bits_one, bits_other)
    return None


def _kind(slot: Slot) -> str:
    return "none" if slot.dtype is None else f"{slot.dtype} {tuple(slot.shape)} named {slot.name!r}"


def _place(slot: Slot) -> str:
    return f"parameter {slot.name!r} {tuple(slot.shape)}"


def _bit_difference(
    one: Tensors, other: Tensors, slot: Slot, what: str, bits_one: bytes, bits_other: bytes
) -> Difference:
    width = slot.nbytes // slot.numbers
    differs = (
        (np.frombuffer(bits_one, np.uint8) != np.frombuffer(bits_other, np.uint8))
        .reshape(-1, width)
        .any(1)
    )
    first = int(np.argmax(differs))
    expected, got = one.by_name[slot.name].ravel(), other.by_name[slot.name].ravel()
    return Difference(
        slot.name,
        _place(slot),
        f"{number(got[first])} at {slot.place(first)}, {what} "
        f"{number(expected[first])}; {int(differs.sum())} of {differs.size} {_counted(slot)} differ",
    )


def _counted(slot: Slot) -> str:
    """What is compared one by one."""
    return "parts" if slot.complex else "elements"


def number(value: float) -> str:
    """A float as the shortest text that tells it from its neighbours."""
    return format(float(value), ".9g")


def outside(tensors: Tensors, values_P: FloatArray, ball: Ball, tally: Tally) -> Difference | None:
    """Where values leave a ball.

    Args:
        tensors: The record whose layout names the P elements.
        values_P: The values, in that layout.
        ball: What they must lie in. Elements with an infinite radius are not compared.
        tally: Counts what was compared, and the largest error in units of its bound.

    Returns:
        The first difference; None when all lie inside.
    """
    known = np.isfinite(ball.radius)
    tally.compared += int(known.sum())
    error = np.abs(values_P - ball.centre)
    # A value that is not finite is outside any finite radius; written so that NaN counts.
    wrong = known & ~(error <= ball.radius)
    bounded = known & ~wrong & (ball.radius > 0)
    if bounded.any():
        tally.worst = max(tally.worst, float((error[bounded] / ball.radius[bounded]).max()))
    if not wrong.any():
        return None
    first = int(np.argmax(wrong))
    slot, place = tensors.layout.locate(first)
    start = tensors.layout.starts[tensors.layout.slots.index(slot)]
    inside = slice(start, start + slot.numbers)
    largest = float(np.max(error[inside], where=wrong[inside], initial=0.0))
    allowed = float(ball.radius[first])
    words = (
        f"{number(values_P[first])} at {place}, expected {number(ball.centre[first])}; "
        f"{int(wrong[inside].sum())} of {slot.numbers} {_counted(slot)} differ, at most {largest:.2g} "
        f"({allowed:.2g} allowed{', since this arithmetic is exact' if allowed == 0 else ''})"
    )
    return Difference(slot.name, _place(slot), words)
