"""The three levels of a verdict: ordinary programs (core), other programs (extended), failures (robust).

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Iterable
from typing import Literal, get_args

Level = Literal["core", "extended", "robust"]
"""How ordinary the subject of a rule, a capability or a situation is.

`core`: the five invariants, and programs as most people write them: dense, contiguous float
parameters, all of them used, in plain steps. `extended`: everything else that an implementation may
offer. `robust`: argument checks, exceptions, deaths and leaks.
"""
LEVELS: tuple[Level, ...] = get_args(Level)
"""The levels, the most ordinary one first."""


def highest(levels: Iterable[Level]) -> Level:
    """Return the least ordinary of some levels; `core` if there are none."""
    return max(levels, key=LEVELS.index, default="core")
