"""Datasets of Hugging Face's datasets, split by rank."""

import importlib
from typing import Any

from ddp_invariants.implementation.adapters import preload

preload("datasets.distributed")


def _table(dataset: Any) -> Any:
    library: Any = importlib.import_module("datasets")
    return library.Dataset.from_dict({"index": list(range(len(dataset)))})


def _split(dataset: Any, **arguments: Any) -> Any:
    library: Any = importlib.import_module("datasets.distributed")
    return library.split_dataset_by_node(dataset, **arguments)


def map_style(dataset: Any, rank: int, world_size: int) -> Any:
    """Split a dataset in memory."""
    return _split(_table(dataset), rank=rank, world_size=world_size)


def _items(index: list[int]) -> Any:
    for number in index:
        yield {"index": number}


def by_examples(dataset: Any, rank: int, world_size: int, seed: int, *, shuffle: bool) -> Any:
    """Split an iterable of one shard."""
    library: Any = importlib.import_module("datasets")
    indices = list(range(len(dataset)))
    stream = library.IterableDataset.from_generator(_items, gen_kwargs={"index": indices})
    stream = stream.shuffle(seed=seed, buffer_size=1000) if shuffle else stream
    return _split(stream, rank=rank, world_size=world_size, strategy="examples")


def by_shards(dataset: Any, rank: int, world_size: int, seed: int, *, shuffle: bool) -> Any:
    """Split an iterable with two shards for each rank."""
    stream = _table(dataset).to_iterable_dataset(2 * world_size)
    stream = stream.shuffle(seed=seed, buffer_size=1000) if shuffle else stream
    return _split(stream, rank=rank, world_size=world_size)
