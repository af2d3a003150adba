"""The output of commands without a trial of their own, and all JSON for machines.

`report.py` prints the verdicts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_invariants import __version__
from ddp_invariants.cases.case import to_json
from ddp_invariants.discovery.probe import Discovery, Probed, Standing
from ddp_invariants.implementation.declarations import CAPABILITIES
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.proof.detection import Detection, totals
from ddp_invariants.records.verdict import Replayed, Violation
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.report import terminal
from ddp_invariants.report.outcome import ENDED, SessionResult
from ddp_invariants.search import messages
from ddp_invariants.search.ledger import Ledger

if TYPE_CHECKING:
    from ddp_invariants.report.certificate.certificate import Certificate
    from ddp_invariants.report.rulebook import Explained
    from ddp_invariants.upgrades.baseline import Environment, Head
    from ddp_invariants.upgrades.gate import Gated


def side_by_side(results: Mapping[str, SessionResult]) -> str:
    """Compare implementations: verdicts by rule, differing capabilities, and sessions' outcomes."""
    # Imported here: it is needed once, at the end.
    from rich.box import SIMPLE
    from rich.table import Table

    def table(title: str) -> Table:
        made = Table(box=SIMPLE, show_edge=False, pad_edge=False)
        made.add_column(title, no_wrap=True)
        for name in results:
            made.add_column(name, overflow="fold")
        return made

    verdicts, capabilities = table("rule"), table("capability")
    for rule in ALL_RULES:
        cells = [
            result.ledger.said(rule) if result.ledger and result.ledger.concerned(rule) else ""
            for result in results.values()
        ]
        if any(cells):
            verdicts.add_row(rule, *cells)
    for capability in CAPABILITIES:
        standings = [_standing(result, capability) for result in results.values()]
        if len({*standings} - {"", Standing.UNKNOWN.value}) > 1:
            capabilities.add_row(capability, *standings)
    verdicts.add_section()
    verdicts.add_row("all in all", *(ENDED[result.status] for result in results.values()))
    lines = ["", "side by side", *terminal.printed(verdicts), ""]
    lines += (
        terminal.printed(capabilities)
        if capabilities.row_count
        else ["capabilities: no difference was found"]
    )
    unknown = {
        name: sum(probed.standing is Standing.UNKNOWN for probed in _probed(result))
        for name, result in results.items()
    }
    return "\n".join(
        [
            *lines,
            *(
                f"{name}: {count} capabilities were not probed"
                for name, count in unknown.items()
                if count
            ),
        ]
    )


def _probed(result: SessionResult) -> tuple[Probed, ...]:
    """Return the probed capabilities of the implementation under test.

    Those of the reference beside it are left out.
    """
    if result.discovery is None:
        return ()
    return (
        result.discovery.dealt
        if result.of_sampler
        else (*result.discovery.probed, *result.discovery.dealt)
    )


def _standing(result: SessionResult, capability: str) -> str:
    """Return the standing of a capability; empty if it was not probed."""
    return next(
        (probed.standing.value for probed in _probed(result) if probed.capability == capability), ""
    )


def rules(explanations: "Sequence[Explained]") -> str:
    """List every rule with its level and requirement."""
    # Imported here, as above.
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("rule", "level"):
        table.add_column(title, no_wrap=True)
    table.add_column("requirement")
    for rule in explanations:
        table.add_row(rule.id, rule.level, escape(rule.requirement))
    return "\n".join(
        [*terminal.printed(table), "", *_LEVELS, "`ddp-invariants rules ID` explains one."]
    )


_LEVELS = (
    (
        "core: of every implementation; capability: where one is offered; declared: where it is "
        "declared; observed: told,"
    ),
    "never judged.",
)


def explained(rule: "Explained") -> str:
    """Explain a rule, with all its details."""
    judged = [" ".join(paragraph.split()) for paragraph in rule.judged.split("\n\n")]
    fields = [
        ("level", [rule.level]),
        ("source", [rule.source]),
        ("judged", judged),
        ("needs", ["; ".join(rule.needs)]),
        ("not claimed where", ["; ".join(rule.not_claimed)]),
        ("catches", [f"{fault.name}: {fault.error}" for fault in rule.faults]),
        ("code", [rule.code]),
        ("property", [rule.property]),
    ]
    lines = [
        messages.labelled(label if number == 0 else "", text)
        for label, texts in fields
        for number, text in enumerate(texts)
        if text
    ]
    search = (
        f"`ddp-invariants faults --only {rule.id}` searches for what it catches."
        if rule.faults
        else ""
    )
    return "\n".join([f"{rule.id}  {rule.requirement}", *lines, *([search] if search else [])])


# For machines.


