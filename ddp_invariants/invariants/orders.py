"""Checks of the order in which a sampler yields indices, and causes of a wrong order."""

from itertools import pairwise
from math import factorial, prod

from ddp_invariants.cases.shard_case import CHANCE_FREE
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.sampler_view import ShardView, brief
from ddp_invariants.records.evidence import FOREIGN, OWN
from ddp_invariants.records.verdict import Cause, Failure

_BY_CHANCE = 1e-3
"""The largest chance at which shuffled shards may be taken for the dataset's order."""
_UNSHUFFLED = "the order is that of the dataset: shuffle is ignored"


def differs_in_another_process(view: ShardView) -> Failure | None:
    """Return a failure if a second process gets other indices from the same arguments."""
    second_shards = view.evidence.answers[1]["shards"]
    for (epoch, first), second in zip(view.epochs, second_shards, strict=True):
        for rank, (shard, second_shard) in enumerate(zip(first, second, strict=True)):
            if shard != second_shard:
                return Failure(
                    "SHARD-4",
                    "another process gets other indices from the same arguments",
                    f"rank {rank}, {view.where(epoch)}",
                    f"{second_shard[:8]}, the first process {shard[:8]}",
                    "the order depends on the hash seed or on a global random generator",
                )
    return None


def differs_in_one_process(view: ShardView, tally: Tally) -> Failure | None:
    """Return a failure if one process gets two orders from one epoch, or one from two seeds."""
    last = view.case.epochs[-1]
    for rank, (again, before) in enumerate(
        zip(view.answer["again"], view.answer["shards"][-1], strict=True)
    ):
        tally.compared += len(before)
        if again != before:
            failure = Failure(
                "SHARD-4",
                "a new sampler, iterated as often, gives other indices"
                if view.answer.get("counted")
                else "iterating again in the same epoch gives other indices",
                f"rank {rank}, {view.where(last)}",
                f"{again[:8]}, before {before[:8]}",
            )
            return caused(failure, of_generators(view))
    if view.answer["touched"]:
        failure = Failure(
            "SHARD-4",
            "iterating advances a global random generator",
            view.where(last),
            ", ".join(view.answer["touched"]),
        )
        return caused(failure, of_generators(view))
    for rank, (afresh, before) in enumerate(
        zip(view.answer["afresh"], view.answer["shards"][-1], strict=True)
    ):
        if afresh != before:
            return Failure(
                "SHARD-4",
                "a new sampler gives other indices in the same epoch",
                f"rank {rank}, {view.where(last)}",
                f"{afresh[:8]}, the sampler that yielded epochs {list(view.case.epochs)} gave "
                f"{before[:8]}",
                ""
                if len(view.case.epochs) == 1
                else "an epoch's order depends on the epochs before it",
            )
    reseeded = view.answer["reseeded"]
    count = view.answer.get("equal_seeds")
    if (
        view.case.data.shuffle
        and reseeded == view.answer["shards"][-1]
        and view.is_equal_order(count, reseeded)
    ):
        step = view.case.seed_step
        return Failure(
            "SHARD-4",
            "another seed gives the same order",
            view.where(last),
            f"{brief(reseeded)} with seeds {view.case.data.seed} and {view.case.other_seed}"
            + (f", and alike for the next {count - 1} pairs of seeds" if count else ""),
            _UNSHUFFLED
            if _is_in_order(view.answer["shards"][-1])
            else "the seed is ignored"
            if step == 1
            else f"only a part of the seed counts: seeds that differ by {step} give one order",
        )
    return None


def of_generators(view: ShardView) -> list[Cause]:
    """Return the possible uses of the global generators that moved: drawn from, or seeded.

    A sampler that draws from a global generator gives another order each time.
    """
    touched, answer = " and ".join(view.answer["touched"]), view.answer
    if not touched:
        return []
    fixed = (
        answer["again"]
        == answer["afresh"]
        == answer["shards"][-1]
        == view.evidence.answers[1]["shards"][-1]
    )
    drawn = Cause(
        "draws", f"it draws from the global generator of {touched} instead of its own generator"
    )
    seeded = Cause(
        "seeds",
        f"it seeds the global generator of {touched}, which other code shares, instead of its own "
        "generator",
    )
    if not fixed:
        return [drawn]
    return [seeded] if view.case.data.samples >= CHANCE_FREE else [drawn, seeded]


def _is_in_order(shards: list[list[int]]) -> bool:
    """Return whether all shards are in the dataset's order, but for padding at the end.

    Shards that are shuffled look like that once in a thousand cases at most.
    """
    every = [index for shard in shards for index in shard]
    ascending = [_ascending(shard) for shard in shards]
    padding = len(every) - len(set(every))
    chance = prod(1 / factorial(count) for count in ascending)
    return len(every) - sum(ascending) <= padding and chance < _BY_CHANCE


def _ascending(shard: list[int]) -> int:
    """Return how many indices of a shard ascend from the first on."""
    return next(
        (count for count, (left, right) in enumerate(pairwise(shard), 1) if left > right),
        len(shard),
    )


def of_the_same_order(
    view: ShardView, shards: list[list[int]], epoch: int, other: int
) -> list[Cause]:
    """Return the possible reasons why two epochs have one order.

    Args:
        view: The evidence.
        shards: The shards of both epochs.
        epoch: The first of them.
        other: The second one.
    """
    if view.answer["again"] != view.answer["shards"][-1]:
        return []
    if view.answer["afresh"] != view.answer["shards"][-1]:
        kept = all(epoch_shards == shards for _, epoch_shards in view.epochs)
        return [Cause("first order kept", "the first epoch's order is kept")] * kept
    if _is_in_order(shards):
        return [Cause("shuffle ignored", _UNSHUFFLED)]
    if view.are_lone(epoch, other):
        return [Cause("epoch ignored once", "the epoch is ignored in one of them only")]
    if view.interval_of(epoch, other) is not None:
        return [Cause("epoch cut", "only a part of the epoch counts")]
    others = [epoch_shards for _, epoch_shards in view.epochs if epoch_shards != shards]
    if others or max(view.case.epochs) - min(view.case.epochs) > 1:
        return [Cause("epoch cut", "only a part of the epoch counts")] * bool(others)
    return [Cause("epoch ignored", "the epoch is ignored")]


def not_sent_by_the_first(view: ShardView, tally: Tally) -> Failure | None:
    """Return a failure if a rank holds samples that are not the first rank's data.

    All ranks have data of their own, of the same length.
    """
    for epoch, shards in view.held:
        tally.meet({"more than one rank": len(shards) > 1, "shuffle": view.case.data.shuffle})
        for rank, shard in enumerate(shards):
            tally.compared += len(shard)
            wrong = {
                OWN: "a rank holds its own data, not the data that the first rank sent",
                FOREIGN: (
                    "a rank holds data of no rank: an index, or data that were changed on the way"
                ),
            }
            for index, fact in wrong.items():
                if index in shard:
                    return Failure(
                        "SHARD-8",
                        fact,
                        f"rank {rank}, {view.where(epoch)}",
                        f"{shard.count(index)} of its {len(shard)} samples",
                    )
    return None
