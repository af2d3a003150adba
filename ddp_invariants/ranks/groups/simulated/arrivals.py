"""Arrivals: the moments at which results of simulated collectives reach the ranks' tensors.

Over a real backend a result may be written at any moment from the last rank's call to the end of
the wait. These moments are counted in the rank's own calls: starts of collectives, and waits. A
result that lags by n calls is written at the n-th call after the start, or when it is waited for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_invariants.ranks.groups.simulated.turns import Ready, Turns
from ddp_invariants.situations import turns as situation

_NEVER = 1 << 30
"""The lag of a result that is written when it is waited for."""


@dataclass(eq=False)
class Arrival:
    """The result of one collective at one rank.

    Attributes:
        rank: The rank.
        complete: Returns whether all ranks have called.
        deliver: Writes the result.
        start: The number of the rank's call that started the collective.
        due: The number of the call at which the result is written.
        end: The number of the call before which the result was taken; negative until then.
    """

    rank: int
    complete: Ready
    deliver: Callable[[], None]
    start: int
    due: int
    end: int = -1


class Arrivals:
    """The arrivals at all ranks of one simulated case.

    Args:
        turns: The ranks' turns.
        plan: When results arrive.
        size: The number of ranks.

    Attributes:
        turns: The same.
    """

    def __init__(self, turns: Turns, plan: situation.Turns, size: int) -> None:
        self.turns, self._plan = turns, plan
        self._calls, self._looked = [0] * size, [False] * size
        self._open: list[set[Arrival]] = [set() for _ in range(size)]
        self._lagging: list[list[Arrival]] = [[] for _ in range(size)]
        self._started: list[list[Arrival]] = [[] for _ in range(size)]

    def call(self) -> None:
        """Count a call of the running rank, and write the results that are due."""
        self.turns.pass_on()
        rank = self.turns.running
        self._calls[rank] += 1
        # Any other result is written at the last rank's call, or when it is waited for.
        for arrival in tuple(self._lagging[rank]):
            self.arrive(arrival)

    def wait(self, until: Ready, words: str) -> None:
        """Count a wait of the running rank, and let other ranks run until a condition holds."""
        self.call()
        self.turns.wait(until, words)

    def look(self) -> None:
        """Let other ranks run: the running rank asks for the state of a collective."""
        self._looked[self.turns.running] = True
        self.turns.give_way()

    def start(self, complete: Ready, deliver: Callable[[], None], *, waits: bool) -> Arrival:
        """Return the arrival of the result of a collective that the running rank starts.

        Args:
            complete: Returns whether all ranks have called.
            deliver: Writes the rank's result.
            waits: True if the rank waits at once.
        """
        rank = self.turns.running
        start = self._calls[rank]
        lag = self._lag(rank, len(self._started[rank]), waits=waits)
        arrival = Arrival(rank, complete, deliver, start, start + lag)
        self._open[rank].add(arrival)
        if 0 < lag < _NEVER:
            self._lagging[rank].append(arrival)
        if not waits:
            self._started[rank].append(arrival)
        return arrival

    def _lag(self, rank: int, number: int, *, waits: bool) -> int:
        """Return by how many calls a collective's result lags.

        Args:
            rank: The rank.
            number: The number of collectives that it has started without waiting.
            waits: True if it waits for this one at once.
        """
        plan = self._plan
        if plan.results == "late":
            return _NEVER
        behind = plan.order == "behind" and plan.behind % len(self._calls) == rank
        lags = plan.lags if behind and not waits else ()
        return lags[number] if number < len(lags) else 0

    def due(self, arrival: Arrival) -> bool:
        """Return whether all ranks have called, and a result does not lag any more."""
        return self._calls[arrival.rank] >= arrival.due and arrival.complete()

    def arrive(self, arrival: Arrival) -> None:
        """Write a result that is due."""
        if self.due(arrival):
            self._write(arrival)

    def take(self, arrival: Arrival) -> None:
        """Write a result that its rank takes now."""
        if arrival.end < 0:
            arrival.end = self._calls[arrival.rank]
        self._write(arrival)

    def _write(self, arrival: Arrival) -> None:
        rank = arrival.rank
        if arrival in self._open[rank]:
            self._open[rank].remove(arrival)
            if arrival in self._lagging[rank]:
                self._lagging[rank].remove(arrival)
            arrival.deliver()

    def flights(self, rank: int) -> list[tuple[int, int]] | None:
        """Return a rank's collectives for which it did not wait at once: start and end of each.

        Both are numbers of the rank's calls; a result that was never taken ends after the last
        one. None stands for a rank that asked for the state of a collective: its course depends on
        the other ranks' turns.
        """
        if self._looked[rank]:
            return None
        last = self._calls[rank] + 1
        return [(each.start, each.end if each.end >= 0 else last) for each in self._started[rank]]
