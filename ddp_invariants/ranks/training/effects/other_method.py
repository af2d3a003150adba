"""Forwards through another method of the module (`situations.other_method`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.situations import other_method

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(other_method.OtherMethod) is not None)
class OtherMethod(Effect):
    """Forwards of the wrapper and of its twin through `encode`."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.stepper: Stepper | None = None

    def begin(self, stepper: "Stepper") -> None:
        """Remember the stepper."""
        self.stepper = stepper

    def through(self, module: Callable[..., Any]) -> Callable[[Tensor], Any]:
        """Return the other method of a module, or of the wrapper.

        Raises:
            NotImplementedError: The wrapper has no such method, or an adapter makes the calls. A
                module that is hooked in place has its methods by itself, and torch calls no hook
                around them.
        """
        if isinstance(module, Replica):
            return module.encode
        assert self.stepper is not None
        if "forward" in self.setup.driver.methods:
            raise NotImplementedError("the adapter makes the calls of the forward")
        wrapped = self.stepper.trained.wrapped
        if wrapped is self.stepper.trained.replica:
            raise NotImplementedError(
                "the module is hooked in place, and no wrapper offers its methods"
            )
        method: Callable[[Tensor], Any] | None = getattr(wrapped, "encode", None)
        if method is None:
            raise NotImplementedError(f"{type(wrapped).__name__} does not offer the method")
        return method
