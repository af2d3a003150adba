"""What commands say that hold no trial of their own, and what any says to machines. Verdicts are told by `report.py`."""

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
    """Several implementations: each one's verdicts by rule, the capabilities in which they differ, and how each ended."""
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
            one.ledger.said(rule) if one.ledger and one.ledger.concerned(rule) else ""
            for one in results.values()
        ]
        if any(cells):
            verdicts.add_row(rule, *cells)
    for capability in CAPABILITIES:
        standings = [_standing(one, capability) for one in results.values()]
        if len({*standings} - {"", Standing.UNKNOWN.value}) > 1:
            capabilities.add_row(capability, *standings)
    verdicts.add_section()
    verdicts.add_row("all in all", *(ENDED[one.status] for one in results.values()))
    told = ["", "side by side", *terminal.printed(verdicts), ""]
    told += (
        terminal.printed(capabilities)
        if capabilities.row_count
        else ["capabilities: no difference was found"]
    )
    unknown = {
        name: sum(found.standing is Standing.UNKNOWN for found in _probed(one))
        for name, one in results.items()
    }
    return "\n".join(
        [
            *told,
            *(
                f"{name}: {count} capabilities were not probed"
                for name, count in unknown.items()
                if count
            ),
        ]
    )


def _probed(one: SessionResult) -> tuple[Probed, ...]:
    """What was found out about capabilities of what was on trial, and not of the reference beside it."""
    if one.discovery is None:
        return ()
    return one.discovery.dealt if one.of_sampler else (*one.discovery.probed, *one.discovery.dealt)


def _standing(one: SessionResult, capability: str) -> str:
    """What was found out about a capability; empty where nothing was asked."""
    return next(
        (found.standing.value for found in _probed(one) if found.capability == capability), ""
    )


def rules(found: "Sequence[Explained]") -> str:
    """Every rule with its level and requirement."""
    # Imported here, as above.
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for title in ("rule", "level"):
        table.add_column(title, no_wrap=True)
    table.add_column("requirement")
    for one in found:
        table.add_row(one.id, one.level, escape(one.requirement))
    return "\n".join(
        [*terminal.printed(table), "", *_LEVELS, "`ddp-invariants rules ID` explains one."]
    )


_LEVELS = (
    "core: of every implementation; capability: where one is offered; declared: where it is declared; observed: told,",
    "never judged.",
)


def explained(one: "Explained") -> str:
    """A rule, with all that is known of it."""
    judged = [" ".join(paragraph.split()) for paragraph in one.judged.split("\n\n")]
    fields = [
        ("level", [one.level]),
        ("source", [one.source]),
        ("judged", judged),
        ("needs", ["; ".join(one.needs)]),
        ("not claimed where", ["; ".join(one.not_claimed)]),
        ("catches", [f"{fault.name}: {fault.what}" for fault in one.faults]),
        ("code", [one.code]),
        ("property", [one.property]),
    ]
    told = [
        messages.labelled(label if number == 0 else "", text)
        for label, texts in fields
        for number, text in enumerate(texts)
        if text
    ]
    search = (
        f"`ddp-invariants faults --only {one.id}` searches for what it catches."
        if one.faults
        else ""
    )
    return "\n".join([f"{one.id}  {one.requirement}", *told, *([search] if search else [])])


# For machines.


def discovered(found: Discovery) -> dict[str, Any]:
    """All that was found out about a pair on trial."""
    return {
        "suite": __version__,
        "ddp": found.ddp,
        "sampler": found.sampler,
        "driven": found.driven,
        "buckets": found.buckets,
        "capabilities": [*found.probed, *found.dealt],
        "deviating": dict(found.deviating),
        "stale": found.stale(),
    }


def replayed(found: Replayed, repeat: str) -> dict[str, Any]:
    """What became of a stored violation."""
    return {
        "suite": __version__,
        "outcome": found.outcome.name,
        "implementation": found.implementation,
        "rules": found.rules,
        "seen": found.seen,
        "runs": found.runs,
        "reason": found.reason,
        "failures": found.failures,
        "case": json.loads(to_json(found.case)),
        "repeat": repeat,
    }


def certified(results: Mapping[str, SessionResult], status: int) -> dict[str, Any]:
    """What came of each implementation, and of all together."""
    return {
        "suite": __version__,
        "status": status,
        "outcome": ENDED[status],
        "judged": [_of(name, one) for name, one in results.items()],
    }


def _of(name: str, one: SessionResult) -> dict[str, Any]:
    ledger = one.ledger or Ledger()
    return {
        "name": name,
        "status": one.status,
        "outcome": ENDED[one.status],
        "cases": ledger.cases,
        "rules": {rule: ledger.said(rule) for rule in ALL_RULES if ledger.concerned(rule)},
        "capabilities": {found.capability: found.standing for found in _probed(one)},
        "violations": sorted(ledger.stored),
    }


def demonstrated(
    ledger: Ledger, rules: Sequence[str], faulty: str, found: Violation | None
) -> dict[str, Any]:
    """What came of the two that are judged for a demonstration."""
    violation = (
        {
            "rule": found.failure.rule,
            "case": json.loads(to_json(found.case)),
            "report": found.report,
        }
        if found
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
    """A script, with what it is of."""
    return {
        "suite": __version__,
        "violation": identifier,
        "rule": stored.failure.rule,
        "script": script,
    }


def verified(certificate: "Certificate", headline: str) -> dict[str, Any]:
    """What a certificate says, having been rechecked."""
    return {
        "valid": True,
        "outcome": certificate.outcome,
        "headline": headline,
        "partial": certificate.partial,
        "exceptions": certificate.exceptions,
        "cases": certificate.cases,
        "digest": certificate.digest,
        "rules": {one.rule: one.verdict for one in certificate.rules},
        "violations": [one.id for one in certificate.violations],
    }


def compared(sides: "tuple[Environment, Environment]", outcome: "Gated") -> dict[str, Any]:
    """What differs between two interpreters."""
    rows = [
        {
            **asdict(one.difference),
            "name": one.difference.name,
            "seen": one.seen,
            "accepted": one.accepted,
            "counts": one.counts,
            "script": one.script,
            "case": json.loads(to_json(one.case)) if one.case is not None else None,
        }
        for one in outcome.found
    ]
    return {
        "suite": __version__,
        "old": sides[0],
        "new": sides[1],
        "cases": outcome.cases,
        "status": outcome.status,
        "found": rows,
        "pace": outcome.pace,
        "stale": [one.change for one in outcome.stale],
    }


def begun(written: Sequence[Path], left: Sequence[Path]) -> dict[str, Any]:
    """What was written into a repository, and what was there already."""
    return {"suite": __version__, "written": written, "left": left}


def recorded(path: Path, head: "Head") -> dict[str, Any]:
    """What was recorded, and where."""
    return {
        "suite": head.suite,
        "file": path,
        "form": head.form,
        "environment": head.environment,
        "options": head.options,
        "seed": head.seed,
        "cases": head.cases,
    }


def detected(found: Sequence[Detection]) -> dict[str, Any]:
    """What became of the searches for planted faults, all that is known of each."""
    searches = [
        {
            **asdict(one),
            "diagnosis": one.diagnosis,
            "caught": one.is_caught,
            "right_rule": one.is_right_rule,
        }
        for one in found
    ]
    return {
        "suite": __version__,
        "torch": version("torch"),
        "totals": totals(found),
        "searches": searches,
    }
