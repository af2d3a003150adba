"""Causes of shards that overlap, miss samples or have unequal lengths.

Words: N dataset length, W world size, L indices per rank; total = W * L. Unlike the causes of a
wrong gradient, these causes need not predict every index. A cause fits unless the shards are
impossible under it, or have a chance below 1e-9.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, comb, exp, log, log1p

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.records.verdict import Cause

Shards = list[list[int]]

_IMPOSSIBLE = log(1e-9)
_MANY = 40
"""Smallest dataset length at which two permutations' halves overlap, but for a chance of 1e-10."""


@dataclass(frozen=True)
class YieldedShards:
    """The shards that a sampler yielded.

    Attributes:
        case: The case.
        epochs: Each epoch with every rank's indices.
        total: Number of indices that all ranks together should have.
    """

    case: ShardCase
    epochs: list[tuple[int, Shards]]
    total: int

    @property
    def samples(self) -> int:
        """The dataset length N."""
        return self.case.data.samples

    @property
    def endless(self) -> int:
        """Number of indices after which the harness stops iterating a rank (`ranks.shards`)."""
        return 4 * (self.samples + self.case.world_size * self.case.data.batch_size) + 1000

    @property
    def padding(self) -> int:
        """The number of indices that are added so that all ranks yield equally many."""
        return 0 if self.case.data.drop_last else max(0, self.total - self.samples)

    @property
    def share(self) -> int:
        """The correct number of indices per rank, L."""
        return self.total // self.case.world_size


def of_lengths(yielded: YieldedShards, shards: Shards) -> list[Cause]:
    """Return the causes of different numbers of indices on the ranks."""
    n, w, counts = yielded.samples, yielded.case.world_size, [len(shard) for shard in shards]
    repeated = sum(counts) - len({index for shard in shards for index in shard})
    causes = []
    if sum(counts) == n and not repeated and not yielded.case.data.drop_last:
        causes.append(
            Cause(
                "no padding",
                f"no padding: each of the {n} indices is yielded once, and ranks with more "
                "indices would wait for ever",
            )
        )
    if 2 * n < yielded.total and counts == [len(range(rank, 2 * n, w)) for rank in range(w)]:
        causes.append(
            Cause(
                "padding short",
                f"the order is padded with one slice of itself, which holds N = {n} indices: "
                f"{2 * n} in all, expected {yielded.total}",
            )
        )
    return [*causes, *_of_slices(yielded, shards)]


def of_length(
    yielded: YieldedShards, shards: Shards, shard: list[int], length: int | None = None
) -> list[Cause]:
    """Return the causes of a wrong `len`, or of a shard that is longer than its share."""
    if len(shard) >= yielded.endless:
        return [
            Cause(
                "endless",
                f"it yields without end: iteration was stopped after {len(shard)} indices; a stream "
                'declares padding = "endless"',
            )
        ]
    causes = [*_of_the_ranks(yielded, shards), *_of_slices(yielded, shards)]
    if length is not None and len(shard) == yielded.share:
        causes += [Cause("len of the dataset", f"len is that of the whole dataset, {length}")] * (
            length == yielded.samples
        )
        causes += [Cause("len one too many", f"len is {length}, one too many")] * (
            length == len(shard) + 1
        )
        batches = ceil(yielded.total / yielded.case.data.batch_size)
        causes += [Cause("len of all batches", f"len is that of all ranks' batches, {length}")] * (
            length == batches
        )
    return causes


def of_batches(yielded: YieldedShards, batches: list[int]) -> list[Cause]:
    """Return the cause of different numbers of DataLoader batches on the ranks."""
    size, counts = yielded.case.data.batch_size, [len(shard) for shard in yielded.epochs[-1][1]]
    if batches != [ceil(count / size) for count in counts]:
        return []
    unlike = [
        f"rank {rank} yields {count}" for rank, count in enumerate(counts) if count != yielded.share
    ]
    return [
        Cause(
            "uneven shards",
            f"{', '.join(unlike)} indices, expected {yielded.share}, whatever len says",
        )
    ]


