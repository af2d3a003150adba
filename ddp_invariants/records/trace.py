"""A rank's collectives as plain rows, recorded where they are issued, for ranks and controller.

Standard library only: both sides import this module.
"""

import contextlib
import hashlib
import mmap
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Self

POINT_TO_POINT = ("send", "recv", "recv_anysource")
"""Calls that differ between ranks by their nature."""

UNEVEN = ("alltoall", "alltoall_base", "all_to_all_single", "allgather", "reduce_scatter")
"""Collectives in which ranks may have tensors of different sizes."""

_USER_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
}
"""The users' names of the methods of torch's process groups."""


class Call(NamedTuple):
    """One collective of one rank.

    Attributes:
        kind: The process group's method.
        dtype: Of the first tensor; empty if there is none.
        elements: Of the first tensor.
        operation: The reduce operation, or the source rank.
        asynchronous: True if the caller asked for a work object to wait for.
        site: File and line of the implementation; `torch` if torch's own code issued it.
        launched: The time of issue, in seconds since the case began.
        waited: The time when somebody first waited for it, or took its future; None if nobody did.
        aside: True if a thread other than the main one issued it.
        gaps: True if the elements of the first tensor are not next to one another in memory. gloo
            sends and writes as many elements that are.
    """

    kind: str
    dtype: str
    elements: int
    operation: str
    asynchronous: bool = False
    site: str = ""
    launched: float = 0.0
    waited: float | None = None
    aside: bool = False
    gaps: bool = False

    @property
    def agreed(self) -> tuple[str, str, int, str]:
        """The fields that must be the same on all ranks."""
        return agreed(*self[:4])

    def described(self, number: int = 0) -> str:
        """Return the call in the user's words, with its number if one is given."""
        name = _USER_NAMES.get(self.kind, self.kind) + (f" #{number}" if number else "")
        tensor = " ".join(
            part
            for part in (
                f"{self.dtype} x {self.elements}" if self.dtype else "",
                self.operation,
                "of a view with gaps, which gloo ignores" if self.gaps else "",
            )
            if part
        )
        return f"{name} ({tensor})" if tensor else name

    @property
    def at(self) -> str:
        """The call and the place where it was issued."""
        return f"{self.described()} at {self.site}" if self.site else self.described()


ASYNCHRONOUS, WAITED, GAPS = map(Call._fields.index, ("asynchronous", "waited", "gaps"))


def agreed(kind: str, dtype: str, elements: int, operation: str) -> tuple[str, str, int, str]:
    """Return the fields of a call that must be the same on all ranks."""
    return kind, dtype, -1 if kind in UNEVEN else elements, operation


def label(members: Sequence[int], occurrence: int) -> str:
    """Return a group's name that all its ranks compute alike.

    It depends on the group's ranks, and on the number of earlier groups of the same ranks.
    """
    return hashlib.blake2b(f"{sorted(members)}/{occurrence}".encode(), digest_size=4).hexdigest()


class CallDifference(NamedTuple):
    """The first call in which two ranks' sequences differ: its number from 1, and both calls.

    A call is None past the end of a sequence.
    """

    number: int
    first: Call | None
    second: Call | None


def difference(
    first: Sequence[Call], second: Sequence[Call], *, so_far: bool = False
) -> CallDifference | None:
    """Return the first difference between two sequences of collectives.

    Args:
        first: A rank's collectives.
        second: Another rank's.
        so_far: True if the sequences are cut off: then a shorter one is no difference.
    """
    for number, (left, right) in enumerate(zip_longest(first, second), start=1):
        if left is None or right is None:
            return None if so_far else CallDifference(number, left, right)
        if left.agreed != right.agreed:
            return CallDifference(number, left, right)
    return None


def collectives(calls: Iterable[Call]) -> list[Call]:
    """Return the calls without point-to-point calls."""
    return [call for call in calls if call.kind not in POINT_TO_POINT]


