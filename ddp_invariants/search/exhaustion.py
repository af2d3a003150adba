"""All small cases of a sampler, without any draw: every length, world size and pair of switches.

One process asks for all of them at once, which takes about a second. A case that looks wrong is
run and judged as any other case, so that nobody is accused here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Padding
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants.dealing import first_wrong
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.dealings import Dealing
from ddp_invariants.search.split import WHOLE, Split

MOST_SAMPLES = 40
MOST_RANKS = 9
_EPOCHS = (0, 1)


@dataclass(frozen=True)
class Exhaustion:
    """The result of all small cases.

    Attributes:
        cases: Their number.
        right: The number of right ones.
        wrong: The cases that look wrong, smallest first, by the first rule that they violate.
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


def exhaust(pool: Pool, sampler: Sampler, scope: Scope, split: Split = WHOLE) -> Exhaustion:
    """Ask a sampler for all small cases, and judge them.

    A sampler that reads its rank from its process is not asked: each rank would need a process.
    The parts of a session that is split deal out the cases among themselves.
    """
    if not scope.has("given_rank") or scope.sampler.layout == "scatter":
        return Exhaustion()
    cases = [split.own_dealing(case) for case in split.deal(list(small_cases(scope)))]
    right, wrong = 0, dict[str, list[ShardCase]]()
    dealt = pool.dealings(cases, sampler)
    for case, dealing in zip(cases, dealt, strict=False):
        if dealing is None:
            continue
        rule = _violated(case, scope.sampler.padding, dealing)
        right += not rule
        if rule:
            wrong.setdefault(rule, []).append(case)
    return Exhaustion(len(cases) if dealt else 0, right, wrong)


def _violated(case: ShardCase, padding: Padding, dealing: Dealing) -> str:
    """Return the first rule that a case seems to violate; empty if it is right."""
    for shards in dealing.epochs:
        rule = first_wrong(case, padding, shards)
        if rule:
            return rule
    counts = [len(shard) for shard in dealing.epochs[-1]]
    lengths = zip(dealing.lengths, counts, strict=True)
    return "SHARD-1" if any(length not in (-1, count) for length, count in lengths) else ""
