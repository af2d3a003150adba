"""The samples of each rank, as the `StreamingDataset` of mosaicml-streaming computes them."""

from typing import Any

import numpy as np
from bare import load

BLOCK, SHARD = 1 << 18, 8
"""The samples that are shuffled together, and the samples of a file."""


def samples(length: int, *, shuffle: bool, seed: int, batch_size: int, epoch: int) -> list[int]:
    """Return the samples of this process, whose place the library finds out by itself."""
    partitions: Any = load("streaming.base.partition", "streaming.base")
    shuffles: Any = load("streaming.base.shuffle", "streaming.base")
    world = load("streaming.base.world").World.detect()
    nodes, ranks = world.num_nodes, world.ranks_per_node
    ids = partitions.get_partitions("relaxed", length, nodes, nodes, ranks, 1, batch_size)
    if shuffle:
        files = np.diff([*range(0, length, SHARD), length])
        order = shuffles.get_shuffle("py1e", files, nodes, seed, epoch, BLOCK)
        ids = np.where(ids < 0, ids, order[ids])
    own = ids[world.node, world.rank_of_node].flatten()
    return [int(number) for number in own if number >= 0]
