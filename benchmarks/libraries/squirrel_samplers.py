"""A stream of squirrel that is split by rank and by worker."""

import importlib
from typing import Any

stream: Any = importlib.import_module("squirrel.iterstream")


def split(iterable: Any) -> Any:
    """Return the part of a stream that this process reads."""
    return stream.IterableSource(iterable).split_by_rank_pytorch().split_by_worker_pytorch()
