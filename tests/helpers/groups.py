"""Implementations that use process groups in unusual ways.

Tests use them to check that observing a group changes nothing and misses no collective.
"""

import os
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import new_group

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class Sweep(Reference):
    """A wrapper that first issues every kind of collective, on the world and on its own groups."""

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
        """Return a number that depends on every bit of every result."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        mine = torch.arange(size * 2, dtype=torch.float32) * 0.3 + rank
        results: list[Tensor] = []
        for dtype in (
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.uint8,
        ):
            total = mine.to(dtype)
            dist.all_reduce(total, group=group)
            results.append(total)
        for operation in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG):
            total = mine.clone()
            work = dist.all_reduce(total, operation, group=group, async_op=True)
            assert work is not None
            work.wait()
            results.append(total)
        each = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(each, mine, group=group)
        flat, piece, swapped, received = (
            torch.empty(size * mine.numel()),
            torch.empty(2),
            torch.empty_like(mine),
            mine.clone(),
        )
        dist.all_gather_into_tensor(flat, mine, group=group)
        dist.reduce_scatter_tensor(piece, mine.clone(), group=group)
        dist.all_to_all_single(swapped, mine, group=group)
        dist.broadcast(received, group_src=size - 1, group=group)
        gathered = [torch.empty_like(mine) for _ in range(size)] if rank == 0 else None
        dist.gather(mine, gathered, group_dst=0, group=group)
        dealt, reduced = torch.empty(2), mine.clone()
        dist.scatter(
            dealt, list(mine.view(size, 2)) if rank == 0 else None, group_src=0, group=group
        )
        dist.reduce(reduced, group_dst=0, group=group)
        passed = mine.clone()
        if size > 1 and rank < 2:
            there: dict[str, Any] = {"group_dst" if rank == 0 else "group_src": 1 - rank}
            (dist.send if rank == 0 else dist.recv)(passed, group=group, **there)
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank}, group=group)
        functional_total = functional.wait_tensor(functional.all_reduce(mine.clone(), "sum", group))
        dist.barrier(group)
        results += [
            *each,
            flat,
            piece,
            swapped,
            received,
            *(gathered or []),
            dealt,
            passed,
            functional_total,
            torch.tensor([float(entry["rank"]) for entry in objects]),
        ]
        results += [reduced] if rank == 0 else []
        return (
            torch.cat([result.double().view(-1) for result in results])
            .mul(torch.pi)
            .sin()
            .sum()
            .float()
        )


class Unseen(Reference):
    """A wrapper that reduces gradients over its own connections, unknown to torch.distributed."""

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
        """Return the module's outputs."""
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Average the gradients over the wrapper's own connections."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                total = parameter.grad.detach().clone(memory_format=torch.contiguous_format)
                self.own.allreduce([total]).wait()
                parameter.grad.copy_(total / self.own.size())


class Uneven(Reference):
    """Right: a wrapper that reduces gradients by an uneven all-to-all.

    Every rank owns an uneven part of the gradients. The rank receives this part from all ranks,
    sums it, and broadcasts the mean.
    """

    def _plan(self) -> None:
        """Plan no buckets: nothing is sent during backward."""

    def finish_gradient_synchronization(self) -> None:
        """Exchange the gradients, one exchange per dtype."""
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        for dtype in sorted({p.dtype for p in parameters}, key=str):
            self._exchange([p for p in parameters if p.dtype == dtype])

    def _exchange(self, parameters: list[nn.Parameter]) -> None:
        gradients = [p.grad.reshape(-1) for p in parameters if p.grad is not None]
        flat, rank = torch.cat(gradients), dist.get_rank(self.group)
        sizes = [len(piece) for piece in flat.tensor_split(self.world_size)]
        received = flat.new_empty(sizes[rank] * self.world_size)
        dist.all_to_all_single(
            received, flat, [sizes[rank]] * self.world_size, sizes, group=self.group
        )
        pieces = list(flat.split(sizes))
        pieces[rank] = received.view(self.world_size, -1).sum(0) / self.world_size
        for source, piece in enumerate(pieces):
            dist.broadcast(piece, group_src=source, group=self.group)
        for parameter, mean in zip(
            parameters, torch.cat(pieces).split([len(g) for g in gradients]), strict=True
        ):
            assert parameter.grad is not None
            parameter.grad.copy_(mean.view_as(parameter))


class PadsBuckets(Reference):
    """Right: a wrapper that pads its buckets to a multiple of the world size, as for a ring."""

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is not None:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket.parameters]
        flags = torch.tensor([p.grad is not None for p in bucket.parameters]).to(gradients[0])
        flat = torch.cat([*(g.detach().reshape(-1) for g in gradients), flags])
        bucket.flat = nn.functional.pad(flat, (0, -len(flat) % self.world_size))
        bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)

    def _write_back(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        bucket.flat = bucket.flat[: sum(p.numel() + 1 for p in bucket.parameters)]
        super()._write_back(bucket)


class KeepsLayersTogether(Reference):
    """Right: a wrapper that keeps a layer's parameters in one bucket, however small the cap is."""

    def _plan(self) -> None:
        super()._plan()
        order = [p for bucket in self._buckets for p in bucket.parameters]
        layer = {
            p: number
            for number, submodule in enumerate(self.module.modules())
            for p in submodule.parameters(recurse=False)
        }
        self._buckets = []
        for number in dict.fromkeys(layer[p] for p in order):
            for dtype in dict.fromkeys(p.dtype for p in order):
                unit = [p for p in order if (layer[p], p.dtype) == (number, dtype)]
                room = [
                    b
                    for b in self._buckets[-1:]
                    if b.parameters[0].dtype == dtype
                    and sum(p.nbytes for p in (*b.parameters, *unit)) <= self.bucket_cap
                ]
                if room:
                    room[0].parameters += unit
                elif unit:
                    self._buckets.append(Bucket(unit))


class EndsTheProcess(Reference):
    """Right: a wrapper that ends the process when a reduction fails, as a watchdog does."""

    def _wait(self, bucket: Bucket) -> None:
        try:
            super()._wait(bucket)
        except RuntimeError:
            os._exit(1)


class WaitsAfterAnError(Reference):
    """Wrong: after a failed reduction it waits for something that never comes."""

    def _wait(self, bucket: Bucket) -> None:
        try:
            super()._wait(bucket)
        except RuntimeError:
            threading.Event().wait()


class OwnGroupsDiffer(Reference):
    """Wrong: on its own group, the first rank sends three numbers and the other ranks send two."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.own: Any = dist.new_group(list(range(dist.get_world_size())))

    def finish_gradient_synchronization(self) -> None:
        """Send the numbers."""
        dist.all_reduce(torch.zeros(2 if dist.get_rank() else 3), group=self.own)


class RefusesBatches(Reference):
    """A wrapper that refuses every batch, with another message each time."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError(f"no batch is taken, said object {id(object())}")


class GathersAndForgets(Reference):
    """Wrong: the wrapper never waits for an asynchronous gather, whose results are not withheld."""

    def finish_gradient_synchronization(self) -> None:
        """Start the gather."""
        self.gathered = [torch.empty(2) for _ in range(self.world_size)]
        dist.all_gather(self.gathered, torch.ones(2), async_op=True)


class MakesAGroupUnderTorch(nn.parallel.DistributedDataParallel):
    """torch's DDP, and a group that is used once and destroyed, as ignite counts processes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        group = dist.new_group(backend="gloo")
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
