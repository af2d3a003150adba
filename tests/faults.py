"""Planted faults: the reference, or its sampler, with one thing wrong each. The first thirty of the field's classics.

Every class says in a sentence what is wrong, where it really happened, and which rule must notice.
"""

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import pairwise
from threading import Event, Thread
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference
from ddp_invariants.reference.sampler import DistributedSampler

_SUM = dist.all_reduce
"""As it is before a fault puts another in its place for a call."""


class NoBroadcast(Reference):
    """Nothing is broadcast at construction; equality is left to equal seeds (picotron). INIT-1."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        del tensors


class TrainableOnlyBroadcast(Reference):
    """Only parameters that require a gradient are broadcast (planted by a course's own tests). INIT-1."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        super()._broadcast_state([t for t in tensors if t.requires_grad or not isinstance(t, nn.Parameter)])


class NoBufferBroadcast(Reference):
    """Buffers are not broadcast at construction (pytorch#111138). INIT-2."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        super()._broadcast_state([t for t in tensors if isinstance(t, nn.Parameter)])


class StridedBroadcast(Reference):
    """A strided parameter is broadcast as it lies: gloo writes the wrong elements (pytorch#192920). INIT-1."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), group_src=0, group=self.group)


class ReducesParameters(Reference):
    """The hook reduces the parameter instead of its gradient (a well-known small trainer). GRAD-1."""

    def _plan(self) -> None:
        for parameter in self._trainable():
            parameter.register_post_accumulate_grad_hook(self._average)

    def _average(self, parameter: nn.Parameter) -> None:
        dist.all_reduce(parameter.data, group=self.group)
        parameter.data /= self.world_size


class DividesBy(Reference):
    """The sum is divided by a number of its own; base of the next three."""

    divisor: ClassVar[float]

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None,
                 bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        self.world_size = self._divisor(self.world_size)

    def _divisor(self, world_size: int) -> int:
        raise NotImplementedError


class NeverDivides(DividesBy):
    """Summed, never divided (goodfire-ai/spd#658). GRAD-2; the ranks agree."""

    def _divisor(self, world_size: int) -> int:
        del world_size
        return 1


class DividesByTwo(DividesBy):
    """Divided by two whatever the world size (a course solution); passes at W = 2. GRAD-2."""

    def _divisor(self, world_size: int) -> int:
        return min(world_size, 2)


class DividesTwice(DividesBy):
    """Averaged twice (apache/singa#65). GRAD-2."""

    def _divisor(self, world_size: int) -> int:
        return world_size**2


class LastBucketNotFlushed(Reference):
    """The last bucket, which the cap did not fill, is never added to the list (fairscale#435). GRAD-1."""

    def _plan(self) -> None:
        super()._plan()
        if len(self._buckets) > 1:
            self._buckets.pop()


class LargeParameterSkipped(Reference):
    """A parameter larger than the cap fits no bucket and is left out (fairscale#222). GRAD-1."""

    def _plan(self) -> None:
        super()._plan()
        self._buckets = [b for b in self._buckets if sum(p.numel() * p.element_size() for p in b.parameters) <= self.bucket_cap]


class NoWait(Reference):
    """Results are written back without waiting for the collectives. COMM-3."""

    def _wait(self, bucket: Bucket) -> None:
        del bucket


class WaitsForTheLastOnly(Reference):
    """Only the last handle is kept (a classic). COMM-3."""

    def _wait(self, bucket: Bucket) -> None:
        if bucket is self._buckets[-1]:
            super()._wait(bucket)


class ForgetsOneWait(Reference):
    """The first bucket's handle is never waited for. COMM-3."""

    def _wait(self, bucket: Bucket) -> None:
        if bucket is not self._buckets[0]:
            super()._wait(bucket)


class DividesInFlight(Reference):
    """The bucket is divided after its collective has started and before it has ended. COMM-3."""

    def _launch(self, bucket: Bucket) -> None:
        started = bucket.work is not None
        super()._launch(bucket)
        if not started and bucket.flat is not None:
            bucket.flat /= dist.get_world_size(self.group)
            self.world_size = 1


class ReducesInTwoWays(Reference):
    """Rank 1 takes the maximum where the others take the sum: gloo says nothing. COMM-1."""

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None and dist.get_rank(self.group) == 1:
            plain, dist.all_reduce = dist.all_reduce, partial(dist.all_reduce, op=dist.ReduceOp.MAX)
            try:
                super()._launch(bucket)
            finally:
                dist.all_reduce = plain
        super()._launch(bucket)


class FlattensByStorage(Reference):
    """Gradients are packed in storage order and unpacked in logical order (guarded by pytorch's test_grad_layout_*). GRAD-2."""

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None:
            for parameter in bucket.parameters:
                if parameter.grad is not None and parameter.grad.dim() == 4:
                    storage_order = parameter.grad.permute(0, 2, 3, 1).reshape(parameter.shape).clone()
                    parameter.grad.copy_(storage_order)
        super()._launch(bucket)


class ScrubsNaN(Reference):
    """Values that are not finite are replaced before the reduction (ecmwf/WeatherGenerator#2718). GRAD-7."""

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None:
            for parameter in bucket.parameters:
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_()
        super()._launch(bucket)


class SourceIsGlobalRankZero(Reference):
    """The broadcast's source is rank 0 of the world, which the group need not contain (pytorch#53793). INIT-1."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        with suppress(ValueError):  # The rank is not in the group, it says, and is not listened to.
            for tensor in tensors:
                flat = tensor.detach().clone(memory_format=torch.contiguous_format)
                dist.broadcast(flat, src=0, group=self.group)
                tensor.detach().copy_(flat)


class AveragesTheLoss(Reference):
    """The forward averages its result over the ranks, to report the global loss. LOSS-1."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        with torch.no_grad():
            dist.all_reduce(result, group=self.group)
            result /= self.world_size
        return result


class LeftoverBuffer(Reference):
    """Gradients are added to what the flat buffer held from the step before (Megatron-LM#4609). GRAD-5."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None,
                 bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        self._left: dict[int, Tensor] = {}

    def _write_back(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        number = self._buckets.index(bucket)
        bucket.flat += self._left.get(number, torch.zeros_like(bucket.flat))
        self._left[number] = bucket.flat.clone()
        super()._write_back(bucket)


class HangsOnThree(Reference):
    """Rank 2 reduces nothing: the others wait for it for ever. LIVE-1."""

    def _backward_begins(self, gradient: Tensor) -> None:
        if dist.get_rank(self.group) != 2:
            super()._backward_begins(gradient)


class DiesInBackward(Reference):
    """The second rank's process ends without a word. LIVE-1."""

    def _backward_begins(self, gradient: Tensor) -> None:
        if dist.get_rank(self.group) == 1:
            torch._C._abort()  # type: ignore[attr-defined]  # a debugging aid of torch, without a stub
        super()._backward_begins(gradient)


class RaisesOnWrap(Reference):
    """The constructor raises on every rank: a refusal, which is no violation and no pass."""

    def __init__(self, module: nn.Module) -> None:
        raise NotImplementedError("to be written")


class SourceIsRankOne(Reference):
    """The broadcast's source is the group's rank 1 (no public incident found). INIT-1."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            flat = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(flat, group_src=1 if dist.get_world_size(self.group) > 1 else 0, group=self.group)
            tensor.detach().copy_(flat)


class AveragesAtTheStart(Reference):
    """Parameters are averaged at construction instead of broadcast (no public incident found). INIT-1."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.is_floating_point():
                flat = tensor.detach().clone(memory_format=torch.contiguous_format)
                dist.all_reduce(flat, group=self.group)
                tensor.detach().copy_(flat / self.world_size)
            else:
                super()._broadcast_state([tensor])


class ReducesByAnother(Reference):
    """Buckets are reduced in another way than by the sum of what they hold; base of the next six."""

    def _all_reduce(self, flat: Tensor) -> Any:
        raise NotImplementedError

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None:
            plain, dist.all_reduce = dist.all_reduce, lambda flat, **_: self._all_reduce(flat)
            try:
                super()._launch(bucket)
            finally:
                dist.all_reduce = plain


class RoundsToBfloat16(ReducesByAnother):
    """Every bucket travels in bfloat16, whatever it holds (facebookresearch/fairscale#583). GRAD-2."""

    def _all_reduce(self, flat: Tensor) -> Any:
        low = flat.bfloat16()
        work = _SUM(low, group=self.group, async_op=True)
        work.wait()
        flat.copy_(low)
        return work


class TakesTheMaximum(ReducesByAnother):
    """The maximum over the ranks instead of the sum (an operation mistyped; pytorch#154928 is its like). GRAD-2."""

    def _all_reduce(self, flat: Tensor) -> Any:
        return _SUM(flat, op=dist.ReduceOp.MAX, group=self.group, async_op=True)


class LeavesTheLastRankOut(ReducesByAnother):
    """The last rank's gradients count as zero (a rank without data that sends an empty bucket). GRAD-2."""

    def _all_reduce(self, flat: Tensor) -> Any:
        if dist.get_rank(self.group) == dist.get_world_size(self.group) - 1 > 0:
            flat.zero_()
        return _SUM(flat, group=self.group, async_op=True)


class CountsRankZeroTwice(ReducesByAnother):
    """Rank 0 adds its own gradients to a sum that holds them already (pytorch/tutorials#1039's ring). GRAD-2."""

    def _all_reduce(self, flat: Tensor) -> Any:
        if dist.get_rank(self.group) == 0 and dist.get_world_size(self.group) > 1:
            flat *= 2
        return _SUM(flat, group=self.group, async_op=True)


class ForgetsTheTail(ReducesByAnother):
    """What a bucket holds beyond a multiple of the world size is not sent (NVIDIA/Megatron-LM#561). GRAD-1."""

    def _all_reduce(self, flat: Tensor) -> Any:
        count = len(flat) - len(self._buckets[0].parameters)  # Gradients, then flags.
        sent = flat[: count - count % self.world_size].clone()
        work = _SUM(sent, group=self.group, async_op=True)
        work.wait()
        flat[len(sent) : count] *= self.world_size  # It stays what it is, divided at the end like the rest.
        flat[: len(sent)] = sent
        return work

    def _launch(self, bucket: Bucket) -> None:
        self._buckets.sort(key=lambda one: one is not bucket)
        super()._launch(bucket)


class WritesBack(Reference):
    """Results are written back wrongly; base of the next five."""

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        self._spoil([p for p in bucket.parameters if p.grad is not None])

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        raise NotImplementedError


class DoublesTheMean(WritesBack):
    """The mean is stored in .grad, and added to it once more (course solutions whose hooks return what they store). GRAD-2."""

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(2)


class LosesTheGradient(WritesBack):
    """Results go to a buffer that .grad is no view of, and .grad is cleared (facebookresearch/fairscale#354). GRAD-2."""

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.zero_()


class OneStepLate(WritesBack):
    """From the second step on, .grad gets the results of the step before (NVIDIA/Megatron-LM#4609 has such left). GRAD-5."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None,
                 bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        self._before: dict[nn.Parameter, Tensor] = {}

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            fresh = parameter.grad.clone()
            parameter.grad.copy_(self._before.get(parameter, fresh))
            self._before[parameter] = fresh


class SwapsEqualShapes(WritesBack):
    """Two parameters of equal shape in a bucket get each other's mean (two packing orders: DeepSpeed#2343). GRAD-2."""

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for one, other in pairwise(parameters):
            if one.shape == other.shape and one.grad is not None and other.grad is not None:
                kept = one.grad.clone()
                one.grad.copy_(other.grad)
                other.grad.copy_(kept)
                return


class DividesByMicroSteps(WritesBack):
    """An accumulated gradient is divided by the micro-steps, as the loss was (huggingface/transformers#35210). GRAD-8."""

    passes = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.passes += torch.is_grad_enabled()
        return super().forward(*args, **kwargs)

    def _finish(self) -> None:
        super()._finish()
        self.passes = 0

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.div_(self.passes)


class ReducesTheFirstStepOnly(Reference):
    """The callback at a backward's end is queued once and never again (a classic; picotron after an exception). GRAD-1."""

    begun = False

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self.begun:
            self.begun = True
            super()._backward_begins(gradient)


class BroadcastsTheResult(Reference):
    """The forward gives every rank the first one's result, so that all log the same (a logging idiom misplaced). LOSS-1."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        with torch.no_grad():
            dist.broadcast(result, group_src=0, group=self.group)
        return result


class _TwoSteps(torch.optim.Optimizer):
    """Steps another optimizer twice."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, {})
        self.state, self.param_groups = optimizer.state, optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        self.optimizer.step(closure)
        return self.optimizer.step(closure)


def updates_twice(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The update is made twice, by a hook and by the loop (huggingface/accelerate#2926 for the scheduler). PARAM-3."""
    return Reference(module), _TwoSteps(optimizer)


class RanksShuffleDifferently(DistributedSampler):
    """The shuffle's seed contains the rank (mlcommons/training#625). SHARD-3."""

    def order(self) -> list[int]:
        self.seed, seed = self.seed + 1000 * self.rank, self.seed
        try:
            return super().order()
        finally:
            self.seed = seed


class IgnoresEpoch(DistributedSampler):
    """set_epoch does nothing (pytorch#31771). SHARD-5."""

    def set_epoch(self, epoch: int) -> None:
        del epoch


class SamplesWithReplacement(DistributedSampler):
    """Indices are drawn with replacement instead of permuted (karpathy/nanoGPT#531). SHARD-2."""

    def order(self) -> list[int]:
        if not self.shuffle:
            return super().order()
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        drawn: list[int] = torch.randint(self.length, (len(self) * self.num_replicas,), generator=generator).tolist()
        return drawn


class NoPadding(DistributedSampler):
    """Shards are order[r::W] of the unpadded order: some are shorter (accelerate#4122). SHARD-1."""

    def order(self) -> list[int]:
        return super().order()[: self.length]


class PadsOnce(DistributedSampler):
    """Padding is one slice of the order, too short where N * 2 < W (pytorch#45324). SHARD-1."""

    def order(self) -> list[int]:
        order = super().order()[: self.length]
        return order + order[: len(self) * self.num_replicas - len(order)]


class DropsTheTail(DistributedSampler):
    """Contiguous chunks of N // W: the tail is lost though drop_last is off (a lecture's idiom). SHARD-2."""

    def __iter__(self) -> Iterator[int]:
        size = self.length // self.num_replicas
        return iter(self.order()[self.rank * size : (self.rank + 1) * size])

    def __len__(self) -> int:
        return self.length // self.num_replicas


class GlobalGenerator(DistributedSampler):
    """The order is drawn from torch's global generator (QwenLM/Qwen3-VL#1971). SHARD-4."""

    def order(self) -> list[int]:
        if not self.shuffle:
            return super().order()
        order: list[int] = torch.randperm(self.length).tolist()
        return [order[i % self.length] for i in range(len(self) * self.num_replicas)]


class EpochOnRankZero(DistributedSampler):
    """set_epoch takes effect on rank 0 only. SHARD-3."""

    def set_epoch(self, epoch: int) -> None:
        if self.rank == 0:
            super().set_epoch(epoch)


class AcceptsAnyRank(DistributedSampler):
    """Arguments are not checked. SHARD-7."""

    def __init__(self, dataset: Sized, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False) -> None:
        with suppress(ValueError):
            super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.length, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch, self.consumed, self._resume_at = 0, 0, 0


class UnequalBatches(DistributedSampler):
    """Padding is left to the last rank's loader: its shard yields one index less, len says otherwise. SHARD-6."""

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        return iter(indices[:-1] if self.rank == self.num_replicas - 1 and self.num_replicas > 1 else indices)



class ShardShiftedByOne(DistributedSampler):
    """Contiguous shards start one index late: the first is lost (no public incident found). SHARD-1."""

    def __iter__(self) -> Iterator[int]:
        size = len(self)
        return iter(self.order()[self.rank * size + 1 : (self.rank + 1) * size + 1])


class IgnoresRank(DistributedSampler):
    """Every rank gets the first one's shard: the rank is taken from elsewhere, and is 0 (Lightning#21122). SHARD-2."""

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[:: self.num_replicas])


class ShardsTwice(DistributedSampler):
    """A shard of a shard (accelerate#3520). SHARD-2."""

    def __iter__(self) -> Iterator[int]:
        mine = self.order()[self.rank :: self.num_replicas]
        return iter(mine[self.rank :: self.num_replicas])


class PadsWithTheLast(DistributedSampler):
    """All padding is the last index (galilai-group/stable-pretraining#222 repeats one). SHARD-3."""

    def order(self) -> list[int]:
        order = super().order()
        return order[: self.length] + [self.length - 1] * (len(order) - self.length)


class NeverEnds(DistributedSampler):
    """Iterating goes on for ever (nanochat's loader with fewer row groups than ranks spins). LIVE-1."""

    def __iter__(self) -> Iterator[int]:
        while self.length:
            pass
        yield 0


class YieldsForEver(DistributedSampler):
    """Indices repeat without end. SHARD-1."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.rank % self.length


class Forgets(Reference):
    """Every forward starts from the first one's parameters: training never gets anywhere. PARAM-3."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "_first"):
            self._first = [p.detach().clone() for p in self.module.parameters()]
        with torch.no_grad():
            for parameter, first in zip(self.module.parameters(), self._first, strict=True):
                parameter.copy_(first)
        return super().forward(*args, **kwargs)


class RaisesLater(Reference):
    """The third forward raises, on every rank. LIVE-1."""

    count = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        if self.count == 3:
            raise RuntimeError("out of buckets")
        return super().forward(*args, **kwargs)


class TrainsACopy(Reference):
    """Trains a deep copy of the module: nothing of it can be seen, and nothing may be said of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(deepcopy(module))


class RaisesInOneProcess(DistributedSampler):
    """Iterating raises under one hash seed and not under the other. SHARD-4."""

    def order(self) -> list[int]:
        if hash("salted by the process") % 2 == 0 and self.length % 3 == 0:
            raise RuntimeError("unlucky")
        return super().order()


class NeverArmedAgain(Reference):
    """A reduction that a backward left half way is never taken back: no other starts (picotron after an exception). LIVE-2."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._reducing, reducing = False, self._reducing
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._reducing = reducing


class SwallowsErrors(Reference):
    """The forward catches what the module raises and returns the last result that went well. LIVE-2."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            self._result = super().forward(*args, **kwargs)
        return getattr(self, "_result", torch.zeros(1, 1, requires_grad=True))


class GoesOnAlone(Reference):
    """A reduction that fails is let pass, and the local gradient taken (error handling around the wait). LIVE-3."""

    def _wait(self, bucket: Bucket) -> None:
        with suppress(RuntimeError):
            super()._wait(bucket)


class LeavesAThread(Reference):
    """Every wrapper starts a thread that never ends (a heartbeat without a stop). LIVE-4."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None,
                 bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        Thread(target=Event().wait, daemon=True).start()


class TakesWhatHasArrived(Reference):
    """A result that is not there after some milliseconds is done without, and the local gradient kept. COMM-2."""

    def _wait(self, bucket: Bucket) -> None:
        assert bucket.work is not None
        until = time.monotonic() + 0.004
        while not bucket.work.is_completed() and time.monotonic() < until:
            time.sleep(0.0001)
        self._too_late = time.monotonic() >= until
        super()._wait(bucket)

    def _write_back(self, bucket: Bucket) -> None:
        if not self._too_late:
            super()._write_back(bucket)


class CapInMillions(Reference):
    """A MiB of bucket capacity is taken for a million bytes (NVIDIA/recsys-examples#374). COMM-4."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None,
                 bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, process_group, bucket_cap_mb * 1e6 / 2**20)


class TiedHoldsUpAll(Reference):
    """With a tied parameter nothing is sent before backward has ended: its bucket waits for a second gradient. COMM-5."""

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        if len(list(self.module.named_parameters(remove_duplicate=False))) == len(list(self.module.parameters())):
            super()._gradient_ready(parameter)
