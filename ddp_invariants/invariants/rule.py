"""A rule: one row with all that is known of the rule, and the pure function that judges it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, ParamSpec, TypeVar

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.situation import Situation
from ddp_invariants.invariants.draws import Draws, ShardDraws
from ddp_invariants.invariants.exclusions import LOSSY, Claims, Exclusion
from ddp_invariants.records.verdict import Failure, Finding
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.turns import Turns

Subject = TypeVar("Subject")
Known = ParamSpec("Known")
Applies = Literal["always", "capability", "declared", "observed"]
Compared = Literal["agreement", "values", "trajectory"]

CONFIRMATIONS = 3
"""Runs in fresh processes in which a failure is to be seen again."""
LI = "Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2"
"""The source of most rules about gradients."""


class Unjudged(Exception):
    """Missing evidence: a judge raises it, and the message says which evidence."""


class NotAbout(Unjudged):
    """A missing subject: the case does not contain the subject of the rule."""


def not_about(reasons: Mapping[str, bool]) -> None:
    """Raise the first reason that holds for which a rule is not about a case.

    Raises:
        NotAbout: A reason holds.
    """
    for reason, holds in reasons.items():
        if holds:
            raise NotAbout(reason)


def first_failure(failures: Iterable[Failure | None]) -> Failure | None:
    """Return the first failure, and compute none after it."""
    return next((failure for failure in failures if failure is not None), None)


@dataclass
class Tally:
    """The counts that a judge keeps while it judges.

    Attributes:
        compared: Number of things compared so far.
        met: Conditions met so far.
        worst: The largest error so far, in units of its bound.
        observed: Values of a rule that only observes and never judges.
    """

    compared: int = 0
    met: set[str] = field(default_factory=set)
    worst: float = 0.0
    observed: list[float] = field(default_factory=list)

    def meet(self, conditions: Mapping[str, object]) -> None:
        """Enter those of some conditions that a case meets.

        Args:
            conditions: The conditions; each with a true value if the case meets it.
        """
        self.met |= {condition for condition, is_met in conditions.items() if is_met}


Judge = Callable[[Subject, Tally], Failure | None]
"""Looks at one case's evidence, counts into a tally and returns the first failure."""


@dataclass(frozen=True)
class Script:
    """The way in which an exported script of plain torch shows a rule's failure.

    Attributes:
        checks: Parts of the script's template that look for the failure.
        beyond: Why no script shows the failure; empty where one does.
        follows_unused: A script shows the failure even if a forward passes layers by.
        follows_scaler: A script shows the failure even if the loss is scaled.
        follows_dropout: A script shows the failure even if layers draw random numbers.
        follows_main: A script shows the failure even if the optimizer updates a copy.
    """

    checks: tuple[str, ...] = ()
    beyond: str = ""
    follows_unused: bool = False
    follows_scaler: bool = False
    follows_dropout: bool = True
    follows_main: bool = True


MEAN = ("twin", "mean", "gradients", "held")
"""The checks of a script that compares gradients with the mean of the ranks' local ones."""
OBSERVED_ONLY = Script(beyond="the rule observes or counts, and a script only compares values")
SEVERAL_RUNS = Script(beyond="the rule compares several runs of the case")


@dataclass(frozen=True)
class MovedAfter:
    """An exception from a rule's place in the order of causes.

    Attributes:
        rule: The rule that explains such a failure.
        when: A test for such a failure.
    """

    rule: str
    when: Callable[[Failure], bool]


UNDISTURBED: tuple[type[Situation], ...] = (Perturbed, FailureInjection, Turns)
"""The situations that most second runs leave out: changed timing and injected failures."""


def _never(_: TrainingCase) -> bool:
    return False


