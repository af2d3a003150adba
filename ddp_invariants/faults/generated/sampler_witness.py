"""The witness of composed samplers: it lists all shards, and counts indices."""

import itertools
from collections import Counter
from collections.abc import Sequence

from ddp_invariants.faults.generated.choices import Composition
from ddp_invariants.faults.generated.sampler import ComposedSampler

_SAMPLES = (3, 7, 31, 100, 3001)
_RANKS = (2, 3, 5)
_SEEDS = (1, 120)
_EPOCHS = (0, 1, 2, 3, 3, 0)
_MANY = 30
"""Samples from which two orders of a shuffle are never the same by chance: 1 in 30! orders is."""

Shards = list[list[int]]


def shown(composition: Composition) -> str:
    """Return a sentence that shows a sampler wrong; empty if it is not."""
    for samples, size, shuffle, drop in itertools.product(
        _SAMPLES, _RANKS, (True, False), (False, True)
    ):
        by_seed = []
        for seed in _SEEDS:
            arguments = {"shuffle": shuffle, "seed": seed, "drop_last": drop}
            words, by_epoch = _iterated(composition, samples, size, arguments)
            if words:
                return f"{samples} samples on {size} ranks, {arguments}: {words}"
            by_seed.append(by_epoch)
        if shuffle and samples >= _MANY and by_seed[0][0] == by_seed[1][0]:
            return f"{samples} samples on {size} ranks: seeds {_SEEDS} give the same order"
    return ""


def _iterated(
    composition: Composition, samples: int, size: int, arguments: dict[str, bool | int]
) -> tuple[str, dict[int, Shards]]:
    """Return a sentence on the first wrong epoch, and the shards of each epoch."""
    chosen = {**dict(composition.host_arguments), **dict(composition.fault_arguments)}
    samplers = [
        ComposedSampler(range(samples), size, rank, **arguments, **chosen)  # type: ignore[arg-type]  # as an option gives them
        for rank in range(size)
    ]
    by_epoch: dict[int, Shards] = {}
    for epoch in _EPOCHS:
        for sampler in samplers:
            sampler.set_epoch(epoch)
        lengths = [len(sampler) for sampler in samplers]
        shards = [list(sampler) for sampler in samplers]
        words = _miscounted(shards, lengths, samples, drop=bool(arguments["drop_last"]))
        if not words and by_epoch.setdefault(epoch, shards) != shards:
            words = "the epoch has another order when it is iterated again"
        words = words or _misordered(by_epoch, samples, shuffle=bool(arguments["shuffle"]))
        if words:
            return f"epoch {epoch}: {words}", by_epoch
    return "", by_epoch


def _miscounted(shards: Shards, lengths: Sequence[int], samples: int, *, drop: bool) -> str:
    """Return a sentence if the shards are no division of the dataset with the right padding."""
    size = len(shards)
    share = samples // size if drop else -(-samples // size)
    if lengths != [share] * size or any(len(shard) != share for shard in shards):
        return (
            f"lengths {lengths} and shards of {[*map(len, shards)]}, expected {share} on each rank"
        )
    counts = Counter(index for shard in shards for index in shard)
    if not counts.keys() <= {*range(samples)}:
        return f"index {max(counts)} of {samples} samples"
    if drop and counts and max(counts.values()) > 1:
        return "an index comes twice, though the rest is dropped"
    if not drop and len(counts) < samples:
        return f"{samples - len(counts)} samples are on no rank"
    return ""


def _misordered(by_epoch: dict[int, Shards], samples: int, *, shuffle: bool) -> str:
    """Return a sentence if indices are shuffled although they must not be, or the reverse."""
    in_order = [_in_order(shards, samples) for shards in by_epoch.values()]
    if not shuffle:
        return "" if all(in_order) else "indices are not in order, though they are not shuffled"
    if samples < _MANY:
        return ""
    if any(in_order):
        return "indices are in order, though they are shuffled"
    orders = [*by_epoch.values()]
    return "two epochs have the same order" if orders[-1] in orders[:-1] else ""


def _in_order(shards: Shards, samples: int) -> bool:
    """Return whether the indices of all shards ascend, apart from as many as padding may be."""
    padding = sum(map(len, shards)) - samples
    beyond = 0
    for shard in shards:
        falls = (place for place in range(1, len(shard)) if shard[place] <= shard[place - 1])
        beyond += len(shard) - next(falls, len(shard))
    return beyond <= max(padding, 0)
