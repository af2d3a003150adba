"""The base of samplers that keep the dataset, where the reference keeps its length alone."""

from typing import Any

from ddp_invariants.reference.sampler import DistributedSampler


class KeepsDataset(DistributedSampler):
    """The reference sampler, which also keeps its dataset."""

    def __init__(
        self,
        dataset: Any,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.dataset = dataset
