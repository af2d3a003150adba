"""The number formats of a case, as numpy and the bounds need them: columns of `dtypes.DTYPES`."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.dtypes import DTYPES

FloatArray = NDArray[np.float64]


ITEM_SIZE = {name: row.bytes for name, row in DTYPES.items()}
"""Bytes of an element of each dtype."""


PARTS = {name: row.part for name, row in DTYPES.items() if row.part}
"""The dtype of a complex number's real and imaginary part.

Except for bytes and shapes, each part counts as a separate number.
"""


_ROUNDING = {name: row for name, row in DTYPES.items() if row.roundoff}


ROUNDOFF = {name: row.roundoff for name, row in _ROUNDING.items()}
"""The unit roundoff u of each dtype that gradients may have; a complex dtype uses its parts'."""


SMALLEST = {name: row.smallest for name, row in _ROUNDING.items()}
"""The smallest number of each dtype that arithmetic surely keeps."""


LARGEST = {name: row.largest for name, row in _ROUNDING.items()}
"""The largest number of each dtype."""


def coarsest(dtypes: Iterable[str]) -> float:
    """Return the largest unit roundoff of some dtypes, and at least that of float32."""
    return max(ROUNDOFF.get(dtype, 0.0) for dtype in ("float32", *dtypes))
