"""The test whether an implementation can be simulated: both places run the same few cases.

All ranks of a simulation share what an implementation keeps in its modules and classes. Ranks of
their own processes do not. So an implementation is simulated only if both places give the same bits.
"""

from collections.abc import Iterator
from dataclasses import replace

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Optimizer
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.backends import ON_THE_CPU
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import RankEvidence, TrainingEvidence
from ddp_invariants.situations.capability import BASE, FOUR


def why_not_simulated(pool: Pool, ddp: Ddp, scope: Scope) -> str:
    """Return why an implementation cannot be simulated; empty if it can.

    Args:
        pool: Ranks to run the cases on.
        ddp: The implementation.
        scope: The limits of its cases.

    Raises:
        HarnessError: The harness failed.
    """
    if pool.backend != ON_THE_CPU:
        return f"{pool.backend} cannot be simulated"
    for case in (scope.fit(case) for case in _cases() if case.world_size <= scope.max_world_size):
        simulated = pool.simulate(case, ddp)
        if simulated is None:
            return pool.not_simulated.get(ddp, "its simulation ended without an answer")
        why = _difference(simulated, pool.train(case, ddp))
        if why:
            return why
    return ""


def _cases() -> Iterator[TrainingCase]:
    """Yield cases in which the order of a sum changes no bit: of two ranks, or of one exact step."""
    yield BASE
    yield replace(BASE, world_size=4, steps=1, bucket_cap=40)
    yield replace(BASE, steps=3, bucket_cap=40, zero_grad="zero")
    yield replace(BASE, accumulation=2, optimizer=Optimizer(momentum=0.5))
    yield replace(BASE, model=Model(4, (*FOUR, Layer("statistics"))))


def _difference(simulated: TrainingEvidence, real: TrainingEvidence) -> str:
    """Return how the evidence of two places differs; empty if it is the same."""
    if (simulated.incident is None) != (real.incident is None):
        incident = simulated.incident or real.incident
        assert incident is not None
        place = "simulated" if simulated.incident is not None else "real"
        return f"a case ends in one place; in the other, its {place} ranks {incident.kind}"
    for rank, (simulated_rank, real_rank) in enumerate(
        zip(simulated.ranks, real.ranks, strict=True)
    ):
        why = _differs(simulated_rank, real_rank)
        if why:
            return f"rank {rank} of a case differs in {why} from a rank of its own process"
    return ""


def _differs(simulated: RankEvidence, real: RankEvidence) -> str:
    raised = [rank.raised and (rank.raised.type, rank.raised.phase) for rank in (simulated, real)]
    if raised[0] != raised[1]:
        words = [rank.raised.message if rank.raised else "none" for rank in (simulated, real)]
        return f"the exception that it raises ({words[0]}; {words[1]})"
    for moment, step in sorted(simulated.tensors.keys() | real.tensors.keys()):
        tensors, twins = (rank.tensors.get((moment, step)) for rank in (simulated, real))
        if tensors is None or twins is None or tensors.bits != twins.bits:
            return f"{moment!r} of step {step}"
    calls = [[[call.agreed for call in group] for group in rank.sent] for rank in (simulated, real)]
    return "" if calls[0] == calls[1] else "the collectives that it sends"
