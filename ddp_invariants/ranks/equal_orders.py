"""The evidence that two epochs, or two seeds, share an order, and not by chance.

Nobody knows how many orders a sampler chooses from. A sampler that shuffles three samples within
each rank's fixed shard has six orders, however long the dataset is. But if it has two orders or more,
then two epochs are followed by `ENOUGH` equal pairs of epochs with a chance of at most 2**-30.

Epochs that share an order may come at regular intervals: a sampler that halves the epoch gives epochs
0 and 1 one order, 2 and 3 the next one. So pairs at several intervals are compared.

A sampler that shuffles chunks of samples has one order of a dataset that is shorter than a chunk. So
orders count as equal only if those of a longer dataset are equal, too.

A sampler that counts its iterations is not asked for late epochs, which take too many of them.

A sampler may also be wrong in one epoch alone, such as the first one after a restart. Then the epochs
share their order under every seed, and no others share one.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.shard_case import ENOUGH, fewest_orders, may_repeat
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler

Shards = list[list[int]]
_LONGER = (61**2, 61)
"""The factors by which a dataset is made longer, the first one that gives no more than `_LONGEST`.

They keep what a mistake may depend on: whether the number of samples is odd, and mostly whether the
ranks divide it.
"""
_LONGEST = 200_000
_FEW = 2
"""The ranks that are asked for a longer dataset: two orders differ on each of them."""
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


def equal_seeds(
    case: ShardCase,
    ask: Callable[[ShardCase, Sequence[int]], Shards],
    ranks: Sequence[int],
    dealt: Shards,
    *,
    alike: bool,
) -> int:
    """Return how many pairs of seeds in a row give one order.

    The first pair is the case's seed and its other seed; the next pairs follow both. If the first
    pair gives two orders of a longer dataset, no further pair counts. No further seeds are asked for
    where no number of equal pairs would tell anything.

    Args:
        case: The case.
        ask: A function that returns some ranks' shards of the last epoch for any case.
        ranks: The ranks to ask for.
        dealt: Their shards of the last epoch under the case's seed.
        alike: True if the first pair gives one order.
    """
    if not alike or fewest_orders(case) == 1 or not _worth_it(case, dealt):
        return int(alike)
    direction = 1 if case.other_seed > case.data.seed else -1
    equal = _equal_pairs(
        lambda number: ask(_seeded(case, case.data.seed + number * direction), ranks),
        lambda number: ask(_seeded(case, case.other_seed + number * direction), ranks),
    )
    long, few = _longer(case), ranks[:_FEW]
    differ = equal == ENOUGH and _differ(
        lambda: (ask(long, few), ask(_seeded(long, case.other_seed), few))
    )
    return 1 if differ else equal


def equal_epochs(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], dealt: list[Shards]
) -> list[list[int]]:
    """Return which of the case's epochs share an order, and how many pairs after them do, too.

    The same samplers are asked for all of them, as in one training run.

    Returns:
        Rows of two places in `case.epochs`, and the number of equal pairs in a row. Epochs that have
        two orders of a longer dataset are left out.
    """

    def of_a_longer_dataset(epoch: int, partner: int) -> tuple[Shards, Shards]:
        samplers = [RankSampler(_longer(case), make, rank) for rank in ranks[:_FEW]]
        return _of_epoch(samplers, epoch), _of_epoch(samplers, partner)

    rows: list[list[int]] = []
    if make.declared.padding == "endless":
        return rows  # No rule compares the epochs of a stream without end.
    for (first, epoch), (second, partner) in combinations(enumerate(case.epochs), 2):
        if epoch == partner or dealt[first] != dealt[second]:
            continue
        if not _worth_it(case, dealt[first]):
            rows.append([first, second, 1])
        elif not _differ(partial(of_a_longer_dataset, epoch, partner)):
            rows.append([first, second, _equal_in_a_row(case, make, ranks, epoch, partner)])
    return rows


def epoch_intervals(
    case: ShardCase,
    make: SamplerMaker,
    ranks: Sequence[int],
    dealt: list[Shards],
    equal: list[list[int]],
) -> list[list[int]]:
    """Return which epochs share an order, and share one again and again at a regular interval.

    Args:
        case: The case.
        make: The sampler under test.
        ranks: The ranks to ask for.
        dealt: Their shards of each epoch.
        equal: The rows of `equal_epochs`.

    Returns:
        Rows of two places in `case.epochs`, and the interval.
    """
    rows = []
    for first, second, count in equal:
        if count < ENOUGH and _worth_it(case, dealt[first]) and not make.counts_epochs:
            samplers = [RankSampler(case, make, rank) for rank in ranks]
            interval = _interval(samplers, case.epochs[first], case.epochs[second])
            rows += [] if interval is None else [[first, second, interval]]
    return rows


def _interval(samplers: list[RankSampler], epoch: int, partner: int) -> int | None:
    """Return the interval at which pairs of epochs share an order after two that do."""
    most = ENOUGH + _MORE
    return next(
        (by for by in _INTERVALS if _recurring(samplers, epoch, partner, by, most) == most), None
    )


def _recurring(
    samplers: list[RankSampler], epoch: int, partner: int, interval: int, most: int
) -> int:
    """Return how many pairs of epochs in a row share an order, each an interval later."""
    return _equal_pairs(
        lambda number: _of_epoch(samplers, epoch + interval * number),
        lambda number: _of_epoch(samplers, partner + interval * number),
        most,
    )


def lone_epochs(
    case: ShardCase,
    make: SamplerMaker,
    ranks: Sequence[int],
    dealt: list[Shards],
    equal: list[list[int]],
) -> list[list[int]]:
    """Return which epochs share an order under every seed, while no other epochs share one.

    Args:
        case: The case.
        make: The sampler under test.
        ranks: The ranks to ask for.
        dealt: Their shards of each epoch.
        equal: The rows of `equal_epochs`.

    Returns:
        Rows of two places in `case.epochs`.
    """
    rows = []
    for first, second, count in equal:
        pair = case.epochs[first], case.epochs[second]
        worth_it = _worth_it(case, dealt[first], _EPOCHS) and not make.counts_epochs
        if count < ENOUGH and worth_it and _is_lone(case, make, ranks, *pair):
            rows.append([first, second])
    return rows


def _is_lone(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], epoch: int, partner: int
) -> bool:
    """Return whether two epochs share an order under every seed, and no other epochs do.

    A sampler may refuse a seed or an epoch that the case does not ask for, which proves nothing.
    """
    with suppress(Exception):  # An implementation may raise anything.
        return _share_under_every_seed(case, make, ranks, epoch, partner) and _others_differ(
            case, make, ranks, partner
        )
    return False


def _share_under_every_seed(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], epoch: int, partner: int
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
        if order in known or _of_epoch(samplers, partner) != order:
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
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], epoch: int, partner: int
) -> int:
    samplers = [RankSampler(case, make, rank) for rank in ranks]
    if make.counts_epochs:
        return _equal_ahead(samplers, epoch, partner)
    equal = _recurring(samplers, epoch, partner, 1, ENOUGH)
    mirrored = 2 * case.data.seed + epoch + partner == 0
    return max(equal, _equal_mirrored(case, make, ranks, epoch, partner)) if mirrored else equal


def _equal_ahead(samplers: list[RankSampler], epoch: int, partner: int) -> int:
    """Return how many pairs in a row share an order, of samplers that count their iterations."""
    for sampler in samplers:
        sampler.set_epoch(0)
    orders = [
        [sampler.indices() for sampler in samplers] for _ in range(max(epoch, partner) + ENOUGH)
    ]
    return _equal_pairs(
        lambda number: orders[epoch + number], lambda number: orders[partner + number]
    )


def _equal_mirrored(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], epoch: int, partner: int
) -> int:
    """Return how many pairs in a row share an order, whose sums of seed and epoch are opposite.

    The seed goes down by one from pair to pair, and the later epoch up by two.
    """

    def of(number: int, epoch: int) -> Shards:
        seeded = _seeded(case, case.data.seed - number)
        return _of_epoch([RankSampler(seeded, make, rank) for rank in ranks], epoch)

    first, last = sorted((epoch, partner))
    return _equal_pairs(
        lambda number: of(number, first), lambda number: of(number, last + 2 * number)
    )


def _longer(case: ShardCase) -> ShardCase:
    """Return the case with a longer dataset; the same case if its dataset is long."""
    samples = case.data.samples
    times = next((times for times in _LONGER if samples * times <= _LONGEST), 1)
    return replace(case, data=replace(case.data, samples=samples * times))


def _differ(ask: Callable[[], tuple[Shards, Shards]]) -> bool:
    """Return whether two orders of a longer dataset differ.

    A sampler may refuse a dataset that the case does not ask for, which proves nothing.
    """
    with suppress(Exception):  # An implementation may raise anything.
        first, second = ask()
        return first != second
    return False


def _worth_it(case: ShardCase, shards: Shards, times: int = ENOUGH) -> bool:
    """Return whether more orders can tell chance from a fault, at a bearable cost.

    Args:
        case: The case.
        shards: The equal shards.
        times: The number of orders.
    """
    data = case.data
    return (
        data.shuffle
        and not may_repeat(data.samples, shards)
        and data.samples * case.world_size * times <= _MOST
    )


def _equal_pairs(
    first: Callable[[int], Shards], second: Callable[[int], Shards], most: int = ENOUGH
) -> int:
    """Return how many pairs in a row are equal, the given one among them, up to a number.

    A sampler may refuse an epoch or a seed that the case does not ask for, which proves nothing.
    """
    for number in range(1, most):
        try:
            if first(number) != second(number):
                return number
        except Exception:  # noqa: BLE001 - an implementation may raise anything
            return number
    return most


def _seeded(case: ShardCase, seed: int) -> ShardCase:
    return replace(case, data=replace(case.data, seed=seed))


def _of_epoch(samplers: list[RankSampler], epoch: int) -> Shards:
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [sampler.indices() for sampler in samplers]
