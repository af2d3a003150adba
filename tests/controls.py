"""Right implementations in shapes unlike the reference's; none may ever be accused."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class EqualSeeds(Reference):
    """Broadcasts nothing: the ranks are built equal, as it declares."""

    declares: ClassVar[dict[str, str]] = {"init": "seed"}

    def __init__(self, module: nn.Module, bucket_size_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb=bucket_size_mb, broadcast_buffers=False)

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        del tensors


class ExplicitCall(nn.Module):
    """One blocking all-reduce per gradient, when told to; divides before it sums. Every rank has all gradients, as it says."""

    declares: ClassVar[Mapping[str, tuple[str, ...]]] = {"unsupported": ("unused",)}

    def __init__(self, module: nn.Module, pg: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.pg = module, pg
        for tensor in (*module.parameters(), *module.buffers()):
            whole = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(whole, group_src=0, group=pg)
            tensor.detach().copy_(whole)

    def forward(self, *inputs: Tensor) -> Any:
        """The module's."""
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        """To be called after backward."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                mean = parameter.grad.clone(
                    memory_format=torch.contiguous_format
                ) / dist.get_world_size(self.pg)
                dist.all_reduce(mean, group=self.pg)
                parameter.grad.copy_(mean)


def in_place(module: nn.Module) -> None:
    """Hooks a module without wrapping it; multiplies by 1/W after a parameter server's sum."""
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(whole, src=0)
        tensor.detach().copy_(whole)

    def through_rank_0(parameter: Tensor) -> None:
        assert parameter.grad is not None
        total = parameter.grad.clone(memory_format=torch.contiguous_format)
        dist.reduce(total, dst=0)
        if dist.get_rank() == 0:
            total *= 1.0 / dist.get_world_size()
        dist.broadcast(total, src=0)
        parameter.grad.copy_(total)

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(through_rank_0)


in_place.declares = {"unsupported": ("unused", "crossed")}  # type: ignore[attr-defined]  # as a class would say it


class SlicesOfTheOrder:
    """A sampler by other names: contiguous slices of the padded order, computed on construction."""

    def __init__(self, data_source: range, world_size: int, rank: int) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        size = -(-len(data_source) // world_size)
        order = [i % len(data_source) for i in range(size * world_size)]
        self.mine = order[rank * size : (rank + 1) * size]

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Any:
        return iter(self.mine)


class TensorHooks(Reference):
    """Averages each incoming gradient in a tensor hook, before autograd adds it to what a parameter already holds."""

    declares: ClassVar[Mapping[str, tuple[str, ...]]] = {"unsupported": ("unused", "crossed")}
    no_sync = None  # type: ignore[assignment]  # every backward is synchronised: it claims nothing else

    def _plan(self) -> None:
        for parameter in self._trainable():
            if not self._hooks or parameter not in self._buckets_of:
                self._hooks.append(parameter.register_hook(self._average))
                self._buckets_of.add(parameter)

    def __init__(self, module: nn.Module) -> None:
        self._buckets_of: set[Tensor] = set()
        super().__init__(module)

    def forward(self, *inputs: Tensor) -> Any:
        """The module's, from the first rank's buffers."""
        if self.training:
            self._broadcast_state(self.module.buffers())
        return self.module(*inputs)

    def _average(self, gradient: Tensor) -> Tensor:
        mean = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(mean, group=self.group)
        return mean / self.world_size


class FlatParameters(ExplicitCall):
    """Keeps all parameters of a dtype in one contiguous buffer: other strides, other alignment, the same values."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for dtype in {p.dtype for p in module.parameters()}:
            mine = [p for p in module.parameters() if p.dtype == dtype]
            flat = torch.cat([p.detach().reshape(-1) for p in mine])
            for parameter, piece in zip(mine, flat.split([p.numel() for p in mine]), strict=True):
                parameter.data = piece.view(parameter.shape)
