"""What most styles share: the broadcast that makes replicas equal."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Give every rank the first rank's values, through contiguous copies, since gloo ignores strides."""
    for tensor in tensors:
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)
