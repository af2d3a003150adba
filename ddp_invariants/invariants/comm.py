"""COMM: what the ranks send each other, beyond what arrives."""

from typing import Any

from ddp_invariants.evidence import ITEM_SIZE
from ddp_invariants.invariants.hearing import Hearing, training
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.verdict import Breach

WITHHELD = ("allreduce", "reduce", "broadcast", "recv", "_allgather_base", "all_gather_single", "_reduce_scatter_base",
            "reduce_scatter_single")
"""Collectives whose result can be withheld; `ranks.group` withholds them."""
_POINT_TO_POINT = ("send", "recv", "recv_anysource")
"""Calls that differ between ranks by their nature."""


def _told(sent: list[Any]) -> str:
    kind, dtype, elements, operation = sent
    return f"{kind} {dtype} x {elements} {operation}".rstrip() if dtype else kind


@training.rule("COMM-1", "All ranks issue the same sequence of collectives: kind, dtype, element count, reduce operation.",
               ("more than one rank",))
def same_sequence_on_all_ranks(hearing: Hearing, tally: Tally) -> Breach | None:
    """As the observed group noted them; what goes past torch.distributed is not seen."""
    if hearing.case.world_size == 1:
        raise NotAbout("one rank")
    if hearing.cut_short:
        raise Unjudged(hearing.cut_short)
    sequences = [[call for group in rank.sent for call in group if call[0] not in _POINT_TO_POINT]
                 for rank in hearing.evidence.ranks]
    if not any(sequences):
        raise Unjudged("no collective was observed: the implementation does not go through torch.distributed")
    tally.met.add("more than one rank")
    tally.compared += sum(map(len, sequences))
    for rank, sequence in enumerate(sequences[1:], start=1):
        if sequence == sequences[0]:
            continue
        both = list(zip(sequences[0], sequence, strict=False))  # The shorter one's end is a difference of its own, below.
        number = next((n for n, (one, other) in enumerate(both) if one != other), len(both))
        said = [_told(calls[number]) if number < len(calls) else "nothing more" for calls in (sequences[0], sequence)]
        return Breach("COMM-1", "ranks issue different collectives", f"rank {rank} of {len(sequences)}, call {number}",
                      f"{said[1]}, rank 0 issues {said[0]}; {len(sequence)} calls in all, rank 0 {len(sequences[0])}")
    return None


@training.rule("COMM-3", "Nothing is still in flight when a step's gradients are to be ready, and no buffer is written while "
               "its collective is in flight.", ("results withheld",))
def nothing_is_left_in_flight(hearing: Hearing, tally: Tally) -> Breach | None:
    """On cases that withhold results until they are waited for: a wait that is missing is missing whatever the timing."""
    if not hearing.case.perturbation.kind == "withheld":
        raise NotAbout("results are not withheld")
    if hearing.case.world_size == 1:
        raise NotAbout("one rank")
    for rank, evidence in enumerate(hearing.evidence.ranks):
        calls = sum(call[0] in WITHHELD for group in evidence.sent for call in group)
        if not calls:
            raise Unjudged(hearing.cut_short or "no collective was observed whose result could be withheld")
        tally.compared += calls
        tally.met.add("results withheld")
        for step, sent, what in evidence.in_flight:
            return Breach("COMM-3", f"the result of a collective is {what}",
                          f"rank {rank} of {len(hearing.evidence.ranks)}, step {step} of {hearing.case.steps}", _told(sent),
                          "a wait is missing" if what.startswith("not") else "a buffer is used before its wait")
    return None


def _bytes_sent(call: list[Any], world_size: int) -> float:
    """What a rank sends for a collective under the algorithms that send least (Patarasuk and Yuan 2009).

    The elements noted are those of the first tensor: the whole result of an all-gather into one tensor, the piece of a
    reduce-scatter, a rank's own piece where tensors lie in a list.
    """
    kind, dtype = call[0], call[1]
    size, others = float(call[2] * ITEM_SIZE.get(dtype, 0)), world_size - 1
    if kind.startswith("allreduce"):
        return 2 * others / world_size * size
    if kind in ("_allgather_base", "all_gather_single", "broadcast", "reduce"):
        return others / world_size * size
    if kind in ("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter", "allgather"):
        return others * size
    return 0.0 if kind in ("recv", "recv_anysource", "barrier", "monitored_barrier") else size


@training.rule("COMM-6", "Bytes sent per step and rank, in units of what a ring all-reduce of the gradients sends; observed, "
               "never judged.", ("more than one rank",))
def bytes_per_step(hearing: Hearing, tally: Tally) -> Breach | None:
    """As the collectives noted would send them at best; 2 (W - 1) / W times the gradients' bytes is one unit."""
    world_size = hearing.case.world_size
    if world_size == 1:
        raise NotAbout("one rank")
    tally.met.add("more than one rank")
    for evidence in hearing.evidence.ranks:
        for step, (starts, ends) in enumerate(evidence.marks):
            gradient = hearing.layout(step).nbytes
            calls = evidence.sent_between(starts, ends)
            if gradient:
                tally.compared += len(calls)
                sent = sum(_bytes_sent(call, world_size) for call in calls)
                tally.observed.append(sent / (2 * (world_size - 1) / world_size * gradient))
    return None
