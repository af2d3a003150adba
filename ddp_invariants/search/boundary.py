"""The condition under which an implementation fails, from the neighbours of the smallest case.

A smallest case of three ranks does not tell if the implementation fails from three ranks on, with
three ranks, or with an odd number. So a few cases are run that differ from it in one number
(`predicates`), and cases without one of its contents. A condition that any of them contradicts is
not named.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.features import features
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.declarations import CAPABILITIES
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.live import ENDS
from ddp_invariants.records.verdict import Failure, Finding
from ddp_invariants.search.axes import (
    SAMPLES,
    Axis,
    axes,
    padded,
    ranks_in_proportion,
    roomy,
    widened,
)
from ddp_invariants.search.predicates import Line, Predicate, ranges
from ddp_invariants.search.runner import Runner

_CASES = 150
"""The most cases that are run for one violation. Most violations take fifteen."""
_REAL_CASES = 20
"""The most of them that run over a real backend, which takes longer."""
_CONTENTS = 12
"""The most cases among them that lack one of the contents."""
_WIDTHS = 8
"""The sizes in which a case without one of the contents is run, which must all hold.

What is left out also changes the number of elements, of which some may decide.
"""
_OF_NUMBERS = frozenset(
    {
        *("one rank", "several ranks", "several steps", "accumulation", "several runs", "batches"),
        *("padding", "fewer samples than ranks", "no samples", "several epochs", "a seed"),
        *("a large seed", "a later epoch", "a large epoch", "many ranks", "a long dataset"),
        *("real numbers", "faint numbers", "scarce numbers", "scaled inputs"),
        *("perturbation", "turns"),
    }
)
"""The features that are no conditions.

The axes tell more about numbers. Values, timings and schedules only show a failure.
"""
_RELATIONS: tuple[tuple[str, Callable[[int, int], bool]], ...] = (
    ("the number of ranks does not divide the number of samples", lambda w, n: n % w != 0),
    ("the number of ranks divides the number of samples", lambda w, n: n % w == 0),
    ("there are fewer samples than ranks", lambda w, n: n < w),
    ("there are not fewer samples than ranks", lambda w, n: n >= w),
    ("there are more samples than ranks", lambda w, n: n > w),
    (
        "there are more samples than ranks, whose number does not divide theirs",
        lambda w, n: n > w and n % w != 0,
    ),
    ("there are not more samples than ranks", lambda w, n: n <= w),
)
"""The relations of a sampler's ranks W and samples N that real code treats in its own way."""


@dataclass(frozen=True)
class _Named:
    """An axis with its condition: both come from the same cases."""

    axis: Axis
    predicate: Predicate
    line: Line

    def __str__(self) -> str:
        """Return the condition in words, with the numbers that were tried."""
        asked = ranges(self.line.answers)
        return f"{self.axis.noun} is {self.predicate.words} (numbers tried: {asked})"


def condition(runner: Runner, failure: Failure, case: Case) -> str:
    """Return in words when an implementation fails; empty if no condition is known.

    Args:
        runner: Runs the cases.
        failure: The failure of the smallest case.
        case: The smallest case.
    """
    if not _is_asked(runner, failure, case):
        return ""
    asker = _Asker(runner, failure)
    if asker.fails(case) is not True:
        return ""
    # Rounding, or a wrong order, may not show in some neighbours with small integers for values.
    fractions = replace(case, values="real") if isinstance(case, TrainingCase) else case
    if asker.fails(fractions):
        case = fractions
    related = [*_related(asker, case)]
    roomier = roomy(case)
    base = roomier if asker.fails(roomier) else case
    own = axes(case, runner.scope.max_world_size)
    if related:
        own = [ranks_in_proportion(axis) for axis in own if axis.noun != SAMPLES]
    words = (
        *related,
        *map(str, _numbers(asker, case, base, own)),
        *_contents(asker, case),
        *_lacking(asker, base),
    )
    return "; ".join(words)


