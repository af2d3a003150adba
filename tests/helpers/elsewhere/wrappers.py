"""Faults whose records leave out parts of the form."""

from torch import Tensor

from .base import EachGradient


class ForgetsToDivide(EachGradient):
    """The sum is never divided.

    It violates GRAD-2 or PARAM-3: summed, never divided.

    Trigger: any case of two ranks.
    """

    @staticmethod
    def mean(total: Tensor) -> Tensor:
        """Return the sum."""
        return total


class DividesByTwo(EachGradient):
    """grad-2"""

    @staticmethod
    def mean(total: Tensor) -> Tensor:
        """Return the half of the sum."""
        return total / 2


class NamesNoRule(EachGradient):
    """Something is wrong here."""


class NamesAnUnknownRule(EachGradient):
    """Something is wrong here. GRAD-99: it is unknown."""


class CannotBeBuilt(EachGradient):
    """Nothing can be wrapped (nowhere). INIT-1."""

    def __init__(self) -> None:
        raise RuntimeError
