"""BUF: buffers stay those of one model, where the implementation promises it."""

from ddp_invariants.invariants.compare import parted
from ddp_invariants.invariants.diagnosis import kept
from ddp_invariants.invariants.grad import TWO_RANKS
from ddp_invariants.invariants.hearing import Hearing, training
from ddp_invariants.invariants.rule import NotAbout, Tally
from ddp_invariants.verdict import Breach

MOVED = "batches moved buffers apart"


@training.rule("BUF-1", "Every step's forward starts from equal buffers on all ranks, which their batches have moved apart.",
               (TWO_RANKS, MOVED))
def equal_when_a_forward_starts(hearing: Hearing, tally: Tally) -> Breach | None:
    """Bitwise, from the second step on (the first is INIT-2's), where no forward before it was under no_sync."""
    case = hearing.case
    if case.world_size == 1 or case.mishap is not None:
        raise NotAbout("one rank" if case.world_size == 1 else "a forward that failed may have moved buffers")
    if case.accumulation > 1 and not hearing.synchronised_each:
        raise NotAbout("under no_sync buffers are each rank's own")
    if not any(layer.buffers for layer in case.model.layers):
        raise NotAbout("no buffers")
    tally.met.add(TWO_RANKS)
    for step in hearing.steps("forward buffers")[1:]:
        left, started = hearing.every_rank("left buffers", step - 1), hearing.every_rank("forward buffers", step)
        tally.met |= {MOVED} if any(tensors != left[0] for tensors in left) else set()
        for rank, tensors in enumerate(started[1:], start=1):
            tally.compared += sum(tensors.layout.sizes)
            difference = parted(started[0], tensors, "rank 0 holds")
            if difference is not None:
                breach = Breach("BUF-1", "buffers differ between ranks when a forward starts",
                                f"rank {rank} of {case.world_size}, step {step}, "
                                f"{difference.place.replace('parameter', 'buffer', 1)}", difference.words)
                return kept.of_buffer(hearing, breach, step, rank, difference.name)
    return None
