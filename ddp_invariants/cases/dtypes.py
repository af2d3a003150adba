"""The dtypes of tensors: one row each, with all that cases, bounds and records must know of a dtype.

Standard library only: the rank side imports this module under any interpreter.
"""

import sys
from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "float64", "bfloat16", "float16", "complex64", "complex128"]
"""The dtypes that a layer's parameters may have."""


@dataclass(frozen=True)
class Row:
    """The facts about a dtype.

    Attributes:
        bytes: Bytes of an element.
        roundoff: The unit roundoff; 0 for an integer dtype. For a complex dtype this and the next
            two are those of its parts.
        smallest: The smallest number that arithmetic surely keeps; smaller ones may become zero.
        largest: The largest number.
        part: The dtype of a complex number's real and imaginary part; "" for a real dtype.
        in_numpy: True if numpy has the dtype. If not, its bits are the upper half of a float32.
        low: True if layers of low precision have it, beside others. Implementations claim each such
            dtype as a capability of the dtype's name.
        lowered: True if autocast to bfloat16 casts the operands of products from it.
        scaled: True if torch's loss scaler unscales gradients of it.
        fused: True if torch's fused kernels update parameters of it. The kernel of SGD loses every
            whole vector of bfloat16 (16 elements).
    """

    bytes: int
    roundoff: float = 0.0
    smallest: float = 0.0
    largest: float = 0.0
    part: str = ""
    in_numpy: bool = True
    low: bool = False
    lowered: bool = False
    scaled: bool = False
    fused: bool = False


_FLOAT32 = Row(
    4, 2.0**-24, 2.0**-126, (2 - 2.0**-23) * 2.0**127, lowered=True, scaled=True, fused=True
)
_FLOAT64 = Row(8, 2.0**-53, 2.0**-1022, sys.float_info.max, scaled=True, fused=True)

DTYPES: dict[str, Row] = {
    "float32": _FLOAT32,
    "float64": _FLOAT64,
    "bfloat16": Row(
        2, 2.0**-8, 2.0**-126, (2 - 2.0**-7) * 2.0**127, in_numpy=False, low=True, scaled=True
    ),
    # Arithmetic keeps the numbers of float16 below 2**-14, which float32 holds as normal numbers.
    "float16": Row(2, 2.0**-11, 2.0**-24, 65504.0, low=True, lowered=True),
    "int64": Row(8),
    "int32": Row(4),
    "int16": Row(2),
    "int8": Row(1),
    "uint8": Row(1),
    "bool": Row(1),
    "complex64": Row(8, _FLOAT32.roundoff, _FLOAT32.smallest, _FLOAT32.largest, "float32"),
    "complex128": Row(16, _FLOAT64.roundoff, _FLOAT64.smallest, _FLOAT64.largest, "float64"),
}
"""The dtypes that evidence may have, by torch's names."""

LOW_PRECISION: tuple[Dtype, ...] = tuple(name for name, row in DTYPES.items() if row.low)  # type: ignore[misc]  # tests insist
"""The dtypes of layers of low precision, the first of them the most common."""
