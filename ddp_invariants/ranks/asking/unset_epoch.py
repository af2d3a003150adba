"""Iterations without `set_epoch` (`situations.asking.unset_epoch`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.situations.asking.unset_epoch import UnsetEpoch


@way("unset epoch")
def unset_epoch(
    situation: UnsetEpoch, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Iterate a new sampler twice, and one that loads a state of another new sampler.

    A sampler that fails to save or to load is not judged here: SHARD-9 is about that.
    """
    del situation
    if make.remade_each_epoch:
        return None
    sampler = RankSampler(case, make, rank)
    iterations = [sampler.indices(), sampler.indices()]
    if case.saved_after == 0 and sampler.saves and make.declared.saves != "place":
        saving, loading = (
            RankSampler(case, make, rank, in_batches=sampler.in_batches) for _ in range(2)
        )
        try:
            loading.load(saving.saved(0)[1], case.epochs[0])
        except Exception as error:  # noqa: BLE001 - an implementation may raise anything
            reason = f"saving or loading a state without set_epoch raises {type(error).__name__}"
            return Asked(iterations, missing=reason)
        iterations.append(loading.indices())
    return Asked(iterations)
