"""Predicted values: reordered elements, values in a lower precision, values on all ranks.

Suffixes: W ranks, K micro-steps; the dots after them stand for one parameter's shape.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.dtypes import DTYPES
from ddp_invariants.cases.formats import FloatArray

LOW = ("bfloat16", "float16", "float32")
FLOAT16_MAX = 65504
CUT_OFF = f"it is cut off at {FLOAT16_MAX}, the largest float16"


@dataclass(frozen=True)
class Prediction:
    """The values that an explanation predicts on every rank.

    Attributes:
        kind: The kind of the cause.
        held_W: The predicted values, shape (W, …).
        words: The cause in words, for a given rank.
        alternatives_W: Further values that the explanation allows, elementwise, such as those of other
            orders of summation.
        slack: The tolerance, if it differs from that of a sum of the ranks' gradients: 0 for a
            copy.
        common: True if the explanation allows no other value on any rank, not even the right value.
    """

    kind: str
    held_W: FloatArray
    words: Callable[[int], str]
    alternatives_W: tuple[FloatArray, ...] = ()
    slack: FloatArray | float | None = None
    common: bool = False

    def close(self, held_W: FloatArray, tolerance: FloatArray) -> NDArray[np.bool_]:
        """Return a mask of the elements that match the prediction. Shape (W, …)."""
        tolerance = tolerance if self.slack is None else np.asarray(self.slack)
        close = np.zeros(held_W.shape, bool)
        for predicted_W in (self.held_W, *self.alternatives_W):
            # After an overflow in a lower precision the distance to itself is not a number.
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
    """Return the prediction that all ranks hold the same value."""
    return Prediction(
        kind, np.broadcast_to(value, (world_size, *value.shape)), lambda _: words, slack=slack
    )


def copied(kind: str, value_W: FloatArray, source: int, words: str) -> Prediction:
    """Return the prediction that all ranks hold one rank's value."""
    return Prediction(
        kind, np.broadcast_to(value_W[source], value_W.shape), lambda _: words, common=True
    )


def reordered(
    value: FloatArray,
    *,
    complex: bool = False,  # noqa: A002 - torch's own word for these elements
) -> Iterator[tuple[FloatArray, str]]:
    """Yield a tensor with its elements read in one order and written in another.

    Each result comes with its order in words.
    """
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
    """Return values rounded to one of `LOW`, to the nearest, ties to even."""
    if DTYPES[dtype].in_numpy:
        return values.astype(dtype).astype(np.float64)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return kept.view(np.float32).astype(np.float64).reshape(values.shape)


def rounded_means(g_W: FloatArray, mean: FloatArray, dtype: str) -> list[FloatArray]:
    """Return the mean as rounded, or as computed, in a lower precision.

    Computed means are a sum and a division in either order, over all orders of up to four ranks.
    """
    world_size, low_W = len(g_W), lowered(g_W, dtype)
    means = [lowered(mean, dtype), low_W.mean(0)]
    for order in permutations(range(world_size)) if world_size <= 4 else ():
        summed, divided = low_W[order[0]], lowered(low_W[order[0]] / world_size, dtype)
        for rank in order[1:]:
            summed = lowered(summed + low_W[rank], dtype)
            divided = lowered(divided + lowered(low_W[rank] / world_size, dtype), dtype)
        means += [summed / world_size, lowered(summed / world_size, dtype), divided]
    return means
