"""Batch samplers: one shards another sampler's batches, the other batches a rank's shard.

Words: N dataset length, W world size, B batch size.
"""

import random
from collections.abc import Iterator, Sized
from math import ceil
from typing import ClassVar

from torch.utils.data import BatchSampler

from ddp_invariants.reference.sampler import DistributedSampler


class DealtBatches(BatchSampler):
    """Right: whole batches go round the ranks; the first ones repeat until all ranks have equally
    many full batches.
    """

    declares: ClassVar[dict[str, str]] = {"padding": "batch"}

    def __init__(self, batch_sampler: BatchSampler, num_replicas: int, rank: int) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} of {num_replicas}")
        self.batch_sampler, self.world_size, self.rank = batch_sampler, num_replicas, rank
        self.batch_size = batch_sampler.batch_size

    def filled(self) -> list[list[int]]:
        """Return all ranks' batches: all indices, repeated up to a multiple of W * B."""
        indices = [index for batch in self.batch_sampler for index in batch]
        unit = self.world_size * self.batch_size
        total = unit * ceil(len(indices) / unit)
        return [
            [indices[place % len(indices)] for place in range(start, start + self.batch_size)]
            for start in range(0, total, self.batch_size)
        ]

    def mine(self) -> list[list[int]]:
        """Return this rank's batches."""
        return self.filled()[self.rank :: self.world_size]

    def __len__(self) -> int:
        return len(self.mine())

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.mine())


class BatchedShard(BatchSampler):
    """Right: batches of the rank's shard from a distributed sampler, which also gets the epoch and
    a saved state.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.inner = DistributedSampler(dataset, num_replicas, rank, shuffle, seed, drop_last)
        super().__init__(self.inner, batch_size, drop_last=False)

    def set_epoch(self, epoch: int) -> None:
        """Choose the next iteration's order."""
        self.inner.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return the state of the inner sampler.

        The inner sampler has been asked only for the indices of batches that were handed out.
        """
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved state at the next iteration."""
        self.inner.load_state_dict(state)


class NotSharded(DealtBatches):
    """Every rank uses the batch sampler as it is, without sharding (Lightning#21122).

    SHARD-3: every rank yields the whole dataset.
    """

    def mine(self) -> list[list[int]]:
        return list(self.batch_sampler)


class NotFilled(DealtBatches):
    """Batches go round the ranks and none is repeated, so some ranks have fewer
    (huggingface/accelerate#4122).

    SHARD-1: no padding.
    """

    def mine(self) -> list[list[int]]:
        return list(self.batch_sampler)[self.rank :: self.world_size]


class LosesTheShortBatch(DealtBatches):
    """A short last batch is left out, although nothing is to be dropped (no public incident found).

    SHARD-2: the last batch, a short one, is lost.
    """

    def filled(self) -> list[list[int]]:
        whole = [batch for batch in self.batch_sampler if len(batch) == self.batch_size]
        return [
            whole[number % len(whole)]
            for number in range(self.world_size * ceil(len(whole) / self.world_size))
        ]


