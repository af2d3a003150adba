"""What explanations predict: orders read from memory, roundings to a lower precision, reductions by another operation.

Suffixes: W ranks, K micro-steps; the dots after them stand for one parameter's shape.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import FloatArray

LOW = ("bfloat16", "float16", "float32")
FLOAT16_MAX = 65504
CUT_OFF = f"it is cut off at {FLOAT16_MAX}, the largest float16"


@dataclass(frozen=True)
class Prediction:
    """What an explanation says every rank holds.

    Attributes:
        kind: Of the cause.
        held_W: Shape (W, …).
        words: The cause in words, given the rank that is told about.
        others_W: Further values it allows, elementwise, such as those of other orders of summation.
        slack: What it may be off by, where that is not what a sum of the ranks' gradients may be: 0
            for a copy.
        common: Whether no rank can hold anything else, not even the right value.
    """

    kind: str
    held_W: FloatArray
    words: Callable[[int], str]
    others_W: tuple[FloatArray, ...] = ()
    slack: FloatArray | float | None = None
    common: bool = False

    def close(self, held_W: FloatArray, tolerance: FloatArray) -> NDArray[np.bool_]:
        """Which elements it predicts. Shape (W, …)."""
        tolerance = tolerance if self.slack is None else np.asarray(self.slack)
        close = np.zeros(held_W.shape, bool)
        for predicted_W in (self.held_W, *self.others_W):
            # What a lower precision overflows to has no distance, not even to itself.
            close |= (np.abs(held_W - predicted_W) <= tolerance) | np.isclose(
                held_W, predicted_W, 0, 0, equal_nan=True
            )
        return close


def everywhere(
    kind: str,
    value: FloatArray,
    world_size: int,
    words: str,
    slack: FloatArray | float | None = None,
) -> Prediction:
    """The same value on all ranks."""
    return Prediction(
        kind, np.broadcast_to(value, (world_size, *value.shape)), lambda _: words, slack=slack
    )


def copied(kind: str, value_W: FloatArray, source: int, words: str) -> Prediction:
    """One rank's value on all ranks."""
    return Prediction(
        kind, np.broadcast_to(value_W[source], value_W.shape), lambda _: words, common=True
    )


def reordered(value: FloatArray, *, complex: bool = False) -> Iterator[tuple[FloatArray, str]]:  # noqa: A002 - what they are
    """A tensor whose elements were read in one order and written in another."""
    shape = value.shape
    if complex:
        yield value[..., ::-1], "real and imaginary parts swapped"
        apart, order = (
            (2, *shape[:-1]),
            "in the order of all real parts and then all imaginary ones",
        )
        yield np.moveaxis(value, -1, 0).reshape(shape), order
        yield np.moveaxis(value.reshape(apart), 0, -1), order
        return
    if len(shape) == 2 and min(shape) > 1:
        yield value.T.reshape(shape), "in transposed order"
        yield value.reshape(shape[::-1]).T, "in transposed order"
    if len(shape) == 4:
        yield value.transpose(0, 2, 3, 1).reshape(shape), "in channels_last order"
        stored = (shape[0], shape[2], shape[3], shape[1])
        yield value.reshape(stored).transpose(0, 3, 1, 2), "in channels_last order"


def lowered(values: FloatArray, dtype: str) -> FloatArray:
    """Values rounded to one of `LOW`, to the nearest, ties to even."""
    if dtype != "bfloat16":  # Which numpy does not have.
        return values.astype(dtype).astype(np.float64)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return kept.view(np.float32).astype(np.float64).reshape(values.shape)


def rounded_means(g_W: FloatArray, mean: FloatArray, dtype: str) -> list[FloatArray]:
    """What the mean comes to if it is rounded, or computed, in a lower precision: by sum and division in either order."""
    world_size, low_W = len(g_W), lowered(g_W, dtype)
    found = [lowered(mean, dtype), low_W.mean(0)]
    for order in permutations(range(world_size)) if world_size <= 4 else ():
        summed, divided = low_W[order[0]], lowered(low_W[order[0]] / world_size, dtype)
        for rank in order[1:]:
            summed = lowered(summed + low_W[rank], dtype)
            divided = lowered(divided + lowered(low_W[rank] / world_size, dtype), dtype)
        found += [summed / world_size, lowered(summed / world_size, dtype), divided]
    return found
