"""The broadcast at the start, which most styles share."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Give every rank the first rank's values.

    The values travel through contiguous copies, because gloo ignores strides.
    """
    for tensor in tensors:
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)
