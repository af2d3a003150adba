"""Implementations that use process groups in every way, to see that observing them changes nothing and misses nothing."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import new_group

from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class Sweep(Reference):
    """Before it does anything else: every collective there is, on the world and on groups of its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        everyone, odd = list(range(dist.get_world_size())), list(range(1, dist.get_world_size()))
        results = [self._all(dist.group.WORLD), self._all(new_group(everyone))]
        branch: Any = dist.new_group(odd, backend="gloo")
        if dist.get_rank() in odd:
            results.append(self._all(branch))
        with torch.no_grad():
            for number, result in enumerate(results):
                next(module.parameters()).view(-1)[number] = result

    def _all(self, group: Any) -> Tensor:
        """A number that depends on every bit of every result."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        mine = torch.arange(size * 2, dtype=torch.float32) * 0.3 + rank
        found: list[Tensor] = []
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8):
            total = mine.to(dtype)
            dist.all_reduce(total, group=group)
            found.append(total)
        for operation in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG):
            total = mine.clone()
            work = dist.all_reduce(total, operation, group=group, async_op=True)
            assert work is not None
            work.wait()
            found.append(total)
        each = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(each, mine, group=group)
        flat, piece, swapped, received = torch.empty(size * mine.numel()), torch.empty(2), torch.empty_like(mine), mine.clone()
        dist.all_gather_into_tensor(flat, mine, group=group)
        dist.reduce_scatter_tensor(piece, mine.clone(), group=group)
        dist.all_to_all_single(swapped, mine, group=group)
        dist.broadcast(received, group_src=size - 1, group=group)
        gathered = [torch.empty_like(mine) for _ in range(size)] if rank == 0 else None
        dist.gather(mine, gathered, group_dst=0, group=group)
        dealt, reduced = torch.empty(2), mine.clone()
        dist.scatter(dealt, list(mine.view(size, 2)) if rank == 0 else None, group_src=0, group=group)
        dist.reduce(reduced, group_dst=0, group=group)
        passed = mine.clone()
        if size > 1 and rank < 2:
            there: dict[str, Any] = {"group_dst" if rank == 0 else "group_src": 1 - rank}
            (dist.send if rank == 0 else dist.recv)(passed, group=group, **there)
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank}, group=group)
        functional_total = functional.wait_tensor(functional.all_reduce(mine.clone(), "sum", group))
        dist.barrier(group)
        found += [*each, flat, piece, swapped, received, *(gathered or []), dealt, passed, functional_total,
                  torch.tensor([float(one["rank"]) for one in objects])]
        found += [reduced] if rank == 0 else []
        return torch.cat([one.double().view(-1) for one in found]).mul(torch.pi).sin().sum().float()


class Unseen(Reference):
    """Reduces gradients over connections of its own, which torch.distributed knows nothing of."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        private: Any = torch._C._distributed_c10d
        store = private.PrefixStore("unseen", dist.distributed_c10d._get_default_store())
        self.own = private.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size())
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            copy = tensor.detach().clone(memory_format=torch.contiguous_format)
            self.own.broadcast(copy.view(-1).view(torch.uint8), 0).wait()
            tensor.detach().copy_(copy)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Average over connections of its own."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                total = parameter.grad.detach().clone(memory_format=torch.contiguous_format)
                self.own.allreduce([total]).wait()
                parameter.grad.copy_(total / self.own.size())