def discovered(discovery: Discovery) -> dict[str, Any]:
    """Return all that was discovered about an implementation and a sampler."""
    return {
        "suite": __version__,
        "ddp": discovery.ddp,
        "sampler": discovery.sampler,
        "driven": discovery.driven,
        "buckets": discovery.buckets,
        "capabilities": [*discovery.probed, *discovery.dealt],
        "deviating": dict(discovery.deviating),
        "stale": discovery.stale(),
    }


def replayed(result: Replayed, repeat: str) -> dict[str, Any]:
    """Return the result of replaying a stored violation."""
    return {
        "suite": __version__,
        "outcome": result.outcome.name,
        "implementation": result.implementation,
        "rules": result.rules,
        "seen": result.seen,
        "runs": result.runs,
        "reason": result.reason,
        "failures": result.failures,
        "case": json.loads(to_json(result.case)),
        "repeat": repeat,
    }


def certified(results: Mapping[str, SessionResult], status: int) -> dict[str, Any]:
    """Return the result of each implementation, and of all together."""
    return {
        "suite": __version__,
        "status": status,
        "outcome": ENDED[status],
        "judged": [_of(name, result) for name, result in results.items()],
    }


def _of(name: str, result: SessionResult) -> dict[str, Any]:
    ledger = result.ledger or Ledger()
    return {
        "name": name,
        "status": result.status,
        "outcome": ENDED[result.status],
        "cases": ledger.cases,
        "rules": {rule: ledger.said(rule) for rule in ALL_RULES if ledger.concerned(rule)},
        "capabilities": {probed.capability: probed.standing for probed in _probed(result)},
        "violations": sorted(ledger.stored),
    }


def demonstrated(
    ledger: Ledger, rules: Sequence[str], faulty: str, caught: Violation | None
) -> dict[str, Any]:
    """Return the results of the demonstration's two implementations."""
    violation = (
        {
            "rule": caught.failure.rule,
            "case": json.loads(to_json(caught.case)),
            "report": caught.report,
        }
        if caught
        else None
    )
    return {
        "suite": __version__,
        "right": {
            "name": "reference",
            "cases": ledger.cases,
            "rules": {rule: ledger.said(rule) for rule in rules},
        },
        "wrong": {"name": faulty, "violation": violation},
    }


def exported(script: str, stored: StoredViolation, identifier: str) -> dict[str, Any]:
    """Return a script, with the violation it shows."""
    return {
        "suite": __version__,
        "violation": identifier,
        "rule": stored.failure.rule,
        "script": script,
    }


def verified(certificate: "Certificate", headline: str) -> dict[str, Any]:
    """Return the contents of a certificate that was rechecked."""
    return {
        "valid": True,
        "outcome": certificate.outcome,
        "headline": headline,
        "partial": certificate.partial,
        "exceptions": certificate.exceptions,
        "cases": certificate.cases,
        "digest": certificate.digest,
        "rules": {item.rule: item.verdict for item in certificate.rules},
        "violations": [item.id for item in certificate.violations],
    }


def compared(sides: "tuple[Environment, Environment]", outcome: "Gated") -> dict[str, Any]:
    """Return the differences between two interpreters."""
    rows = [
        {
            **asdict(gated.difference),
            "name": gated.difference.name,
            "seen": gated.seen,
            "accepted": gated.accepted,
            "counts": gated.counts,
            "script": gated.script,
            "case": json.loads(to_json(gated.case)) if gated.case is not None else None,
        }
        for gated in outcome.found
    ]
    return {
        "suite": __version__,
        "old": sides[0],
        "new": sides[1],
        "cases": outcome.cases,
        "status": outcome.status,
        "found": rows,
        "pace": outcome.pace,
        "stale": [gated.change for gated in outcome.stale],
    }


def begun(written: Sequence[Path], left: Sequence[Path]) -> dict[str, Any]:
    """Return the files that were written into a repository, and those that existed already."""
    return {"suite": __version__, "written": written, "left": left}


def recorded(path: Path, head: "Head") -> dict[str, Any]:
    """Return the description of a recorded baseline."""
    return {
        "suite": head.suite,
        "file": path,
        "form": head.form,
        "environment": head.environment,
        "options": head.options,
        "seed": head.seed,
        "cases": head.cases,
    }


def detected(detections: Sequence[Detection]) -> dict[str, Any]:
    """Return the results of the searches for planted faults, with all details."""
    searches = [
        {
            **asdict(detection),
            "diagnosis": detection.diagnosis,
            "caught": detection.is_caught,
            "right_rule": detection.is_right_rule,
        }
        for detection in detections
    ]
    return {
        "suite": __version__,
        "torch": version("torch"),
        "totals": totals(detections),
        "searches": searches,
    }
