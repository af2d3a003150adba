"""The time that an implementation may take, and the time that it has been seen to take.

[Note: first run] The first case of an implementation may import, compile or build, so the deadline
does not apply to it. It gets a multiple. A fresh process imports again, and a compiler compiles each
new model again. So later cases get the deadline and twice the most that any case has taken.
"""

from typing import NamedTuple, Self

FIRST_IDLE = 3
"""Factor on the deadline for the first case of an implementation, if its ranks idle."""
FIRST_BUSY = 12
"""The same if its ranks use a processor, and for programs that ranks started, in every case."""
_SEEN = 2
"""Factor on the most time that a case has taken."""


class Patience(NamedTuple):
    """The seconds that a request may take, by what its ranks do in them.

    Attributes:
        idle: Seconds in which no rank uses a processor.
        busy: Seconds in which one does.
        below: Seconds in which only programs use one that a rank has started, such as a compiler.
            Such a program may hold a lock, which it leaves behind if it is killed.
    """

    idle: float
    busy: float
    below: float

    @classmethod
    def of(cls, seconds: float) -> Self:
        """Return the patience with a request that is no case."""
        return cls(seconds, seconds, seconds)


class Spent(NamedTuple):
    """The seconds that a request took.

    Attributes:
        idle: Seconds in which no rank used a processor.
        busy: Seconds in which a rank or a program below it did.
    """

    idle: float = 0.0
    busy: float = 0.0


class Pace:
    """The pace of one implementation, learned from its cases; see [Note: first run].

    Args:
        first: True if its first case may import and compile.
    """

    def __init__(self, *, first: bool = True) -> None:
        self._most = None if first else Spent()

    def patience(self, deadline: float) -> Patience:
        """Return the patience with a case.

        Args:
            deadline: Seconds that a case may take that neither imports nor compiles.
        """
        if self._most is None:
            return Patience(FIRST_IDLE * deadline, *[FIRST_BUSY * deadline] * 2)
        return Patience(
            deadline + _SEEN * self._most.idle,
            deadline + _SEEN * self._most.busy,
            FIRST_BUSY * deadline + _SEEN * self._most.busy,
        )

    def learn(self, spent: Spent, *, ended: bool) -> None:
        """Take account of a case; one that did not end shows only that it was not the first."""
        before = self._most or Spent()
        self._most = Spent(*map(max, before, spent)) if ended else before
