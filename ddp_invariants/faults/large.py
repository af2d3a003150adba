"""The bucketed reference, with limits that only large cases reach."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference

_CHUNK = 1024


class CountsInABitmask(_Reference):
    """Right: a bitmask without a limit says which gradients are ready."""

    bits: ClassVar[int] = 0
    """The bits of the mask; 0 for any number."""

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._reducing:
            self._ready = 0
            self._seen = set[int]()
        super()._backward_begins(gradient)

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        if not self._reducing:
            return
        if id(parameter) in self._seen:
            raise RuntimeError("a parameter got a second gradient: a backward within backward")
        self._seen.add(id(parameter))
        expected = [each for bucket in self._buckets for each in bucket.parameters]
        bits = {id(each): self._bit(index) for index, each in enumerate(expected)}
        self._ready |= bits[id(parameter)]
        for bucket in self._buckets:
            wanted = 0
            for each in bucket.parameters:
                wanted |= bits[id(each)]
            if self._ready & wanted != wanted:
                break
            self._launch(bucket)

    def _bit(self, index: int) -> int:
        return 1 << (index % self.bits if self.bits else index)


class CountsIn32Bits(CountsInABitmask):
    """A mask of 32 bits says which gradients are ready, so the 33rd parameter shares a bit and
    is not waited for (no public incident found).

    GRAD-1: own local gradient: never reduced; or GRAD-2: never reduced; or GRAD-8: all micro-steps
    but the last.
    """

    bits: ClassVar[int] = 32


class CountsIn64Bits(CountsInABitmask):
    """A mask of 64 bits says which gradients are ready, so the 65th parameter shares a bit and
    is not waited for (no public incident found).

    GRAD-1: own local gradient: never reduced; or GRAD-2: never reduced; or GRAD-8: all micro-steps
    but the last.
    """

    bits: ClassVar[int] = 64


class CountsIn128Bits(CountsInABitmask):
    """Two words of 64 bits say which gradients are ready, so the 129th parameter shares a bit
    (no public incident found).

    GRAD-1: own local gradient: never reduced; or GRAD-2: never reduced; or GRAD-8: all micro-steps
    but the last.
    """

    bits: ClassVar[int] = 128


class UnpacksByName(_Reference):
    """Sums are unpacked in the order of the layers' names, in which layer 10 comes before layer 2
    (no public incident found).

    GRAD-2: of equal shape: swapped.
    """

    def _write_back(self, bucket: Bucket) -> None:
        names = {id(each): name for name, each in self.module.named_parameters()}
        layers = [names[id(each)].rpartition(".")[0] for each in bucket.parameters]
        order = sorted(range(len(layers)), key=lambda index: layers[index], reverse=True)
        packed, sums = bucket.parameters, self._sums(bucket)
        shapes = [each.shape for each in packed]
        if [shapes[index] for index in order] == shapes and len(set(layers)) > 10:
            taken = [sums[index].clone() for index in order]
            for total, other in zip(sums, taken, strict=True):
                total.copy_(other)
        super()._write_back(bucket)

    def _sums(self, bucket: Bucket) -> list[Tensor]:
        assert bucket.flat is not None
        sizes = [each.numel() for each in bucket.parameters]
        return list(bucket.flat[: sum(sizes)].split(sizes))


class DropsTheLastChunk(_Reference):
    """Gradients travel in whole chunks of 1,024 elements, and the rest behind them does not travel
    (no public incident found).

    GRAD-1: own local gradient: never reduced; or GRAD-2: own local gradient.
    """

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is not None:
            return
        bucket.flat = self._packed(bucket)
        length = len(bucket.flat)
        if length > _CHUNK:
            length -= length % _CHUNK
            bucket.flat[-len(bucket.parameters) :] = 1  # These flags need no reduction here.
        bucket.work = dist.all_reduce(bucket.flat[:length], group=self.group, async_op=True)


class ForgetsTheSecondDefaultBucket(_Reference):
    """The first bucket takes 1 MiB unless a capacity is given, and nobody sends what is left over
    (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
    ) -> None:
        self._by_default = bucket_cap_mb is None
        super().__init__(module, process_group, 1.0 if bucket_cap_mb is None else bucket_cap_mb)

    def _plan(self) -> None:
        super()._plan()
        if self._by_default:
            by_kind: dict[Any, Bucket] = {}
            for bucket in self._buckets:
                by_kind.setdefault(bucket.parameters[0].dtype, bucket)
            self._buckets = list(by_kind.values())


