"""Unusual implementations that are right: no rule may fail on any of them.

Most exchange gradients in a call after backward, `sync_gradients`. They differ in how they compute
the mean of one gradient.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from ddp_invariants.faults._start import broadcast
from ddp_invariants.reference.ddp import DistributedDataParallel

# Renamed in torch 2.13, where the old names warn.
_reduce_scatter: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)
_all_gather: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)


class _Synchronised(nn.Module):
    """A base that averages each gradient when it is told to, by `_mean`."""

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused",)
    }  # Every rank must have every gradient.

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.rank, self.world_size = (
            dist.get_rank(process_group),
            dist.get_world_size(process_group),
        )
        self._start()

    def _start(self) -> None:
        broadcast([*self.module.parameters(), *self.module.buffers()], self.group)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                flat = parameter.grad.contiguous().view(-1)
                # Padded, because some subclasses cut it into W pieces.
                flat = torch.cat([flat, flat.new_zeros(-flat.numel() % self.world_size)])
                if flat.numel():
                    parameter.grad.copy_(
                        self._mean(flat)[: parameter.numel()].view(parameter.shape)
                    )

    def _mean(self, flat: Tensor) -> Tensor:
        """Return the mean of a tensor over the ranks.

        The tensor is contiguous, and its length is a multiple of the world size.
        """
        raise NotImplementedError

    def _sum(self, flat: Tensor) -> Tensor:
        dist.all_reduce(flat, group=self.group)
        return flat

    def _gathered(self, mine: Tensor) -> Tensor:
        whole = mine.new_empty(mine.numel() * self.world_size)
        _all_gather(whole, mine, group=self.group)
        return whole


class InRegistrationOrder(DistributedDataParallel):
    """Right: buckets are filled in registration order, so the first bucket is complete last."""

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("overlap",)}

    def _trainable(self) -> list[nn.Parameter]:
        return super()._trainable()[::-1]


class BucketPerParameter(DistributedDataParallel):
    """Right: every parameter is a bucket of its own, whatever the cap."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group, bucket_cap_mb=0.0)


class LastFirst(DistributedDataParallel):
    """Right: all buckets are sent at the end of backward, the last one first."""

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("overlap",)}

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        pass

    def _send_and_wait(self) -> None:
        for bucket in reversed(self._buckets):
            self._launch(bucket)
        super()._send_and_wait()


class WaitsInReverse(DistributedDataParallel):
    """Right: buckets are awaited in the reverse of the order in which they were sent."""

    def _send_and_wait(self) -> None:
        for bucket in self._buckets:
            self._launch(bucket)
        for bucket in reversed(self._buckets):
            self._wait(bucket)
        self._reducing = False


class DividesFirst(_Synchronised):
    """Right: each rank divides its gradient before the sum, so that a sum over many ranks cannot
    overflow.
    """

    def _mean(self, flat: Tensor) -> Tensor:
        return self._sum(flat / self.world_size)


class DividesHalfway(_Synchronised):
    """Right: part of the division comes before the sum and the rest after it, so that neither
    divisor is large.
    """

    def _mean(self, flat: Tensor) -> Tensor:
        first = 2.0 if self.world_size > 1 else 1.0
        return self._sum(flat / first) / (self.world_size / first)