ENDLESS = "code that does not end"
"""The words for a rank that runs on past every deadline."""
_HEAD = struct.Struct("<qqq")
_SLOT = 192
_SLOTS = 64
WORDS_SIZE = _HEAD.size + _SLOT * _SLOTS
"""Bytes of shared memory that a rank's last words take."""


class LastCalls(NamedTuple):
    """The collectives that a silent rank is known to have issued.

    Attributes:
        issued: The number of collectives.
        waiting: The number, from 1, of the collective it waits for; 0 if it waits for none.
        calls: The last calls: (number from 1, the group's `label`, call).
    """

    issued: int
    waiting: int
    calls: tuple[tuple[int, str, Call], ...]

    def by_group(self) -> dict[str, list[Call]]:
        """Return each group's calls from its first on; empty if the first is no longer known."""
        calls: dict[str, list[Call]] = {}
        for _, group, call in self.calls if self.issued <= len(self.calls) else ():
            calls.setdefault(group, []).append(call)
        return calls

    def call(self, number: int) -> Call | None:
        """Return a call by its number, if it is still known."""
        return next((call for known, _, call in self.calls if known == number), None)


class LastWords:
    """A rank's latest collectives in memory that it shares with the controller.

    The controller can read them when the rank cannot answer. The memory is a ring of the last
    calls. It is written at every call and wait, in about a microsecond; nothing waits for a reader.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, WORDS_SIZE)
        self._case = self._issued = self._waiting = 0
        self._lock = threading.Lock()

    @classmethod
    def alone(cls) -> Self:
        """Return the last words of a rank in this process, in memory of their own."""
        descriptor = os.memfd_create("words")
        try:
            os.ftruncate(descriptor, WORDS_SIZE)
            return cls(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()

    # The rank's side.

    def begin(self, case: int) -> None:
        """Start a case."""
        self._case, self._issued, self._waiting = case, 0, 0
        self._say()

    def issue(self, group: str, row: list[Any]) -> int:
        """Record that a collective is issued, and return its number in the case, from 1."""
        text = f"{group}\t{row[0]}\t{row[1]}\t{row[2]}\t{row[3]}\t{row[5]}\n".encode()[-_SLOT:]
        with self._lock:
            start = _HEAD.size + self._issued % _SLOTS * _SLOT
            self._memory[start : start + len(text)] = text
            self._issued += 1
            self._say()
            return self._issued

    @contextlib.contextmanager
    def waiting(self, number: int) -> Iterator[None]:
        """Record that the rank waits for a collective, by number.

        If several threads wait, the last one to begin is recorded.
        """
        self._waiting = number
        self._say()
        try:
            yield
        finally:
            if self._waiting == number:
                self._waiting = 0
                self._say()

    def _say(self) -> None:
        _HEAD.pack_into(self._memory, 0, self._case, self._issued, self._waiting)

    # The controller's side.

    def issued(self, case: int) -> int:
        """Return the number of collectives issued in a case; 0 if the rank did not reach it."""
        recorded_case, issued, _ = _HEAD.unpack_from(self._memory, 0)
        return int(issued) if recorded_case == case else 0

    def read(self, case: int) -> LastCalls | None:
        """Return the collectives issued in a case.

        The result is None if the rank did not reach the case, or if the memory makes no sense.
        """
        recorded_case, issued, waiting = _HEAD.unpack_from(self._memory, 0)
        if recorded_case != case or issued < 0:
            return None
        calls = []
        for number in range(max(0, issued - _SLOTS), issued):
            start = _HEAD.size + number % _SLOTS * _SLOT
            line, _, _ = self._memory[start : start + _SLOT].partition(b"\n")
            try:
                group, kind, dtype, elements, operation, site = line.decode(errors="replace").split(
                    "\t"
                )
                calls.append(
                    (number + 1, group, Call(kind, dtype, int(elements), operation, site=site))
                )
            except ValueError:  # An implementation wrote here, or the call's name was too long.
                return None
        return LastCalls(issued, waiting, tuple(calls))
