"""A stream of squirrel that is split by rank and by worker."""

import importlib
from typing import Any

from ddp_invariants.implementation.adapters import preload

preload("squirrel.iterstream")


def split(iterable: Any) -> Any:
    """Return the part of a stream that this process reads."""
    stream: Any = importlib.import_module("squirrel.iterstream")
    return stream.IterableSource(iterable).split_by_rank_pytorch().split_by_worker_pytorch()
