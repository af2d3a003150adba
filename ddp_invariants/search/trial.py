"""A trial: draw cases, run them, judge each by every rule, confirm failures, keep account.

It works without pytest: `Trial(...).certify("GRAD-2", training_cases(scope))` raises a `Violation`,
an `Inconclusive`, or returns. A property is about its own rule. The other rules are judged on the
same evidence and entered in the ledger.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase, case_id
from ddp_invariants.cases.program import Perturbation
from ddp_invariants.discovery.scope import OnTrial, Scope
from ddp_invariants.invariants import ALL_RULES, SHIPPED, judge, root_failure
from ddp_invariants.invariants.diagnosis.causes import narrowed
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records import violation as record
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import (
    Failure,
    Finding,
    Inconclusive,
    NotJudged,
    Surveyed,
    Violation,
    violation_class,
)
from ddp_invariants.search import messages
from ddp_invariants.search.enlarge import telling
from ddp_invariants.search.journal import Journal
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.search import Asked, Search, independent
from ddp_invariants.search.strategies import cases_for, unlike

Isolation = Literal["pooled", "fresh"]

HUNG_DEADLINE = 3.0
"""Seconds a case gets once another has hung.

The slowest correct case of a default run takes under one.
"""
CONFIRMATIONS = 3
FAR_BEHIND = 50
"""Milliseconds by which a rank is late if the timing is to show every time."""
ROUNDS = 5
"""Most searches of a property.

