"""A trial: draw cases, run them, judge each by every rule, confirm what is found, keep account.

Works without pytest: `Trial(...).certify("GRAD-2", training_cases(scope))` raises a `Violation`, an
`Inconclusive`, or returns. What a property asks is its own rule; the others are judged on the same
evidence and entered in the ledger.
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
"""Seconds a case gets once another has hung: the slowest right case of a default run takes under one."""
CONFIRMATIONS = 3
FAR_BEHIND = 50
"""Milliseconds a rank is late by where timing is to show every time."""
ROUNDS = 5
"""Searches a property makes at most: one, and more of the same length as long as a situation its rule needs is unmet."""


@dataclass(frozen=True)
class Options:
    """How a trial is held.

    Attributes:
        cases: Cases per property.
        seed: Of the search; together with a property's rule it fixes what is drawn.
        isolation: `pooled` keeps ranks between cases, `fresh` makes new processes and groups for
            each.
        replay: A case to judge instead of drawing any.
        store: Folder for violations.
        database: Folder of Hypothesis' example database; None for none, so that the seed alone
            decides.
        command: How the user started this, for the line that repeats a violation; empty where that
            was by `certify`.
        journal: What was judged before, where an elastic launcher started the job anew; None for
            none.
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
        on_trial: What is judged.
        options: How.
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
        """Rules that were to be certified, for whoever takes them from here."""
        # A hang costs a whole deadline, so the second and later ones of a session get a shorter
        # one; a confirmation never.
        self.hung = False
        self.lifeless: Violation | None = None
        self._evidence: TrainingEvidence | ShardEvidence | None = None
        """What the last run gave, for a violation that is stored."""

    @property
    def scope(self) -> Scope:
        """What cases may contain."""
        return self.on_trial.scope

    def findings(
        self, case: Case, *, confirming: bool = False, rule: str = ""
    ) -> dict[str, Finding]:
        """Run one case and judge it by every rule about its kind.

        Args:
            case: The case.
            confirming: In new processes, with plain groups where that is possible, and the whole
                deadline.
            rule: What is asked: rules about collectives need an observed group, and one a second
                run.
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
        found = judge(evidence, self.scope.declared, self.scope.sampler)
        if journal is not None:
            journal.note(rule, name, case, found)
        return found

    def certify(
        self,
        rule: str,
        cases: SearchStrategy[TrainingCase] | SearchStrategy[ShardCase] | None = None,
    ) -> None:
        """Judge a rule on drawn cases (or on the one to replay).

        Args:
            rule: Its id.
            cases: What to draw from; None for what the rule's own property draws from.

        Raises:
            Violation: Of the rule's own class (or LIVE-1's), with the smallest case found,
                confirmed in fresh processes.
            Inconclusive: A situation the rule needs was never met, no case could be judged, or a
                breach did not repeat.
            NotJudged: The rule is not about what is on trial, or not about the case to replay.
            HarnessError: The harness failed.
        """
        self.asked.append(rule)
        try:
            self._try(rule, cases)
        except Exception:
            self.ledger.ended.add(rule)
            raise
        self.ledger.ended.add(rule)  # Not where it was interrupted.

    def _try(
        self, rule: str, cases: SearchStrategy[TrainingCase] | SearchStrategy[ShardCase] | None
    ) -> None:
        """The same, not noting that it ended."""
        why = dict(self.scope.deviating).get(rule, "")
        if why:
            self._require_deviation(rule, why)
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
        """Insist that a breach which is expected, and excused, is still there.

        Raises:
            Inconclusive: It is not, or that cannot be said.
            NotJudged: The rule is not about what is on trial, or not about the case to replay.
        """
        unexcused = Trial(
            self.pool, replace(self.on_trial, scope=replace(self.scope, deviating=())), self.options
        )
        try:
            unexcused.certify(rule)
        except Violation as violation:
            # It may be told as another rule's, which explains it.
            case = violation.case
            if violation.failure.rule == rule or rule in {
                one.rule for one in unexcused.failures(unexcused.findings(case, rule=rule), case)
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
            # Flaky is not for Hypothesis to report: whether it repeats is found out now and said
            # with its rate.
            self._confirm(rule, *search.simplest())
        search.require_proof()

    def _judge_alone(self, rule: str, case: Case) -> None:
        """Judge a case that was handed in, in fresh processes.

        Raises:
            Violation: The rule is breached.
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
            if not path.exists():  # What is there already was confirmed more often.
                self._store(case, failure, (1, 1), self._evidence, repeat)
            text = messages.violation(failure, name, case, repeated=(1, 1), repeat=repeat)
            raise violation_class(failure.rule)(text, failure, case)
        own = findings.get(rule)
        if own is None or not own.about:
            raise NotJudged(f"{rule} is not about this case" + (f": {own.unjudged}" if own else ""))
        if own.unjudged:
            raise Inconclusive(messages.unproved(rule, name, 0, (), [own.unjudged]))

    def survey(self, rules: Sequence[str], cases: int) -> Surveyed:
        """Search for anything that is wrong: cases of all rules in turn, each judged by all of them, until one shows a breach.

        The smallest case that shows any breach is what is shrunk to and confirmed; of the breaches
        in it, the one that explains the others is named.

        Args:
            rules: Whose properties to draw from, all about DDPs or all about samplers.
            cases: How many to draw at most.

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
                one.rule for one in self.failures(self.findings(case, rule=failure.rule), case)
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
        """Have Hypothesis draw, and shrink what raises; the name tells this search from every other."""
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
            # deadline is the pool's: Hypothesis' cannot end a hang.
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        digest = hashlib.blake2b(f"{self.options.seed}/{name}".encode(), digest_size=8).digest()

        def property_(asked: Asked) -> None:
            look_at(asked)

        bounded(seed(int.from_bytes(digest, "big"))(given(independent(asked))(property_)))()

    def _confirm(self, rule: str, failure: Failure, case: Case) -> None:
        """Repeat a minimal counterexample in fresh processes with plain groups, and report what came of it."""
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
        found, evidence = seen[0] if seen else (failure, None)
        found = self._told_apart(found, case) if seen else found
        # Plain groups note nothing of what was sent; the same case on observed ones did.
        same = found.fact == failure.fact
        lead, _ = self._underlying(failure, case)
        found = replace(
            found, first=f"{lead.rule}: {lead.fact}" if lead.rule != failure.rule else ""
        )
        found = replace(
            found,
            event=found.event or failure.event,
            got=failure.got if same and found.rule.startswith("LIVE") else found.got,
        )
        repeat = self._repeat(failure.rule, rule, self._path(case, failure.rule))
        self._store(case, found, (len(seen), runs), evidence, repeat)
        if not seen:
            self.hung = False
            self.ledger[failure.rule].inconclusive = True
            raise Inconclusive(messages.not_repeated(failure, name, case, runs=runs, repeat=repeat))
        if isinstance(case, TrainingCase) and failure.rule != "LIVE-1" and not case.kills:
            self.findings(
                case, rule="COMM-1"
            )  # On groups that note what is sent, for whoever is to see it.
        self.ledger.confirm(failure.rule, self._path(case, failure.rule), self._evidence)
        text = messages.violation(found, name, case, repeated=(len(seen), runs), repeat=repeat)
        violation = violation_class(failure.rule)(text, found, case)
        if failure.rule == "LIVE-1":
            self.lifeless = violation
        raise violation

    def _underlying(self, failure: Failure, case: Case) -> tuple[Failure, Case]:
        """Of the breaches of a case the one that explains the others, and the case that shows it best.

        What luck decides makes anything wrong, and shows for what it is where a case is run under
            two timings: a wait that is
        missing where results are withheld.
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
            # What starts wrong may hold anything, and need not hold it twice.
            lucky = findings["COMM-3"].failure or (
                None if lead.rule.startswith("INIT") else findings["COMM-2"].failure
            )
            if lucky is not None:
                return lucky, timed
        return lead, case

    def _telling(self, failure: Failure, case: Case) -> tuple[Failure, Case]:
        """A smallest case, or it with fractions for values where these show more: two ranks' small integers may be equal."""
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
        """Enter a case with what was found into the ledger, and tell whoever listens."""
        self.ledger.enter(case, findings, case_id(case, self.on_trial.named(case)))
        self.listen(self.ledger)

    def failures(self, findings: dict[str, Finding], case: Case) -> list[Failure]:
        """Those that count."""
        return [
            found.failure
            for rule, found in findings.items()
            if found.failure is not None and self.counts(rule, case)
        ]

    def counts(self, rule: str, case: Case) -> bool:
        """Whether what a rule says of a case counts: it is about what is on trial, and best told by it.

        What comes of a mishap is told by the rules about mishaps: that gradients are wrong after
            one is said once.
        """
        staged = isinstance(case, TrainingCase) and case.injected_failure is not None
        return not self.scope.excluded(rule) and (not staged or rule.startswith("LIVE"))

    def _repeated(self, rule: str, case: Case) -> tuple[Case, "list[Seen]"]:
        """A case, or it under another timing, where what comes and goes shows more often; and what its runs showed."""
        runs = _runs(rule)
        seen = self._again(rule, case, runs)
        for surer in _surer(case) if len(seen) < runs else ():
            surely = self._again(rule, surer, runs)
            case, seen = (surer, surely) if len(surely) > len(seen) else (case, seen)
            if len(seen) == runs:
                break
        return case, seen

    def _again(self, rule: str, case: Case, runs: int) -> "list[Seen]":
        """The breaches of a rule that so many runs of a case in fresh processes show, with their evidence."""
        seen = []
        for _ in range(runs):
            failure = self.findings(case, confirming=True, rule=rule)[rule].failure
            seen += [(failure, self._evidence)] if failure is not None else []
        return seen

    def _told_apart(self, failure: Failure, case: Case) -> Failure:
        """A breach with those of its causes that larger cases do not rule out ([Note: causes])."""
        larger = (
            self.findings(one)[failure.rule].failure
            for one in (telling(case, self.scope) if failure.causes else ())
        )
        return narrowed(failure, [one for one in larger if one is not None])

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

    def _repeat(self, found: str, tested: str, path: Path) -> str:
        which = found if found in ALL_RULES and found != "LIVE-1" else tested
        if not self.options.command:
            return (
                f"ddp-invariants replay {path}"
                if found in SHIPPED
                else f"certify(…, {which!r}, replay={str(path)!r})"
            )
        return f"{self.options.command} --replay {path} -k {which.replace('-', '').lower()}"


