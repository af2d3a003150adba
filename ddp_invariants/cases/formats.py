"""The number formats of a case: item sizes, unit roundoffs, smallest and largest numbers."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


ITEM_SIZE = {
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


PARTS = {"complex64": "float32", "complex128": "float64"}
"""The dtype of a complex number's real and imaginary part.

Except for bytes and shapes, each part counts as a separate number.
"""


ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The unit roundoff u of each dtype that gradients may have; a complex dtype uses its parts'."""


SMALLEST_NORMAL = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
}


LARGEST = {
    "float64": float(np.finfo(np.float64).max),
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float((2 - 2.0**-7) * 2.0**127),
}
