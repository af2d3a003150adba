"""Right implementations in shapes unlike the reference; no rule may accuse any of them."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class EqualSeeds(Reference):
    """A wrapper that broadcasts nothing, because it declares that the ranks are built equal."""

    declares: ClassVar[dict[str, str]] = {"init": "seed"}

    def __init__(self, module: nn.Module, bucket_size_mb: float = 25.0) -> None:
        super().__init__(module, bucket_cap_mb=bucket_size_mb, broadcast_buffers=False)

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        del tensors


class ExplicitCall(nn.Module):
    """A wrapper that reduces gradients in an explicit call, with one blocking all-reduce each.

    The wrapper divides before it sums. Every rank must have all gradients, as the wrapper declares.
    """

    declares: ClassVar[Mapping[str, tuple[str, ...]]] = {"unsupported": ("unused",)}

    def __init__(self, module: nn.Module, pg: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.pg = module, pg
        for tensor in (*module.parameters(), *module.buffers()):
            whole = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(whole, group_src=0, group=pg)
            tensor.detach().copy_(whole)

    def forward(self, *inputs: Tensor) -> Any:
        """Return the module's output."""
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        """Average the gradients; the caller calls this method after backward."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                mean = parameter.grad.clone(
                    memory_format=torch.contiguous_format
                ) / dist.get_world_size(self.pg)
                dist.all_reduce(mean, group=self.pg)
                parameter.grad.copy_(mean)


def in_place(module: nn.Module) -> None:
    """Install hooks in a module without wrapping it.

    Gradients go through rank 0, like a parameter server: sum, multiplication by 1/W, broadcast.
    """
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


in_place.declares = {  # type: ignore[attr-defined]  # a class would declare the same
    "unsupported": ("unused", "crossed", "assign")
}


def hooks_of_forwards(module: nn.Module) -> None:
    """Average all gradients at the end of each backward through the module's own forward.

    Torch calls no such hook around another method of the module.
    """
    begun: list[bool] = []

    def end() -> None:
        begun.clear()
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    def begin(_gradient: Tensor) -> None:
        if not begun:
            begun.append(True)
            Variable._execution_engine.queue_callback(end)

    def after(_module: nn.Module, _inputs: Any, result: Tensor) -> None:
        if result.requires_grad:
            result.register_hook(begin)

    for tensor in module.parameters():
        dist.broadcast(tensor.detach(), src=0)
    module.register_forward_hook(after)


class SlicesOfTheOrder:
    """A sampler with other argument names that gives each rank a contiguous slice.

    The constructor computes the padded order and its slices.
    """

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
    """A wrapper that averages each incoming gradient in a tensor hook.

    The hook runs before autograd adds the gradient to the one that the parameter already holds.
    """

    declares: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "unsupported": ("unused", "crossed", "assign")
    }
    no_sync = None  # type: ignore[assignment]  # not offered: every backward is synchronised

    def _plan(self) -> None:
        for parameter in self._trainable():
            if not self._hooks or parameter not in self._buckets_of:
                self._hooks.append(parameter.register_hook(self._average))
                self._buckets_of.add(parameter)

    def __init__(self, module: nn.Module) -> None:
        self._buckets_of: set[Tensor] = set()
        super().__init__(module)

    def forward(self, *inputs: Tensor) -> Any:
        """Broadcast the buffers of the first rank in training, then return the module's output."""
        if self.training:
            self._broadcast_state(self.module.buffers())
        return self.module(*inputs)

    def _average(self, gradient: Tensor) -> Tensor:
        mean = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(mean, group=self.group)
        return mean / self.world_size


class FlatParameters(ExplicitCall):
    """A wrapper that keeps all parameters of a dtype in one contiguous buffer.

    Strides and alignment differ from the module's; the values are the same.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        for dtype in {p.dtype for p in module.parameters()}:
            mine = [p for p in module.parameters() if p.dtype == dtype]
            flat = torch.cat([p.detach().reshape(-1) for p in mine])
            for parameter, piece in zip(mine, flat.split([p.numel() for p in mine]), strict=True):
                parameter.data = piece.view(parameter.shape)