@dataclass(frozen=True)
class Row:
    """All that is known of a rule, but for the function that judges it.

    Attributes:
        id: Such as `GRAD-2`; fixed for ever.
        requirement: The requirement, in one to three sentences.
        needs: Conditions without which the rule has proved nothing in a run.
        source: The origin of the requirement.
        applies: `always` for every implementation; `capability` where one is offered; `declared`
            where it is declared; `observed` if the rule never judges.
        level: How ordinary the subject of the rule is. A failure belongs to this level, or to a less
            ordinary one if the smallest case needs a situation of such a level.
        draws: The cases of the rule's own property.
        of_reduced: What the rule compares of reduced gradients, and of what follows from them: their
            `agreement` between ranks, their `values` with those expected, the `trajectory` of
            training with that of one process. Empty if it compares nothing of them.
        excluded: Other reasons for which the rule does not apply.
        after: The rule right before in the order of causes. In one and the same case, a failure of
            it, and of every rule before it, explains a failure of this rule. Of two rules about the
            same values the narrower comes first: the smallest case contains its subject because
            the fault needs it. Empty for the first rule, and for rules outside the order.
        moved_after: An exception: failures with another place in the order of causes.
        apart: True if no failure of another rule in the case explains a failure of this rule. Its
            place in the order is the last, so that it explains no other rule's either.
        costs: The time of one of the rule's own cases, in units of an ordinary case. The number of
            cases of its property is divided by it.
        confirmations: Runs in fresh processes in which a failure is to be seen again.
        observed_groups: The rule needs process groups that record every collective.
        rests_on_probes: The rule applies only if a probe has seen a capability, which no
            declaration tells.
        needs_all: True if the rule judges a case only as a whole. If evidence is then missing, the
            comparisons made before it do not count. If False, they count.
        repeats_undisturbed: A test for cases that need a second run.
        exhausted: The property also judges all small cases of a sampler (`search.exhaustion`).
        explored: The property also runs all schedules of a few small cases (`search.schedules`).
        without: The situations that the second run leaves out.
        alone: Each run of the rule's own cases needs new processes.
        counts_when_injected: A failure counts even in a case with an injected failure. Failures of
            the rest do not: wrong gradients after an exception are reported once.
        script: How an exported script shows a failure.
    """

    id: str
    requirement: str
    needs: tuple[str, ...] = ()
    source: str = ""
    applies: Applies = "always"
    level: Level = "extended"
    draws: Draws | ShardDraws = field(default_factory=Draws)
    of_reduced: tuple[Compared, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    after: str = ""
    moved_after: MovedAfter | None = None
    apart: bool = False
    costs: int = 1
    confirmations: int = CONFIRMATIONS
    observed_groups: bool = False
    rests_on_probes: bool = False
    needs_all: bool = False
    repeats_undisturbed: Callable[[TrainingCase], bool] = _never
    exhausted: bool = False
    explored: bool = False
    without: tuple[type[Situation], ...] = UNDISTURBED
    alone: bool = False
    counts_when_injected: bool = False
    script: Script = field(default_factory=Script)

    @property
    def invariant(self) -> str:
        """The invariant that the rule belongs to, such as `GRAD`."""
        return invariant_of(self.id)

    @property
    def is_about_samplers(self) -> bool:
        """True for a rule that judges a sampler; False for a rule that judges training."""
        return self.invariant == "SHARD"

    @property
    def is_about_values(self) -> bool:
        """True for a rule that compares values, not the course of collectives or processes."""
        return self.invariant not in ("COMM", "LIVE")

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """All reasons for which the rule does not apply; the first that holds is reported.

        Lossy reductions leave nothing to compare with, but ranks must still agree.
        """
        lossy = self.of_reduced and "agreement" not in self.of_reduced
        return (*self.excluded, LOSSY) if lossy else self.excluded

    def why_excluded(self, claims: Claims) -> str:
        """Return the first reason for which the rule does not apply; empty where it applies."""
        return next((each.reason for each in self.exclusions if each.applies(claims)), "")


def invariant_of(rule: str) -> str:
    """Return the invariant in a rule's id."""
    return rule.partition("-")[0]


@dataclass(frozen=True)
class Rule(Row, Generic[Subject]):
    """One rule of the specification.

    Attributes:
        judge: The function that judges a case by its evidence.
    """

    judge: Judge[Subject] = field(kw_only=True)

    def find(self, subject: Subject) -> Finding:
        """Judge one case."""
        tally = Tally()
        try:
            failure = self.judge(subject, tally)
        except Unjudged as reason:
            about = not isinstance(reason, NotAbout)
            if self.needs_all or not tally.compared:
                return Finding(self.id, unjudged=str(reason), about=about)
            met = frozenset(tally.met)
            return Finding(self.id, tally.compared, met, worst=tally.worst, about=about)
        # A judge that crashes has judged nothing, and its crash must not hide other rules.
        except Exception as crash:  # noqa: BLE001 - the crash is recorded in the finding
            why = f"the rule itself crashed: {type(crash).__name__}: {crash}"
            return Finding(
                self.id, tally.compared, frozenset(tally.met), None, why, tally.worst, crashed=True
            )
        unjudged = "" if failure or tally.compared else "nothing to compare"
        return Finding(
            self.id,
            tally.compared,
            frozenset(tally.met),
            failure,
            unjudged,
            tally.worst,
            about=not unjudged,
            observed=tuple(tally.observed),
        )


class RuleSet(Generic[Subject]):
    """The rules about one kind of evidence.

    Attributes:
        rules: The rules by id, in the order they were added.
        rule: A decorator that adds a judge as a rule; its arguments are those of `Row`.
    """

    def __init__(self) -> None:
        self.rules: dict[str, Rule[Subject]] = {}
        self.rule = self._taking(Row)

    def add(self, row: Row, judge: Judge[Subject]) -> Judge[Subject]:
        """Add a rule by its row and its judge."""
        self.rules[row.id] = Rule(**{**vars(row), "judge": judge})
        return judge

    def _taking(
        self, make: Callable[Known, Row]
    ) -> Callable[Known, Callable[[Judge[Subject]], Judge[Subject]]]:
        """Return a decorator that takes the arguments of a row."""

        def rule(
            *arguments: Known.args, **options: Known.kwargs
        ) -> Callable[[Judge[Subject]], Judge[Subject]]:
            return partial(self.add, make(*arguments, **options))

        return rule
