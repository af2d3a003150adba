"""Parameters that are parts of one tensor (`situations.storage`)."""

from torch import Tensor, nn

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.situations import storage

_ALIGNMENT = 64
"""Bytes. Kernels add up in another order in tensors that are not aligned as torch aligns them."""


@effect(lambda case: case.get(storage.OneStorage) is not None)
class OneStorage(Effect):
    """One flat tensor for the parameters of each dtype, of the replica and of its twin."""

    def on_replica(self, replica: Replica) -> None:
        """Put the parameters into one tensor."""
        _put_into_one(list(replica.parameters()))

    def on_twin(self, twin: Replica) -> None:
        """Put the twin's parameters into one tensor, since their alignment must be the same."""
        _put_into_one(list(twin.parameters()))


def _put_into_one(parameters: list[nn.Parameter]) -> None:
    """Give parameters the same values and strides as parts of one tensor for each dtype."""
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        alike = [p for p in parameters if p.dtype == dtype and p.numel()]
        starts, end = list[int](), 0
        for parameter in alike:
            unit = max(_ALIGNMENT // parameter.element_size(), 1)
            starts.append(-(-end // unit) * unit)
            end = starts[-1] + _extent(parameter)
        if not alike:
            continue
        flat = alike[0].detach().new_zeros(end)
        for parameter, start in zip(alike, starts, strict=True):
            part = flat.as_strided(parameter.shape, parameter.stride(), start)
            parameter.data = part.copy_(parameter.detach())


def _extent(tensor: Tensor) -> int:
    """Return the number of elements from a tensor's first to its last in memory."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)
