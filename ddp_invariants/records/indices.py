"""The indices of a shard in compact form: on the wire, and as the rules read them.

A shard of a few indices is a plain list. A longer one travels as text of its bytes and is read as
an array, because a million Python integers take ten times as long.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from ddp_invariants.errors import EvidenceError

LONG = 256
"""The most indices that stay a plain list."""
_NAME = "indices"
_LIMITS = np.iinfo(np.int64)


class Indices(Sequence[int]):
    """A long sequence of indices, equal to any other sequence of the same indices."""

    def __init__(self, array: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        """Return one index, or a list of several."""
        got: int | list[int] = self.array[place].tolist()
        return got

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Indices):
            return np.array_equal(self.array, other.array)
        return isinstance(other, list) and self[:] == other

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __add__(self, other: Iterable[int]) -> list[int]:
        """Return a list of these indices and others."""
        return [*self, *other]

    def __radd__(self, other: Iterable[int]) -> list[int]:
        """Return a list of others and these indices."""
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(self[:LONG])[:-1] + ", …]"


def array_of(shard: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return indices as an array; an integer beyond 64 bits becomes the largest or smallest one."""
    if isinstance(shard, Indices):
        return shard.array
    try:
        return np.array(shard, dtype=np.int64)
    except OverflowError:
        low, high = int(_LIMITS.min), int(_LIMITS.max)
        return np.array([min(max(index, low), high) for index in shard], dtype=np.int64)


def packed(answer: Any) -> Any:
    """Return an answer with all long lists of integers as text."""
    if isinstance(answer, dict):
        return {name: packed(value) for name, value in answer.items()}
    if isinstance(answer, Indices):
        return _text(answer.array)
    if not isinstance(answer, list):
        return answer
    if len(answer) <= LONG or not all(type(each) is int for each in answer):
        return [packed(each) for each in answer] if _nested(answer) else answer
    try:
        return _text(np.array(answer, dtype=np.int64))
    except OverflowError:
        return answer


def _text(array: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, str]:
    return {_NAME: base64.b64encode(array.astype("<i8").tobytes()).decode("ascii")}


def _nested(answer: list[Any]) -> bool:
    return any(isinstance(each, list | dict | Indices) for each in answer)


def unpacked(answer: Any) -> Any:
    """Return an answer with its long lists as `Indices`.

    Raises:
        EvidenceError: The text of a list is malformed.
    """
    if isinstance(answer, dict):
        if answer.keys() == {_NAME}:
            return _read(answer[_NAME])
        return {name: unpacked(value) for name, value in answer.items()}
    if isinstance(answer, list) and _nested(answer):
        return [unpacked(each) for each in answer]
    return answer


def _read(text: object) -> Indices:
    try:
        raw = base64.b64decode(str(text), validate=True)
        return Indices(np.frombuffer(raw, dtype="<i8").astype(np.int64, copy=False))
    except (binascii.Error, ValueError) as error:
        raise EvidenceError(f"a rank sent indices that cannot be read: {error}") from error
