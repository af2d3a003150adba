"""A minimal parameter server: one rank gathers all gradients, averages them, sends the mean back.

Idea: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server" (OSDI). Here
there is one server, which is also rank 0, and it works synchronously.

Claims: The mean is the same as that of an all-reduce. Rank 0 receives (W-1) * p bytes and sends as
many. Its traffic grows linearly with W, but that of a ring stays below 2p.

Verdict: right. Its traffic is the reason why rings were introduced.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ParameterServer(nn.Module):
    """A wrapper that averages gradients on the first rank when it is told to.

    At the start it gives all ranks the first rank's state.

    Args:
        module: The replica.
        process_group: The ranks to average over, the server first; None is the default group.
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
        """Average the gradients on the server; all ranks call this after backward."""
        for parameter in self.module.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                # Another rank may have used the parameter. The server waits for a gradient from
                # each rank, so this rank sends zeros.
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(mean_by_server(parameter.grad.contiguous(), self.group))


def mean_by_server(gradient: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the mean of a contiguous tensor over the group."""
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
    """Give every rank the first rank's parameters and buffers.

    The values travel through contiguous copies, because gloo ignores strides.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)
