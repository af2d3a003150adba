"""The shards of all ranks, as one process gets them from a sampler: no process group is needed."""

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks import asking, equal_orders
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.generators import disturb_all, states
from ddp_invariants.ranks.rank_sampler import RankSampler, made
from ddp_invariants.ranks.training.recorder import exception_data, warned


def _impossible(world_size: int) -> dict[str, tuple[int, int]]:
    """Return arguments that no sampler can serve: their description to (world size, rank).

    One that is a sampler's own default is not tried: it stands for no argument.
    """
    return {
        "rank below 0": (world_size, -1),
        "rank equal to world size": (world_size, world_size),
        "world size 0": (0, 0),
        "world size below 0": (-1, 0),
    }


def shards(
    case: ShardCase, make: SamplerMaker, *, disturb: int, ranks: Sequence[int] = ()
) -> dict[str, Any]:
    """Ask for every rank's indices of every epoch, as a training run would.

    Args:
        case: The case.
        make: The sampler under test.
        disturb: Seed of the global random generators. The ranks take turns and share the
            generators, so that each rank finds them in another state. Two processes with different
            seeds must answer alike (SHARD-4).
        ranks: The ranks to ask for here; empty for all.

    Returns:
        `lengths[rank]`, `shards[epoch number][rank]`, `again[rank]` (the last epoch iterated once
        more), `afresh[rank]` (that epoch of a sampler that saw no other epoch), `reseeded[rank]`
        (the same under another seed, if the sampler takes a seed), `equal_seeds`,
        `equal_epochs`, `epoch_intervals` and `lone_epochs` (`ranks.equal_orders`; the first two None
        if data are scattered), `touched` (global generators that iterating advanced), `counted` (True
        if no epoch can be set), `in_batches` (True if batches are yielded), `batches[rank]` and
        `promised[rank]` (the batches that a DataLoader yields, and its len), `sized` (False if the
        sampler makes batches of a size of its own),
        `worked[rank][worker]` (indices of the last epoch),
        `orders[epoch number]` if a layout is declared, `resumed[rank]` if a state is saved,
        `elsewhere` if another number of ranks loads it; or `raised`, with `raising[rank]`, the
        exceptions of ranks that are asked alone; and `refused`, the type of
        the exception per impossible argument, None if none was raised; empty if the sampler does
        not take its rank as an argument; and `warned`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refused = (
            {}
            if make.asks
            else {
                description: _refusal(case, make, world_size, rank)
                for description, (world_size, rank) in _impossible(case.world_size).items()
                if not (
                    make.is_default("rank", rank)
                    if world_size == case.world_size
                    else make.is_default("world_size", world_size)
                )
            }
        )
        dealt = _dealt(case, make, disturb, ranks or range(case.world_size))
    return {**dealt, "refused": refused, "warned": warned(caught)}


_ON_REQUEST = ("batches", "promised", "worked", "orders", "resumed", "elsewhere")
"""The answers that only some cases ask for."""


def _dealt(
    case: ShardCase, make: SamplerMaker, disturb: int, ranks: Sequence[int]
) -> dict[str, Any]:
    phase = "construction"
    try:
        disturb_all(disturb)
        samplers = [RankSampler(case, make, rank) for rank in ranks]
        phase = "iteration"
        before = states()
        dealt = []
        for epoch in case.epochs:
            for sampler in samplers:
                sampler.set_epoch(epoch)
            dealt.append([sampler.indices() for sampler in samplers])
        for sampler in samplers:
            sampler.leave_after(1)  # An iteration left half way must not show in the next one.
            sampler.stay_in(case.epochs[-1])
        again = [sampler.indices() for sampler in samplers]
        after = states()
        answer: dict[str, Any] = {
            "lengths": lengths(samplers, dealt),
            "shards": dealt,
            "again": again,
            "afresh": _afresh(case, make, ranks),
            "reseeded": _afresh(_reseeded(case), make, ranks) if make.takes("seed") else None,
            "touched": [name for name in before if before[name] != after[name]],
            "counted": samplers[0].counts,
            "in_batches": make.yields_batches or any(sampler.in_batches for sampler in samplers),
            **dict.fromkeys(_ON_REQUEST),
        }
        phase = "further epochs and seeds"
        answer |= _equal_orders(case, make, ranks, answer)
        answer["asked"] = asking.answers(case, make, ranks) if case.situations else []
        if make.declared.layout and not make.scatters:
            phase = "a world of one rank"
            answer["orders"] = _orders(case, make)
        if case.loader:
            phase = "DataLoader"
            answer["batches"], answer["promised"] = map(
                list, zip(*(sampler.batches() for sampler in samplers), strict=True)
            )
            answer["sized"] = not samplers[0].in_batches or make.knows_the_batch_size
        if case.workers:
            phase = "a DataLoader's worker"
            answer["worked"] = [
                [sampler.as_worker(number) for number in range(case.workers)]
                for sampler in samplers
            ]
        if (
            case.saved_after is not None
            and not make.scatters
            and all(sampler.saves for sampler in samplers)
        ):
            phase = "resuming"
            answer["resumed"] = [resumed(case, make, sampler, disturb) for sampler in samplers]
            if case.resumed_by is not None:
                phase = "resuming with another world size"
                answer["elsewhere"] = _elsewhere(case, case.resumed_by, make, samplers)
    except BaseException as error:  # noqa: BLE001 - an implementation may raise anything: evidence
        alone = phase in ("construction", "iteration") and not make.scatters
        return {
            "raised": exception_data(error, phase, 0),
            "raising": [_raised_by(case, make, rank) for rank in ranks] if alone else [],
        }
    return answer


def lengths(samplers: Sequence[RankSampler], dealt: Sequence[Sequence[list[int]]]) -> list[Any]:
    """Return the `len` of each rank's sampler, in indices, or None if it tells none.

    Args:
        samplers: The samplers.
        dealt: The indices of each epoch and rank.
    """
    return [
        sampler.length([len(indices) for indices in epochs])
        for sampler, *epochs in zip(samplers, *dealt, strict=True)
    ]


def _raised_by(case: ShardCase, make: SamplerMaker, rank: int) -> str:
    """Return what a rank's sampler raises if it is asked alone; empty if it raises nothing."""
    try:
        sampler = RankSampler(case, make, rank)
        for epoch in case.epochs:
            sampler.set_epoch(epoch)
            sampler.indices()
    except BaseException as error:  # noqa: BLE001 - an implementation may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def _orders(case: ShardCase, make: SamplerMaker) -> list[list[int]]:
    """Return the order of each epoch before it is sharded, which a world of one rank gets."""
    alone = RankSampler(replace(case, world_size=1), make, 0)
    orders = []
    for epoch in case.epochs:
        alone.set_epoch(epoch)
        orders.append(alone.indices())
    return orders


