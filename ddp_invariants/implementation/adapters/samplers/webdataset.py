"""A pipeline of webdataset that splits its shards by rank and by worker."""

import importlib
from typing import Any

from ddp_invariants.implementation.adapters import preload

preload("webdataset")


def pipeline(iterable: Any) -> Any:
    """Split the names of shards, which are numbers here, as in webdataset's documentation."""
    library: Any = importlib.import_module("webdataset")
    return library.DataPipeline(
        library.SimpleShardList([str(index) for index in iterable]),
        library.split_by_node,
        library.split_by_worker,
    )
