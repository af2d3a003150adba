"""The evidence that two epochs, or two seeds, share an order, and not by chance.

Nobody knows how many orders a sampler chooses from. A sampler that shuffles three samples within
each rank's fixed shard has six orders, however long the dataset is. But if it has two orders or more,
then two epochs are followed by `ENOUGH` equal pairs of epochs with a chance of at most 2**-30.

Epochs that share an order may come at regular intervals: a sampler that halves the epoch gives epochs
0 and 1 one order, 2 and 3 the next one. So pairs at several intervals are compared.

A sampler may also be wrong in one epoch alone, such as the first one after a restart. Then the epochs
share their order under every seed, and no others share one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.shard_case import ENOUGH
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler

Shards = list[list[int]]
_MOST = 1_000_000
"""The most samples, times ranks and times pairs, that are asked for."""
_INTERVALS = (*range(2, 11), 12, 16, 20, 32, 50, 64, 100, 128)
"""The intervals at which further pairs of epochs are compared, besides one."""
_MORE = 5
"""The further equal pairs that these need, because there are seventeen of them: 2**-5 < 1 / 17."""
_EPOCHS = 1024
"""The epochs of which no others may share an order.

If a sampler chose from fewer than 25,000 orders for an epoch, two of so many would be equal, with a
chance of 1 - 1e-9.
"""


def equal_seeds(case: ShardCase, ask: Callable[[ShardCase], Shards], *, alike: bool) -> int:
    """Return how many pairs of seeds in a row give one order.

    The first pair is the case's seed and its other seed; the next pairs follow both.

    Args:
        case: The case.
        ask: A function that returns the shards of the last epoch for any case.
        alike: True if the first pair gives one order.
    """
    if not alike or not _worth_it(case):
        return int(alike)
    direction = 1 if case.other_seed > case.data.seed else -1
    return _equal_pairs(
        lambda number: ask(_seeded(case, case.data.seed + number * direction)),
        lambda number: ask(_seeded(case, case.other_seed + number * direction)),
    )


def equal_epochs(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], dealt: list[Shards]
) -> list[list[int]]:
    """Return which of the case's epochs share an order, and how many pairs after them do, too.

    The same samplers are asked for all of them, as in one training run.

    Returns:
        Rows of two places in `case.epochs`, and the number of equal pairs in a row.
    """
    return [
        [first, second, _equal_in_a_row(case, make, ranks, case.epochs[first], case.epochs[second])]
        for first, second in combinations(range(len(case.epochs)), 2)
        if case.epochs[first] != case.epochs[second] and dealt[first] == dealt[second]
    ]


def lone_epochs(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], equal: list[list[int]]
) -> list[list[int]]:
    """Return which epochs share an order under every seed, while no other epochs share one.

    Args:
        case: The case.
        make: The sampler under test.
        ranks: The ranks to ask for.
        equal: The rows of `equal_epochs`.

    Returns:
        Rows of two places in `case.epochs`.
    """
    rows = []
    for first, second, count in equal:
        pair = case.epochs[first], case.epochs[second]
        if (
            count < ENOUGH
            and _worth_it(case, _EPOCHS)
            and _share_under_every_seed(case, make, ranks, *pair)
            and _others_differ(case, make, ranks, pair[1])
        ):
            rows.append([first, second])
    return rows


def _share_under_every_seed(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], epoch: int, other: int
) -> bool:
    """Return whether two epochs share an order under `ENOUGH` seeds, each with another order.

    The orders of a sampler without a seed are all the same, and prove nothing.
    """
    direction = 1 if case.other_seed > case.data.seed else -1
    known: list[Shards] = []
    for number in range(ENOUGH):
        seeded = _seeded(case, case.data.seed + number * direction)
        samplers = [RankSampler(seeded, make, rank) for rank in ranks]
        order = _of_epoch(samplers, epoch)
        if order in known or _of_epoch(samplers, other) != order:
            return False
        known.append(order)
    return True


def _others_differ(case: ShardCase, make: SamplerMaker, ranks: Sequence[int], without: int) -> bool:
    """Return whether the first `_EPOCHS` epochs, without one of them, all have different orders."""
    samplers = [RankSampler(case, make, rank) for rank in ranks]
    known = set[str]()
    for epoch in range(_EPOCHS):
        if epoch == without:
            continue
        order = str(_of_epoch(samplers, epoch))
        if order in known:
            return False
        known.add(order)
    return True


def _equal_in_a_row(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], epoch: int, other: int
) -> int:
    if not _worth_it(case):
        return 1
    samplers = [RankSampler(case, make, rank) for rank in ranks]

    def at_an_interval(interval: int, most: int) -> int:
        return _equal_pairs(
            lambda number: _of_epoch(samplers, epoch + interval * number),
            lambda number: _of_epoch(samplers, other + interval * number),
            most,
        )

    equal, most = at_an_interval(1, ENOUGH), ENOUGH + _MORE
    if equal < ENOUGH and any(at_an_interval(by, most) == most for by in _INTERVALS):
        return ENOUGH
    mirrored = 2 * case.data.seed + epoch + other == 0
    return max(equal, _equal_mirrored(case, make, ranks, epoch, other)) if mirrored else equal


def _equal_mirrored(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], epoch: int, other: int
) -> int:
    """Return how many pairs in a row share an order, whose sums of seed and epoch are opposite.

    The seed goes down by one from pair to pair, and the later epoch up by two.
    """

    def of(number: int, epoch: int) -> Shards:
        seeded = _seeded(case, case.data.seed - number)
        return _of_epoch([RankSampler(seeded, make, rank) for rank in ranks], epoch)

    first, last = sorted((epoch, other))
    return _equal_pairs(
        lambda number: of(number, first), lambda number: of(number, last + 2 * number)
    )


def _worth_it(case: ShardCase, times: int = ENOUGH) -> bool:
    """Return whether more orders can tell chance from a fault, at a bearable cost.

    Args:
        case: The case.
        times: The number of orders.
    """
    data = case.data
    return data.shuffle and data.samples > 1 and data.samples * case.world_size * times <= _MOST


def _equal_pairs(
    first: Callable[[int], Shards], second: Callable[[int], Shards], most: int = ENOUGH
) -> int:
    """Return how many pairs in a row are equal, the given one among them, up to a number."""
    return next((n for n in range(1, most) if first(n) != second(n)), most)


def _seeded(case: ShardCase, seed: int) -> ShardCase:
    return replace(case, data=replace(case.data, seed=seed))


def _of_epoch(samplers: list[RankSampler], epoch: int) -> Shards:
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [sampler.indices() for sampler in samplers]
