"""Adapters for rows of torch.toml that need more than options.

Use: python benchmarks/third_parties.py torch
"""

from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
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


class HierarchicalSGD(PostLocalSGD):
    """The same, with an averager of several levels, of which the last one has all ranks."""

    def make_optimizer(self, wrapped: nn.Module, context: Any) -> torch.optim.Optimizer:
        """Return the optimizer that steps, and then averages."""
        averager = HierarchicalModelAverager(
            period_group_size_dict=OrderedDict([(1, context.world_size)]), warmup_steps=0
        )
        return PostLocalSGDOptimizer(context.optimizer(wrapped.parameters()), averager)


class BuiltinHook:
    """DDP with a communication hook of its C++ code.

    Args:
        kind: The hook.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        """Wrap the model, and register the hook."""
        del context
        wrapped = DistributedDataParallel(module)
        wrapped._register_builtin_comm_hook(self.kind)
        return wrapped


class Delayed:
    """DDP that reduces the last trained parameter once the first one has its gradient."""

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        """Wrap the model."""
        del context
        trained = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        return DistributedDataParallel(
            module,
            delay_all_reduce_named_params=trained[-1:],
            param_to_hook_all_reduce=trained[0][1] if trained else None,
        )
