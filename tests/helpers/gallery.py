"""The gallery of examples: the verdict expected of each system, and the verdict that it gets."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probed import Discover

from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Discovery
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.implementation.spec import OPTIONS, named
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.verdict import Inconclusive, Violation
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.search.trial import Options, Trial

ROOT = Path(__file__).parents[2]
VERDICTS: dict[str, dict[str, Any]] = tomllib.loads(
    (ROOT / "examples" / "verdicts.toml").read_text(encoding="utf-8")
)


ASKED = ("INIT-1", "INIT-4", "GRAD-2", "PARAM-3", "COMM-2", "LIVE-2", "LIVE-3", "MEM-1")
"""Rules for which every system gets cases of its own, beside the rules that its entry names.

All other rules judge those cases, too.
"""


@dataclass(frozen=True)
class Judged:
    """A system's verdicts: the violations by rule, the inconclusive rules, and the trial."""

    discovery: Discovery
    violations: dict[str, Violation]
    inconclusive: dict[str, str]
    trial: Trial


def options_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Return all command-line options for an entry, with defaults for those it does not give."""
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
    """Judge a system by the rules its entry names and by those of `ASKED`.

    A sampler is judged by every rule about samplers.
    """
    ddp, sampler = named(options_of(entry))
    discovery = discover(pool, ddp, sampler, 4)
    trial = Trial(
        pool, UnderTest(ddp, sampler, discovery.scope(4)), Options(cases=cases, store=store)
    )
    violations, inconclusive = {}, {}
    about_sampler = "sampler" in entry
    rules = {*ASKED, entry.get("violated", ""), *entry.get("consequences", ())}
    for rule in ALL_RULES:
        if (
            rule.startswith("SHARD") != about_sampler
            or trial.scope.excluded(rule)
            or not (about_sampler or rule in rules)
        ):
            continue
        try:
            trial.certify(rule, cases_for(rule, trial.scope))
        except Violation as violation:
            violations[rule] = violation
        except Inconclusive as reason:
            inconclusive[rule] = str(reason)
    return Judged(discovery, violations, inconclusive, trial)


def command_of(entry: dict[str, Any]) -> str:
    """Return the command that judges a system."""
    words = [
        f"--{name} {value}"
        for name, values in entry.items()
        if f"--{name}" in OPTIONS
        for value in (values if isinstance(values, list) else [values])
    ]
    return f"pytest -n auto properties/ {' '.join(words)}"


def table() -> str:
    """Return the gallery as a table: system, options, verdict, and the rule that is violated."""
    rows = ["| system | options | verdict | violated |", "|---|---|---|---|"]
    for name, entry in VERDICTS.items():
        options = command_of(entry).removeprefix("pytest -n auto properties/ ")
        rows.append(f"| {name} | `{options}` | {entry['verdict']} | {entry.get('violated', '')} |")
    return "\n".join(rows) + "\n"
