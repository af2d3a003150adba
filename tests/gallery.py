"""The gallery of examples: what each system is expected to come out with, and what it does."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probed import Discover

from ddp_invariants.discovery.probe import Discovery, discover
from ddp_invariants.discovery.scope import OnTrial
from ddp_invariants.implementation.spec import OPTIONS, named
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Inconclusive, Violation
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.search.trial import Options, Trial

ROOT = Path(__file__).parent.parent
VERDICTS: dict[str, dict[str, Any]] = tomllib.loads(
    (ROOT / "examples" / "verdicts.toml").read_text(encoding="utf-8")
)


ASKED = ("INIT-1", "INIT-4", "GRAD-2", "PARAM-3", "COMM-2", "LIVE-2", "LIVE-3", "MEM-1")
"""Rules a system is held to by cases of their own, beside those its entry names; all others see those cases, too."""


@dataclass(frozen=True)
class Judged:
    """A system's verdicts: the violation of each rule violated, what was inconclusive, and what it holds by."""

    discovery: Discovery
    violations: dict[str, Violation]
    inconclusive: dict[str, str]
    trial: Trial


def options_of(entry: dict[str, Any]) -> dict[str, Any]:
    """The command-line options an entry stands for, all of them."""
    given = {
        name.removeprefix("--").replace("-", "_"): [] if option.repeatable else option.default
        for name, option in OPTIONS.items()
    }
    return {
        **given,
        **{
            name.replace("-", "_"): value for name, value in entry.items() if f"--{name}" in OPTIONS
        },
    }


def judged(
    entry: dict[str, Any], pool: Pool, store: Path, *, cases: int, discover: Discover = discover
) -> Judged:
    """Judge a system by the rules its entry names, and those asked of all; a sampler by every rule that is about it."""
    ddp, sampler = named(options_of(entry))
    found = discover(pool, ddp, sampler, 4)
    trial = Trial(pool, OnTrial(ddp, sampler, found.scope(4)), Options(cases=cases, store=store))
    violations, inconclusive = {}, {}
    about_sampler = "sampler" in entry
    asked = {*ASKED, entry.get("violated", ""), *entry.get("consequences", ())}
    for rule in ALL_RULES:
        if (
            rule.startswith("SHARD") != about_sampler
            or trial.scope.excluded(rule)
            or not (about_sampler or rule in asked)
        ):
            continue
        try:
            trial.certify(rule, cases_for(rule, trial.scope))
        except Violation as violation:
            violations[rule] = violation
        except Inconclusive as reason:
            inconclusive[rule] = str(reason)
    return Judged(found, violations, inconclusive, trial)


def command_of(entry: dict[str, Any]) -> str:
    """The command that judges a system."""
    words = [
        f"--{name} {value}"
        for name, values in entry.items()
        if f"--{name}" in OPTIONS
        for value in (values if isinstance(values, list) else [values])
    ]
    return f"pytest -n auto properties/ {' '.join(words)}"


def table() -> str:
    """The gallery as a table: system, its options, its verdict, and the rule that says so."""
    rows = ["| system | options | verdict | violated |", "|---|---|---|---|"]
    for name, entry in VERDICTS.items():
        options = command_of(entry).removeprefix("pytest -n auto properties/ ")
        rows.append(f"| {name} | `{options}` | {entry['verdict']} | {entry.get('violated', '')} |")
    return "\n".join(rows) + "\n"
