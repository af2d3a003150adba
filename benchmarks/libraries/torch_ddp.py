"""Adapters for rows of torch.toml that need more than options.

Use: python benchmarks/third_parties.py torch
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel


def post_local_sgd(group: dist.ProcessGroup | None) -> PostLocalSGDState:
    """Return a state whose hook reduces globally in the first step, and in a subgroup later.

    The subgroup has all ranks, as on one machine.
    """
    every = dist.group.WORLD if group is None else group
    return PostLocalSGDState(group, every, start_localSGD_iter=1)


class PostLocalSGD:
    """DDP with the hook for local SGD, and an optimizer that averages the parameters in each step."""

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        """Wrap the model, and register the hook."""
        wrapped = DistributedDataParallel(module)
        wrapped.register_comm_hook(post_local_sgd(context.group), post_localSGD_hook)
        return wrapped

    def make_optimizer(self, wrapped: nn.Module, context: Any) -> torch.optim.Optimizer:
        """Return the optimizer that steps, and then averages."""
        averager = PeriodicModelAverager(period=1, warmup_steps=0)
        return PostLocalSGDOptimizer(context.optimizer(wrapped.parameters()), averager)
