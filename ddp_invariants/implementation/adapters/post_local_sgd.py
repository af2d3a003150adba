"""torch's local SGD, as `--ddp post_local_sgd`: a hook, and an optimizer that averages parameters."""

import importlib
from collections import OrderedDict
from typing import Any

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook"
_AVERAGERS = "torch.distributed.algorithms.model_averaging"


class PostLocalSGD:
    """DDP whose hook reduces over all ranks in the first step, and over a subgroup later.

    The subgroup has all ranks, as on one machine.

    Args:
        averager: The averager of the optimizer's parameters: `periodic`, or `hierarchical` with one
            level. None for the hook alone.
    """

    def __init__(self, averager: str | None = "periodic") -> None:
        if averager not in (None, "periodic", "hierarchical"):
            raise ValueError(f"averager is {averager!r}, expected periodic, hierarchical or None")
        self.averager = averager
        if averager is not None:
            self.make_optimizer = self._averaging

    def wrap(self, module: Any, context: Any) -> Any:
        """Wrap the model, and register the hook."""
        distributed: Any = importlib.import_module("torch.distributed")
        parallel: Any = importlib.import_module("torch.nn.parallel")
        hooks: Any = importlib.import_module(_HOOKS)
        every = distributed.group.WORLD if context.group is None else context.group
        wrapped = parallel.DistributedDataParallel(module)
        state = hooks.PostLocalSGDState(context.group, every, start_localSGD_iter=1)
        wrapped.register_comm_hook(state, hooks.post_localSGD_hook)
        return wrapped

    def _averaging(self, wrapped: Any, context: Any) -> Any:
        """Return an optimizer that steps, and then averages."""
        optim: Any = importlib.import_module("torch.distributed.optim")
        return optim.PostLocalSGDOptimizer(
            context.optimizer(wrapped.parameters()), self._averager(context)
        )

    def _averager(self, context: Any) -> Any:
        if self.averager == "periodic":
            averagers: Any = importlib.import_module(f"{_AVERAGERS}.averagers")
            return averagers.PeriodicModelAverager(period=1, warmup_steps=0)
        levels: Any = importlib.import_module(f"{_AVERAGERS}.hierarchical_model_averager")
        return levels.HierarchicalModelAverager(
            period_group_size_dict=OrderedDict([(1, context.world_size)]), warmup_steps=0
        )