Seen = tuple[Failure, TrainingEvidence | ShardEvidence | None]
"""What a run in fresh processes showed, and its evidence."""


def _runs(rule: str) -> int:
    """How often a breach is to be seen again; a hang takes its whole deadline each time."""
    return 1 if rule == "LIVE-1" else CONFIRMATIONS


def _surer(case: Case) -> Iterator[TrainingCase]:
    """The case under the timings that leave least to luck; none where timing can change nothing, or is not to be disturbed.

    With results withheld until they are waited for, a wait that is missing shows every time. A rank
    that is far behind shows
    what gives up on a result that is late, which withholding does not: it holds back for a few
    milliseconds only, since some rightly wait by asking again and again.
    """
    if not isinstance(case, TrainingCase) or case.world_size == 1 or case.kills:
        return
    timings = (
        Perturbation("withheld"),
        *(Perturbation("late", rank=rank, milliseconds=FAR_BEHIND) for rank in (1, 0)),
    )
    yield from (replace(case, perturbation=one) for one in timings if one != case.perturbation)


def _is_observed(rule: str, case: TrainingCase) -> bool:
    """Whether a case can be confirmed on observed groups only: plain ones show nothing, perturb nothing and serve once."""
    return (
        rule.startswith("COMM")
        or rule == "GRAD-8"
        or case.perturbation.kind != "none"
        or case.rounds > 1
    )
