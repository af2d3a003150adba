"""A difference between two sides' answers to a case."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

WARNING = "warning "
"""The start of a difference in warnings.

Each warning is a sort of its own, so an accepted warning hides no other.
"""
Class = Literal["rule", "discrete", "number", "shift", "unbounded", "rounding"]
CLASSES: tuple[Class, ...] = get_args(Class)
"""The classes of differences.

`rule`: a rule holds on one side only. `discrete`: values that must match exactly. `number`: a number
beyond the bound derived for both sides. `shift`: numbers within that bound that all move the same
way. `unbounded`: a number for which no bound is known. `rounding`: a number within the bound.
"""
_EVERY_CASE = "in every case"
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Difference:
    """One difference between two sides' answers to a case.

    Attributes:
        kind: The class of the difference.
        subject: A rule, `collectives`, `gradients that are None`, or the stage at which
            the numbers differ first.
        where: Rank, step, tensor.
        old: The old side's answer, in words.
        new: The new side's answer, in words.
        cause: The fact of a failure, or the way in which two sequences part, without numbers; empty
            if the subject says it all.
        condition: The features of the case (`condition.features`). None for a difference that
            depends on no case: it shows before any case is run, or it is a warning.
    """

    kind: Class
    subject: str
    where: str
    old: str
    new: str
    cause: str = ""
    condition: tuple[str, ...] | None = None

    @property
    def sort(self) -> str:
        """The class, the subject and the cause."""
        return f"{self.kind}: {self.subject}{f': {self.cause}' if self.cause else ''}"

    @property
    def name(self) -> str:
        """The name of this sort of difference with its condition, as an accept-file writes it."""
        if self.condition is None:
            return self.sort
        condition = f"with {', '.join(self.condition)}" if self.condition else _EVERY_CASE
        return f"{self.sort}; {condition}"

    @property
    def moves(self) -> bool:
        """True if the difference may show in another case: many warnings come once per run."""
        return self.subject.startswith(WARNING)

    @property
    def depends(self) -> bool:
        """True if two cases with different features may show the difference for different reasons."""
        return not self.moves


def names_a_sort(name: str) -> bool:
    """Return whether a name has all parts that a report gives it, as older names have not."""
    kind, _, rest = name.partition(": ")
    whole = rest.endswith(f"; {_EVERY_CASE}") or "; with " in rest
    at_once = rest.startswith((WARNING, *AT_ONCE))
    return whole or (kind == "discrete" and at_once)


AT_ONCE = ("argument ", "capability ", "surface ")
"""The starts of the differences that show before any case is run."""


def numberless(text: str) -> str:
    """Return a text with every number replaced, so that one cause has one text."""
    return _NUMBER.sub("#", text)


_UNSTEADY = re.compile(
    r" at 0x[0-9a-f]+| \(Triggered internally at .*|\[[^\]\s]*\]:\d+"
    r"|[\w./-]+\.(?:cc|cpp|h|cu|py):\d+"
)


def steady(text: str) -> str:
    """Return a text without parts that vary: addresses, ports and lines of source."""
    return _UNSTEADY.sub("…", text)
