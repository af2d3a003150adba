"""A case that runs again as a script of plain torch, without the suite; its bits are compared.

An implementation that recognises the suite may be right only there. This check makes the simplest
of such tricks visible. A script imports torch once, which takes seconds, so that only a complete
session with a certificate pays for it.
"""

from ddp_invariants.discovery.scope import Scope
from ddp_invariants.discovery.unsettled import Unsettled
from ddp_invariants.errors import ExportError, HarnessError, LoadFailure
from ddp_invariants.export.running import ran
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.upgrades.question import answering

_RULES = ("PARAM-3", "PARAM-1")
"""The rules that a difference may leave open, of which it leaves the first that is claimed."""
_SHOWN = 120
"""The characters of a line that are shown."""


def spot_check(pool: Pool, ddp: Ddp, scope: Scope) -> tuple[Unsettled, ...]:
    """Return the difference between a case under the suite and in plain torch, if there is one.

    A difference counts if it shows twice, and if two runs under the suite are equal. A case that
    no script can run is not compared.

    Args:
        pool: The ranks.
        ddp: The DDP under test.
        scope: The limits of its cases.
    """
    if scope.declared.exactness == "lossy":  # It may draw random numbers of its own.
        return ()
    case = scope.fit(GENTLE)
    try:
        text = answering(pool, ("updated",), case, ddp)
        expected = _lines(pool.train(case, ddp, fresh=True, observed=False))
        if not expected or not _differing(expected, text):
            return ()
        if _lines(pool.train(case, ddp, fresh=True, observed=False)) != expected:
            return ()
        difference = _differing(expected, text)
    except (ExportError, LoadFailure, HarnessError, OSError):
        return ()
    if not difference:
        return ()
    wanted, got = difference
    failure = Failure(
        next(rule for rule in _RULES if not scope.excluded(rule)),
        "the same case gives other parameters in plain torch, without the suite",
        "a script that does not import the suite",
        f"{got[:_SHOWN]} …; under the suite {wanted[:_SHOWN]} …",
        "the implementation recognises the suite, or depends on something that the suite sets",
    )
    return (Unsettled("plain torch", failure, case),)


def _lines(evidence: TrainingEvidence) -> list[str]:
    """Return the lines with which a script prints the parameters after each step."""
    return [
        f"rank {number}: step {step}: after it {slot.name}: {slot.dtype} {slot.shape} "
        f"{tensors.by_name[slot.name].flatten().tolist()}"
        for number, rank in enumerate(evidence.ranks)
        for step in range(evidence.case.steps)
        if (tensors := rank.at("updated", step)) is not None
        for slot in tensors.layout.slots
    ]


def _differing(expected: list[str], text: str) -> tuple[str, str] | None:
    """Run a script; return the first line that it should print, and the line that it prints.

    A line that is missing, as after an exception, is no difference.
    """
    status, output = ran(text)
    if status != 0:
        return None
    printed = output.splitlines()
    for line in expected:
        if line not in printed:
            head = line.partition("[")[0]
            instead = next((each for each in printed if each.startswith(head)), "")
            return (line, instead) if instead else None
    return None
