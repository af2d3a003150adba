"""Hooks of the program that change the gradients of parameters (`situations.gradient_hooks`)."""

from typing import TYPE_CHECKING

import torch

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.situations import gradient_hooks

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper
    from ddp_invariants.ranks.training.trained import Trained


@effect(lambda case: case.get(gradient_hooks.GradientHooks) is not None)
class GradientHooks(Effect):
    """Hooks that turn the sign of every gradient."""

    def on_twin(self, twin: Replica) -> None:
        """Register the hooks on the twin."""
        _hook(twin)

    def begin(self, stepper: "Stepper") -> None:
        """Register the hooks on the module under test, which is wrapped by now."""
        _hook(stepper.trained.replica)

    def before_plain_step(self, step: int, plain: "Trained") -> None:
        """Register the hooks on the module that is trained without a wrapper."""
        if step == 0:
            _hook(plain.replica)


def _hook(replica: Replica) -> None:
    """Register a hook on each trained parameter of a replica."""
    for parameter in replica.parameters():
        if parameter.requires_grad:
            parameter.register_hook(torch.neg)
