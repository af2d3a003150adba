"""One rank's sampler, as a training run would ask it."""

import itertools
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import worker
from torch.utils.data._utils.worker import WorkerInfo

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.driving.sampler import SamplerMaker, is_batch, most_items
from ddp_invariants.ranks.generators import drawn, unchanged

_SEED_STEP = 10_007
"""Difference between the seeds that two ranks' DataLoaders give to their workers."""
_ASKED = 4
"""Items of an iteration between which the program calls `len`, or draws random numbers."""


def made(
    case: ShardCase,
    make: SamplerMaker,
    world_size: int,
    rank: int,
    epoch: int,
    *,
    samples: int | None = None,
) -> Any:
    """Make the sampler of a rank for an epoch, over the case's dataset or one of another length."""
    data = case.data
    return make(
        data.samples if samples is None else samples,
        world_size,
        rank,
        shuffle=data.shuffle,
        seed=data.seed,
        drop_last=data.drop_last,
        batch_size=data.batch_size,
        epoch=epoch,
    )


class RankSampler:
    """One rank's sampler, and how it is asked.

    Its yielded items show whether it yields indices or batches of indices.
    """

    def __init__(
        self, case: ShardCase, make: SamplerMaker, rank: int, *, in_batches: bool = False
    ) -> None:
        self.case, self.make, self.rank, self.in_batches = case, make, rank, in_batches
        with self._as_rank():
            self.sampler = made(case, make, case.world_size, rank, case.epochs[0])

    def _as_rank(self) -> AbstractContextManager[object]:
        return self.make.surroundings(self.rank, self.case.world_size)

    @property
    def counts(self) -> bool:
        """True if no epoch can be set, so that each iteration is the next epoch."""
        return self.make.counts_epochs and not hasattr(self.sampler, "set_epoch")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch by the sampler's method, or make a new sampler for it.

        A sampler that counts is made anew, and iterated once for each epoch before.
        """
        with self._as_rank():
            if self.make.remade_each_epoch or self.counts:
                # A program makes its sampler before it begins to count on the global generators.
                with unchanged() if self.counts else nullcontext():
                    self.sampler = made(
                        self.case, self.make, self.case.world_size, self.rank, epoch
                    )
            elif hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
        for _ in range(epoch if self.counts else 0):
            self._yielded()

    def stay_in(self, epoch: int) -> None:
        """Return to the epoch that was iterated, if the sampler has gone on to the next one."""
        if self.counts:
            self.set_epoch(epoch)

    def go_on_to(self, epoch: int) -> None:
        """Set the epoch after the one that was iterated, unless the sampler has gone on to it."""
        if not self.counts:
            self.set_epoch(epoch)

    @property
    def _bound(self) -> int:
        """Most items that are taken; of a declared stream without end the rank's share."""
        data = self.case.data
        if self.make.declared.padding == "endless":
            return data.samples // self.case.world_size
        return most_items(data.samples, self.case.world_size, data.batch_size)

    def _yielded(self) -> list[Any]:
        with self._as_rank():
            return list(itertools.islice(self.sampler, self._bound))

    def indices(self) -> list[int]:
        """Return all indices, batches laid end to end."""
        yielded = self._yielded()
        self.in_batches = bool(yielded) and is_batch(yielded[0])
        return self.flat(yielded)

    def flat(self, yielded: Iterable[Any]) -> list[int]:
        """Return the indices of items, batches laid end to end."""
        indices = [
            self.make.index(index)
            for item in yielded
            for index in (item if self.in_batches else [item])
        ]
        # The share of a stream without end may end within a batch.
        return indices[: self._bound] if self.make.declared.padding == "endless" else indices

    @property
    def saves(self) -> bool:
        """True if the sampler has a state to save and to load."""
        return all(
            callable(getattr(self.sampler, name, None))
            for name in ("state_dict", "load_state_dict")
        )

    def saved(self, batches: int, *, keep: bool = False) -> tuple[list[int], Any, list[int]]:
        """Return the indices of some batches, the state after them, and the later indices.

        Args:
            batches: The number of batches.
            keep: True for the state itself, as a program keeps it in memory.
        """
        with self._as_rank():
            running = iter(self.sampler)
            taken = self.flat(
                itertools.islice(
                    running, batches * (1 if self.in_batches else self.case.data.batch_size)
                )
            )
            # A copy is as if written to a file: it does not change any more.
            state = self.sampler.state_dict() if keep else deepcopy(self.sampler.state_dict())
            return taken, state, self.flat(itertools.islice(running, self._bound))

    def saved_now(self) -> Any:
        """Return the state between iterations."""
        with self._as_rank():
            return deepcopy(self.sampler.state_dict())

    def load(self, state: Any, epoch: int) -> None:
        """Load a saved state; set the epoch first only if the state does not hold it."""
        if self.make.remade_each_epoch or self.make.declared.saves == "place":
            self.set_epoch(epoch)
        with self._as_rank():
            self.sampler.load_state_dict(state)

    def length(self, counts: Iterable[int] = ()) -> int | None:
        """Return the sampler's `len`, in indices even if it counts batches.

        Args:
            counts: The numbers of indices of all iterations. If they differ, a right number of
                batches stands for no number of indices, and the result is None.
        """
        if not hasattr(self.sampler, "__len__") or self.make.declared.padding == "endless":
            return None
        with self._as_rank():
            length = len(self.sampler)
        if not self.in_batches:
            return length
        yielded = self._yielded()
        if length != len(yielded):
            return length
        return None if len({*counts}) > 1 else sum(map(len, yielded))

    def leave_after(self, items: int) -> None:
        """Take some items and drop the iterator."""
        with self._as_rank():
            for _ in itertools.islice(iter(self.sampler), items):
                pass

    def around(self, taken: int, epoch: int) -> list[int]:
        """Return the indices of an iteration in which an epoch is set after some items."""
        with self._as_rank():
            running = iter(self.sampler)
            items = [*itertools.islice(running, taken)]
            self.sampler.set_epoch(epoch)
            items += itertools.islice(running, self._bound)
        return self.flat(items)

    def interleaved(self, ahead: int) -> tuple[list[int], list[int]]:
        """Return the indices of two iterators that take turns, the first one some items ahead."""
        with self._as_rank():
            first = iter(self.sampler)
            items: tuple[list[Any], list[Any]] = [*itertools.islice(first, ahead)], []
            second, ended = iter(self.sampler), object()
            for pair in itertools.islice(
                itertools.zip_longest(first, second, fillvalue=ended), self._bound
            ):
                for number, item in enumerate(pair):
                    items[number].extend([item] if item is not ended else [])
        return self.flat(items[0]), self.flat(items[1])

    def with_lengths(self) -> tuple[list[int], list[int]]:
        """Return the indices of an iteration, and `len` before, after each of few items and after."""
        with self._as_rank():
            lengths = [len(self.sampler)]
            items = []
            for item in itertools.islice(self.sampler, self._bound):
                items.append(item)
                if len(items) < _ASKED:
                    lengths.append(len(self.sampler))
            lengths.append(len(self.sampler))
        return self.flat(items), lengths

    def with_draws(self) -> tuple[list[int], bool]:
        """Iterate, and draw from the global generators after each of the first items and at the end.

        Returns:
            The indices, and whether the numbers are those that a program gets without a sampler.
        """
        with self._as_rank():
            with unchanged():
                wanted = [drawn() for _ in range(_ASKED + 1)]
            items, got = list[Any](), list[tuple[int, ...]]()
            for item in itertools.islice(self.sampler, self._bound):
                items.append(item)
                if len(got) < _ASKED:
                    got.append(drawn())
            got.append(drawn())
        return self.flat(items), got == wanted[: len(got)]

    def batches(self) -> tuple[int, int | None]:
        """Count a DataLoader's batches, and return its len as well; None without a len."""
        dataset: Any = range(self.case.data.samples)
        if self.make.scatters:  # Over the rank's own data, without any sampler.
            held: DataLoader[Any] = DataLoader(self.sampler, batch_size=self.case.data.batch_size)
            return sum(1 for _ in held), len(held)
        with self._as_rank():
            loader: DataLoader[Any] = (
                DataLoader(dataset, batch_sampler=self.sampler)
                if self.in_batches
                else DataLoader(dataset, batch_size=self.case.data.batch_size, sampler=self.sampler)
            )
            batches = sum(1 for _ in itertools.islice(loader, self._bound))
            return batches, len(loader) if hasattr(self.sampler, "__len__") else None

    def as_worker(self, number: int) -> list[int]:
        """Return the indices of a DataLoader's worker.

        A copy of the sampler is asked, and told its worker number and the number of workers.

        The copy runs in this process, because one more process for each of thousands of cases would
        take longer than all the rest. A sampler can learn about its worker only from
        `torch.utils.data.get_worker_info`.
        """
        self.stay_in(self.case.epochs[-1])
        workers, copy = self.case.workers, deepcopy(self.sampler)
        # A DataLoader draws a seed on each rank, and each worker adds its number.
        seed = (self.rank + 1) * _SEED_STEP + number
        info = WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=copy)
        worker._worker_info = info
        try:
            with self._as_rank():
                return self.flat(itertools.islice(copy, self._bound))
        finally:
            worker._worker_info = None
