"""LIVE: every case ends, on every rank."""

from ddp_invariants.evidence import Incident
from ddp_invariants.invariants.hearing import Hearing, training
from ddp_invariants.invariants.rule import Tally, Unjudged
from ddp_invariants.invariants.shard import Deal, sharding
from ddp_invariants.verdict import Breach


def _of_the_implementation(text: str) -> str:
    """A rank's output without the frames below the harness's own training loop, which are the same every time."""
    kept, below = [], False
    for line in text.splitlines():
        below = below and line.startswith("  File")
        if not below:
            kept.append(line)
        below = below or "ddp_invariants/ranks/training.py" in line
    return "\n".join(kept)


_REQUIREMENT = "Every case ends within its deadline on every rank."


@training.rule("LIVE-1", _REQUIREMENT)
def every_case_ends(hearing: Hearing, tally: Tally) -> Breach | None:
    """A rank that hangs or dies; one that raises is seen to have ended."""
    tally.compared += len(hearing.evidence.ranks)
    ranks = hearing.evidence.ranks
    raised = [f"rank {rank} raised {e.raised['type']} in {e.raised['phase']} of step {e.raised['step']}: {e.raised['message']}"
              for rank, e in enumerate(ranks) if e.raised is not None]
    overfull = [f"rank {rank}: {e.raised['message']}" for rank, e in enumerate(ranks)
                if e.raised is not None and e.raised["phase"] == "evidence"]
    if overfull:  # The harness ended that run, and what others then did for want of it is nobody's fault.
        tally.compared = 0
        raise Unjudged("; ".join(overfull))
    if hearing.incident is not None or not raised:
        return _told(hearing.incident, hearing.case.world_size, "; ".join(raised))
    if len(raised) < len(ranks):
        return Breach("LIVE-1", "some ranks raise and others do not", f"world size {len(ranks)}", "; ".join(raised))
    if hearing.noted("updated", 0) is not None and hearing.case.poison is None:
        return Breach("LIVE-1", "training ends with an exception after a step that went well", f"world size {len(ranks)}",
                      "; ".join(raised))
    tally.compared = 0  # Raised on every rank at the start, or at a value that is not finite: a refusal.
    raise Unjudged(hearing.cut_short)


@sharding.rule("LIVE-1", _REQUIREMENT)
def every_sampler_answers(deal: Deal, tally: Tally) -> Breach | None:
    """A sampler that hangs or ends its process."""
    tally.compared += 1
    return _told(deal.evidence.incident, deal.case.world_size, "")


def _told(incident: Incident | None, world_size: int, perhaps: str) -> Breach | None:
    if incident is None:
        return None
    notes = "\n".join(f"rank {rank} printed:\n{_of_the_implementation(text)}" for rank, text in incident.stacks.items() if text)
    verb = "hung" if incident.kind == "hung" else "died"
    return Breach("LIVE-1", f"a rank {verb}{' while another raised' if perhaps else ''}", f"world size {world_size}",
                  "; ".join(f"rank {rank} {how}" for rank, how in sorted(incident.ranks.items())), perhaps, notes)
