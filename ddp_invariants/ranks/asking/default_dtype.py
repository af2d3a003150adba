"""Another default dtype in the process (`situations.asking.default_dtype`)."""

import torch

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.default_dtype import DefaultDtype


@way("default dtype")
def default_dtype(
    situation: DefaultDtype, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Make and iterate a sampler while float64 is the default dtype."""
    del situation
    if make.scatters:
        return None
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return Asked([in_last_epoch(case, make, rank).indices()])
    finally:
        torch.set_default_dtype(before)
