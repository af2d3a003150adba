"""Where a composed wrapper puts parameters, and how it gives them their start, in right ways."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._start import broadcast
from ddp_invariants.faults.generated.collectives import Group


def flatten(parameters: Iterable[nn.Parameter]) -> None:
    """Move the values of trainable parameters into one tensor per dtype.

    A parameter that shares its memory with another one stays where it is.
    """
    every = list(parameters)
    sharing = Counter(parameter.untyped_storage().data_ptr() for parameter in every)
    alike = defaultdict[torch.dtype, list[nn.Parameter]](list)
    for parameter in every:
        if parameter.requires_grad and sharing[parameter.untyped_storage().data_ptr()] == 1:
            alike[parameter.dtype].append(parameter)
    for moved in alike.values():
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in moved])
        sizes = [parameter.numel() for parameter in moved]
        for parameter, piece in zip(moved, flat.split(sizes), strict=True):
            parameter.data = piece.view(parameter.shape)


def _gathered(tensors: Sequence[Tensor], group: Group) -> None:
    for tensor in tensors:
        own = _bytes(tensor)
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own, group=group)
        _take(tensor, parts[0])


def _summed(tensors: Sequence[Tensor], group: Group) -> None:
    for tensor in tensors:
        # Bytes also sum exactly, where there is no sum of a dtype.
        own = _contiguous(tensor) if tensor.is_floating_point() else _bytes(tensor)
        if dist.get_rank(group):
            own.zero_()
        dist.all_reduce(own, group=group)
        _take(tensor, own)


STARTED: dict[str, Callable[[Sequence[Tensor], Group], None]] = {
    "apart": broadcast,
    "gathered": _gathered,
    "summed": _summed,
}
"""The ways by name; `together` is the reference's way."""


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)


def _bytes(tensor: Tensor) -> Tensor:
    return _contiguous(tensor).view(torch.uint8)


@torch.no_grad()
def _take(tensor: Tensor, values: Tensor) -> None:
    """Copy values, or their bytes, into a tensor."""
    tensor.detach().copy_(values.view(tensor.dtype).view(tensor.shape))
