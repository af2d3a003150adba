"""The results of commands as data for JSON; docs/json.md lists the keys."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_invariants import __version__
from ddp_invariants.cases.case import to_json
from ddp_invariants.discovery.result import Discovery
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.records.verdict import Replayed, Violation
from ddp_invariants.report.card import LevelAccount, headline
from ddp_invariants.report.outcome import ENDED, PARTIAL, SessionResult
from ddp_invariants.report.pages import page_of
from ddp_invariants.report.proposal import file_of, proposals
from ddp_invariants.search.ledger import Ledger

if TYPE_CHECKING:
    from ddp_invariants.report.certificate.certificate import Certificate
    from ddp_invariants.upgrades.baseline import Environment, Head
    from ddp_invariants.upgrades.outcome import Gated


def discovery(discovered: Discovery) -> dict[str, Any]:
    """Return all that was discovered about an implementation and a sampler."""
    return {
        "suite": __version__,
        "ddp": discovered.ddp,
        "sampler": discovered.sampler,
        "driven": discovered.driven,
        "buckets": discovered.buckets,
        "plain_failure": discovered.plain_failure and discovered.plain_failure._asdict(),
        "capabilities": [*discovered.ddp_probes, *discovered.sampler_probes],
        "deviating": dict(discovered.deviating),
        "stale": discovered.stale(),
    }


def replay(result: Replayed, repeat: str) -> dict[str, Any]:
    """Return the result of replaying a stored violation."""
    return {
        "suite": __version__,
        "outcome": result.outcome.name,
        "implementation": result.implementation,
        "rules": result.rules,
        "seen": result.seen,
        "runs": result.runs,
        "reason": result.reason,
        "failures": [
            {**asdict(failure), "page": page_of(failure.rule)} for failure in result.failures
        ],
        "case": json.loads(to_json(result.case)),
        "repeat": repeat,
    }


def certification(results: Mapping[str, SessionResult], status: int) -> dict[str, Any]:
    """Return the result of each implementation, and of all together."""
    partial = status == 0 and any(result.outcome == PARTIAL for result in results.values())
    return {
        "suite": __version__,
        "status": status,
        "outcome": PARTIAL if partial else ENDED[status],
        "judged": [_of(name, result) for name, result in results.items()],
    }


def _of(name: str, result: SessionResult) -> dict[str, Any]:
    ledger = result.ledger or Ledger()
    levels = result.levels
    rules = [rule for rule in ALL_RULES if ledger.concerned(rule)]
    return {
        "name": name,
        "status": result.status,
        "outcome": result.outcome,
        "headline": headline(levels),
        "card": levels,
        "cases": ledger.cases,
        "rules": {rule: ledger.verdict_of(rule) for rule in rules},
        "pages": {rule: page_of(rule) for rule in rules},
        "capabilities": {probed.capability: probed.standing for probed in result.capabilities},
        "violations": sorted(ledger.stored),
        "proposal": _proposal(levels, result.discovery),
    }


def _proposal(levels: Sequence[LevelAccount], discovery: Discovery | None) -> str:
    """Return the declaration file that suggests itself; empty for none."""
    proposed = proposals(levels, discovery) if discovery is not None else ()
    return file_of(proposed, discovery) if proposed and discovery is not None else ""


def demonstration(
    ledger: Ledger, rules: Sequence[str], faulty: str, caught: Violation | None
) -> dict[str, Any]:
    """Return the results of the demonstration's two implementations."""
    violation = (
        {
            "rule": caught.failure.rule,
            "page": page_of(caught.failure.rule),
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
            "rules": {rule: ledger.verdict_of(rule) for rule in rules},
        },
        "wrong": {"name": faulty, "violation": violation},
    }


def export(script: str, rule: str, identifier: str) -> dict[str, Any]:
    """Return a script or a case as Python, with the violation it shows."""
    return {
        "suite": __version__,
        "violation": identifier,
        "rule": rule,
        "page": page_of(rule),
        "script": script,
    }


def verification(certificate: "Certificate", outcome: str) -> dict[str, Any]:
    """Return the contents of a certificate that was rechecked."""
    return {
        "valid": True,
        "outcome": certificate.outcome,
        "headline": outcome,
        "card": certificate.card,
        "partial": certificate.partial,
        "exceptions": certificate.exceptions,
        "cases": certificate.cases,
        "digest": certificate.digest,
        "rules": {item.rule: item.verdict for item in certificate.rules},
        "violations": [item.id for item in certificate.violations],
    }


def comparison(sides: "tuple[Environment, Environment]", outcome: "Gated") -> dict[str, Any]:
    """Return the differences between two interpreters."""
    rows = [
        {
            **asdict(gated.difference),
            "name": gated.difference.name,
            "seen": gated.seen,
            "accepted": gated.accepted,
            "counts": gated.counts,
            "varies": gated.varies,
            "script": gated.script,
            "case": json.loads(to_json(gated.case)) if gated.case is not None else None,
        }
        for gated in outcome.differences
    ]
    return {
        "suite": __version__,
        "old": sides[0],
        "new": sides[1],
        "cases": outcome.cases,
        "simulated": outcome.simulated,
        "status": outcome.status,
        "interrupted": outcome.interrupted,
        "found": rows,
        "pace": outcome.pace,
        "stale": [gated.change for gated in outcome.stale],
        "unreal": [
            {"name": name, "case": json.loads(to_json(case))} for name, case in outcome.unreal
        ],
    }


def init(written: Sequence[Path], left: Sequence[Path]) -> dict[str, Any]:
    """Return the files that were written into a repository, and those that existed already."""
    return {"suite": __version__, "written": written, "left": left}


def recording(path: Path, head: "Head") -> dict[str, Any]:
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
