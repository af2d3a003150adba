"""Recorded tensors: their layout, their bits and the numbers that these represent.

Suffix: P elements of all tensors of a record laid end to end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.dtypes import DTYPES
from ddp_invariants.cases.formats import (
    ITEM_SIZE,
    PARTS,
    ROUNDOFF,
    SMALLEST,
    FloatArray,
)


@dataclass(frozen=True)
class Slot:
    """One tensor of a record: its name, dtype and shape; dtype None if there was no tensor."""

    name: str
    dtype: str | None
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements; 0 if there was no tensor."""
        return 0 if self.dtype is None else prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; 0 if there was none."""
        return 0 if self.dtype is None else self.elements * ITEM_SIZE[self.dtype]

    @property
    def complex(self) -> bool:
        """True if its elements are complex."""
        return self.dtype in PARTS

    @property
    def numbers(self) -> int:
        """Count of real numbers: one for each element, or two if they are complex."""
        return self.elements * (1 + self.complex)

    @property
    def shape_of_numbers(self) -> tuple[int, ...]:
        """The tensor's shape, with a last dimension for complex parts as in torch.view_as_real."""
        return (*self.shape, 2) if self.complex else self.shape

    def place(self, number: int) -> str:
        """Return the position of a number: its element's index, and its part if complex."""
        element, part = divmod(number, 1 + self.complex)
        index = tuple(int(i) for i in np.unravel_index(element, self.shape))
        return f"{index}{('.real', '.imag')[part] if self.complex else ''}"


@dataclass(frozen=True, eq=False)
class Layout:
    """The tensors of a record, end to end.

    All equal layouts of a case are one object, so that `is` compares them.
    """

    slots: tuple[Slot, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each slot among the record's P elements; a complex number counts as two."""
        return tuple(slot.numbers for slot in self.slots)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Index of each slot's first element in the record's P elements; the total at the end."""
        return tuple(np.concatenate([[0], np.cumsum(self.sizes)]).astype(int).tolist())

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the record."""
        return sum(slot.nbytes for slot in self.slots)

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """The dtypes of the tensors that exist."""
        return frozenset(slot.dtype for slot in self.slots if slot.dtype is not None)

    def per_element(self, table: Mapping[str, float]) -> FloatArray:
        """Return a per-dtype constant for each element. Shape (P,)."""
        return np.repeat([table.get(slot.dtype or "", np.nan) for slot in self.slots], self.sizes)

    @cached_property
    def roundoff_P(self) -> FloatArray:
        """Unit roundoff of each element's dtype. Shape (P,)."""
        return self.per_element(ROUNDOFF)

    @cached_property
    def smallest_P(self) -> FloatArray:
        """Smallest number that each element's dtype surely keeps. Shape (P,)."""
        return self.per_element(SMALLEST)

    @cached_property
    def complex_P(self) -> NDArray[np.bool_]:
        """True for elements that are parts of complex numbers. Shape (P,)."""
        return np.repeat([slot.complex for slot in self.slots], self.sizes)

    def locate(self, element: int) -> tuple[Slot, str]:
        """Return the slot of one of the P elements, and the element's position in its tensor."""
        slot_number = int(np.searchsorted(self.starts, element, side="right")) - 1
        slot = self.slots[slot_number]
        return slot, slot.place(element - self.starts[slot_number])


@dataclass(frozen=True)
class Tensors:
    """The bits of some named tensors at one moment.

    Equality is bitwise. Equal layouts are one object.
    """

    layout: Layout
    bits: bytes

    @cached_property
    def values_P(self) -> FloatArray:
        """All elements as float64, complex ones as their parts. Shape (P,).

        float64 is exact for every dtype up to 53 bits.
        """
        if len(self.layout.dtypes) == 1:
            return _as_float64(self.bits, next(iter(self.layout.dtypes)))
        pieces, start = [np.empty(0)], 0
        for slot in self.layout.slots:
            if slot.dtype is not None:
                end = start + slot.nbytes
                pieces.append(_as_float64(self.bits[start:end], slot.dtype))
                start = end
        return np.concatenate(pieces)

    @cached_property
    def by_name(self) -> dict[str, FloatArray]:
        """Each existing tensor in its shape, with a last dimension for complex parts."""
        starts = self.layout.starts
        return {
            slot.name: self.values_P[starts[i] : starts[i + 1]].reshape(slot.shape_of_numbers)
            for i, slot in enumerate(self.layout.slots)
            if slot.dtype is not None
        }


def _as_float64(bits: bytes, dtype: str) -> FloatArray:
    if not DTYPES[dtype].in_numpy:
        return (
            (np.frombuffer(bits, np.uint16).astype(np.uint32) << np.uint32(16))
            .view(np.float32)
            .astype(np.float64)
        )
    # Signalling NaNs warn when cast. They are wanted here.
    with np.errstate(invalid="ignore"):
        return np.frombuffer(bits, np.dtype(PARTS.get(dtype, dtype))).astype(np.float64)
