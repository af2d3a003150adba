"""The functions of rsl_rl's PPO for a policy of several ranks, as its runner calls them."""

from types import SimpleNamespace
from typing import Any

from bare import load
from torch import nn

BUCKET_MB = 32
"""The capacity that PPO has by default."""


class Shared:
    """A policy whose start is broadcast, and whose gradients are averaged after each backward."""

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        """Broadcast the policy; the runner does it when it begins to learn."""
        nothing = nn.Module()
        self.policy = SimpleNamespace(
            actor=module,
            critic=nothing,
            rnd=None,
            gpu_world_size=context.world_size,
            grad_reduce_bucket_mb=BUCKET_MB,
            _raw_actor=module,
            _raw_critic=nothing,
        )
        self.library = load("rsl_rl.algorithms.ppo")
        self.library.PPO.broadcast_parameters(self.policy)
        return module

    def after_backward(self, wrapped: Any, optimizer: Any) -> None:
        """Average the gradients."""
        del wrapped, optimizer
        self.library.PPO.reduce_parameters(self.policy)
