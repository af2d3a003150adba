"""Adapters for rows of torch.toml that need more than options.

Use: python benchmarks/third_parties.py torch
"""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel


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
