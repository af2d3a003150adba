"""A distributed sampler: every rank computes the same order and keeps every W-th index of it.

Source: the contract of torch.utils.data.DistributedSampler, plus a state to resume from.
"""

from collections.abc import Iterator, Sized

import torch


class DistributedSampler:
    """Deal the indices of a dataset to W ranks: equal numbers, disjoint but for padding, the same on every machine.

    The order of an epoch is fixed by (dataset length, seed, epoch) alone. It is made divisible by W
    either by repeating it cyclically from its start (padding) or by dropping its tail. Rank r takes
    order[r::W].

    Args:
        dataset: Anything with a length N.
        num_replicas: World size W.
        rank: This rank, 0 <= rank < W.
        shuffle: Permute by (seed, epoch); otherwise 0 … N-1.
        seed: Must be the same on every rank.
        drop_last: Drop the tail instead of padding.

    Raises:
        ValueError: W < 1, the rank is not one of the W, or the dataset is empty and would have to
            be padded.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas < 1:
            raise ValueError(f"num_replicas is {num_replicas}, expected at least 1")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank is {rank}, expected 0 to {num_replicas - 1}")
        if len(dataset) == 0 and not drop_last:
            raise ValueError("the dataset is empty: there is nothing to pad the ranks with")
        self.length = len(dataset)
        self.num_replicas, self.rank = num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch, self.consumed = 0, 0
        self._resume_at = 0

    def __len__(self) -> int:
        """Indices per rank and epoch: floor(N / W) when dropping, ceil(N / W) when padding."""
        return (
            self.length // self.num_replicas
            if self.drop_last
            else -(-self.length // self.num_replicas)
        )

    def order(self) -> list[int]:
        """The epoch's indices of all ranks, W * len(self) of them, the same on every rank."""
        if self.shuffle:
            # A generator of its own: the global one differs between ranks and is not ours to
            # advance.
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.length, generator=generator).tolist()
        else:
            order = list(range(self.length))
        total = len(self) * self.num_replicas
        # Cyclically, because one copy of a short dataset need not fill the world (N * 2 < W).
        return [order[i % self.length] for i in range(total)]

    def __iter__(self) -> Iterator[int]:
        """This rank's indices: all of them, or after `load_state_dict` the rest of what was saved."""
        skip, self._resume_at = self._resume_at, 0
        for position, index in enumerate(
            self.order()[self.rank :: self.num_replicas][skip:], start=skip + 1
        ):
            self.consumed = position
            yield index
        self.consumed = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iteration. Every rank must be given the same epoch."""
        self.epoch, self.consumed, self._resume_at = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Where the running iteration stands: the epoch and how many indices this rank has taken."""
        return {"epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration continue a saved one, of the same dataset and world size."""
        self.epoch, self.consumed = state["epoch"], state["consumed"]
        self._resume_at = self.consumed
