"""All small cases of a sampler, without any draw: every length, world size and pair of switches.

For a sampler that saves a state, a resumption at every place of every small epoch is among them. Some
long datasets and some long rows of epochs are added, since they take no longer than the small cases.

One process asks for all of them at once, which takes about a second. A case that looks wrong is
run and judged as any other case, so that nobody is accused here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, product

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shard_case import CHANCE_FREE
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Padding
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants.dealing import first_wrong, fit_of_batches
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.dealings import Dealing
from ddp_invariants.search.split import WHOLE, Split

MOST_SAMPLES = 40
MOST_RANKS = 9
_EPOCHS = (0, 1)
_LONG = (40_009, 45_045, 100_003)
"""Samples of the long datasets: two prime numbers, beyond those of 16 bits with a sign and without,
and one with the five smallest odd prime factors.
"""
_MANY_EPOCHS = (*range(40), *(63, 64, 65, 99, 100, 101, 127, 128, 129), *(255, 256, 257, 999, 1000))
"""The epochs of a long row, among which no two orders of a shuffled dataset may be equal.

A mistake in one of the first epochs shows there, and a period up to 256 epochs.
"""
_MOST_PAIRS = 4
"""The most pairs of equal orders that a row gives as cases."""
_FEW_RANKS = 2
"""The most ranks of a resumption."""


@dataclass(frozen=True)
class Exhaustion:
    """The result of all small cases.

    Attributes:
        cases: The number of small cases.
        right: The number of right ones among them.
        wrong: The cases that look wrong, with resumptions and long datasets, smallest first, by the
            first rule that they violate.
    """

    cases: int = 0
    right: int = 0
    wrong: dict[str, list[ShardCase]] = field(default_factory=dict)


def small_cases(scope: Scope) -> Iterator[ShardCase]:
    """Yield all small cases within a scope, the smallest first."""
    switches = product((False, True), repeat=2)
    for drop_last, shuffle in switches:
        for samples in range(MOST_SAMPLES + 1):
            for world_size in range(1, MOST_RANKS + 1):
                data = Data(samples, 2, shuffle, drop_last)
                case = ShardCase(world_size, data, _EPOCHS)
                if scope.fit_shards(case) == case:
                    yield case


def resumptions(scope: Scope) -> Iterator[ShardCase]:
    """Yield a case for every place at which a small epoch can be saved, the shortest first.

    The last one is the end of the epoch.
    """
    if not scope.has("resume"):
        return
    for samples in range(1, MOST_SAMPLES + 1):
        for world_size in range(1, _FEW_RANKS + 1):
            data = Data(samples, 1, shuffle=scope.has("shuffle"))
            for place in range(1 - (-samples // world_size)):
                case = ShardCase(world_size, data, saved_after=place)
                if scope.fit_shards(case) == case:
                    yield case


def long_cases(scope: Scope) -> Iterator[ShardCase]:
    """Yield cases with a long dataset."""
    for samples, shuffle, drop_last in product(_LONG, (False, True), (False, True)):
        case = ShardCase(3, Data(samples, 2, shuffle, drop_last), _EPOCHS)
        if scope.fit_shards(case) == case:
            yield case


def epoch_cases(scope: Scope) -> Iterator[ShardCase]:
    """Yield cases with a long row of epochs."""
    for shuffle in (False, True):
        case = ShardCase(2, Data(2 * CHANCE_FREE, 1, shuffle), _MANY_EPOCHS)
        if scope.fit_shards(case) == case:
            yield case


def exhaust(pool: Pool, sampler: Sampler, scope: Scope, split: Split = WHOLE) -> Exhaustion:
    """Ask a sampler for all small cases, and judge them.

    A sampler that reads its rank from its process is not asked: each rank would need a process.
    The parts of a session that is split deal out the cases among themselves.
    """
    if not scope.has("given_rank") or scope.sampler.layout == "scatter":
        return Exhaustion()
    small = split.deal(list(small_cases(scope)))
    more = split.deal([*resumptions(scope), *long_cases(scope), *epoch_cases(scope)])
    cases = [split.own_dealing(case) for case in (*small, *more)]
    right, wrong = 0, dict[str, list[ShardCase]]()
    dealt = pool.dealings(cases, sampler)
    in_batches = pool.describe(sampler)["source"]["batches"]
    for number, (case, dealing) in enumerate(zip(cases, dealt, strict=False)):
        if dealing is None:
            continue
        rule = _violated(case, scope.sampler.padding, dealing, in_batches=in_batches)
        right += not rule and number < len(small)
        if rule:
            wrong.setdefault(rule, []).append(case)
        elif case.epochs == _MANY_EPOCHS:
            pairs = [*islice(_unexpected(case, dealing), _MOST_PAIRS)]
            if pairs:
                wrong.setdefault("SHARD-5", []).extend(pairs)
                # The order may also depend on the epochs before it.
                row = case.epochs[: case.epochs.index(pairs[0].epochs[-1]) + 1]
                wrong.setdefault("SHARD-4", []).append(replace(case, epochs=row))
    return Exhaustion(len(small) if dealt else 0, right, wrong)


def _unexpected(case: ShardCase, dealing: Dealing) -> Iterator[ShardCase]:
    """Yield a case for each pair of epochs whose orders are equal, or differ without shuffle."""
    orders = [[tuple(shard) for shard in shards] for shards in dealing.epochs]
    for (epoch, order), (other, other_order) in combinations(
        zip(case.epochs, orders, strict=True), 2
    ):
        if (order == other_order) == case.data.shuffle:
            yield replace(case, epochs=(epoch, other))


def _violated(case: ShardCase, padding: Padding, dealing: Dealing, *, in_batches: bool) -> str:
    """Return the first rule that a case seems to violate; empty if it is right."""
    for shards in dealing.epochs:
        fit = fit_of_batches(case, padding, shards) if in_batches else padding
        rule = first_wrong(case, fit, shards)
        if rule:
            return rule if case.saved_after is None else "SHARD-9"
    counts = [len(shard) for shard in dealing.epochs[-1]]
    lengths = zip(dealing.lengths, counts, strict=True)
    return "SHARD-1" if any(length not in (-1, count) for length, count in lengths) else ""
