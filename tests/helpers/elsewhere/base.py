"""A wrapper that a hook of each parameter makes right."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from _sending import summed
from torch import Tensor, nn


class EachGradient(nn.Module):
    """Right: each gradient is averaged as soon as autograd has added to it"""

    declares = {"unsupported": ("unused", "crossed", "assign", "unfreeze", "in_parts", "no_sync")}

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            sent = tensor.detach().contiguous().clone()
            dist.broadcast(sent, 0)
            tensor.detach().copy_(sent)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook())

    def forward(self, *inputs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs)

    def _hook(self) -> Callable[[Tensor], None]:
        def reduce(parameter: Tensor) -> None:
            assert parameter.grad is not None
            with torch.no_grad():
                parameter.grad.copy_(self.mean(summed(parameter.grad)))

        return reduce

    @staticmethod
    def mean(total: Tensor) -> Tensor:
        """Return the mean of the ranks' gradients, given their sum."""
        return total / dist.get_world_size()
