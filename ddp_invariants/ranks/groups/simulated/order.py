"""The order in which simulated ranks run. Standard library only."""

import random

from ddp_invariants.situations.turns import TurnOrder


class Order:
    """Chooses the rank that runs next, and where a rank is preempted.

    Args:
        kind: `ranks`: always the lowest rank that can run. `reversed`: the highest. `random`:
            any, and a rank may be preempted at each collective. `preempted`: ranks have drawn
            priorities, and at a few drawn places the running rank falls behind all others
            (probabilistic concurrency testing, Burckhardt et al., ASPLOS 2010). `behind`: one
            rank runs only while no other can.
        seed: Of the choices.
        size: The number of ranks.
        behind: The rank that `behind` names.
    """

    _CHANGES, _PLACES = 3, 64
    """Places where the running rank falls behind, and the number of places to draw them from."""

    def __init__(self, kind: TurnOrder, seed: int, size: int, behind: int = 0) -> None:
        self._kind, self._random = kind, random.Random(seed)
        self._priorities = list(range(size))
        if kind == "reversed":
            self._priorities.reverse()
        elif kind == "preempted":
            self._random.shuffle(self._priorities)
        elif kind == "behind":
            self._priorities[behind % size] = size
        self._changes = frozenset(self._random.sample(range(self._PLACES), self._CHANGES))
        self._place = 0

    def chosen(self, ready: list[int]) -> int:
        """Return one of several ranks that can run."""
        if self._kind == "random":
            return self._random.choice(ready)
        return min(ready, key=self._priorities.__getitem__)

    def preempts(self, running: int) -> bool:
        """Return whether the running rank is to hand on here although it can go on."""
        if self._kind == "random":
            return self._random.random() < 0.5
        if self._kind == "behind":
            return self._priorities[running] == len(self._priorities)
        if self._kind != "preempted":
            return False
        self._place += 1
        if self._place - 1 not in self._changes:
            return False
        self._priorities[running] = max(self._priorities) + 1
        return True
