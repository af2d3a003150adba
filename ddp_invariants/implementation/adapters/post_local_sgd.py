"""torch's local SGD: the hook as `--ddp post_local_sgd_hook`, with its optimizer as `post_local_sgd`."""

import importlib
from collections import OrderedDict
from typing import Any

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook"
_AVERAGERS = "torch.distributed.algorithms.model_averaging"


class Hook:
    """DDP whose hook reduces over all ranks in the first step, and over a subgroup later.

    The subgroup has all ranks, as on one machine.
    """

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model, and register the hook."""
        distributed: Any = importlib.import_module("torch.distributed")
        parallel: Any = importlib.import_module("torch.nn.parallel")
        hooks: Any = importlib.import_module(_HOOKS)
        every = distributed.group.WORLD if context.group is None else context.group
        wrapped: Any = parallel.DistributedDataParallel(module)
        state = hooks.PostLocalSGDState(context.group, every, start_localSGD_iter=1)
        wrapped.register_comm_hook(state, hooks.post_localSGD_hook)
        made: object = wrapped
        return made


class PostLocalSGD(Hook):
    """The same, with an optimizer that averages the parameters in each step.

    Args:
        averager: `periodic`, or `hierarchical` for several levels, of which the only one has all
            ranks.
    """

    def __init__(self, averager: str = "periodic") -> None:
        if averager not in ("periodic", "hierarchical"):
            raise ValueError(f"averager is {averager!r}, expected periodic or hierarchical")
        self.averager = averager

    def make_optimizer(self, wrapped: Any, context: Any) -> object:
        """Return the optimizer that steps, and then averages."""
        optim: Any = importlib.import_module("torch.distributed.optim")
        made: object = optim.PostLocalSGDOptimizer(
            context.optimizer(wrapped.parameters()), self._averager(context)
        )
        return made

    def _averager(self, context: Any) -> object:
        if self.averager == "periodic":
            averagers: Any = importlib.import_module(f"{_AVERAGERS}.averagers")
            periodic: object = averagers.PeriodicModelAverager(period=1, warmup_steps=0)
            return periodic
        levels: Any = importlib.import_module(f"{_AVERAGERS}.hierarchical_model_averager")
        hierarchical: object = levels.HierarchicalModelAverager(
            period_group_size_dict=OrderedDict([(1, context.world_size)]), warmup_steps=0
        )
        return hierarchical