There is one search, and more of the same length as long as a situation that its rule needs is
unmet.
"""


@dataclass(frozen=True)
class Options:
    """The settings of a trial.

    Attributes:
        cases: Cases per property.
        seed: Of the search; together with a property's rule it fixes the drawn cases.
        isolation: `pooled` keeps ranks between cases, `fresh` makes new processes and groups for
            each.
        replay: A case to judge instead of drawing any.
        store: Folder for violations.
        database: Folder of Hypothesis' example database; None for none, so that the seed alone
            decides.
        command: The user's command, for the line that repeats a violation; empty for a call of
            `certify`.
        journal: The cases judged before, if an elastic launcher restarted the job; None otherwise.
    """

    cases: int = 100
    seed: int = 0
    isolation: Isolation = "pooled"
    replay: Case | None = None
    store: Path = record.FOLDER
    database: Path | None = None
    command: str = "pytest properties/"
    journal: Journal | None = None


class Trial:
    """One worker's part of a session.

    Args:
        pool: The ranks.
        on_trial: The implementation under test.
        options: The settings.
        listen: Called with the ledger after each case that is entered.
    """

    def __init__(
        self,
        pool: Pool,
        on_trial: OnTrial,
        options: Options,
        listen: Callable[[Ledger], None] = lambda _: None,
    ) -> None:
        self.pool, self.on_trial, self.options, self.listen = pool, on_trial, options, listen
        self.ledger = Ledger()
        self.asked: list[str] = []
        """Rules that were to be certified, for the plugin to take from here."""
        # A hang costs a whole deadline, so later ones of a session get a shorter deadline. A
        # confirmation never does.
        self.hung = False
        self.lifeless: Violation | None = None
        self._evidence: TrainingEvidence | ShardEvidence | None = None
        """The evidence of the last run, for a violation that is stored."""

    @property
    def scope(self) -> Scope:
        """The limits on what cases may contain."""
        return self.on_trial.scope

    def findings(
        self, case: Case, *, confirming: bool = False, rule: str = ""
    ) -> dict[str, Finding]:
        """Run one case and judge it by every rule about its kind.

        Args:
            case: The case.
            confirming: Use new processes, plain groups if possible, and the whole deadline.
            rule: The rule in question: rules about collectives need an observed group, and some
                rules a second run.
        """
        journal, name = None if confirming else self.options.journal, self.on_trial.named(case)
        if journal is not None and (known := journal.findings(rule, name, case)) is not None:
            return known
        fresh = confirming or self.options.isolation == "fresh"
        patience = min(HUNG_DEADLINE, self.pool.deadline) if self.hung and not confirming else None
        evidence: TrainingEvidence | ShardEvidence
        if isinstance(case, TrainingCase):
            observed = not fresh or _is_observed(rule, case)
            evidence = self.pool.train(
                case, self.on_trial.ddp, fresh=fresh, observed=observed, patience=patience
            )
            twice = {
                "COMM-2": case.perturbation.kind != "none",
                "GPU-1": case.perturbation.on_device,
                "LIVE-2": case.injected_failure is not None,
            }
            if twice.get(rule) and evidence.incident is None:
                undisturbed = replace(case, perturbation=Perturbation(), injected_failure=None)
                plain = self.pool.train(
                    undisturbed,
                    self.on_trial.ddp,
                    fresh=fresh,
                    observed=observed,
                    patience=patience,
                )
                evidence = replace(evidence, unperturbed=plain)
        else:
            evidence = self.pool.shards(case, self.on_trial.sampler, fresh=fresh, patience=patience)
        self._evidence = evidence
        self.ledger.look_at(evidence)
        self.hung |= evidence.incident is not None and evidence.incident.kind == "hung"
        findings = judge(evidence, self.scope.declared, self.scope.sampler)
        if journal is not None:
            journal.note(rule, name, case, findings)
        return findings

    def certify(
        self,
        rule: str,
        cases: SearchStrategy[TrainingCase] | SearchStrategy[ShardCase] | None = None,
    ) -> None:
        """Judge a rule on drawn cases (or on the one to replay).

        Args:
            rule: Its id.
            cases: A strategy to draw from; None for that of the rule's own property.

        Raises:
            Violation: Of the rule's own class (or LIVE-1's), with the smallest case found,
                confirmed in fresh processes.
            Inconclusive: A situation the rule needs was never met, no case could be judged, or a
                failure did not repeat.
            NotJudged: The rule does not apply to the implementation, or to the case to replay.
            HarnessError: The harness failed.
        """
        self.asked.append(rule)
        try:
            self._try(rule, cases)
        except Exception:
            self.ledger.ended.add(rule)
            raise
        self.ledger.ended.add(rule)  # Not if it was interrupted.

    def _try(
        self, rule: str, cases: SearchStrategy[TrainingCase] | SearchStrategy[ShardCase] | None
    ) -> None:
        """Judge a rule like `certify`, without recording that it ended."""
        deviation = dict(self.scope.deviating).get(rule, "")
        if deviation:
            self._require_deviation(rule, deviation)
        reason = self.scope.excluded(rule)
        if reason:
            self.ledger[rule].not_claimed = reason
            raise NotJudged(f"{rule} is not claimed: {reason}")
        self.ledger.tested.add(rule)
        try:
            self._certify(rule, cases_for(rule, self.scope) if cases is None else cases)
        except (Violation, NotJudged):
            raise
        except BaseException:
            self.ledger[rule].inconclusive = True
            raise

    def _require_deviation(self, rule: str, why: str) -> None:
        """Raise unless an expected and excused violation still occurs.

        Raises:
            Inconclusive: It does not, or that cannot be decided.
            NotJudged: The rule does not apply to the implementation, or to the case to replay.
        """
        unexcused = Trial(
            self.pool, replace(self.on_trial, scope=replace(self.scope, deviating=())), self.options
        )
        try:
            unexcused.certify(rule)
        except Violation as violation:
            # It may be reported under another rule, which explains it.
            case = violation.case
            if violation.failure.rule == rule or rule in {
                failure.rule
                for failure in unexcused.failures(unexcused.findings(case, rule=rule), case)
            }:
                return
        self.ledger.tested.add(rule)
        self.ledger[rule].inconclusive = True
        raise Inconclusive(
            f"{rule} does not deviate, and was {why}; take the deviation out of its file"
        )

    def _certify(
        self, rule: str, cases: SearchStrategy[TrainingCase] | SearchStrategy[ShardCase]
    ) -> None:
        if self.options.replay is not None:
            self._judge_alone(rule, self.options.replay)
            return
        search = Search(self, rule)
        asked: SearchStrategy[Asked] = cases.map(lambda case: Asked(rule, case))
        count = -(-self.options.cases // ALL_RULES[rule].costs)
        try:
            for number in range(ROUNDS):
                self._drive(f"{rule}/{number}", asked, search.look_at, count)
                if not search.missing() or not search.judged:
                    break
        except (Violation, Flaky):
            # Hypothesis does not report Flaky here: the confirmation finds out whether the failure
            # repeats, and reports its rate.
            self._confirm(rule, *search.simplest())
        search.require_proof()

    def _judge_alone(self, rule: str, case: Case) -> None:
        """Judge a case that was handed in, in fresh processes.

        Raises:
            Violation: The rule fails.
            Inconclusive: It lacks its evidence.
            NotJudged: The case contains nothing it is about.
        """
        findings = self.findings(case, confirming=True, rule=rule)
        failure = Search(self, rule).enter(case, findings)
        name = self.on_trial.named(case)
        if failure is not None:
            path = self._path(case, failure.rule)
            self.ledger.confirm(failure.rule, path, self._evidence)
            repeat = self._repeat(failure.rule, rule, path)
            if not path.exists():  # An existing file was confirmed more often.
                self._store(case, failure, (1, 1), self._evidence, repeat)
            text = messages.violation(failure, name, case, repeated=(1, 1), repeat=repeat)
            raise violation_class(failure.rule)(text, failure, case)
        own = findings.get(rule)
        if own is None or not own.about:
            raise NotJudged(f"{rule} is not about this case" + (f": {own.unjudged}" if own else ""))
        if own.unjudged:
            raise Inconclusive(messages.unproved(rule, name, 0, (), [own.unjudged]))

    def survey(self, rules: Sequence[str], cases: int) -> Surveyed:
        """Search for any failure in cases of all rules in turn, each judged by all rules.

        The search ends with the first failure. The smallest case that shows any failure is
        confirmed. Of the failures in it, the one that explains the others is named.

        Args:
            rules: The rules from whose properties to draw, all about DDPs or all about samplers.
            cases: Most cases to draw.

        Raises:
            HarnessError: The harness failed.
        """
        search = Search(self, "")
        asked = st.sampled_from(
            unlike(rule for rule in rules if not self.scope.excluded(rule))
        ).flatmap(lambda rule: cases_for(rule, self.scope).map(lambda case: Asked(rule, case)))
        try:
            self._drive("survey", asked, search.look_at, cases)
        except (Violation, Flaky):
            first = search.sighting
            failure, case = self._telling(*search.simplest())
            failure, case = self._underlying(failure, self._repeated(failure.rule, case)[0])
            failed = [
                each.rule for each in self.failures(self.findings(case, rule=failure.rule), case)
            ]
            try:
                self._confirm(failure.rule, failure, case)
            except Violation as violation:
                return Surveyed(search.cases.total(), first, violation, tuple(failed))
            except Inconclusive as reason:
                return Surveyed(search.cases.total(), first, reason=str(reason))
        return Surveyed(search.cases.total())

    def _drive(
        self, name: str, asked: SearchStrategy[Asked], look_at: Callable[[Asked], None], count: int
    ) -> None:
        """Let Hypothesis draw cases, and shrink one that raises.

        The name is unique to this search.
        """
        database: ExampleDatabase | None = None
        if self.options.database is not None:
            # A folder per search and implementation: all properties are one function to Hypothesis.
            about = hashlib.blake2b(self.on_trial.about(name).encode(), digest_size=4).hexdigest()
            database = DirectoryBasedExampleDatabase(self.options.database / about / name)
        bounded = settings(
            max_examples=count,
            database=database,
            deadline=None,
            report_multiple_bugs=False,
            # No explain phase: it runs hundreds of cases more and says less than a diagnosis. The
            # deadline is the pool's: Hypothesis' deadline cannot end a hang.
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        digest = hashlib.blake2b(f"{self.options.seed}/{name}".encode(), digest_size=8).digest()

        def property_(asked: Asked) -> None:
            look_at(asked)

        bounded(seed(int.from_bytes(digest, "big"))(given(independent(asked))(property_)))()

    def _confirm(self, rule: str, failure: Failure, case: Case) -> None:
        """Repeat a minimal counterexample in fresh processes with plain groups, and report it."""
        name = self.on_trial.named(case)
        if failure.rule == "LIVE-1" != rule and self.lifeless is not None:
            # Reported in full once; every other rule only lacks its evidence.
            repeat = self._repeat("LIVE-1", rule, self._path(self.lifeless.case, "LIVE-1"))
            raise Inconclusive(
                messages.without_life(
                    rule, name, self.lifeless.failure, self.lifeless.case, repeat=repeat
                )
            )
        case, seen = self._repeated(failure.rule, case)
        runs = _runs(failure.rule)
        confirmed, evidence = seen[0] if seen else (failure, None)
        confirmed = self._told_apart(confirmed, case) if seen else confirmed
        # Plain groups record no collectives; the same case on observed groups did.
        same = confirmed.fact == failure.fact
        lead, _ = self._underlying(failure, case)
        confirmed = replace(
            confirmed, first=f"{lead.rule}: {lead.fact}" if lead.rule != failure.rule else ""
        )
        confirmed = replace(
            confirmed,
            event=confirmed.event or failure.event,
            got=failure.got if same and confirmed.rule.startswith("LIVE") else confirmed.got,
        )
        repeat = self._repeat(failure.rule, rule, self._path(case, failure.rule))
        self._store(case, confirmed, (len(seen), runs), evidence, repeat)
        if not seen:
            self.hung = False
            self.ledger[failure.rule].inconclusive = True
            raise Inconclusive(messages.not_repeated(failure, name, case, runs=runs, repeat=repeat))
        if isinstance(case, TrainingCase) and failure.rule != "LIVE-1" and not case.kills:
            # On groups that record the collectives, so that the report and certificate can show
            # them.
            self.findings(case, rule="COMM-1")
        self.ledger.confirm(failure.rule, self._path(case, failure.rule), self._evidence)
        text = messages.violation(confirmed, name, case, repeated=(len(seen), runs), repeat=repeat)
        violation = violation_class(failure.rule)(text, confirmed, case)
        if failure.rule == "LIVE-1":
            self.lifeless = violation
        raise violation

    def _underlying(self, failure: Failure, case: Case) -> tuple[Failure, Case]:
        """Return the failure of a case that explains the others, and the case that shows it best.

        A race can produce any symptom. It shows as a race if the case is run under two timings:
        withheld results expose a missing wait.
        """
        if failure.rule == "LIVE-1":
            return failure, case
        lead = (
            root_failure([failure, *self.failures(self.findings(case, rule=failure.rule), case)])
            or failure
        )
        withheld = next(_surer(case), None)
        if withheld is None or lead.rule.startswith(("COMM", "LIVE")):
            return lead, case
        perturbed = isinstance(case, TrainingCase) and case.perturbation.kind != "none"
        for timed in (withheld, case) if perturbed else (withheld,):
            findings = self.findings(timed, rule="COMM-2")
            # Parameters that start wrong may hold any values, and need not hold them twice.
            lucky = findings["COMM-3"].failure or (
                None if lead.rule.startswith("INIT") else findings["COMM-2"].failure
            )
            if lucky is not None:
                return lucky, timed
        return lead, case

    def _telling(self, failure: Failure, case: Case) -> tuple[Failure, Case]:
        """Return a smallest case, or the same case with fractions if these show more.

        Two ranks' small integers may be equal by chance.
        """
        if (
            not isinstance(case, TrainingCase)
            or case.values == "real"
            or failure.rule.startswith(("LIVE", "COMM"))
        ):
            return failure, case
        fractions = replace(case, values="real")
        seen = (
            root_failure(
                [failure, *self.failures(self.findings(fractions, rule=failure.rule), fractions)]
            )
            or failure
        )
        return (failure, case) if seen.rule == failure.rule else (seen, fractions)

    def enter(self, case: Case, findings: list[Finding]) -> None:
        """Enter a case and its findings into the ledger, and notify the listener."""
        self.ledger.enter(case, findings, case_id(case, self.on_trial.named(case)))
        self.listen(self.ledger)

    def failures(self, findings: dict[str, Finding], case: Case) -> list[Failure]:
        """Return the failures that count."""
        return [
            finding.failure
            for rule, finding in findings.items()
            if finding.failure is not None and self.counts(rule, case)
        ]

    def counts(self, rule: str, case: Case) -> bool:
        """Return whether a rule's finding on a case counts.

        The rule must apply to the implementation. A case with an injected failure counts only for
        the LIVE rules, so that wrong gradients after the injected failure are not reported again.
        """
        staged = isinstance(case, TrainingCase) and case.injected_failure is not None
        return not self.scope.excluded(rule) and (not staged or rule.startswith("LIVE"))

    def _repeated(self, rule: str, case: Case) -> tuple[Case, "list[Seen]"]:
        """Return a case and the failures of its runs.

        If the failure comes and goes, this is the same case under the timing that shows it most
        often.
        """
        runs = _runs(rule)
        seen = self._again(rule, case, runs)
        for surer in _surer(case) if len(seen) < runs else ():
            surely = self._again(rule, surer, runs)
            case, seen = (surer, surely) if len(surely) > len(seen) else (case, seen)
            if len(seen) == runs:
                break
        return case, seen

    def _again(self, rule: str, case: Case, runs: int) -> "list[Seen]":
        """Run a case many times in fresh processes, and return a rule's failures with evidence."""
        seen = []
        for _ in range(runs):
            failure = self.findings(case, confirming=True, rule=rule)[rule].failure
            seen += [(failure, self._evidence)] if failure is not None else []
        return seen

    def _told_apart(self, failure: Failure, case: Case) -> Failure:
        """Keep only the causes of a failure that larger cases do not rule out ([Note: causes])."""
        larger = (
            self.findings(larger_case)[failure.rule].failure
            for larger_case in (telling(case, self.scope) if failure.causes else ())
        )
        return narrowed(failure, [larger_case for larger_case in larger if larger_case is not None])

    def _path(self, case: Case, rule: str) -> Path:
        return (
            self.options.store / f"{record.identifier(case, rule, self.on_trial.named(case))}.json"
        )

    def _store(
        self,
        case: Case,
        failure: Failure,
        confirmed: tuple[int, int],
        evidence: TrainingEvidence | ShardEvidence | None,
        repeat: str,
    ) -> Path:
        path = self._path(case, failure.rule)
        record.write(
            record.of(
                case,
                failure,
                self.on_trial.ddp,
                self.on_trial.sampler,
                confirmed=confirmed,
                repeat=repeat,
                evidence=evidence,
            ),
            path,
        )
        return path

    def _repeat(self, violated: str, tested: str, path: Path) -> str:
        which = violated if violated in ALL_RULES and violated != "LIVE-1" else tested
        if not self.options.command:
            return (
                f"ddp-invariants replay {path}"
                if violated in SHIPPED
                else f"certify(…, {which!r}, replay={str(path)!r})"
            )
        return f"{self.options.command} --replay {path} -k {which.replace('-', '').lower()}"