def _equal_orders(
    case: ShardCase, make: SamplerMaker, ranks: Sequence[int], answer: dict[str, Any]
) -> dict[str, Any]:
    """Return how long orders that should differ stay equal.

    Data are scattered by all ranks together, so none of them can ask for more alone.
    """
    if make.scatters:
        return {"equal_seeds": None, "equal_epochs": None}
    alike = answer["reseeded"] == answer["shards"][-1]
    epochs = equal_orders.equal_epochs(case, make, ranks, answer["shards"])
    return {
        "equal_seeds": equal_orders.equal_seeds(
            case,
            lambda other, of: _afresh(other, make, of),
            ranks,
            answer["shards"][-1],
            alike=alike,
        ),
        "equal_epochs": epochs,
        "epoch_intervals": equal_orders.epoch_intervals(
            case, make, ranks, answer["shards"], epochs
        ),
        "lone_epochs": equal_orders.lone_epochs(case, make, ranks, answer["shards"], epochs),
    }


def _reseeded(case: ShardCase) -> ShardCase:
    return replace(case, data=replace(case.data, seed=case.other_seed))


def _afresh(case: ShardCase, make: SamplerMaker, ranks: Sequence[int]) -> list[list[int]]:
    """Return each rank's indices of the last epoch, from samplers made for that epoch alone."""
    samplers = [RankSampler(case, make, rank) for rank in ranks]
    for sampler in samplers:
        sampler.set_epoch(case.epochs[-1])
    return [sampler.indices() for sampler in samplers]