class LosesTheLastRound(DealtBatches):
    """A last round of batches that does not reach all ranks is left out (no public incident found).

    SHARD-2: samples are lost.
    """

    def filled(self) -> list[list[int]]:
        batches = super().filled()[: len(self.batch_sampler)]
        return batches[: len(batches) // self.world_size * self.world_size]


class SplitsEachBatch(DealtBatches):
    """Each batch is split over the ranks, and the remainder by W is lost
    (no public incident found).

    SHARD-2: samples are lost.
    """

    def mine(self) -> list[list[int]]:
        share = self.batch_size // self.world_size
        split = [batch[self.rank * share : (self.rank + 1) * share] for batch in self.filled()]
        return [batch for batch in split if batch]


class RepeatsTheLastBatch(DealtBatches):
    """The last batch is repeated to fill the ranks, instead of the first ones
    (galilai-group/stable-pretraining#222).

    SHARD-3: shards overlap beyond padding.
    """

    def filled(self) -> list[list[int]]:
        batches = super().filled()
        there = len(self.batch_sampler)
        return batches[:there] + [batches[there - 1]] * (len(batches) - there)


class FromTheNextRank(DealtBatches):
    """Each rank starts with the next rank's batch, so the first batch is lost
    (no public incident found).

    SHARD-2: samples are lost.
    """

    def mine(self) -> list[list[int]]:
        batches = self.filled()[1:]
        return batches[self.rank :: self.world_size][: len(batches) // self.world_size]


class ConsecutiveRuns(DealtBatches):
    """Ranks take equally many consecutive batches, and no rank takes the rest
    (no public incident found).

    SHARD-2: samples are lost.
    """

    def mine(self) -> list[list[int]]:
        batches = super().filled()[: len(self.batch_sampler)]
        share = len(batches) // self.world_size
        return batches[self.rank * share : (self.rank + 1) * share]


class LenOfAllBatches(DealtBatches):
    """len counts the batches of all ranks (no public incident found).

    SHARD-1: all ranks' batches.
    """

    def __len__(self) -> int:
        return len(self.filled())


class LenOfTheShard(BatchedShard):
    """len counts the inner sampler's indices, so a progress bar or a schedule expects too many
    batches (no public incident found).

    SHARD-6: counts indices, not batches.
    """

    def __len__(self) -> int:
        return len(self.inner)


class TakesAnyRank(DealtBatches):
    """The rank and the world size are not checked (huggingface/accelerate 1.15.0).

    SHARD-7: no argument is checked.
    """

    def __init__(self, batch_sampler: BatchSampler, num_replicas: int, rank: int) -> None:
        super().__init__(batch_sampler, 1, 0)
        self.world_size, self.rank = num_replicas, rank


class EpochStopsHere(BatchedShard):
    """set_epoch does not reach the inner sampler (modelscope/ms-swift#10128).

    SHARD-5: the epoch is ignored.
    """

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class EpochOfTheInner(BatchSampler):
    """Only the inner sampler offers set_epoch; the batch sampler does not
    (modelscope/ms-swift#9658).

    SHARD-5: the epoch is ignored.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(
            DistributedSampler(dataset, num_replicas, rank, shuffle, seed),
            batch_size,
            drop_last=False,
        )


class ShardsTwice(BatchedShard):
    """The batches of a rank's shard are sharded once more (huggingface/accelerate#3520).

    SHARD-1: ranks yield different numbers of indices.
    """

    def __iter__(self) -> Iterator[list[int]]:
        return iter(list(super().__iter__())[self.inner.rank :: self.inner.num_replicas])

    def __len__(self) -> int:
        return len(list(iter(self)))


class DropsItsTail(BatchedShard):
    """drop_last is on for the batches, although nobody asked for it (no public incident found).

    SHARD-2: each rank's last batch, a short one, is lost.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, batch_size, num_replicas, rank, shuffle, seed)
        self.drop_last = True


class RanksShuffleDifferently(DealtBatches):
    """Each rank shuffles all batches with its own seed before it takes its part
    (mlcommons/training#625).

    SHARD-2: samples are lost.
    """

    def mine(self) -> list[list[int]]:
        batches = self.filled()
        random.Random(self.rank).shuffle(batches)
        return batches[self.rank :: self.world_size]


class ReadsABatchAhead(BatchedShard):
    """The next batch is read before a batch is handed out, and counts as consumed
    (no public incident found).

    SHARD-9: read ahead counts as consumed.
    """

    def __iter__(self) -> Iterator[list[int]]:
        batches = super().__iter__()
        ahead = next(batches, None)
        while ahead is not None:
            batch, ahead = ahead, next(batches, None)
            yield batch


class SkipsBatchesForEver(BatchedShard):
    """Batches that were to be skipped once are skipped in every later epoch
    (huggingface/accelerate#1451).

    SHARD-9: the skip stays; or SHARD-9: skipped in every later iteration.
    """

    taken, skip = 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(super().__iter__(), start=1):
            self.taken = number
            if number > self.skip:
                yield batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.inner.epoch, "batches": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.inner.set_epoch(state["epoch"])
        self.skip = state["batches"]
