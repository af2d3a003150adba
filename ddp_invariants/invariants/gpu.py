"""GPU: on a device work is queued on streams, and what nobody waits for may be there in time, or not."""

from ddp_invariants.invariants.comm import same_as_without
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.invariants.view import Hearing, training
from ddp_invariants.records.verdict import Breach

SLOWED = {
    "slow communication": "a slow communication stream",
    "slow computation": "a slow computation stream",
}


@training.rule(
    "GPU-1",
    "Results do not change when the communication stream is slowed, nor when the stream is on which "
    "gradients are computed: to the last bit.",
    tuple(SLOWED.values()),
    costs=8,
)
def same_however_slow_a_stream(hearing: Hearing, tally: Tally) -> Breach | None:
    """Against the same case on the same device, where nothing is slowed: a wait that is missing shows every time."""
    plan = hearing.case.perturbation
    if not plan.on_device or hearing.case.world_size == 1 or hearing.case.mishap is not None:
        raise NotAbout("no stream is slowed")
    slowed = [rank.slowed for rank in hearing.evidence.ranks]
    if not any(slowed):
        if hearing.cut_short:
            raise Unjudged(hearing.cut_short)
        raise NotAbout("the tensors are on the CPU, where nothing is queued")
    breach = same_as_without(hearing, tally, "GPU-1")
    if breach is None:
        tally.met.add(SLOWED[plan.kind])
    return breach
