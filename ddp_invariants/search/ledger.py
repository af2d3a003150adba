"""What a run adds up to: per rule how often it was judged, on what, and what was found. Plain data that merges.

Each pytest worker keeps one; the session's verdict is read off their sum, so that a violation seen
in passing while another rule was tested is not lost.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any, Self

from ddp_invariants.cases.case import Case, to_json
from ddp_invariants.invariants.diagnosis.excerpts import example, of_violation
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure, Finding, Verdict
from ddp_invariants.search.coverage import Drawn

TENTHS = 10
"""Steps in which errors are counted, from none to the whole bound; before them stands what has no error, after them what
exceeds its bound."""


@dataclass
class Entry:
    """One rule's account.

    Attributes:
        judged: Cases it was judged on.
        compared: Things compared over all of them.
        met: How many cases reached each situation.
        worst: The largest error in units of its bound.
        errors: Of the cases judged, how many had a largest error of nothing, of each tenth of the
            bound, and beyond it.
        unjudged: Why it could not be judged, counted.
        failures: Case id to the breach in a few words, at most ten; `seen` counts all.
        seen: Cases with a breach.
        confirmed: Violations confirmed in fresh processes.
        not_claimed: What of the rule does not apply to what is on trial; empty where all of it
            does.
        not_run: Why no case was run as it was asked for: on a device that is not there, say; empty
            where they were.
        inconclusive: Whether its own property ended without a verdict.
        observed: The least and the largest value of a rule that observes and never judges; empty
            for all others.
        sighted: The first case with a breach, and what was found, as plain data: nobody may ever
            draw it again.
    """

    judged: int = 0
    compared: int = 0
    met: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0
    errors: list[int] = field(default_factory=lambda: [0] * (TENTHS + 2))
    unjudged: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    seen: int = 0
    confirmed: int = 0
    not_claimed: str = ""
    not_run: str = ""
    inconclusive: bool = False
    observed: list[float] = field(default_factory=list)
    sighted: dict[str, Any] = field(default_factory=dict)

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
        # What is not a number is beyond every bound.
        self.errors[ceil(finding.worst * TENTHS) if finding.worst <= 1 else -1] += 1
        self._widen(finding.observed)
        if finding.failure is not None:
            self.enter_breach(finding.failure, case_id)

    def enter_breach(self, failure: Failure, case_id: str) -> None:
        """Note a breach; ten are kept, all are counted."""
        self.seen += 1
        if len(self.failures) < 10:
            self.failures[case_id] = f"{failure.fact}; {failure.where}"

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
        self.errors = [
            ours + theirs for ours, theirs in zip(self.errors, other.errors, strict=True)
        ]
        self.unjudged.update(other.unjudged)
        self.failures.update(other.failures)
        self.seen += other.seen
        self.confirmed += other.confirmed
        self.not_claimed = self.not_claimed or other.not_claimed
        self.not_run = self.not_run or other.not_run
        self.inconclusive |= other.inconclusive
        self.sighted = self.sighted or other.sighted

    @property
    def verdict(self) -> Verdict:
        """What the account says. A breach that was never confirmed is inconclusive: no accusation, no pass."""
        if self.confirmed:
            return Verdict.VIOLATED
        if self.seen or self.inconclusive:
            return Verdict.INCONCLUSIVE
        if self.not_run:
            return Verdict.NOT_RUN
        if self.judged:
            return Verdict.HOLDS
        return Verdict.NOT_CLAIMED if self.not_claimed else Verdict.INCONCLUSIVE


class Ledger:
    """All rules' accounts of a session or a worker.

    Attributes:
        entries: By rule.
        cases: How many were judged.
        tested: Rules whose own properties ran.
        ended: Those whose own properties ran to their end, or had nothing to run.
        stored: Violations that were confirmed: by the file each is stored in, what is shown of it
            (`views.Example`, as plain data).
        drawn: What the cases were.
        examples: Of each kind of case one that shows well what it is (`views.Example`, as plain
            data).
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.cases = 0
        self.tested: set[str] = set()
        self.ended: set[str] = set()
        self.stored: dict[str, dict[str, Any]] = {}
        self.drawn = Drawn()
        self.examples: dict[str, dict[str, Any]] = {}

    def __getitem__(self, rule: str) -> Entry:
        return self.entries.setdefault(rule, Entry())

    def enter(self, case: Case, findings: Iterable[Finding], case_id: str) -> None:
        """Enter a case with what was found."""
        self.cases += 1
        self.drawn.add(case)
        for finding in findings:
            self[finding.rule].add(finding, case_id)
            if finding.failure is not None and not self[finding.rule].sighted:
                failure = replace(finding.failure, notes="", causes=())
                self[finding.rule].sighted = {
                    "case": json.loads(to_json(case)),
                    "failure": asdict(failure),
                }

    def confirm(
        self, rule: str, path: Path, evidence: TrainingEvidence | ShardEvidence | None
    ) -> None:
        """A violation of a rule was confirmed, and is stored in a file; what a page shows of it is kept."""
        self[rule].confirmed += 1
        self.stored[str(path)] = asdict(of_violation(evidence, rule))

    def look_at(self, evidence: TrainingEvidence | ShardEvidence) -> None:
        """Keep what shows well what a case is, if there is no such yet."""
        if evidence.case.kind not in self.examples:
            found = example(evidence)
            if found is not None:
                self.examples[evidence.case.kind] = asdict(found)

    def concerned(self, rule: str) -> bool:
        """Whether the session had anything to do with a rule."""
        entry = self.entries.get(rule, Entry())
        return bool(entry.judged or entry.not_claimed or entry.not_run or rule in self.tested)

    def said(self, rule: str) -> str:
        """A rule's verdict in words.

        What was only seen while other rules were tested, or before its own property had ended,
        proves nothing by itself.
        """
        entry = self.entries.get(rule, Entry())
        nothing_against = not (entry.confirmed or entry.seen or entry.inconclusive or entry.not_run)
        if nothing_against and rule not in self.ended:
            return "not finished" if rule in self.tested else "not tested"
        return (
            "observed" if entry.observed and entry.verdict is Verdict.HOLDS else entry.verdict.value
        )

    def merge(self, other: Self) -> None:
        """Add another worker's."""
        self.cases += other.cases
        self.tested |= other.tested
        self.ended |= other.ended
        self.stored.update(other.stored)
        self.drawn.merge(other.drawn)
        self.examples = {**other.examples, **self.examples}
        for rule, entry in other.entries.items():
            self[rule].merge(entry)

    def to_plain(self) -> dict[str, Any]:
        """As JSON-ready data: dicts, lists, strings, numbers."""
        entries = {
            rule: {**vars(entry), "met": dict(entry.met), "unjudged": dict(entry.unjudged)}
            for rule, entry in list(self.entries.items())
        }
        return {
            "cases": self.cases,
            "tested": sorted(self.tested),
            "ended": sorted(self.ended),
            "stored": self.stored,
            "drawn": self.drawn.to_plain(),
            "examples": self.examples,
            "entries": entries,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """From what `to_plain` gave, in this or another process."""
        ledger = cls()
        ledger.cases, ledger.stored = plain["cases"], plain["stored"]
        ledger.tested, ledger.ended = set(plain["tested"]), set(plain["ended"])
        ledger.drawn = Drawn.from_plain(plain["drawn"])
        ledger.examples = plain["examples"]
        for rule, entry in plain["entries"].items():
            ledger.entries[rule] = Entry(
                **{**entry, "met": Counter(entry["met"]), "unjudged": Counter(entry["unjudged"])}
            )
        return ledger
