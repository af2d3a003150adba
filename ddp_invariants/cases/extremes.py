"""The numbers in the buffers of an `extremes` layer: few formats beside their own hold them.

Each number is far enough from its format's limit for a sum over `cases.case.LARGEST_WORLD_SIZE`
ranks. int8 and uint8 have no room for that, and float32 has its largest numbers, as in the masks of
many models.

Suffix: N numbers of a buffer.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.numbers import FloatArray


def _whole(drawn_N: FloatArray) -> NDArray[np.int64]:
    """Return drawn numbers in units of 2**-12, all of them whole."""
    return np.trunc(drawn_N * 4096).astype(np.int64)


def _limits(drawn_N: FloatArray) -> NDArray[np.float32]:
    """Return a zero with a sign, a subnormal number, and one of the two largest numbers."""
    floats = _floats(drawn_N, -149, 0).astype(np.float32)
    floats[2] = np.copysign(np.finfo(np.float32).max, floats[2])
    return floats


def _floats(drawn_N: FloatArray, log2_least: int, log2_large: int) -> FloatArray:
    """Return a zero with a sign, a subnormal number, and a large number."""
    sign, small, large = drawn_N
    return np.array(
        [np.copysign(0.0, sign), _whole(small) * 2.0**log2_least, large * 2.0**log2_large]
    )


EXTREMES: dict[str, Callable[[FloatArray], NDArray[Any]]] = {
    # An odd number of up to 58 bits: a float64 has 53.
    "total": lambda drawn_N: _whole(drawn_N) * (2**45 + 2) + 1,
    # An odd number of up to 27 bits: a float32 has 24.
    "steps": lambda drawn_N: (_whole(drawn_N) * 2**13 + 1).astype(np.int32),
    "level": lambda drawn_N: (drawn_N * 60).astype(np.int8),
    "code": lambda drawn_N: (drawn_N * 60 + 128).astype(np.uint8),
    "mask": lambda drawn_N: drawn_N > 0,
    "edges": _limits,
    "far": lambda drawn_N: _floats(drawn_N, -1074, 1016),
}
"""The values of each buffer, from the numbers that a case draws for it."""
