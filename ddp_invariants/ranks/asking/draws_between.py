"""Random numbers drawn during an iteration (`situations.asking.draws_between`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.draws_between import DrawsBetween


@way("draws between")
def draws_between(situation: DrawsBetween, case: ShardCase, make: SamplerMaker, rank: int) -> Asked:
    """Draw from the global generators between indices, and once more at the end.

    The numbers differ between the two processes, so that the answer only says whether they are
    right.
    """
    del situation
    sampler = in_last_epoch(case, make, rank)
    plain = sampler.indices()
    sampler.stay_in(case.epochs[-1])
    got, undisturbed = sampler.with_draws()
    return Asked([got, [int(undisturbed)]], [plain, [1]])
