"""Iterable datasets that are split by rank during iteration.

Words: N items in all, W world size.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import Any, ClassVar

from torch.utils.data import get_worker_info


class Split:
    """Right: rank r takes every W-th item from the r-th on; nothing is padded, so some ranks have
    one item more.
    """

    declares: ClassVar[dict[str, str]] = {"padding": "none", "layout": "strided"}

    def __init__(self, iterable: Iterable[int], rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        self.iterable, self.rank, self.world_size = iterable, rank, world_size

    def __iter__(self) -> Iterator[int]:
        return islice(self.iterable, self.rank, None, self.world_size)


def _rounds(items: Iterable[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield `size` items at a time, and at the end the items that are left."""
    passing = iter(items)
    while taken := tuple(islice(passing, size)):
        yield taken


class Filled:
    """Right: items go round the ranks, and the first items fill up an incomplete last round."""

    declares: ClassVar[dict[str, str]] = {"layout": "strided"}

    def __init__(self, iterable: Iterable[int], rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        self.iterable, self.rank, self.world_size = iterable, rank, world_size

    def rounds(self) -> Iterator[tuple[int, ...]]:
        """Yield rounds of W items; the last round may have fewer."""
        return _rounds(self.iterable, self.world_size)

    def filled(self, short: tuple[int, ...], first: tuple[int, ...]) -> tuple[int, ...]:
        """Return a last round of W items, filled up from the first round.

        The first round starts over if it is too short itself.
        """
        return (*short, *islice(cycle(first), self.world_size - len(short)))

    def __iter__(self) -> Iterator[int]:
        first: tuple[int, ...] = ()
        for items in self.rounds():
            first = first or items
            yield self.filled(items, first)[self.rank]


class PerWorker:
    """Right: each worker of a rank's DataLoader takes every W * workers-th item, from its own first
    item on.
    """

    declares: ClassVar[dict[str, Any]] = {
        "padding": "none",
        "layout": "strided",
        "supports": ("workers",),
    }

    def __init__(self, iterable: Iterable[int], rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        self.iterable, self.rank, self.world_size = iterable, rank, world_size

    def place(self) -> tuple[int, int]:
        """Return this worker's number and the number of workers; (0, 1) outside a worker."""
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def items(self) -> Iterable[int]:
        """Return the items of all ranks, in order."""
        return self.iterable

    def __iter__(self) -> Iterator[int]:
        worker, workers = self.place()
        return islice(
            self.items(), self.rank + worker * self.world_size, None, self.world_size * workers
        )


class WorkersRepeat(PerWorker):
    """Every worker yields all items of the rank (huggingface/datasets#3423).

    SHARD-10: the worker's number is ignored.
    """

    def place(self) -> tuple[int, int]:
        return 0, 1


class ShufflesByTheLoadersSeed(PerWorker):
    """The workers shuffle by the seed of their rank's DataLoader, which is not that of other ranks
    (no public incident found).

    SHARD-10.
    """

    def items(self) -> Iterable[int]:
        items, info = list(self.iterable), get_worker_info()
        if info is not None:
            random.Random(info.seed - info.id).shuffle(items)
        return items


class WorkersSplitAlone(PerWorker):
    """The workers split the dataset among themselves, and the rank is ignored
    (huggingface/datasets#7868).

    SHARD-10: workers split the dataset.
    """

    def __iter__(self) -> Iterator[int]:
        worker, workers = self.place()
        return (
            super().__iter__()
            if get_worker_info() is None
            else islice(self.iterable, worker, None, workers)
        )


class WorkersStartTogether(PerWorker):
    """Worker k of rank r starts at item r + k instead of r + k * W, as if workers were ranks
    (no public incident found).

    SHARD-10.
    """

    def __iter__(self) -> Iterator[int]:
        worker, workers = self.place()
        return islice(self.iterable, self.rank + worker, None, self.world_size * workers)


class WholeRoundsOfWorkers(PerWorker):
    """A last round that does not reach all workers is left out (no public incident found).

    SHARD-10.
    """

    def __iter__(self) -> Iterator[int]:
        worker, workers = self.place()
        own = islice(self.iterable, self.rank, None, self.world_size)
        return iter([items[worker] for items in _rounds(own, workers) if len(items) == workers])


class NotSplit(Split):
    """Every rank reads every item (huggingface/datasets#5360).

    SHARD-3: every rank yields the whole dataset.
    """

    def __iter__(self) -> Iterator[int]:
        return iter(self.iterable)


class SplitTwice(Split):
    """The part of a rank is split by rank once more (huggingface/transformers#11254).

    SHARD-2: sharded twice.
    """

    def __iter__(self) -> Iterator[int]:
        return islice(super().__iter__(), self.rank, None, self.world_size)


class StartsOneLate(Split):
    """The first item is taken off for inspection and not put back (no public incident found).

    SHARD-2: off by one.
    """

    def __iter__(self) -> Iterator[int]:
        items = iter(self.iterable)
        next(items, None)
        return islice(items, self.rank, None, self.world_size)


class StopsOneEarly(Split):
    """An item is yielded only after the next one is read, so the last item is never yielded
    (no public incident found).

    SHARD-2: off by one.
    """

    def __iter__(self) -> Iterator[int]:
        items = super().__iter__()
        ahead = next(items, None)
        for item in items:
            assert ahead is not None
            yield ahead
            ahead = item


class ReadsAheadAndLoses(Split):
    """Items are read two at a time, and an incomplete pair is never yielded
    (no public incident found).

    SHARD-2.
    """

    def __iter__(self) -> Iterator[int]:
        for pair in _rounds(super().__iter__(), 2):
            if len(pair) == 2:
                yield from pair


class WholeRoundsOnly(Split):
    """A last round that does not reach all ranks is left out, although nobody asked for it
    (no public incident found).

    SHARD-2: samples are dropped although drop_last is off.
    """

    def __iter__(self) -> Iterator[int]:
        for items in _rounds(self.iterable, self.world_size):
            if len(items) == self.world_size:
                yield items[self.rank]


class SplitsByTwo(Split):
    """The world size is hard-coded as 2 (no public incident found). SHARD-2: samples are lost."""

    def __iter__(self) -> Iterator[int]:
        return islice(self.iterable, self.rank, None, 2)


class UsedUp(Split):
    """The iterator is made once, so it is empty from the second epoch on
    (no public incident found).

    SHARD-2: empty from the second epoch on.
    """

    def __init__(self, iterable: Iterable[int], rank: int, world_size: int) -> None:
        super().__init__(iterable, rank, world_size)
        self.items = iter(iterable)

    def __iter__(self) -> Iterator[int]:
        return islice(self.items, self.rank, None, self.world_size)


class ShufflesBeforeTheSplit(Split):
    """Each rank shuffles a buffer with its own seed before the buffer is split
    (mlcommons/training#625).

    SHARD-2: samples are lost.
    """

    def __iter__(self) -> Iterator[int]:
        buffer = list(self.iterable)
        random.Random(self.rank).shuffle(buffer)
        return islice(buffer, self.rank, None, self.world_size)


class TakesAnyRank(Split):
    """The rank and the world size are not checked (no public incident found).

    SHARD-7: no argument is checked.
    """

    def __init__(self, iterable: Iterable[int], rank: int, world_size: int) -> None:
        super().__init__(iterable, 0, 1)
        self.rank, self.world_size = rank, world_size


class NeverFilled(Filled):
    """A last round that does not reach all ranks is not filled up (huggingface/datasets#3423).

    SHARD-1: no padding.
    """

    def __iter__(self) -> Iterator[int]:
        return islice(self.iterable, self.rank, None, self.world_size)


class FilledWithTheLast(Filled):
    """A last round is filled up with its last item (galilai-group/stable-pretraining#222).

    SHARD-3: all padding is index.
    """

    def filled(self, short: tuple[int, ...], first: tuple[int, ...]) -> tuple[int, ...]:
        return super().filled(short, short[-1:] or first)


class CyclesForEver(Filled):
    """Items start over so that no rank ends before another, and so no rank ever ends
    (NVIDIA-NeMo/Megatron-Bridge#5944).

    SHARD-1: it yields without end.
    """

    def rounds(self) -> Iterator[tuple[int, ...]]:
        return _rounds(cycle(self.iterable), self.world_size)
