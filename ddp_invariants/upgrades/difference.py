"""A difference between two sides' answers to a case."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

WARNING = "warning "
"""The start of a difference in warnings.

Each warning is a sort of its own, so an accepted warning hides no other.
"""
Class = Literal["rule", "discrete", "rounding", "number"]
CLASSES: tuple[Class, ...] = get_args(Class)
"""The classes of differences.

`rule`: a rule holds on one side only. `discrete`: values that must match exactly. `rounding`: a
number within the bound derived for both sides. `number`: a number beyond that bound.
"""


@dataclass(frozen=True)
class Difference:
    """One difference between two sides' answers to a case.

    Attributes:
        kind: One of the classes.
        subject: a rule, `collectives`, `gradients that are None`, or the stage at which
            numbers part.
        where: Rank, step, tensor.
        old: The old side's answer, in words.
        new: The new side's answer, in words.
    """

    kind: Class
    subject: str
    where: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """The name of this sort of difference, as an accept-file writes it."""
        return f"{self.kind}: {self.subject}"

    @property
    def moves(self) -> bool:
        """True if the difference may show in another case: many warnings come once per run."""
        return self.subject.startswith(WARNING)


_UNSTEADY = re.compile(
    r" at 0x[0-9a-f]+| \(Triggered internally at .*|\[[^\]\s]*\]:\d+"
    r"|[\w./-]+\.(?:cc|cpp|h|cu|py):\d+"
)


def steady(text: str) -> str:
    """Return a text without parts that vary: addresses, ports and lines of source."""
    return _UNSTEADY.sub("…", text)
