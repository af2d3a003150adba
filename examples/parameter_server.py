"""A parameter server in its smallest form: one rank gathers all gradients, averages them, sends the mean back.

Idea: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server" (OSDI); here
with one server, which is also rank 0, and synchronous.

Claims: the same mean as an all-reduce. Rank 0 receives (W-1) * p bytes and sends as many: its
traffic grows linearly with W, where a ring's stays below 2p.

Verdict: right, and the reason rings were brought in.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ParameterServer(nn.Module):
    """Gives all ranks the first rank's state, and averages gradients on that rank when told to.

    Args:
        module: The replica.
        process_group: The ranks to average over, the server first; None is the default group.
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
        """Average the gradients on the server; to be called after backward, on all ranks."""
        for parameter in self.module.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                # Not used on this rank, perhaps on another: the server waits for one from each, so
                # it counts as zero.
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(mean_by_server(parameter.grad.contiguous(), self.group))


def mean_by_server(gradient: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The mean over the group of a contiguous tensor."""
    is_server, world_size = dist.get_rank(group) == 0, dist.get_world_size(group)
    gathered = [torch.empty_like(gradient) for _ in range(world_size)] if is_server else None
    dist.gather(gradient, gathered, group=group, group_dst=0)
    mean = torch.empty_like(gradient)
    if gathered is not None:
        mean.copy_(torch.stack(gathered).sum(0) / world_size)
    dist.broadcast(mean, group_src=0, group=group)
    return mean


@torch.no_grad()
def broadcast_state(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give every rank the first rank's parameters and buffers, through contiguous copies, since gloo ignores strides."""
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)
