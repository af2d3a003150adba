"""The account of each rule, as a report and a certificate show it."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ddp_invariants.cases.fields import Strict
from ddp_invariants.cases.levels import Level
from ddp_invariants.discovery.levels import ENOUGH, needed_of_ordinary
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.rule import Row
from ddp_invariants.search.ledger import Entry, Ledger

RuleVerdict = Literal[
    "holds",
    "violated",
    "inconclusive",
    "not claimed",
    "not tested",
    "not finished",
    "not run",
    "observed",
]


@dataclass(frozen=True)
class Blame(Strict):
    """The level of a confirmed violation.

    Attributes:
        level: The level.
        names: The capabilities and situations that make the smallest case less ordinary.
    """

    level: Level
    names: tuple[str, ...]


@dataclass(frozen=True)
class RuleAccount(Strict):
    """The result of a rule.

    Attributes:
        rule: Its id.
        requirement: Its requirement.
        verdict: Its verdict.
        judged: Number of cases it was judged on.
        compared: Number of things compared over all these cases.
        needs: Conditions without which the rule has proved nothing, each with the number of cases
            that met it.
        without: Those of its conditions that the implementation cannot meet.
        worst: The largest error in units of its bound; None if this is no finite number.
        errors: Number of cases without an error, in each tenth of the bound, and beyond the bound.
        observed: Smallest and largest value of an observed quantity.
        seen: Number of cases in which the rule failed.
        confirmed: Number of violations that fresh processes confirmed.
        why: The reason if the rule is not claimed, was not run, or was run in part.
        unjudged: The reasons why cases could not be judged, with their numbers.
        failures: Failures that were seen, by case; ten at most.
        level: How ordinary its subject is.
        ordinary: Number of ordinary cases it was judged on.
        ordinary_needs: The conditions among `needs` that ordinary cases can meet, each with the
            number of ordinary cases that met it.
        seen_at: Of the cases in which the rule failed, the number by the level of the failure.
        blames: The level of each confirmed violation.
        lacking: The conditions that its own property has not met over the real backend, or a case on
            which the rule is judged.
        doubtful: True if it is inconclusive for a reason that more cases do not remove: a judge
            crashed, a failure did not repeat, or the implementation refused.
        milliseconds: The time that its own property took, in all processes.
    """

    rule: str
    requirement: str
    verdict: RuleVerdict
    judged: int
    compared: int
    needs: dict[str, int]
    without: tuple[str, ...]
    worst: float | None
    errors: tuple[int, ...]
    observed: tuple[float, ...] = ()
    seen: int = 0
    confirmed: int = 0
    why: str = ""
    unjudged: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    level: Level = "extended"
    ordinary: int = 0
    ordinary_needs: dict[str, int] = field(default_factory=dict)
    seen_at: dict[str, int] = field(default_factory=dict)
    blames: tuple[Blame, ...] = ()
    lacking: tuple[str, ...] = ()
    doubtful: bool = False
    milliseconds: int = 0

    @property
    def proved_ordinarily(self) -> bool:
        """True if ordinary cases alone suffice for a verdict."""
        return self.ordinary >= ENOUGH and all(self.ordinary_needs.values())


def account(rule: str, ledger: Ledger, unclaimed: frozenset[str]) -> RuleAccount:
    """Return the account of a rule.

    Args:
        rule: Its id; this process may not know a user's own rule.
        ledger: The session's.
        unclaimed: The conditions that the implementation cannot meet.
    """
    entry, known = ledger.entries.get(rule, Entry()), ALL_RULES.get(rule, Row(rule, ""))
    verdict: Any = ledger.verdict_of(rule)
    without = sorted(need for need in unclaimed.intersection(known.needs) if not entry.met[need])
    ordinary = needed_of_ordinary(known)
    return RuleAccount(
        rule,
        known.requirement,
        verdict,
        entry.judged,
        entry.compared,
        {need: entry.met[need] for need in known.needs if need not in without},
        tuple(without),
        entry.worst if math.isfinite(entry.worst) else None,
        tuple(entry.errors),
        tuple(value for value in entry.observed if math.isfinite(value)),
        entry.seen,
        entry.confirmed,
        "; ".join(why for why in (entry.not_claimed, entry.not_run) if why),
        dict(entry.unjudged.most_common(5)),
        entry.failures,
        known.level,
        entry.ordinary,
        {need: entry.ordinary_met[need] for need in ordinary if need not in unclaimed},
        dict(entry.seen_at),
        tuple(Blame(*blame) for blame in entry.blamed),
        tuple(entry.lacking),
        entry.inconclusive or (verdict == "inconclusive" and not (entry.lacking or entry.seen)),
        entry.milliseconds,
    )


def accounts(ledger: Ledger, unclaimed: frozenset[str]) -> tuple[RuleAccount, ...]:
    """Return the accounts of all rules, and of a user's own rules that only workers know."""
    rules = dict.fromkeys([*ALL_RULES, *sorted(ledger.entries)])
    return tuple(account(rule, ledger, unclaimed) for rule in rules)
