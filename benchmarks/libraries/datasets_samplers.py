"""Datasets of Hugging Face's datasets, split by rank."""

from typing import Any

from datasets import (  # type: ignore[import-not-found] # only judged here
    Dataset,
    IterableDataset,
)
from datasets.distributed import (  # type: ignore[import-not-found] # the same
    split_dataset_by_node,
)


def map_style(dataset: Any, rank: int, world_size: int) -> Any:
    """Split a dataset in memory."""
    table = Dataset.from_dict({"index": list(range(len(dataset)))})
    return split_dataset_by_node(table, rank=rank, world_size=world_size)


def _items(index: list[int]) -> Any:
    for number in index:
        yield {"index": number}


def by_examples(dataset: Any, rank: int, world_size: int, seed: int, *, shuffle: bool) -> Any:
    """Split an iterable of one shard."""
    stream = IterableDataset.from_generator(_items, gen_kwargs={"index": list(range(len(dataset)))})
    stream = stream.shuffle(seed=seed, buffer_size=1000) if shuffle else stream
    return split_dataset_by_node(stream, rank=rank, world_size=world_size, strategy="examples")


def by_shards(dataset: Any, rank: int, world_size: int, seed: int, *, shuffle: bool) -> Any:
    """Split an iterable with two shards for each rank."""
    stream = Dataset.from_dict({"index": list(range(len(dataset)))}).to_iterable_dataset(
        2 * world_size
    )
    stream = stream.shuffle(seed=seed, buffer_size=1000) if shuffle else stream
    return split_dataset_by_node(stream, rank=rank, world_size=world_size)
