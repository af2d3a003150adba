"""The ways in which a composed wrapper sums a flat tensor over its ranks, each of them right."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


class _Summed:
    """A sum that is ready: the collectives other than all-reduce wait by themselves."""

    def wait(self) -> None:
        """Return at once."""


def _gathered(flat: Tensor, group: Group) -> _Summed:
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, flat, group=group)
    total = parts[0]
    for part in parts[1:]:
        total += part
    flat.copy_(total)
    return _Summed()


def _rooted(flat: Tensor, group: Group) -> _Summed:
    dist.reduce(flat, group_dst=0, group=group)
    dist.broadcast(flat, group_src=0, group=group)
    return _Summed()


def _scattered(flat: Tensor, group: Group) -> _Summed:
    size = dist.get_world_size(group)
    padded = _padded(flat, size)
    own = flat.new_empty(padded.numel() // size)
    dist.reduce_scatter_tensor(own, padded, group=group)
    dist.all_gather_into_tensor(padded, own, group=group)
    flat.copy_(padded[: flat.numel()])
    return _Summed()


def _padded(flat: Tensor, size: int) -> Tensor:
    """Return a copy, filled up with zeros until it has as many equal parts as there are ranks."""
    return torch.cat([flat, flat.new_zeros(-flat.numel() % size)])


def _around_a_ring(flat: Tensor, group: Group) -> _Summed:
    """Sum in W - 1 rounds, in which each rank passes on one part, and share the sums in W - 1 more."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    padded = _padded(flat, size)
    parts = padded.chunk(size)
    after, before = (rank + 1) % size, (rank - 1) % size
    for turn in range(2 * (size - 1)):
        mine, theirs = parts[(rank - turn) % size], parts[(rank - turn - 1) % size]
        received = _exchanged(mine, after, before, group)
        if turn < size - 1:
            theirs.add_(received)
        else:
            theirs.copy_(received)
    flat.copy_(padded[: flat.numel()])
    return _Summed()


def _doubled(flat: Tensor, group: Group) -> _Summed:
    """Sum by recursive doubling; ranks beyond a power of two give to a rank, and get the sum from it."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    power = 1 << (size.bit_length() - 1)
    if rank >= power:
        dist.send(flat, group_dst=rank - power, group=group)
        dist.recv(flat, group_src=rank - power, group=group)
        return _Summed()
    beyond = rank + power if rank + power < size else None
    if beyond is not None:
        flat.add_(_received(flat, beyond, group))
    distance = 1
    while distance < power:
        flat.add_(_exchanged(flat, rank ^ distance, rank ^ distance, group))
        distance *= 2
    if beyond is not None:
        dist.send(flat, group_dst=beyond, group=group)
    return _Summed()


def _in_nodes(flat: Tensor, group: Group, ranks: int) -> _Summed:
    """Sum within nodes of some ranks, then over the nodes' first ranks, and send the sum back."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    first = rank - rank % ranks
    # Each rank receives from those below it in the tree, and then sends to the one above it.
    below = [*range(rank + 1, min(rank + ranks, size))] if rank == first else []
    below += range(ranks, size, ranks) if rank == 0 else []
    above = first if rank != first else 0
    for other in below:
        flat.add_(_received(flat, other, group))
    if rank:
        dist.send(flat, group_dst=above, group=group)
        dist.recv(flat, group_src=above, group=group)
    for other in below:
        dist.send(flat, group_dst=other, group=group)
    return _Summed()


def _received(like: Tensor, source: int, group: Group) -> Tensor:
    received = torch.empty_like(like)
    dist.recv(received, group_src=source, group=group)
    return received


def _exchanged(sent: Tensor, target: int, source: int, group: Group) -> Tensor:
    """Send a tensor to one rank, and return what another rank sends."""
    sent = sent.clone()
    work = dist.isend(sent, group_dst=target, group=group)
    received = _received(sent, source, group)
    if work is not None:
        work.wait()
    return received


SUMMED: dict[str, Callable[[Tensor, Group], Any]] = {
    "all_reduce": lambda flat, group: dist.all_reduce(flat, group=group, async_op=True),
    "gathered": _gathered,
    "rooted": _rooted,
    "scattered": _scattered,
    "ring": _around_a_ring,
    "doubled": _doubled,
    "nodes": partial(_in_nodes, ranks=2),
    "trios": partial(_in_nodes, ranks=3),
}
"""By name: the sum, which returns something to wait for."""