class DividesTheOutputsGradient(_Synchronised):
    """Right: the output's gradient is divided by a power of two, and each parameter's sum by the
    rest of W.

    A power of two commutes with rounding. A division by three does not: a bfloat16 layer would
    round the result by far more than a mean of float32 gradients may be off by.
    """

    sync_gradients = None  # type: ignore[assignment]  # not for the loop

    # Every rank must have every gradient: in one order, whole, of the parameters at the start. The
    # divided gradient also reaches a trained part before the wrapper, a second derivative, and
    # the hooks of an earlier wrapper. It does not reach parameters that the loss itself reads.
    declares: ClassVar[dict[str, Any]] = {
        "unsupported": (
            *("unused", "crossed", "assign", "unfreeze", "in_parts", "input_gradients"),
            *("penalty", "weight_penalty", "loss_only", "wrapped_again"),
        )
    }

    def _start(self) -> None:
        super()._start()
        self.first = 1 << (self.world_size.bit_length() - 1)
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._mean_of_divided)

    def forward(self, *inputs: Any) -> Any:
        result = super().forward(*inputs)
        if not isinstance(result, Tensor):
            raise TypeError(f"the module's output is a {type(result).__name__}, expected a tensor")
        if result.requires_grad:
            result.register_hook(lambda gradient: gradient / self.first)
        return result

    def _mean_of_divided(self, incoming: Tensor) -> Tensor:
        total: Tensor = self._sum(incoming.clone(memory_format=torch.contiguous_format))
        mean: Tensor = total * (self.first / self.world_size)
        return mean


class ThroughRankZero(_Synchronised):
    """Right: gradients are reduced to rank 0, which divides and broadcasts them: a parameter
    server.
    """

    def _mean(self, flat: Tensor) -> Tensor:
        dist.reduce(flat, group_dst=0, group=self.group)
        if self.rank == 0:
            flat /= self.world_size
        dist.broadcast(flat, group_src=0, group=self.group)
        return flat


class Ring(_Synchronised):
    """Right: partial sums travel round a ring, and then the sums do (Patarasuk and Yuan 2009)."""

    def _mean(self, flat: Tensor) -> Tensor:
        pieces, size = flat.view(self.world_size, -1).clone(), self.world_size
        for step in range(size - 1):
            pieces[(self.rank - step - 1) % size] += self._passed_on(
                pieces[(self.rank - step) % size]
            )
        for step in range(size - 1):
            pieces[(self.rank - step) % size] = self._passed_on(
                pieces[(self.rank - step + 1) % size]
            )
        return pieces.view(-1) / size

    def _passed_on(self, piece: Tensor) -> Tensor:
        arriving, after, before = (
            torch.empty_like(piece),
            (self.rank + 1) % self.world_size,
            (self.rank - 1) % self.world_size,
        )
        sent = dist.isend(piece, group=self.group, group_dst=after)
        received = dist.irecv(arriving, group=self.group, group_src=before)
        for work in (sent, received):
            assert work is not None
            work.wait()
        return arriving


class ReduceScatterAllGather(_Synchronised):
    """Right: each rank gets the sum of one piece and divides it, and all gather the pieces."""

    def _mean(self, flat: Tensor) -> Tensor:
        mine = flat.new_empty(flat.numel() // self.world_size)
        _reduce_scatter(mine, flat, group=self.group)
        return self._gathered(mine / self.world_size)


class AllToAll(_Synchronised):
    """Right: each rank gets all ranks' values of one piece and averages them, and all ranks gather
    the means.
    """

    def _mean(self, flat: Tensor) -> Tensor:
        received = torch.empty_like(flat)
        dist.all_to_all_single(received, flat, group=self.group)
        return self._gathered(received.view(self.world_size, -1).mean(0))


class GathersAll(_Synchronised):
    """Right: each rank gathers all ranks' gradients and averages them itself, in one order."""

    def _mean(self, flat: Tensor) -> Tensor:
        return self._gathered(flat).view(self.world_size, -1).mean(0)


class RunningMean(_Synchronised):
    """Right: a running mean is passed from rank to rank in float64, and the last rank broadcasts
    it.

    Each rank weights the mean by the number of ranks in it. A mean of three ranks is rounded even
    if that of four is exact. In the gradients' own dtype the last bit would be lost.
    """

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": (*_Synchronised.declares["unsupported"], "float64")
    }

    def _mean(self, flat: Tensor) -> Tensor:
        if flat.is_complex():
            return torch.view_as_complex(self._mean(torch.view_as_real(flat)))
        last, dtype = self.world_size - 1, flat.dtype
        flat = flat.double()
        if self.rank > 0:
            before = torch.empty_like(flat)
            dist.recv(before, group=self.group, group_src=self.rank - 1)
            flat = (before * self.rank + flat) / (self.rank + 1)
        if self.rank < last:
            dist.send(flat, group=self.group, group_dst=self.rank + 1)
        dist.broadcast(flat, group_src=last, group=self.group)
        return flat.to(dtype)


