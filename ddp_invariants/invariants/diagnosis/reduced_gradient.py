"""One parameter's gradient on all ranks, with the parts that should make it up.

A rank's twin is the unwrapped module on the same batch. Suffixes: W ranks, K micro-steps; the dots
after them stand for one parameter's shape.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.invariants.diagnosis.predictions import (
    Prediction,
)
from ddp_invariants.invariants.view import EvidenceView


@dataclass(frozen=True)
class ReducedGradient:
    """One parameter's gradient on all ranks, and its parts.

    Attributes:
        view: The evidence view of the case.
        step: The step.
        name: The parameter's name.
        held_W: The gradients that the ranks hold, shape (W, …).
        fresh_KW: The gradients that their twins computed, shape (K, W, …).
        left_W: The gradients left in place on purpose, shape (W, …); zero if gradients are cleared.
        before_W: The gradients that the ranks held after the step before; None at the first step.
        roundoff: Unit roundoff of the gradient's dtype.
        complex: True if the elements are complex; the last axis is then that of their parts.
    """

    view: EvidenceView
    step: int
    name: str
    held_W: FloatArray
    fresh_KW: FloatArray
    left_W: FloatArray
    before_W: FloatArray | None
    roundoff: float
    complex: bool = False

    @cached_property
    def g_W(self) -> FloatArray:
        """The gradients that must be reduced."""
        total: FloatArray = self.left_W + self.fresh_KW.sum(0)
        return total

    @cached_property
    def mean(self) -> FloatArray:
        """The mean over the ranks."""
        mean: FloatArray = self.g_W.mean(0)
        return mean

    @cached_property
    def users(self) -> list[int]:
        """The ranks that use the parameter at this step."""
        return [
            rank for rank, names in enumerate(self.view.unused(self.step)) if self.name not in names
        ]

    @property
    def summed(self) -> bool:
        """True if the implementation declares a sum."""
        return self.view.declared.reduction == "sum"

    @cached_property
    def right(self) -> FloatArray:
        """The value that every rank must hold."""
        right: FloatArray = self.mean * len(self.g_W) if self.summed else self.mean
        return right

    @cached_property
    def tolerance(self) -> FloatArray:
        """The tolerance of a prediction: that of the mean in `balls.mean_over_ranks`.

        Its terms are added up and not divided by the world size.
        """
        most: FloatArray = np.abs(self.fresh_KW).sum((0, 1)) + np.abs(self.left_W).sum(0)
        return (len(self.g_W) + len(self.fresh_KW) + 2) * self.roundoff * most

    @cached_property
    def wrong_W(self) -> NDArray[np.bool_]:
        """A mask of the ranks that hold a wrong value. NaN counts as wrong."""
        error_W = np.abs(self.held_W - self.right)
        return np.array([not (error <= self.tolerance).all() for error in error_W])

    def fits(self, prediction: Prediction) -> bool:
        """Return whether a prediction matches the value of every wrong rank."""
        close_W = prediction.close(self.held_W, self.tolerance)
        return bool(
            self.wrong_W.any() and (close_W if prediction.common else close_W[self.wrong_W]).all()
        )

    def shows(self, prediction: Prediction) -> bool:
        """Return whether a prediction differs from the right value."""
        return bool((np.abs(prediction.held_W - self.right) > self.tolerance).any())
