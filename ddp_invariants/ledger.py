"""What a run adds up to: per rule how often it was judged, on what, and what was found. Plain data that merges.

Each pytest worker keeps one; the session's verdict is read off their sum, so that a violation seen in passing while
another rule was tested is not lost.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from ddp_invariants.verdict import Breach, Finding, Verdict


@dataclass
class Entry:
    """One rule's account.

    Attributes:
        judged: Cases it was judged on.
        compared: Things compared over all of them.
        met: How many cases reached each situation.
        worst: The largest error in units of its bound.
        unjudged: Why it could not be judged, counted.
        breaches: Case id to the breach in a few words, at most ten; `seen` counts all.
        seen: Cases with a breach.
        confirmed: Violations confirmed in fresh processes.
        not_claimed: What of the rule does not apply to what is on trial; empty where all of it does.
        not_run: Why no case was run as it was asked for: on a device that is not there, say; empty where they were.
        inconclusive: Whether its own property ended without a verdict.
        observed: The least and the largest value of a rule that observes and never judges; empty for all others.
    """

    judged: int = 0
    compared: int = 0
    met: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0
    unjudged: Counter[str] = field(default_factory=Counter)
    breaches: dict[str, str] = field(default_factory=dict)
    seen: int = 0
    confirmed: int = 0
    not_claimed: str = ""
    not_run: str = ""
    inconclusive: bool = False
    observed: list[float] = field(default_factory=list)

    def add(self, finding: Finding, case_id: str) -> None:
        """Enter one finding."""
        self.inconclusive |= finding.crashed
        if finding.unjudged:
            self.unjudged[finding.unjudged[:160]] += 1
            return
        self.judged += 1
        self.compared += finding.compared
        self.met.update(finding.met)
        self.worst = max(self.worst, finding.worst)
        self._widen(finding.observed)
        if finding.breach is not None:
            self.enter_breach(finding.breach, case_id)

    def enter_breach(self, breach: Breach, case_id: str) -> None:
        """Note a breach; ten are kept, all are counted."""
        self.seen += 1
        if len(self.breaches) < 10:
            self.breaches[case_id] = f"{breach.fact}; {breach.where}"

    def _widen(self, values: Iterable[float]) -> None:
        seen = [*self.observed, *values]
        self.observed = [min(seen), max(seen)] if seen else []

    def merge(self, other: Self) -> None:
        """Add another worker's account."""
        self._widen(other.observed)
        self.judged += other.judged
        self.compared += other.compared
        self.met.update(other.met)
        self.worst = max(self.worst, other.worst)
        self.unjudged.update(other.unjudged)
        self.breaches.update(other.breaches)
        self.seen += other.seen
        self.confirmed += other.confirmed
        self.not_claimed = self.not_claimed or other.not_claimed
        self.not_run = self.not_run or other.not_run
        self.inconclusive |= other.inconclusive

    @property
    def verdict(self) -> Verdict:
        """What the account says. A breach that was never confirmed is inconclusive: no accusation, no pass."""
        if self.confirmed:
            return Verdict.VIOLATED
        if self.seen or self.inconclusive:
            return Verdict.INCONCLUSIVE
        if self.judged:
            return Verdict.HOLDS
        if self.not_run:
            return Verdict.NOT_RUN
        return Verdict.NOT_CLAIMED if self.not_claimed else Verdict.INCONCLUSIVE


class Ledger:
    """All rules' accounts of a session or a worker."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.cases = 0
        self.tested: set[str] = set()

    def __getitem__(self, rule: str) -> Entry:
        return self.entries.setdefault(rule, Entry())

    def merge(self, other: Self) -> None:
        """Add another worker's."""
        self.cases += other.cases
        self.tested |= other.tested
        for rule, entry in other.entries.items():
            self[rule].merge(entry)

    def to_plain(self) -> dict[str, Any]:
        """As JSON-ready data: dicts, lists, strings, numbers."""
        entries = {rule: {**vars(entry), "met": dict(entry.met), "unjudged": dict(entry.unjudged)}
                   for rule, entry in self.entries.items()}
        return {"cases": self.cases, "tested": sorted(self.tested), "entries": entries}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """From what `to_plain` gave, in this or another process."""
        ledger = cls()
        ledger.cases, ledger.tested = plain["cases"], set(plain["tested"])
        for rule, entry in plain["entries"].items():
            ledger.entries[rule] = Entry(**{**entry, "met": Counter(entry["met"]), "unjudged": Counter(entry["unjudged"])})
        return ledger
