"""The shards of many small cases, asked for in one request."""

import warnings
from collections.abc import Iterable

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.ranks.shards import lengths
from ddp_invariants.records.dealings import Dealing, in_one_row


def all_dealings(cases: Iterable[ShardCase], make: SamplerMaker) -> list[int]:
    """Return the shards of all cases in one row (`records.dealings`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return in_one_row(_dealing(case, make) for case in cases)


def _dealing(case: ShardCase, make: SamplerMaker) -> Dealing | None:
    """Return a case's shards; None if the sampler raises."""
    try:
        if case.saved_after is not None:
            return _resumed(case, make)
        samplers = [RankSampler(case, make, rank) for rank in range(case.world_size)]
        epochs = []
        for epoch in case.epochs:
            for sampler in samplers:
                sampler.set_epoch(epoch)
            epochs.append([sampler.indices() for sampler in samplers])
        return Dealing(
            [[*shards] for shards in epochs],
            [-1 if length is None else length for length in lengths(samplers, epochs)],
        )
    except Exception:  # noqa: BLE001 - an implementation may raise anything; drawn cases report it
        return None


def _resumed(case: ShardCase, make: SamplerMaker) -> Dealing | None:
    """Return the shards of an epoch whose rest a new sampler yields from a saved state.

    The result is None if the sampler saves no state.
    """
    shards = list[list[int]]()
    for rank in range(case.world_size):
        known, saving, loading = (RankSampler(case, make, rank) for _ in range(3))
        if not known.saves:
            return None
        known.indices()
        saving.in_batches = loading.in_batches = known.in_batches
        saving.set_epoch(case.epochs[0])
        taken, state, rest = saving.saved(case.saved_after or 0)
        loading.load(state, case.epochs[0])
        loaded = loading.indices()
        # A state saved at the end may belong to the next epoch.
        at_the_end = not rest and len(loaded) in (0, len(taken))
        shards.append(taken if at_the_end else taken + loaded)
    return Dealing([[*shards]], [-1] * case.world_size)
