"""MEM: what sharding promises to save. Of each kind, a rank holds its share and no more."""

from ddp_invariants.invariants.hearing import Hearing, training
from ddp_invariants.invariants.rule import NotAbout, Tally, Unjudged
from ddp_invariants.verdict import Breach

_MOMENTS = {"sgd": 1, "adamw": 2}
"""Tensors of a parameter's size an optimizer keeps; SGD keeps one only with momentum."""


@training.rule("MEM-1", "Each rank's parameter, gradient and optimizer-state bytes are at most the claimed share, plus the "
               "stated padding.", ("more than one rank", "optimizer with state"))
def at_most_the_claimed_share(hearing: Hearing, tally: Tally) -> Breach | None:
    """Storages, each counted once, at the end of each step; gradients when they are to be ready.

    Stage 1 shards optimizer state (and the copies of parameters an optimizer updates), 2 gradients too, 3 parameters too.
    """
    stage, case = hearing.declared.zero, hearing.case
    if not stage:
        raise NotAbout("no stage of sharding is declared")
    if case.world_size == 1:
        raise NotAbout("one rank")
    ranks = hearing.evidence.ranks
    if not all(rank.held for rank in ranks):
        raise Unjudged(hearing.cut_short or "a rank noted no bytes")
    layout = hearing.layout(0)
    trained = layout.nbytes
    moments = 0 if case.optimizer.kind == "sgd" and not case.optimizer.momentum else _MOMENTS[case.optimizer.kind]
    tally.met |= {"more than one rank"} | ({"optimizer with state"} if moments else set())
    padding = _padding(hearing)
    share = trained / case.world_size + padding
    for number, rank in enumerate(ranks):
        for step, (module, own, state, gradients) in enumerate(rank.held):
            claims = [("optimizer state", state, moments * share), ("an optimizer's own copies of parameters", own, share)]
            claims += [("gradients", gradients, share)] if stage > 1 else []
            claims += [("parameters", module + own, share)] if stage > 2 else []
            for what, held, allowed in claims:
                tally.compared += 1
                if held > allowed:
                    return Breach("MEM-1", f"a rank holds more {what} than its share", f"rank {number} of {len(ranks)}, "
                                  f"step {step}", f"{held} bytes, expected at most {allowed:.0f}: {trained} bytes of trained "
                                  f"parameters over {case.world_size} ranks, and {padding:.0f} of padding")
    return None


def _padding(hearing: Hearing) -> float:
    """Bytes a share may be above an even one: an element or a row per parameter, or a whole one where those are dealt out."""
    slots = [slot for slot in hearing.layout(0).slots if slot.elements]
    widest = 8
    if hearing.declared.partition == "elements":
        return widest * len(slots)
    if hearing.declared.partition == "rows":
        return widest * sum(slot.elements // (slot.shape[0] if slot.shape else 1) for slot in slots)
    return widest * max((slot.elements for slot in slots), default=0)
