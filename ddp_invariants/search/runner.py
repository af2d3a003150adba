"""A runner of cases: it runs a case on the ranks, judges it by every rule, and keeps account."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from ddp_invariants.cases.case import Case, TrainingCase, case_id
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.invariants import ALL_RULES, judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.folder import FOLDER
from ddp_invariants.records.verdict import Failure, Finding, Violation
from ddp_invariants.search.exhaustion import Exhaustion, exhaust
from ddp_invariants.search.history import failing_after_others
from ddp_invariants.search.journal import Journal
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.places import REAL_WORLD_SIZE, Places
from ddp_invariants.search.split import WHOLE, Split
from ddp_invariants.search.timings import surer
from ddp_invariants.situations.earlier import MOST_RUNS

Isolation = Literal["pooled", "fresh"]

HUNG_DEADLINE = 3.0
"""Seconds a case gets after an earlier case has hung. A right case of a default run takes under 1."""


@dataclass(frozen=True)
class Options:
    """The options of a trial.

    Attributes:
        cases: Cases per property; if the session is split, those of this part.
        seed: Seed of the search. The seed and a property's rule fix which cases are drawn.
        isolation: `pooled` keeps ranks between cases; `fresh` starts new processes and groups for
            each case.
        replay: A case to judge instead of drawing any.
        store: Folder for violations.
        database: Folder of Hypothesis' example database. With None, the seed alone decides which
            cases are judged; otherwise those of stored failures come first.
        command: The command that the user started, for the line that repeats a violation; empty if
            the user called `certify`.
        journal: The findings of an earlier attempt, if an elastic launcher started the job again;
            otherwise None.
        split: The part of a session that is split.
        shrinks: False to confirm the first failing case as it is.
        broken: The rule that the plain case of the discovery breaks. Its property judges that case
            before it draws any, since the smallest failing case is then near. Empty for none.
        suspects: Cases of probes that failed, each with the rule that failed. The rule's property
            judges them before it draws cases that are not ordinary: it may draw none like them. A
            search by all rules judges them first.
        most_real: In a search by all rules, the largest number of training cases that run over the
            real backend instead of the simulation. The search leaves out the further ones, except
            the cases of probes. None for no limit.
    """

    cases: int = 100
    seed: int = 0
    isolation: Isolation = "pooled"
    replay: Case | None = None
    store: Path = FOLDER
    database: Path | None = None
    command: str = "pytest properties/"
    journal: Journal | None = None
    split: Split = WHOLE
    shrinks: bool = True
    broken: str = ""
    suspects: tuple[tuple[str, Case], ...] = ()
    most_real: int | None = None


class Runner:
    """The part of a trial that runs and judges single cases.

    Args:
        pool: The ranks.
        under_test: The implementation to judge.
        options: The options of the trial.
        listen: A function that the runner calls with the ledger after each entered case.

    Attributes:
        ledger: The account of all findings.
        hung: True after a hang, or after the loss of a host. Either costs seconds. Every later case
            gets a shorter deadline; a confirmation never does.
        lifeless: The hang or death that has been reported already.
        evidence: The evidence of the last run, for a violation that is stored.
        places: The places where cases run.
        simulated: True if the last run was simulated.
    """

    def __init__(
        self,
        pool: Pool,
        under_test: UnderTest,
        options: Options,
        listen: Callable[[Ledger], None] = lambda _: None,
    ) -> None:
        self.pool, self.under_test, self.options, self.listen = pool, under_test, options, listen
        self.ledger = Ledger()
        self.hung = False
        self.lifeless: Violation | None = None
        self.evidence: TrainingEvidence | ShardEvidence | None = None
        self.places = Places(pool.backend, under_test.scope.not_simulated, options.most_real)
        self.simulated = False
        self._history: deque[TrainingCase] = deque(maxlen=MOST_RUNS)

    @property
    def history(self) -> tuple[TrainingCase, ...]:
        """The last training cases that ran on ranks with others, in their order."""
        return tuple(self._history)

    @cached_property
    def exhaustion(self) -> Exhaustion:
        """All small cases of the sampler, or this part's; they are asked for once."""
        return exhaust(self.pool, self.under_test.sampler, self.scope, self.options.split)

    @property
    def scope(self) -> Scope:
        """The limits of the cases; narrower once the trial has learned not to simulate."""
        scope, why_not = self.under_test.scope, self.places.why_not
        if not why_not or scope.not_simulated:
            return scope
        most = min(scope.max_world_size, REAL_WORLD_SIZE)
        return replace(scope, max_world_size=most, not_simulated=why_not)

    def findings(
        self, case: Case, *, confirming: bool = False, rule: str = "", observed: bool = False
    ) -> dict[str, Finding]:
        """Run one case and judge it by every rule about its kind.

        Simulated failures of a rule count only after the real backend has shown one, too. Until
        then such a case runs there as well, and only that run counts.

        Args:
            case: The case.
            confirming: Run it in new processes, with plain groups if possible, and with the whole
                deadline.
            rule: The rule that asks; its row says whether the run needs observed groups, or a
                second run without the perturbation.
            observed: Use observed groups, whatever the rule needs.
        """
        journal, name = None if confirming else self.options.journal, self.under_test.named(case)
        asked = rule or ("observed" if observed else "")
        if journal is not None and (known := journal.findings(asked, name, case)) is not None:
            self.simulated = False
            self.ledger.ran[str(self.pool.backend)] += 1
            return known
        findings = None
        if not (confirming or observed):
            if self._simulates(case):
                findings = self._simulated(case, rule)
            else:
                self.places.begins_really(case)
        if findings is None:
            findings = self.really(case, confirming=confirming, rule=rule, observed=observed)
        if journal is not None:
            journal.note(asked, name, case, findings)
        return findings

    def _simulates(self, case: Case) -> bool:
        """Return whether a case runs in the simulation at first."""
        # A journal is a job's, whose ranks are given.
        return (
            self.options.journal is None
            and self.options.isolation == "pooled"
            and self.places.simulates(case)
        )

    @property
    def is_spent(self) -> bool:
        """True if every further training case would be left out, because nothing is simulated."""
        nothing_simulated = bool(self.places.why_not) or self.options.isolation != "pooled"
        return self.places.real_are_spent and nothing_simulated

    def leaves_out(self, case: Case) -> bool:
        """Return whether a case must not run: it is not simulated, and the real ones are spent."""
        return (
            self.places.real_are_spent
            and isinstance(case, TrainingCase)
            and not self._simulates(case)
            and all(case != suspect for _, suspect in self.options.suspects)
        )

    def _simulated(self, case: Case, rule: str) -> dict[str, Finding] | None:
        """Return the findings of a simulated run; None if they do not count."""
        assert isinstance(case, TrainingCase)
        evidence = self._trained(case, rule, self._simulate)
        if evidence is None:
            return None
        findings = self._judged(evidence, "simulated")
        failed = {failure.rule for failure in self.failures(findings, case)}
        if not failed and _is_cut_short(evidence, findings):
            return None  # Only real ranks tell whether the simulation is the cause.
        if self.places.believes(failed):
            return findings
        real = self.really(case, rule=rule)
        real_evidence = self.evidence
        seen = failed & {failure.rule for failure in self.failures(real, case)}
        shown = seen | self._shown_by_timing(case, rule, failed - seen)
        if not shown and failing_after_others(self, min(failed), case) is not None:
            shown = failed
        self.places.believe(shown)
        if not shown:
            name = case_id(case, self.under_test.named(case))
            self.places.disbelieve(name, failed)
            self.ledger.unreal[name] = ", ".join(sorted(failed))
        if shown == seen:
            self.evidence = real_evidence
            return real
        self.evidence, self.simulated = evidence, True
        unshown = failed - shown
        return {name: real[name] if name in unshown else findings[name] for name in findings}

    def _shown_by_timing(self, case: TrainingCase, rule: str, failed: set[str]) -> set[str]:
        """Return those of some rules that fail on real ranks under another timing of the case.

        A simulation chooses the order of the ranks; a race may need that order.
        """
        shown: set[str] = set()
        for timed in surer(case):
            if shown == failed:
                break
            findings = self.really(timed, rule=rule)
            shown |= failed & {failure.rule for failure in self.failures(findings, timed)}
        return shown

    def _simulate(self, case: TrainingCase) -> TrainingEvidence | None:
        self._history.append(case)
        evidence = self.pool.simulate(case, self.under_test.ddp)
        if evidence is None and not self.places.why_not:
            self.places.why_not = self.pool.not_simulated.get(self.under_test.ddp, "")
        return evidence

    def really(
        self, case: Case, *, confirming: bool = False, rule: str = "", observed: bool = False
    ) -> dict[str, Finding]:
        """Run one case over the real backend and judge it; the arguments are those of `findings`."""
        alone = rule in ALL_RULES and ALL_RULES[rule].alone
        fresh = confirming or alone or self.options.isolation == "fresh"
        patience = min(HUNG_DEADLINE, self.pool.deadline) if self.hung and not confirming else None
        evidence: TrainingEvidence | ShardEvidence | None
        if isinstance(case, TrainingCase):
            if not fresh:
                self._history.append(case)
            observed = observed or not fresh or _needs_observed_groups(rule, case)
            train = partial(
                self.pool.train,
                ddp=self.under_test.ddp,
                fresh=fresh,
                observed=observed,
                patience=patience,
            )
            evidence = self._trained(case, rule, train)
        else:
            evidence = self.pool.shards(
                case, self.under_test.sampler, fresh=fresh, patience=patience
            )
        assert evidence is not None
        incident = evidence.incident
        self.hung |= incident is not None and (incident.kind == "hung" or incident.costly)
        return self._judged(evidence, str(self.pool.backend))

    def _judged(self, evidence: TrainingEvidence | ShardEvidence, place: str) -> dict[str, Finding]:
        """Judge the evidence of a run, and count the run at its place."""
        self.evidence, self.simulated = evidence, place == "simulated"
        self.ledger.ran[place] += 1
        self.ledger.not_simulated = self.places.why_not
        if not self.simulated:
            self.places.ran_really(evidence.case)
        self.ledger.look_at(evidence)
        return judge(evidence, self.scope.declared, self.scope.sampler)

    def _trained(
        self,
        case: TrainingCase,
        rule: str,
        train: Callable[[TrainingCase], TrainingEvidence | None],
    ) -> TrainingEvidence | None:
        """Run a training case, and run it again undisturbed if the rule compares the two runs."""
        evidence = train(case)
        repeats = rule in ALL_RULES and ALL_RULES[rule].repeats_undisturbed(case)
        if evidence is None or not repeats or evidence.incident is not None:
            return evidence
        plain = train(case.without(*ALL_RULES[rule].without))
        return None if plain is None else replace(evidence, unperturbed=plain)

    def enter(self, case: Case, findings: list[Finding]) -> None:
        """Enter a case and its findings into the ledger, and call the listener."""
        if not self.simulated:
            self.places.judged_really(findings)
        self.ledger.enter(case, findings, case_id(case, self.under_test.named(case)))
        self.listen(self.ledger)

    def failures(self, findings: dict[str, Finding], case: Case) -> list[Failure]:
        """Return the failures that count."""
        return [
            finding.failure
            for rule, finding in findings.items()
            if finding.failure is not None and self.counts(rule, case)
        ]

    def counts(self, rule: str, case: Case) -> bool:
        """Return whether a rule's finding counts: the rule applies, and tells the failure best.

        If a failure was injected, only rules about injected failures count. Wrong gradients after
        an exception are reported once.
        """
        injected = isinstance(case, TrainingCase) and case.injected_failure is not None
        return not self.scope.excluded(rule) and (
            not injected or ALL_RULES[rule].counts_when_injected
        )


def _is_cut_short(evidence: TrainingEvidence, findings: dict[str, Finding]) -> bool:
    """Return whether a rank raised though the case injects nothing, or a judge crashed."""
    case = evidence.case
    injected = case.injected_failure is not None or case.poison is not None
    raised = any(rank.raised is not None for rank in evidence.ranks) and not injected
    return raised or any(finding.crashed for finding in findings.values())


def _needs_observed_groups(rule: str, case: TrainingCase) -> bool:
    """Return whether only observed groups can confirm a case.

    Plain groups record nothing, cannot perturb the timing, and serve for one run.
    """
    return (
        (rule in ALL_RULES and ALL_RULES[rule].observed_groups)
        or case.perturbation.kind != "none"
        or len(case.runs) > 1
    )
