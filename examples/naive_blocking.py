"""The first data parallelism that anyone writes: backward, one all-reduce per parameter, step.

Idea: The "naive solution" of Li et al. 2020, section 3.2.1, arXiv:2006.15704.

Claims: After `sync_gradients()` every rank holds the mean of the ranks' gradients. Accumulation
needs no support: one call after the last backward averages the accumulated sum. Communication waits
for all of backward, and each small parameter costs a collective. This is slow, but easy to check by
reading.

Verdict: right.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class NaiveBlocking(nn.Module):
    """A wrapper that averages gradients when it is told to.

    At the start it gives all ranks the first rank's state.

    Args:
        module: The replica.
        process_group: The ranks to average over; None is the default group.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        broadcast_state(module, process_group)

    def forward(self, *inputs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs)

    @torch.no_grad()
    def sync_gradients(self) -> None:
        """Average the gradients over the ranks; all ranks call this after backward."""
        for parameter in self.module.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                # Another rank may have used the parameter. All ranks must take part in the
                # all-reduce, so this rank sends zeros.
                parameter.grad = torch.zeros_like(parameter)
            mean = parameter.grad.contiguous()
            dist.all_reduce(mean, group=self.group)
            parameter.grad.copy_(mean / dist.get_world_size(self.group))


@torch.no_grad()
def broadcast_state(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give every rank the first rank's parameters and buffers.

    The values travel through contiguous copies, because gloo ignores strides.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)