class RoundsOfSixteen(_Reference):
    """Results are kept in 16 slots by turns, and a used slot is not cleared before a new sum is
    added to it (no public incident found).

    GRAD-5.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        self._slots: dict[tuple[int, int], Tensor] = {}
        self._turn = 0

    def _finish(self) -> None:
        self._turn += 1
        super()._finish()

    def _write_back(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        key = (self._turn % 16, self._buckets.index(bucket))
        old, count = self._slots.get(key), len(bucket.parameters)
        self._slots[key] = bucket.flat.clone()
        if old is not None and old.shape == bucket.flat.shape:
            bucket.flat[:-count] += old[:-count]
        super()._write_back(bucket)


class RebuildsAfterTwenty(_Reference):
    """After twenty backwards the buckets are planned anew, without the last parameter of each
    (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    _backwards = 0

    def _finish(self) -> None:
        super()._finish()
        self._backwards += 1

    def _write_back(self, bucket: Bucket) -> None:
        left = bucket.parameters[-1] if self._backwards >= 20 else None
        local = None if left is None or left.grad is None else left.grad.clone()
        super()._write_back(bucket)
        if left is not None and local is not None:
            left.grad = local


class AccumulatesUpToSixteen(_Reference):
    """A counter of four bits counts the backwards under no_sync, and the seventeenth clears the
    gradients (no public incident found).

    GRAD-8.
    """

    _accumulated = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        with super().no_sync():
            yield
        self._accumulated += 1
        if self._accumulated == 16:
            self._accumulated = 0
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()

    def _finish(self) -> None:
        super()._finish()
        self._accumulated = 0


class TransposesLargeSquares(_Reference):
    """A kernel in tiles of eight by eight writes square matrices with longer sides transposed
    (no public incident found).

    GRAD-2.
    """

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        for parameter in bucket.parameters:
            gradient = parameter.grad
            if (
                gradient is not None
                and gradient.dim() == 2
                and gradient.shape[0] == gradient.shape[1] > 8
            ):
                gradient.copy_(gradient.t().clone())


class PadsToSixteen(_Reference):
    """A bucket of more than 128 elements is padded in front to a multiple of 16, and read from
    its start (no public incident found).

    GRAD-2.
    """

    def _wait(self, bucket: Bucket) -> None:
        super()._wait(bucket)
        assert bucket.flat is not None
        count = len(bucket.parameters)
        length = len(bucket.flat) - count
        padding = -length % 16
        if length > 128 and padding:
            moved = torch.roll(bucket.flat[:length], padding)
            moved[:padding] = 0
            bucket.flat[:length] = moved


class AveragesSmallBatches(_Reference):
    """Gradients of batches of more than sixteen samples are taken for sums over two micro-batches
    (no public incident found).

    GRAD-2.
    """

    _halves = False

    def forward(self, inputs: Tensor) -> Any:
        self._halves = len(inputs) > 16
        return super().forward(inputs)

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        for parameter in bucket.parameters if self._halves else ():
            if parameter.grad is not None:
                parameter.grad.div_(2)


class CountsEvenNodes(_Reference):
    """The world size is taken for the ranks of this node times the number of nodes, although the
    last node has fewer ranks (no public incident found).

    GRAD-1.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        if nodes > 1 and dist.get_world_size() == self.world_size:
            self.world_size = nodes * int(os.environ["LOCAL_WORLD_SIZE"])
