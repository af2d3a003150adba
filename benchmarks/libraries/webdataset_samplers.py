"""A pipeline of webdataset that splits its shards by rank and by worker."""

from typing import Any

import webdataset  # type: ignore[import-not-found] # only judged here


class Pipeline(webdataset.DataPipeline):  # type: ignore[misc] # webdataset has no types
    """The names of shards, which are numbers here, split as in webdataset's documentation."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(
            webdataset.SimpleShardList([str(index) for index in range(len(dataset))]),
            webdataset.split_by_node,
            webdataset.split_by_worker,
        )