def _is_asked(runner: Runner, failure: Failure, case: Case) -> bool:
    """Return whether the neighbours of a case take little time and tell about its failure."""
    options = runner.options
    costly = isinstance(case, TrainingCase) and (case.kills or case.rounds > 1)
    return not (
        costly
        or failure.rule == ENDS
        or runner.hung
        or not options.shrinks
        or options.isolation == "fresh"
        or options.journal is not None
        or failure.rule not in ALL_RULES
        or ALL_RULES[failure.rule].alone
    )


class _Asker:
    """The neighbours of a smallest case, each run once.

    The neighbours have an account of their own: they count for no rule, and a neighbour that hangs
    shortens no deadline of later cases.

    Args:
        runner: The trial's runner of cases.
        failure: The failure of the smallest case.
    """

    def __init__(self, runner: Runner, failure: Failure) -> None:
        self._runner = Runner(runner.pool, runner.under_test, runner.options)
        self._runner.places = deepcopy(runner.places)
        self._rule = failure.rule
        # A rule about a situation says nothing without it; the rule whose fact it tells does.
        self._rules = [*filter(None, (failure.rule, failure.retells))]
        self._known: dict[Case, bool | None] = {}

    def fails(self, case: Case | None) -> bool | None:
        """Return whether a case fails; None if it cannot be told."""
        if case is None or self._runner.hung:
            return None
        if case not in self._known:
            if self.has_asked_enough(case) or not _fits(self._runner, case):
                return None
            self._known[case] = self._run(case)
        return self._known[case]

    def has_asked_enough(self, case: Case) -> bool:
        """Return whether no more cases of this kind are run for the violation."""
        trains = isinstance(case, TrainingCase)  # Samplers are asked without ranks.
        really = self._runner.ledger.ran[str(self._runner.pool.backend)] if trains else 0
        return len(self._known) >= _CASES or really >= _REAL_CASES

    def along(self, axis: Axis, case: Case, number: int) -> bool | None:
        """Return whether a case fails with another number on an axis."""
        return self.fails(axis.at(case, number))

    def _run(self, case: Case) -> bool | None:
        findings, failed = self._findings(case)
        if self._rule in failed:
            return True
        if failed & {*self._rules}:
            # What an earlier run left in these processes may be the situation, too.
            findings, failed = self._findings(case, confirming=True)
        if failed:
            return None  # Another rule's failure may hide this one, or be its consequence.
        judged = (findings.get(rule) for rule in self._rules)
        if any(finding and finding.about and not finding.unjudged for finding in judged):
            return False
        return None

    def _findings(
        self, case: Case, *, confirming: bool = False
    ) -> tuple[dict[str, Finding], set[str]]:
        findings = self._runner.findings(case, confirming=confirming, rule=self._rule)
        return findings, {failure.rule for failure in self._runner.failures(findings, case)}


def _fits(runner: Runner, case: Case) -> bool:
    """Return whether the implementation can be asked a case as it is."""
    scope = runner.scope
    if isinstance(case, ShardCase):
        return scope.fit_shards(case) == case
    return case.ranks_needed <= scope.max_world_size and scope.fit(case) == case


def _related(asker: _Asker, case: Case) -> Iterator[str]:
    """Yield the relation of a sampler's ranks and samples that decides the failure."""
    if not isinstance(case, ShardCase):
        return
    points = {(case.world_size, case.data.samples): True}

    def ask(size: int, number: int) -> None:
        try:
            asked = replace(case, world_size=size, data=replace(case.data, samples=number))
        except CaseError:
            return
        answer = asker.fails(asked) if number else None
        if answer is not None:
            points[size, number] = answer

    ranks, samples, batch = case.world_size, case.data.samples, case.data.batch_size
    for beside in (*((ranks, samples + more) for more in (-1, 1, 2)), (ranks + 1, samples)):
        ask(*beside)
    if all(points.values()):
        return
    for size in range(max(2, ranks), max(2, ranks) + 3):
        for number in _around(size, samples, batch):
            ask(size, number)
    fitting = [
        words
        for words, holds in _RELATIONS
        if all(holds(*point) == failed for point, failed in points.items())
    ]
    if len(fitting) == 1 and len(set(points.values())) == 2:
        yield fitting[0]


