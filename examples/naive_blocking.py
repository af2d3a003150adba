"""The first data parallelism anyone writes: backward, then one all-reduce per parameter, then the step.

Idea: the "naive solution" of Li et al. 2020, section 3.2.1, arXiv:2006.15704.

Claims: after `sync_gradients()` every rank holds the mean of the ranks' gradients. Accumulation
needs no support: whoever calls it once, after the last backward, averages the sum. Communication
waits for all of backward, and small parameters pay a
collective each: slow, and easy to see right.

Verdict: right.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class NaiveBlocking(nn.Module):
    """Gives all ranks the first rank's state, and averages gradients when told to.

    Args:
        module: The replica.
        process_group: The ranks to average over; None is the default group.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        broadcast_state(module, process_group)

    def forward(self, *inputs: Any) -> Any:
        """The module's."""
        return self.module(*inputs)

    @torch.no_grad()
    def sync_gradients(self) -> None:
        """Average the gradients over the ranks; to be called after backward, on all ranks."""
        for parameter in self.module.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                # Not used on this rank, perhaps on another: all must take part in the all-reduce,
                # so it counts as zero.
                parameter.grad = torch.zeros_like(parameter)
            mean = parameter.grad.contiguous()
            dist.all_reduce(mean, group=self.group)
            parameter.grad.copy_(mean / dist.get_world_size(self.group))


@torch.no_grad()
def broadcast_state(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give every rank the first rank's parameters and buffers, through contiguous copies, since gloo ignores strides."""
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)
