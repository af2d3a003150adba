"""A rank's collectives, as noted where they are issued: plain rows, the same for ranks and controller.

Standard library only: both sides import this module.
"""

import contextlib
import hashlib
import mmap
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

POINT_TO_POINT = ("send", "recv", "recv_anysource")
"""Calls that differ between ranks by their nature."""

UNEVEN = ("alltoall", "alltoall_base", "all_to_all_single", "allgather", "reduce_scatter")
"""Collectives in which ranks may have tensors of different sizes."""

_SPOKEN = {
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
"""What users call the methods that torch's process groups have."""


class Call(NamedTuple):
    """One collective of one rank.

    Attributes:
        kind: The process group's method.
        dtype: Of the first tensor; empty where there is none.
        elements: Of the first tensor.
        operation: The reduce operation, or the source rank.
        asynchronous: Whether the caller asked for something to wait for.
        site: File and line of the implementation; `torch` where its own code issued it.
        launched: When, in seconds since the case began.
        waited: When somebody first waited for it, or took its future; None when nobody did.
        aside: Whether a thread other than the main one issued it.
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

    @property
    def agreed(self) -> tuple[str, str, int, str]:
        """What must be the same on all ranks."""
        return agreed(*self[:4])

    def told(self, number: int = 0) -> str:
        """As a user would call it, with its number where one is given."""
        name = _SPOKEN.get(self.kind, self.kind) + (f" #{number}" if number else "")
        what = " ".join(
            part
            for part in (f"{self.dtype} x {self.elements}" if self.dtype else "", self.operation)
            if part
        )
        return f"{name} ({what})" if what else name

    @property
    def at(self) -> str:
        """It, and where it was issued."""
        return f"{self.told()} at {self.site}" if self.site else self.told()


ASYNCHRONOUS, WAITED = Call._fields.index("asynchronous"), Call._fields.index("waited")


def agreed(kind: str, dtype: str, elements: int, operation: str) -> tuple[str, str, int, str]:
    """What all ranks must issue alike of a call."""
    return kind, dtype, -1 if kind in UNEVEN else elements, operation


def label(members: Sequence[int], occurrence: int) -> str:
    """A group's name that all its ranks know: who is in it, and how many of the same ranks were made before it."""
    return hashlib.blake2b(f"{sorted(members)}/{occurrence}".encode(), digest_size=4).hexdigest()


class Difference(NamedTuple):
    """The first call in which two ranks' sequences differ: its number from 1, and each rank's call, None past the end."""

    number: int
    one: Call | None
    other: Call | None


def difference(
    one: Sequence[Call], other: Sequence[Call], *, so_far: bool = False
) -> Difference | None:
    """Where two sequences of collectives part.

    Args:
        one: A rank's.
        other: Another's.
        so_far: The sequences are cut off: that one is shorter is no difference.
    """
    for number, (left, right) in enumerate(zip_longest(one, other), start=1):
        if left is None or right is None:
            return None if so_far else Difference(number, left, right)
        if left.agreed != right.agreed:
            return Difference(number, left, right)
    return None


def collectives(calls: Iterable[Call]) -> list[Call]:
    """Without point-to-point calls."""
    return [call for call in calls if call.kind not in POINT_TO_POINT]


_HEAD = struct.Struct("<qqq")
_SLOT = 192
_SLOTS = 64
WORDS_SIZE = _HEAD.size + _SLOT * _SLOTS
"""Bytes of shared memory a rank's last words take."""


class LastCalls(NamedTuple):
    """What a rank that gave no answer is known to have issued.

    Attributes:
        issued: How many collectives.
        waiting: The number, from 1, of the one it waits for; 0 when it waits for none.
        calls: The last ones: (number from 1, the group's `label`, call).
    """

    issued: int
    waiting: int
    calls: tuple[tuple[int, str, Call], ...]

    def by_group(self) -> dict[str, list[Call]]:
        """Each group's calls from its first on; nothing where the first is no longer known."""
        found: dict[str, list[Call]] = {}
        for _, group, call in self.calls if self.issued <= len(self.calls) else ():
            found.setdefault(group, []).append(call)
        return found

    def call(self, number: int) -> Call | None:
        """A call by its number, where it is still known."""
        return next((call for known, _, call in self.calls if known == number), None)


class LastWords:
    """A rank's latest collectives in memory shared with the controller, which can read them when the rank cannot speak.

    A ring of the last calls. Written at every call and wait, in about a microsecond; nothing waits
    for a reader.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, WORDS_SIZE)
        self._case = self._issued = self._waiting = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """Unmap it."""
        self._memory.close()

    # The rank's side.

    def begin(self, case: int) -> None:
        """A case starts."""
        self._case, self._issued, self._waiting = case, 0, 0
        self._say()

    def issue(self, group: str, row: list[Any]) -> int:
        """A collective is issued. Returns its number in the case, from 1."""
        text = f"{group}\t{row[0]}\t{row[1]}\t{row[2]}\t{row[3]}\t{row[5]}\n".encode()[-_SLOT:]
        with self._lock:
            start = _HEAD.size + self._issued % _SLOTS * _SLOT
            self._memory[start : start + len(text)] = text
            self._issued += 1
            self._say()
            return self._issued

    @contextlib.contextmanager
    def waiting(self, number: int) -> Iterator[None]:
        """The rank waits for a collective, by number. Of several threads that wait, the last to begin is told."""
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

    def read(self, case: int) -> LastCalls | None:
        """What was issued in a case; None when the rank did not get to it, or what is there makes no sense."""
        told, issued, waiting = _HEAD.unpack_from(self._memory, 0)
        if told != case or issued < 0:
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
