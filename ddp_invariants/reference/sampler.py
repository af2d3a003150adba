"""A distributed sampler: all ranks compute the same order, and each keeps every W-th index.

Source: the contract of torch.utils.data.DistributedSampler, plus a state to resume from.
"""

from collections.abc import Iterator, Sized

import torch


class DistributedSampler:
    """A sampler that shares the indices of a dataset among W ranks.

    Every rank gets the same number of indices. The shards are disjoint but for padding, and the
    same on every machine.

    Only (dataset length, seed, epoch) determine the order of an epoch. Its length is made divisible
    by W. Either the order is repeated cyclically from its start (padding), or its tail is dropped.
    Rank r takes order[r::W].

    Args:
        dataset: Any object with a length N.
        num_replicas: World size W.
        rank: This rank, 0 <= rank < W.
        shuffle: Permute by (seed, epoch); otherwise 0 … N-1.
        seed: Must be the same on every rank.
        drop_last: Drop the tail instead of padding.

    Raises:
        ValueError: W < 1, the rank is not one of the W ranks, or the dataset is empty and must be
            padded.
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
        """Return the indices per rank and epoch: floor(N / W) with drop_last, else ceil(N / W)."""
        return (
            self.length // self.num_replicas
            if self.drop_last
            else -(-self.length // self.num_replicas)
        )

    def order(self) -> list[int]:
        """Return the epoch's W * len(self) indices of all ranks, the same on every rank."""
        if self.shuffle:
            # A generator of its own: the global one differs between ranks and belongs to the user.
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.length, generator=generator).tolist()
        else:
            order = list(range(self.length))
        total = len(self) * self.num_replicas
        # Cyclically, because one copy of a short dataset may not fill all ranks (N * 2 < W).
        return [order[i % self.length] for i in range(total)]

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's indices; after `load_state_dict`, only the rest of the saved epoch."""
        skip, self._resume_at = self._resume_at, 0
        for position, index in enumerate(
            self.order()[self.rank :: self.num_replicas][skip:], start=skip + 1
        ):
            self.consumed = position
            yield index
        self.consumed = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the next iteration's permutation; every rank must get the same epoch."""
        self.epoch, self.consumed, self._resume_at = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of indices that this rank has taken in it."""
        return {"epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue a saved iteration next; dataset and world size must be the same."""
        self.epoch, self.consumed = state["epoch"], state["consumed"]
        self._resume_at = self.consumed