def _around(ranks: int, samples: int, batch: int) -> tuple[int, ...]:
    """Return the numbers of samples around those at which ranks and batches are full."""
    numbers = [samples, ranks - 1, ranks, ranks + 1, 2 * ranks, 2 * ranks + 1]
    if batch > 1:  # The last batch of each rank is full, or holds one sample.
        numbers += [ranks * batch, ranks * (batch + 1)]
    return tuple(dict.fromkeys(numbers))


def _numbers(asker: _Asker, case: Case, base: Case, own: Sequence[Axis]) -> Iterator[_Named]:
    """Yield the conditions on the numbers of a case that no other number contradicts."""
    conditions: list[_Named] = []
    for axis in own:
        origin = (
            case if axis.is_size or asker.fails(axis.at(base, axis.start)) is not True else base
        )
        if asker.fails(axis.at(origin, axis.start)) is not True:
            continue
        line = Line(partial(asker.along, axis, origin), axis.start, axis.least, axis.most)
        predicate = line.predicate()
        if predicate is not None:
            conditions.append(_Named(axis, predicate, line))
    for each in conditions:
        if _stands(asker, case, base, each, own, {named.axis.noun: named for named in conditions}):
            yield each


def _stands(
    asker: _Asker,
    case: Case,
    base: Case,
    named: _Named,
    own: Sequence[Axis],
    conditions: Mapping[str, _Named],
) -> bool:
    """Return whether a condition stays the same if each other number is one larger."""
    axis = named.axis
    held = [number for number, failed in named.line.answers.items() if not failed]
    beside = min(held, key=lambda number: abs(number - axis.start))
    origins = (case,) if axis.is_size else (case, base)
    for other, origin in product(own, origins):
        if other.noun == axis.noun or other.excludes == axis.noun:
            continue
        moved = other.at(origin, other.start + 1)
        still = None if moved is None else asker.fails(axis.at(moved, axis.start))
        if still is None:
            continue
        if not still:
            # The other number has a condition of its own, or the two depend on each other.
            if other.noun in conditions and not conditions[other.noun].predicate.holds(
                other.start + 1
            ):
                continue
            return False
        assert moved is not None
        if asker.fails(axis.at(moved, beside)) is True:
            return False
    return True


def _contents(asker: _Asker, case: Case) -> Iterator[str]:
    """Yield the contents of a case without which it does not fail.

    A case with fewer parameters tells nothing about its contents: it also has fewer buckets.
    """
    own = {*features(case)}
    needed: dict[str, bool] = {}
    asked = 0
    for plainer in _without_parts(case):
        if asked >= _CONTENTS:
            break
        left = {*features(plainer)}
        if not left < own or len(own - left) != 1:
            continue
        (name,) = own - left
        if name not in _OF_NUMBERS and needed.get(name, True):
            answer = asker.fails(plainer)
            asked += 1
            if answer is False:
                answer = _fails_in_some_size(asker, plainer)
            if answer is not None:
                needed[name] = not answer
    yield from (
        f"the case contains {CAPABILITIES.get(name, repr(name))}"
        for name, is_so in needed.items()
        if is_so
    )


def _fails_in_some_size(asker: _Asker, case: Case) -> bool | None:
    """Return whether a case that holds fails with more elements; None if no other size can be told."""
    answer = None if isinstance(case, TrainingCase) else False
    for wider in widened(case, _WIDTHS):
        fails = asker.fails(wider)
        if fails:
            return True
        if fails is None and asker.has_asked_enough(wider):
            return None
        answer = answer if fails is None else fails
    return answer


def _without_parts(case: Case) -> Iterator[Case]:
    """Yield simpler cases with as many parameters; plain layers make up for those left out."""
    for plainer in simpler(case):
        if isinstance(case, TrainingCase) and isinstance(plainer, TrainingCase):
            with suppress(CaseError):
                yield padded(case, plainer)
        else:
            yield plainer


def _lacking(asker: _Asker, case: Case) -> Iterator[str]:
    """Yield the arguments with which a sampler does not fail."""
    if isinstance(case, ShardCase):
        for name in ("shuffle", "drop_last"):
            if not getattr(case.data, name):
                added = replace(case, data=replace(case.data, **{name: True}))
                if asker.fails(added) is False:
                    yield f"the case has no {name}"