def of_promised_batches(yielded: YieldedShards, promised: list[int]) -> list[Cause]:
    """Return the cause of a DataLoader `len` that differs from the number of its batches."""
    counts = [len(shard) for shard in yielded.epochs[-1][1]]
    return [
        Cause("len counts indices", "len of a sampler of batches counts indices, not batches")
    ] * (promised == counts)


def repeated(worked: list[list[list[int]]], shards: Shards) -> bool:
    """Return whether each worker yields all indices of its rank, in any order.

    Args:
        worked: The indices by rank and worker.
        shards: Each rank's indices without workers.
    """
    return all(
        sorted(part) == sorted(shard)
        for parts, shard in zip(worked, shards, strict=True)
        for part in parts
    )


def of_workers(worked: list[list[list[int]]], rank: int, shards: Shards) -> list[Cause]:
    """Return the causes of a rank's workers that yield too much, or not everything.

    Args:
        worked: The indices by rank and worker.
        rank: The rank.
        shards: Each rank's indices without workers.
    """
    parts, whole = worked[rank], shards[rank]
    everything = [shard for other_rank, shard in enumerate(shards) if other_rank != rank]
    causes = [
        (
            Cause(
                "worker ignored",
                "every worker yields the rank's whole share: the worker's number is ignored",
            ),
            len(parts) > 1 and repeated(worked, shards),
        ),
        (
            Cause(
                "first worker only", "the first worker yields everything, the other workers nothing"
            ),
            len(parts) > 1 and not any(parts[1:]) and Counter(parts[0]) != Counter(whole),
        ),
        (
            Cause("rank ignored", "workers split the dataset, not the rank's share"),
            bool(everything)
            and Counter(index for part in parts for index in part)
            == Counter({index for shard in shards for index in shard}),
        ),
        (
            Cause(
                "whole rounds only",
                f"each worker yields {len(whole) // len(parts)} of the {len(whole)}: no worker "
                "yields the remainder",
            ),
            len(whole) % len(parts) != 0
            and {len(part) for part in parts} == {len(whole) // len(parts)},
        ),
    ]
    return [cause for cause, fits in causes if fits]


def of_overlap_or_loss(yielded: YieldedShards, epoch: int, shards: Shards) -> list[Cause]:
    """Return the causes of samples that are lost or appear twice."""
    return [
        *_of_the_ranks(yielded, shards),
        *_of_replaced(yielded, shards),
        *_of_random_orders(yielded, epoch),
        *_of_slices(yielded, shards),
    ]


def of_indices(samples: int, outside: list[int]) -> list[Cause]:
    """Return the cause of indices outside the dataset."""
    past = f"it is the number of samples: indices end at {samples - 1}"
    return [Cause("past the end", past)] * (set(outside) == {samples})


def _of_the_ranks(yielded: YieldedShards, shards: Shards) -> Iterator[Cause]:
    n, w = yielded.samples, yielded.case.world_size
    if w > 1 and n and all(shard == shards[0] for shard in shards) and not _repeats(shards[0]):
        if len(shards[0]) == n:
            yield Cause(
                "not sharded",
                f"every rank yields the whole dataset of {n} samples: it is not sharded",
            )
        elif shards[0]:
            yield Cause(
                "rank ignored",
                f"every rank yields the same {len(shards[0])} indices: the rank is ignored",
            )
    alike = max(([rank for rank in range(w) if shards[rank] == shard] for shard in shards), key=len)
    padding = max(0, yielded.total - n)
    if (
        len(alike) < w
        and (len(alike) - 1) * len(shards[alike[0]]) > padding
        and not _repeats(shards[alike[0]])
    ):
        yield Cause("same shard", f"ranks {alike} yield the same indices")


def _of_replaced(yielded: YieldedShards, shards: Shards) -> Iterator[Cause]:
    """Yield the cause of indices that stand in a shard at the place of lost ones."""
    n, share = yielded.samples, yielded.share
    dropped = max(0, n - yielded.total)
    lost = n - dropped - len({index for shard in shards for index in shard})
    twice = [rank for rank, shard in enumerate(shards) if _repeats(shard)]
    if (
        0 < lost <= len(twice)
        and share <= n
        and all(len(shard) == share for shard in shards)
        and all(len(set(shards[rank])) == share - 1 for rank in twice)
    ):
        index = Counter(shards[twice[0]]).most_common(1)[0][0]
        yield Cause(
            "replaced",
            f"rank {twice[0]} yields index {index} twice: it stands at the place of another index",
        )


def _repetitions(indices: list[int]) -> int:
    return len(indices) - len(set(indices))


def _repeats(indices: list[int]) -> bool:
    return _repetitions(indices) > 0


def _excess(yielded: YieldedShards, shards: Shards) -> int:
    """Return the number of repetitions beyond padding."""
    return _repetitions([index for shard in shards for index in shard]) - yielded.padding


def _of_random_orders(yielded: YieldedShards, epoch: int) -> Iterator[Cause]:
    n, w, first = yielded.samples, yielded.case.world_size, dict(yielded.epochs)
    every = [shard for _, shards in yielded.epochs for shard in shards]
    if not yielded.case.data.shuffle or any(
        not 0 <= index < n for shard in every for index in shard
    ):
        return
    # Padding may repeat an index in one rank's shard: blocks of [a, b, c, c] are [a, b] and [c, c].
    inside = [shard for shard in every if _repetitions(shard) > yielded.padding]
    chance = sum(_log_chance_of_so_few_repetitions(shard, n) for shard in every)
    if all(len(shard) <= n for shard in every) and chance > _IMPOSSIBLE:
        if not inside:
            yield Cause("with replacement", "indices are drawn with replacement")
        elif _drawn_by_chance(inside[0], n):
            index, times = Counter(inside[0]).most_common(1)[0]
            yield Cause(
                "with replacement",
                f"one rank's shard of {len(inside[0])} holds index {index} {times} times, "
                f"and a part of a permutation of {n} cannot: drawn with replacement",
            )
    if inside or w == 1:
        return
    constant = [
        rank for rank in range(w) if len({tuple(shards[rank]) for _, shards in yielded.epochs}) == 1
    ]
    agreed = [number for number, shards in yielded.epochs if _excess(yielded, shards) <= 0]
    if n < _MANY or not agreed:
        yield Cause(
            "shuffled differently",
            f"each rank's shard in epoch {epoch} is part of a permutation"
            f"{' with its padding' * any(map(_repeats, every))}, but not of the same one: the ranks "
            "shuffle differently (a seed that contains the rank, the global generator, or a rank "
            "that does not shuffle)",
        )
    if (
        constant
        and (len(constant) < w if len(first) > 1 else 0 not in first)
        and (0 not in first or 0 in agreed)
    ):
        moving = [rank for rank in range(w) if rank not in constant]
        told = f"the orders of ranks {moving} change with the epoch, those of ranks {constant} do not: "
        yield Cause(
            "epoch on some ranks",
            f"{told if moving else ''}set_epoch reaches only some ranks",
        )


def _log_chance_of_so_few_repetitions(shard: list[int], samples: int) -> float:
    """Return a bound of the logarithm of the chance that draws with replacement repeat no more.

    Among such draws, all but the repetitions are different. There are `comb(draws, repetitions)`
    choices of these, and the chance that k draws are all different is a product of 1 - i / N.
    """
    draws, repetitions = len(shard), _repetitions(shard)
    different = sum(log1p(-i / samples) for i in range(draws - repetitions) if i < samples)
    return log(comb(draws, repetitions)) + different


def _drawn_by_chance(shard: list[int], samples: int) -> bool:
    """Return whether draws with replacement may leave so few indices out.

    The indicators of indices that are left out are negatively associated, so Chernoff's bound
    holds for their sum.
    """
    mean = samples * exp(len(shard) * log1p(-1 / samples)) if samples > 1 else 0.0
    left_out = samples - len(set(shard))
    return left_out >= mean or -((mean - left_out) ** 2) / mean / 2 > _IMPOSSIBLE


def _of_slices(yielded: YieldedShards, shards: Shards) -> Iterator[Cause]:
    """Yield causes that take wrong parts of a right order."""
    n, w, counts = yielded.samples, yielded.case.world_size, [len(shard) for shard in shards]
    flat, data = [index for shard in shards for index in shard], yielded.case.data
    if n % w and counts == [n // w] * w and not _repeats(flat) and not data.drop_last:
        chunks = not data.shuffle and n // w > 1 and flat == list(range(len(flat)))
        yield Cause(
            "tail dropped",
            f"each rank yields N // W = {n // w} indices{', a contiguous chunk' * chunks}, none "
            f"twice: the last N mod W = {n % w} samples are dropped although drop_last is off",
        )
    cut = n - n % yielded.case.data.batch_size
    if cut < n and set(flat) == set(range(cut)) and not (data.drop_last or data.shuffle):
        yield Cause(
            "short batch lost",
            f"the last batch, a short one, is lost: {n} mod {data.batch_size} samples",
        )
    short = yielded.share % data.batch_size
    if short and counts == [yielded.share - short] * w and not _repeats(flat):
        yield Cause(
            "short batches lost",
            f"each rank's last batch, a short one, is lost: {short} of {yielded.share} indices",
        )
    if data.drop_last and n % w and counts == [ceil(n / w)] * w and set(flat) == set(range(n)):
        yield Cause(
            "drop_last ignored",
            f"each rank yields {ceil(n / w)} indices, as without drop_last: it is ignored",
        )
    twice = [range(yielded.total)[rank::w][rank::w] for rank in range(w)]
    if w > 1 and (
        shards == [[place % n for place in places] for places in twice]
        if n and not data.shuffle
        else counts == [len(places) for places in twice] and not _repeats(flat)
    ):
        yield Cause(
            "sharded twice", f"rank r yields order[r::W][r::W], {counts} indices: sharded twice"
        )
    if data.shuffle or not n:
        return
    for words, predicted in _wrong_slices(yielded).items():
        if shards == predicted:
            yield Cause("off by one", f"rank r yields {words}: off by one")
    extra = Counter(flat) - Counter(range(n))
    if (
        len(extra) == 1
        and len(flat) == yielded.total
        and set(flat) == set(range(n))  # Otherwise it took a lost index's place.
        and extra.total() > ceil(yielded.total / n) - 1
    ):
        yield Cause("padding repeats one", f"all padding is index {next(iter(extra))}")


def _wrong_slices(yielded: YieldedShards) -> dict[str, Shards]:
    """Return the shards that slices off by one would take of an order without shuffling."""
    n, w = yielded.samples, yielded.case.world_size
    order, size = [index % n for index in range(yielded.total)], yielded.share
    return {
        "order[r :: W][:-1]": [order[rank::w][:-1] for rank in range(w)],
        "order[r + 1 :: W]": [order[rank + 1 :: w] for rank in range(w)],
        "order[max(r - 1, 0) :: W]": [order[max(rank - 1, 0) :: w] for rank in range(w)],
        "order[r * L + 1 : (r + 1) * L + 1]": [
            order[rank * size + 1 : (rank + 1) * size + 1] for rank in range(w)
        ],
        "order[r * L : (r + 1) * L - 1]": [
            order[rank * size : (rank + 1) * size - 1] for rank in range(w)
        ],
        "order[r * L : (r + 1) * L + 1]": [
            order[rank * size : (rank + 1) * size + 1] for rank in range(w)
        ],
    }


def of_acceptance(refused: dict[str, str | None]) -> list[Cause]:
    """Return the cause of accepted impossible arguments."""
    accepted = [argument for argument, error in refused.items() if error is None]
    words = (
        "no argument is checked"
        if len(accepted) == len(refused)
        else f"not checked: {', '.join(accepted)}"
    )
    return [Cause("unchecked", words)]