class InBfloat16(_Synchronised):
    """Right: gradients travel in bfloat16, as declared."""

    declares: ClassVar[dict[str, Any]] = {"exactness": "bfloat16", **_Synchronised.declares}

    def _mean(self, flat: Tensor) -> Tensor:
        if flat.is_complex():
            return torch.view_as_complex(self._mean(torch.view_as_real(flat)))
        return self._sum(flat.bfloat16() / self.world_size).to(flat.dtype)


class Sums(_Synchronised):
    """Right: gradients are summed and never divided, as declared."""

    declares: ClassVar[dict[str, Any]] = {"reduction": "sum", **_Synchronised.declares}

    def _mean(self, flat: Tensor) -> Tensor:
        return self._sum(flat)


class EqualSeeds(_Synchronised):
    """Right: nothing is broadcast, because the ranks are built equal, as declared."""

    declares: ClassVar[dict[str, Any]] = {"init": "seed", **_Synchronised.declares}

    def _start(self) -> None:
        """Do nothing."""

    def _mean(self, flat: Tensor) -> Tensor:
        return self._sum(flat) / self.world_size


class AThreadAside(_Synchronised):
    """Right: a separate thread does all the sending, and the call waits for it."""

    def _mean(self, flat: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(self._sum, flat).result() / self.world_size


class SortsByName(_Synchronised):
    """Right: gradients are exchanged in the order of the parameters' names, longest name first."""

    @torch.no_grad()
    def sync_gradients(self) -> None:
        for _, parameter in sorted(
            self.module.named_parameters(), key=lambda named: (-len(named[0]), named[0])
        ):
            if parameter.grad is not None:
                parameter.grad.copy_(self._sum(parameter.grad.contiguous()) / self.world_size)


class AtTheEndOfBackward(_Synchronised):
    """Right: a hook on the result queues the exchange for the end of backward, so the loop calls
    nothing.
    """

    sync_gradients = None  # type: ignore[assignment]  # not for the loop

    def forward(self, *inputs: Any) -> Any:
        result = super().forward(*inputs)
        if not isinstance(result, Tensor):
            raise TypeError(f"the module's output is a {type(result).__name__}, expected a tensor")
        if result.requires_grad:
            result.register_hook(
                lambda _: Variable._execution_engine.queue_callback(self._exchange)
            )
        return result

    def _mean(self, flat: Tensor) -> Tensor:
        return self._sum(flat) / self.world_size


class _Mean(torch.autograd.Function):
    """The identity, whose backward averages the gradients over the ranks."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup | None, *parameters: Tensor) -> Any:
        ctx.group = group
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        size = dist.get_world_size(ctx.group)
        means = [gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients]
        for mean in means:
            dist.all_reduce(mean, group=ctx.group)
        return (None, *(mean / size for mean in means))


class InsideTheGraph(nn.Module):
    """Right: parameters pass through a function whose backward averages, once for each forward."""

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused", "sparse", "reentrant", "weight_penalty")
    }

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        broadcast([*module.parameters(), *module.buffers()], process_group)

    def forward(self, *inputs: Any) -> Any:
        named = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        averaged = _Mean.apply(self.group, *named.values())  # type: ignore[no-untyped-call]  # torch's
        return torch.func.functional_call(
            self.module, dict(zip(named, averaged, strict=True)), inputs
        )


class AveragesWhatTheForwardUses(InsideTheGraph):
    """Only gradients that come through the wrapper's forward are averaged, so a penalty on parameters
    in the loss stays local (no public incident found).

    GRAD-13: only what comes through a forward was reduced.
    """

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("unused", "sparse", "reentrant")}