def resumed(
    case: ShardCase, make: SamplerMaker, known: RankSampler, disturb: int
) -> dict[str, Any]:
    """Save a rank's state in the last epoch, load it into a new sampler, and return all indices.

    Args:
        case: The case, which says after how many batches.
        make: The sampler under test.
        known: The rank's sampler, as it was asked before.
        disturb: Seed for the global generators when the state is loaded, since they differ in
            another process.

    Returns:
        `taken` (indices before the state was saved), `rest` (the saved sampler's indices after
        that), `loaded` (the indices of a new sampler with the state, which is saved once more after
        one batch), `taken_again` (indices of that batch), `twice` (the indices of a new sampler
        with that second state), `repeated` (the same sampler, iterated again without `set_epoch`),
        `after_leaving` (the next epoch's indices of a sampler without a state and of one with it,
        after an iteration that was left early; both None if the sampler counts its epochs),
        `fresh` (the indices of a new sampler without a state), `following` (the next epoch's
        indices of the saved and of the loaded sampler) and `lengths` (their `len` in that epoch).
    """
    assert case.saved_after is not None
    epoch = case.epochs[-1]
    saving, loading, once_more, fresh, plain, resuming = (
        RankSampler(case, make, known.rank, in_batches=known.in_batches) for _ in range(6)
    )
    saving.set_epoch(epoch)
    taken, first_state, rest = saving.saved(case.saved_after)
    disturb_all(disturb + 1)
    loading.load(deepcopy(first_state), epoch)
    taken_again, state, rest_again = loading.saved(1)
    once_more.load(state, epoch)
    twice = once_more.indices()
    repeated = once_more.indices()
    saving.go_on_to(epoch + 1)
    loading.go_on_to(epoch + 1)
    following = [saving.indices(), loading.indices()]
    plain.set_epoch(epoch)
    resuming.load(first_state, epoch)
    for sampler in (plain, resuming):
        sampler.leave_after(1)
        sampler.go_on_to(epoch + 1)
    counts = known.counts
    return {
        "taken": taken,
        "rest": rest,
        "loaded": taken_again + rest_again,
        "taken_again": taken_again,
        "twice": twice,
        "fresh": fresh.indices(),
        "repeated": None if counts else repeated,
        "following": following,
        "after_leaving": None if counts else [plain.indices(), resuming.indices()],
        "lengths": [saving.length(), loading.length()],
    }


def _elsewhere(
    case: ShardCase, world_size: int, make: SamplerMaker, known: list[RankSampler]
) -> dict[str, Any]:
    """Load the first rank's state into another number of ranks, and return what they yield.

    The state is saved in the last epoch.

    Returns:
        `taken[rank]` (the indices before the state was saved), `rest[rank]` (the indices of the
        ranks that loaded it), `once_more[rank]` (the same, but the first rank's state is saved
        again after one batch, and all ranks load this one into new samplers), `following[rank]`
        (their next epoch), and `fresh[rank]` (the next epoch of samplers that loaded nothing).
    """
    assert case.saved_after is not None
    epoch, resized = case.epochs[-1], replace(case, world_size=world_size)
    saving = [
        RankSampler(case, make, sampler.rank, in_batches=sampler.in_batches) for sampler in known
    ]
    for sampler in saving:
        sampler.set_epoch(epoch)
    saved = [sampler.saved(case.saved_after) for sampler in saving]
    loading, again, last, fresh = (
        [
            RankSampler(resized, make, rank, in_batches=known[0].in_batches)
            for rank in range(world_size)
        ]
        for _ in range(4)
    )
    for sampler in (*loading, *again):
        sampler.load(deepcopy(saved[0][1]), epoch)
    rest = [sampler.indices() for sampler in loading]
    saved_again = [sampler.saved(1) for sampler in again]
    # A sampler may refuse the state of an epoch that is over.
    for sampler in last if any(then for _, _, then in saved_again) else ():
        sampler.load(deepcopy(saved_again[0][1]), epoch)
    for sampler in loading:
        sampler.go_on_to(epoch + 1)
    for sampler in fresh:
        sampler.set_epoch(epoch + 1)
    return {
        "taken": [taken for taken, _, _ in saved],
        "rest": rest,
        "once_more": [
            first + (sampler.indices() if then else [])
            for (first, _, then), sampler in zip(saved_again, last, strict=True)
        ],
        "following": [sampler.indices() for sampler in loading],
        "fresh": [sampler.indices() for sampler in fresh],
    }


def _refusal(case: ShardCase, make: SamplerMaker, world_size: int, rank: int) -> str | None:
    try:
        made(case, make, world_size, rank, 0)
    except BaseException as error:  # noqa: BLE001 - the exception's type is the evidence
        return type(error).__name__
    return None
