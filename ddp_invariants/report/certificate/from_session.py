"""The making of a certificate from a session's ledger, its discovery and pytest's reports."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ddp_invariants import __version__
from ddp_invariants.discovery.result import Discovery, Standing
from ddp_invariants.implementation.declarations import CAPABILITIES, to_toml
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.diagnosis.excerpts import Example
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.report.accounts import account
from ddp_invariants.report.card import card
from ddp_invariants.report.certificate.certificate import (
    INTERRUPTED,
    CapabilityAccount,
    Certificate,
    Properties,
    Setting,
    Subject,
    ViolationAccount,
    outcome,
    sealed,
    shortfall,
)
from ddp_invariants.search.ledger import Ledger


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a session that its certificate records."""

    command: str
    seed: int
    cases: int
    max_world_size: int
    isolation: str
    backend: str
    shard: str = ""


@dataclass(frozen=True)
class SessionRun:
    """The facts of a session that its ledger and its discovery lack.

    Attributes:
        settings: The settings.
        began: Start time, as ISO 8601 in UTC.
        seconds: Duration.
        reported: Rules for whose property pytest reported an outcome.
        interrupted: True if the user interrupted the session.
    """

    settings: SessionSettings
    began: str
    seconds: float
    reported: frozenset[str]
    interrupted: bool = False


def make(
    ledger: Ledger, discovery: Discovery, run: SessionRun, violations: Mapping[str, StoredViolation]
) -> Certificate:
    """Return the certificate of a session.

    Args:
        ledger: The sum of all workers' ledgers.
        discovery: The implementations under test, with their capabilities.
        run: The session.
        violations: The stored violations that the ledger confirmed, by file.
    """
    scope = discovery.scope(run.settings.max_world_size)
    rules = tuple(account(rule, ledger, scope.unclaimed) for rule in ALL_RULES)
    properties = Properties(
        tuple(ALL_RULES),
        *(
            tuple(rule for rule in ALL_RULES if rule in rules_done)
            for rules_done in (ledger.ended, run.reported)
        ),
    )
    partial = (*((INTERRUPTED,) if run.interrupted else ()), *shortfall(properties))
    order = list(ALL_RULES)
    examples, shown = _examples(ledger.examples), _examples(ledger.stored)
    accounts = [_violation(stored, shown[path]) for path, stored in violations.items()]
    return sealed(
        Certificate(
            outcome(rules),
            card(rules),
            partial,
            (_subject("ddp", discovery), _subject("sampler", discovery)),
            _setting(discovery, run),
            ledger.cases,
            rules,
            tuple(_capabilities(discovery)),
            tuple(sorted(accounts, key=lambda account: order.index(account.failure.rule))),
            dict(discovery.deviating),
            properties,
            dict(ledger.drawn.sizes),
            {name: dict(counts) for name, counts in ledger.drawn.dimensions.items()},
            examples,
            dict(ledger.ran),
            dict(ledger.unreal),
            ledger.not_simulated or discovery.not_simulated,
            tuple(ledger.dealt),
            tuple(ledger.schedules),
        )
    )


def _setting(discovery: Discovery, run: SessionRun) -> Setting:
    return Setting(
        __version__,
        discovery.torch,
        importlib.metadata.version("numpy"),
        importlib.metadata.version("hypothesis"),
        platform.python_version(),
        run.settings.backend,
        f"{platform.system()} {platform.release()} {platform.machine()}",
        _processor(),
        len(os.sched_getaffinity(0)),
        run.settings.command,
        run.settings.seed,
        run.settings.cases,
        run.settings.max_world_size,
        run.settings.isolation,
        run.began,
        run.seconds,
        run.settings.shard,
    )


def _processor() -> str:
    """Return the processor's model, or its architecture if the system does not name a model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _subject(side: Literal["ddp", "sampler"], discovery: Discovery) -> Subject:
    described, declared = (
        (discovery.ddp, discovery.declared)
        if side == "ddp"
        else (discovery.sampler, discovery.declared_sampler)
    )
    made_of = described.get("made_of") or {}
    driven = discovery.driven if side == "ddp" else described["driven"]
    return Subject(
        side,
        described["name"],
        described["target"],
        described["version"],
        made_of.get("digest", ""),
        made_of.get("files", 0),
        tuple(made_of.get("first", ())),
        tuple(to_toml(side, declared).splitlines()[1:]),
        tuple(driven),
    )


def _capabilities(discovery: Discovery) -> Iterable[CapabilityAccount]:
    sides: tuple[tuple[Literal["ddp", "sampler"], Any], ...] = (
        ("ddp", discovery.ddp_probes),
        ("sampler", discovery.sampler_probes),
    )
    for side, probed in sides:
        for probe in probed:
            yield CapabilityAccount(
                side,
                probe.capability,
                CAPABILITIES[probe.capability],
                probe.standing.value,
                probe.words,
                probe.declared,
                probe.expected if probe.standing is Standing.WRONG else "",
            )


def _violation(stored: StoredViolation, shown: Example) -> ViolationAccount:
    return ViolationAccount(
        stored.id,
        stored.under_test,
        replace(stored.failure, notes=""),
        stored.case,
        stored.confirmed,
        stored.repeat,
        shown,
    )


def _examples(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Example]:
    # Imported here: the import takes longer than a case takes to run.
    import pydantic

    adapter = pydantic.TypeAdapter(dict[str, Example])
    return adapter.validate_json(json.dumps(plain))  # JSON has lists for tuples.