Seen = tuple[Failure, TrainingEvidence | ShardEvidence | None]
"""A failure of a run in fresh processes, and its evidence."""


def _runs(rule: str) -> int:
    """Return how often a failure must be repeated; a hang takes its whole deadline each time."""
    return 1 if rule == "LIVE-1" else CONFIRMATIONS


def _surer(case: Case) -> Iterator[TrainingCase]:
    """Yield the case under the timings that leave least to chance.

    Nothing is yielded if timing can change nothing, or must not be changed. If results are withheld
    until they are waited for, a missing wait shows every time. A rank that is far behind exposes
    code that gives up on a late result. Withholding does not expose such code: it holds back for a
    few milliseconds only, since some code rightly waits by polling.
    """
    if not isinstance(case, TrainingCase) or case.world_size == 1 or case.kills:
        return
    timings = (
        Perturbation("withheld"),
        *(Perturbation("late", rank=rank, milliseconds=FAR_BEHIND) for rank in (1, 0)),
    )
    yield from (
        replace(case, perturbation=timing) for timing in timings if timing != case.perturbation
    )


def _is_observed(rule: str, case: TrainingCase) -> bool:
    """Return whether a case can be confirmed only on observed groups.

    Plain groups record nothing, perturb nothing, and serve for one case only.
    """
    return (
        rule.startswith("COMM")
        or rule == "GRAD-8"
        or case.perturbation.kind != "none"
        or case.rounds > 1
    )
