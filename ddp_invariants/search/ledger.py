"""The sum of a run: per rule the number of judged cases, their contents and their findings.

It is plain data that can be merged. Each pytest worker keeps one ledger, and the session's verdict
comes from their sum. So a violation that is seen while another rule is tested is not lost.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any, Self

from ddp_invariants.cases.case import Case, to_json
from ddp_invariants.cases.levels import Level
from ddp_invariants.discovery.levels import level_of, uncommon
from ddp_invariants.discovery.unsettled import Unsettled
from ddp_invariants.invariants.diagnosis.excerpts import example, of_violation
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure, Finding, Verdict
from ddp_invariants.search.coverage import Drawn

TENTHS = 10
"""The number of steps in which errors are counted, from zero to the whole bound.

Before them stands the count without error, after them the count beyond the bound.
"""

NO_CASE = "a case on which the rule is judged"
"""The condition that a rule lacks if no case of its own property could be judged."""


@dataclass
class Entry:
    """One rule's account.

    Attributes:
        judged: Cases it was judged on.
        compared: Things compared over all of them.
        met: The number of cases that met each condition.
        worst: The largest error in units of its bound.
        errors: Of the judged cases, the number with a largest error of zero, in each tenth of the
            bound, and beyond it.
        unjudged: Reasons why it could not be judged, counted.
        failures: Case id to the failure in a few words, at most ten; `seen` counts all.
        seen: Cases with a failure.
        seen_at: The number of these by the level of the failure.
        ordinary: The number of judged cases that are ordinary (`discovery.levels`).
        ordinary_met: The number of ordinary cases that met each condition.
        blamed: For each confirmed violation its level, and what makes its smallest case less
            ordinary.
        confirmed: Violations confirmed in fresh processes.
        not_claimed: The part of the rule that does not apply to the implementation; empty if all of
            it applies.
        not_run: Why no case was run as it was asked for: for example, the device does not exist.
            Empty if cases were run.
        inconclusive: True if its own property ended without a verdict, and not for the next reason.
        lacking: The conditions that its own property had not met when it ended, or `NO_CASE`.
        observed: The least and the largest value of a rule that observes and never judges; empty
            for all other rules.
        milliseconds: The time that its own property took, in all workers.
        first_failure: The first case with a failure, and the failure, as plain data: the case may
            never be drawn again.
    """

    judged: int = 0
    compared: int = 0
    met: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0
    errors: list[int] = field(default_factory=lambda: [0] * (TENTHS + 2))
    unjudged: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    seen: int = 0
    seen_at: Counter[str] = field(default_factory=Counter)
    ordinary: int = 0
    ordinary_met: Counter[str] = field(default_factory=Counter)
    blamed: list[tuple[Level, tuple[str, ...]]] = field(default_factory=list)
    confirmed: int = 0
    not_claimed: str = ""
    not_run: str = ""
    inconclusive: bool = False
    lacking: list[str] = field(default_factory=list)
    observed: list[float] = field(default_factory=list)
    milliseconds: int = 0
    first_failure: dict[str, Any] = field(default_factory=dict)

    def add(self, finding: Finding, case_id: str, levels: Mapping[str, Level]) -> None:
        """Enter one finding.

        Args:
            finding: The finding.
            case_id: Identifies its case.
            levels: The reasons why the case is less ordinary, with their levels.
        """
        self.inconclusive |= finding.crashed
        if finding.unjudged:
            self.unjudged[finding.unjudged[:160]] += 1
            return
        self.judged += 1
        self.compared += finding.compared
        self.met.update(finding.met)
        if not levels:
            self.ordinary += 1
            self.ordinary_met.update(finding.met)
        self.worst = max(self.worst, finding.worst)
        # NaN is beyond every bound.
        self.errors[ceil(finding.worst * TENTHS) if finding.worst <= 1 else -1] += 1
        self._widen(finding.observed)
        if finding.failure is not None:
            self.enter_failure(finding.failure, case_id, levels)

    def enter_failure(self, failure: Failure, case_id: str, levels: Mapping[str, Level]) -> None:
        """Record a failure; ten are kept, all are counted."""
        self.seen += 1
        self.seen_at[level_of(failure.rule, levels.values())] += 1
        if len(self.failures) < 10:
            self.failures[case_id] = f"{failure.fact}; {failure.where}"

    def _widen(self, values: Iterable[float]) -> None:
        values_so_far = [*self.observed, *values]
        self.observed = [min(values_so_far), max(values_so_far)] if values_so_far else []

    def merge(self, entry: Self) -> None:
        """Add another worker's account."""
        self._widen(entry.observed)
        self.judged += entry.judged
        self.compared += entry.compared
        self.met.update(entry.met)
        self.ordinary += entry.ordinary
        self.ordinary_met.update(entry.ordinary_met)
        self.worst = max(self.worst, entry.worst)
        self.errors = [own + added for own, added in zip(self.errors, entry.errors, strict=True)]
        self.unjudged.update(entry.unjudged)
        self.failures.update(entry.failures)
        self.seen += entry.seen
        self.seen_at.update(entry.seen_at)
        self.blamed += entry.blamed
        self.confirmed += entry.confirmed
        self.not_claimed = self.not_claimed or entry.not_claimed
        self.not_run = self.not_run or entry.not_run
        self.inconclusive |= entry.inconclusive
        self.lacking = self.lacking or entry.lacking
        self.milliseconds += entry.milliseconds
        self.first_failure = self.first_failure or entry.first_failure

    @property
    def verdict(self) -> Verdict:
        """The account's verdict.

        A failure that was never confirmed is inconclusive: no violation, no pass.
        """
        if self.confirmed:
            return Verdict.VIOLATED
        if self.seen or self.inconclusive or self.lacking:
            return Verdict.INCONCLUSIVE
        if self.not_run:
            return Verdict.NOT_RUN
        if self.judged:
            return Verdict.HOLDS
        return Verdict.NOT_CLAIMED if self.not_claimed else Verdict.INCONCLUSIVE


