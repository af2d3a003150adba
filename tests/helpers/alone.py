"""A rank alone with its observed groups, in the process of a test."""

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.observed import Connections, ObservedGroup, Timing
from ddp_invariants.ranks.groups.works import Log
from ddp_invariants.records.trace import LastWords


class Alone:
    """The connections of one rank, over gloo.

    Args:
        words: The rank's last words.
    """

    def __init__(self, words: LastWords) -> None:
        store = distributed.HashStore()  # type: ignore[attr-defined]  # torch exports it without saying so
        self.connections = Connections(store, 0, 1, dt.timedelta(seconds=20), RankDevice())
        self._words = words

    def group(self, *, withhold: bool = False) -> ObservedGroup:
        """Return a new group."""
        return ObservedGroup(self.connections, Log(self._words, 0), Timing(withhold=withhold))


@contextmanager
def alone() -> Iterator[Alone]:
    """Yield the connections of one rank."""
    words = LastWords.alone()
    try:
        yield Alone(words)
    finally:
        words.close()
