"""Comparisons that name the place of a difference: bitwise between ranks, and against a ball."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.oracle.balls import Ball
from ddp_invariants.records.evidence import Slot, Tensors


@dataclass(frozen=True)
class TensorDifference:
    """A difference between two records.

    Attributes:
        name: The tensor's name; empty if the difference concerns all tensors.
        place: The place, in words.
        words: The difference, in words.
    """

    name: str
    place: str
    words: str


def parted(wanted: Tensors, actual: Tensors, owner: str) -> TensorDifference | None:
    """Return the first difference in any bit between two records; None if all bits agree.

    Args:
        wanted: The expected record.
        actual: The record to check.
        owner: The owner of the expected record, such as "rank 0 holds".
    """
    return _first(wanted, actual, owner, lambda _, bits: bits)


def apart(
    wanted: Tensors, actual: Tensors, owner: str, without: Collection[str] = ()
) -> TensorDifference | None:
    """Return the first difference as `unlike` does, but zeros of either sign are equal, too.

    A right broadcast may be a sum to which all other ranks add zero: -0 + 0 is 0.

    Args:
        wanted: The expected record.
        actual: The record to check.
        owner: The owner of the expected record, such as "rank 0 holds".
        without: The names of the tensors whose bits may differ.
    """

    def seen(slot: Slot, bits: bytes) -> bytes:
        return b"" if slot.name in without else _one_nan(slot, _unsigned_zeros(slot, bits))

    return _first(wanted, actual, owner, seen)


def unlike(wanted: Tensors, actual: Tensors, owner: str) -> TensorDifference | None:
    """Return the first difference as `parted` does, but any two NaNs are equal.

    The bits of a NaN tell nothing about a computation: they depend on the kernel that made it, and
    a sum of two NaNs has the bits of the first one. Ranks that add in turn may differ in them.
    """
    return _first(wanted, actual, owner, _one_nan)


def _one_nan(slot: Slot, bits: bytes) -> bytes:
    """Return the bits of a tensor with every NaN made the same."""
    infinite = _INFINITE.get(slot.dtype or "")
    if infinite is None or not bits:
        return bits
    width = slot.nbytes // slot.numbers
    words = np.frombuffer(bits, f"<u{width}").copy()
    magnitudes = words & ((1 << (8 * width - 1)) - 1)
    words[magnitudes > infinite] = infinite + 1
    return words.tobytes()


_INFINITE = {
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    **dict.fromkeys(("float32", "complex64"), 0x7F800000),
    **dict.fromkeys(("float64", "complex128"), 0x7FF0000000000000),
}
"""The bits of infinity by dtype; greater magnitudes are NaN."""


def _unsigned_zeros(slot: Slot, bits: bytes) -> bytes:
    """Return the bits of a tensor with every negative zero made positive."""
    floats = slot.dtype is not None and any(kind in slot.dtype for kind in ("float", "complex"))
    if not floats or not bits:
        return bits
    width = slot.nbytes // slot.numbers
    words = np.frombuffer(bits, f"<u{width}").copy()
    words[words == 1 << (8 * width - 1)] = 0
    return words.tobytes()


def _first(
    wanted: Tensors, actual: Tensors, owner: str, seen: Callable[[Slot, bytes], bytes]
) -> TensorDifference | None:
    """Return the first difference between the bits that are seen of two records."""
    if wanted.layout is actual.layout and wanted.bits == actual.bits:
        return None
    if len(wanted.layout.slots) != len(actual.layout.slots):
        return TensorDifference(
            "",
            "all tensors",
            f"{len(actual.layout.slots)} tensors, {owner} {len(wanted.layout.slots)}",
        )
    start_wanted = start_actual = 0
    for expected, got in zip(wanted.layout.slots, actual.layout.slots, strict=True):
        size_wanted, size_actual = expected.nbytes, got.nbytes
        bits_wanted, bits_actual = (
            seen(expected, wanted.bits[start_wanted : start_wanted + size_wanted]),
            seen(got, actual.bits[start_actual : start_actual + size_actual]),
        )
        start_wanted, start_actual = start_wanted + size_wanted, start_actual + size_actual
        if expected != got:
            return TensorDifference(
                expected.name, _place(expected), f"{_kind(got)}, {owner} {_kind(expected)}"
            )
        if bits_wanted != bits_actual:
            return _bit_difference(wanted, actual, expected, owner, bits_wanted, bits_actual)
    return None


def _kind(slot: Slot) -> str:
    return "none" if slot.dtype is None else f"{slot.dtype} {tuple(slot.shape)} named {slot.name!r}"


def _place(slot: Slot) -> str:
    return f"parameter {slot.name!r} {tuple(slot.shape)}"


def _bit_difference(
    wanted: Tensors, actual: Tensors, slot: Slot, owner: str, bits_wanted: bytes, bits_actual: bytes
) -> TensorDifference:
    width = slot.nbytes // slot.numbers
    differs = (
        (np.frombuffer(bits_wanted, np.uint8) != np.frombuffer(bits_actual, np.uint8))
        .reshape(-1, width)
        .any(1)
    )
    first = int(np.argmax(differs))
    got, expected = _exactly(
        slot,
        [bits[first * width : (first + 1) * width] for bits in (bits_actual, bits_wanted)],
        [float(each.by_name[slot.name].ravel()[first]) for each in (actual, wanted)],
    )
    return TensorDifference(
        slot.name,
        _place(slot),
        f"{got} at {slot.place(first)}, {owner} {expected}; "
        f"{int(differs.sum())} of {differs.size} {_counted(slot)} differ",
    )


def _exactly(slot: Slot, bits: list[bytes], values: list[float]) -> list[str]:
    """Return two numbers as text: integers with all digits, which float64 does not always have."""
    if slot.dtype is not None and "int" in slot.dtype:
        return [str(int(np.frombuffer(each, slot.dtype)[0])) for each in bits]
    return numbers(*values)


def _counted(slot: Slot) -> str:
    """Return the word for the numbers that are compared: parts of complex numbers, or elements."""
    return "parts" if slot.complex else "elements"


def number(value: float) -> str:
    """Return a float as the shortest text that differs from the texts of its neighbours."""
    return format(float(value), ".9g")


def numbers(*values: float) -> list[str]:
    """Return floats as texts: of 9 digits, or of 17 if two floats differ and their texts do not."""
    texts = [number(value) for value in values]
    if len(set(texts)) == len({float(value) for value in values}):
        return texts
    return [format(float(value), ".17g") for value in values]


def outside(
    tensors: Tensors, values_P: FloatArray, ball: Ball, tally: Tally
) -> TensorDifference | None:
    """Return the first place where values lie outside a ball.

    Args:
        tensors: The record whose layout names the P elements.
        values_P: The values, in that layout.
        ball: The ball. Elements with an infinite radius are not compared.
        tally: Counts the comparisons, and keeps the largest error in units of its bound.

    Returns:
        The first difference; None if all values lie inside.
    """
    known = np.isfinite(ball.radius)
    tally.compared += int(known.sum())
    error = np.abs(values_P - ball.centre)
    # A value that is not finite lies outside any finite radius. `~(error <= radius)` is also true
    # for NaN.
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
    got, expected = numbers(values_P[first], ball.centre[first])
    words = (
        f"{got} at {place}, expected {expected}; "
        f"{int(wrong[inside].sum())} of {slot.numbers} {_counted(slot)} differ by up to "
        f"{largest:.2g} ({allowed:.2g} "
        f"allowed{', since this arithmetic is exact' if allowed == 0 else ''})"
    )
    return TensorDifference(slot.name, _place(slot), words)