_COUNTERS = tuple(name for name, value in vars(Entry()).items() if isinstance(value, Counter))


class Ledger:
    """All rules' accounts of a session or a worker.

    Attributes:
        entries: By rule.
        cases: The number of judged cases.
        ran: The number of runs by place: `simulated`, or the backend.
        not_simulated: Why nothing is simulated, or no longer; empty if cases are.
        unreal: Cases that failed only in the simulation, and do not count: case id to rules.
        dealt: Of all small cases of the sampler (`search.exhaustion`), the number that looked
            right, and the number of all; empty if they were not asked for.
        schedules: For each small case of which all schedules were run, their number.
        tested: Rules whose own properties ran.
        ended: Rules whose own properties ran to their end, or had nothing to run.
        stored: Confirmed violations: by the file that stores each, its display data
            (`diagnosis.excerpts.Example`, as plain data).
        drawn: Counts of the cases' contents.
        examples: For each kind of case a good example (`diagnosis.excerpts.Example`, as plain data).
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.cases = 0
        self.ran = Counter[str]()
        self.not_simulated = ""
        self.unreal: dict[str, str] = {}
        self.dealt: list[int] = []
        self.schedules: list[int] = []
        self.tested: set[str] = set()
        self.ended: set[str] = set()
        self.stored: dict[str, dict[str, Any]] = {}
        self.drawn = Drawn()
        self.examples: dict[str, dict[str, Any]] = {}

    def __getitem__(self, rule: str) -> Entry:
        if rule not in self.entries:
            self.entries[rule] = Entry()
        return self.entries[rule]

    def enter(self, case: Case, findings: Iterable[Finding], case_id: str) -> None:
        """Enter a case with its findings."""
        self.cases += 1
        self.drawn.add(case)
        levels = uncommon(case)
        for finding in findings:
            self[finding.rule].add(finding, case_id, levels)
            if finding.failure is not None:
                self._keep_first(finding.failure, case)

    def enter_unsettled(self, failures: Iterable[Unsettled]) -> None:
        """Enter failures of probes, unless the rules' failures are known without them.

        A confirmed violation needs no such failure, nor does a rule that was seen to fail.
        """
        violated = any(entry.confirmed for entry in self.entries.values())
        for capability, failure, case in () if violated else failures:
            if not self[failure.rule].seen:
                where = f"the probe of {capability!r}"
                self[failure.rule].enter_failure(failure, where, uncommon(case))
                self._keep_first(failure, case)

    def _keep_first(self, failure: Failure, case: Case) -> None:
        """Keep a rule's first failure with its case."""
        if not self[failure.rule].first_failure:
            self[failure.rule].first_failure = {
                "case": json.loads(to_json(case)),
                "failure": asdict(replace(failure, notes="", causes=())),
            }

    def confirm(
        self,
        rule: str,
        path: Path,
        evidence: TrainingEvidence | ShardEvidence | None,
        levels: Mapping[str, Level],
    ) -> None:
        """Record that a rule's violation was confirmed and stored, with its display data.

        Args:
            rule: The rule.
            path: The file that stores the violation.
            evidence: The evidence of a run of the smallest case.
            levels: The less ordinary features that the smallest case needs, with their levels.
        """
        self[rule].confirmed += 1
        self[rule].blamed.append((level_of(rule, levels.values()), tuple(levels)))
        self.stored[str(path)] = asdict(of_violation(evidence, rule))

    def look_at(self, evidence: TrainingEvidence | ShardEvidence) -> None:
        """Keep a case as an example of its kind, if there is none yet."""
        if evidence.case.kind not in self.examples:
            shown = example(evidence)
            if shown is not None:
                self.examples[evidence.case.kind] = asdict(shown)

    def concerned(self, rule: str) -> bool:
        """Return whether the session had anything to do with a rule."""
        entry = self.entries.get(rule, Entry())
        return bool(entry.judged or entry.not_claimed or entry.not_run or rule in self.tested)

    def verdict_of(self, rule: str) -> str:
        """Return a rule's verdict in words.

        Findings made while other rules were tested, or before the rule's own property had ended,
        prove nothing by themselves.
        """
        entry = self.entries.get(rule, Entry())
        nothing_against = not (
            entry.confirmed or entry.seen or entry.inconclusive or entry.lacking or entry.not_run
        )
        if nothing_against and rule not in self.ended:
            return "not finished" if rule in self.tested else "not tested"
        return (
            "observed" if entry.observed and entry.verdict is Verdict.HOLDS else entry.verdict.value
        )

    def merge(self, ledger: Self) -> None:
        """Add another worker's ledger."""
        self.cases += ledger.cases
        self.ran.update(ledger.ran)
        self.unreal.update(ledger.unreal)
        self.dealt = ledger.dealt or self.dealt
        self.schedules += ledger.schedules
        self.not_simulated = self.not_simulated or ledger.not_simulated
        self.tested |= ledger.tested
        self.ended |= ledger.ended
        self.stored.update(ledger.stored)
        self.drawn.merge(ledger.drawn)
        self.examples = {**ledger.examples, **self.examples}
        for rule, entry in ledger.entries.items():
            self[rule].merge(entry)

    def to_plain(self) -> dict[str, Any]:
        """Return the ledger as JSON-ready data: dicts, lists, strings, numbers."""
        entries = {
            rule: {
                name: dict(value) if isinstance(value, Counter) else value
                for name, value in vars(entry).items()
            }
            for rule, entry in list(self.entries.items())
        }
        return {
            "cases": self.cases,
            "ran": dict(self.ran),
            "unreal": self.unreal,
            "dealt": self.dealt,
            "schedules": self.schedules,
            "not_simulated": self.not_simulated,
            "tested": sorted(self.tested),
            "ended": sorted(self.ended),
            "stored": self.stored,
            "drawn": self.drawn.to_plain(),
            "examples": self.examples,
            "entries": entries,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Read a ledger from the data of `to_plain`, in this or another process."""
        ledger = cls()
        ledger.cases, ledger.stored = plain["cases"], plain["stored"]
        ledger.ran, ledger.unreal = Counter(plain["ran"]), plain["unreal"]
        ledger.not_simulated = plain["not_simulated"]
        ledger.dealt = plain["dealt"]
        ledger.schedules = plain["schedules"]
        ledger.tested, ledger.ended = set(plain["tested"]), set(plain["ended"])
        ledger.drawn = Drawn.from_plain(plain["drawn"])
        ledger.examples = plain["examples"]
        for rule, entry in plain["entries"].items():
            counters = {name: Counter(entry[name]) for name in _COUNTERS}
            blamed = [(level, tuple(names)) for level, names in entry["blamed"]]
            ledger.entries[rule] = Entry(**{**entry, **counters, "blamed": blamed})
        return ledger
