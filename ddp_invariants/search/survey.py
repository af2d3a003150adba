"""The plan of a survey: which cases to draw next, so that a few hundred meet every situation.

By chance, most of three hundred cases would be plain, and a situation that one rule draws in one of
six cases would be met once or never. A survey therefore draws in blocks. A third of the cases come
from the rules that have drawn least, and the others contain what was met least. Each capability, each
of its varieties and each situation counts, so the plan knows a new situation as soon as it is registered.
Each such case has a feature that was met least (a capability, a variety or a situation). The plan adds
the capabilities that were met least together with it. In one block of three the cases have more steps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, TypeGuard

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.shard_situation import ShardSituation
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.search.crossing import CROSSED, crossed
from ddp_invariants.search.lasting import lasting
from ddp_invariants.search.scale import LARGE, grown, is_long, prolonged
from ddp_invariants.search.search import Asked
from ddp_invariants.search.strategies import cases_for, unlike
from ddp_invariants.situations import SITUATIONS
from ddp_invariants.situations.asking import WAYS

BLOCK = 16
"""The rules that get a case each, those that have drawn least; twice as many cases aim at features."""
_ADDED = 8
"""Capabilities that are added to a case that aims at a feature."""
_LASTS = 3
"""The blocks of which one has cases that last."""
ENOUGH = 20
"""Cases that contain a feature, after which the survey no longer aims at it."""


_LONG, _DROPPING = "a long dataset", "a long dataset with drop_last"


class Feature(NamedTuple):
    """A feature of cases that a survey must meet.

    Attributes:
        name: The name of its capability or situation.
        present: A function that returns whether a case of its kind has the feature.
        rules: The rules whose properties may draw such cases.
        of_samplers: True if such cases are of samplers.
        axis: The axis along which such cases are made large; empty for other features.
        way: The way in which such cases ask a sampler; None for other features.
    """

    name: str
    present: Callable[[Any], bool]
    rules: tuple[str, ...]
    of_samplers: bool = False
    axis: str = ""
    way: type[ShardSituation] | None = None


class Block(NamedTuple):
    """The next cases of a survey: a name of its own, a strategy, and how many."""

    name: str
    asked: SearchStrategy[Asked]
    cases: int


class Plan:
    """The plan of one survey.

    Args:
        rules: The rules to draw cases for; all about DDPs or all about samplers.
        scope: The limits of the cases.

    Attributes:
        met: The number of cases so far that have each feature.
        drawn: The number of cases so far that each rule has drawn.
        pairs: The number of cases so far that have each pair of features, by their sorted names, or
            that were to have it and cannot.
    """

    def __init__(self, rules: Iterable[str], scope: Scope) -> None:
        claimed = [rule for rule in rules if not scope.excluded(rule)]
        of_samplers = any(ALL_RULES[rule].is_about_samplers for rule in claimed)
        # Samplers have few features: rules that draw alike give such cases a larger part.
        self.scope, self.rules = scope, claimed if of_samplers else unlike(claimed)
        self.features = list(
            _of_samplers(claimed, scope) if of_samplers else _features(claimed, self.rules, scope)
        )
        self.met, self.drawn = Counter[str](), Counter[str]()
        self.pairs = Counter[tuple[str, str]]()
        self._all = tuple(self.features)
        self._sources: dict[str, dict[str, None]] = {}
        self._blocks, self._aims = 0, frozenset[str]()

    def add(self, asked: Asked) -> None:
        """Count a case."""
        self.drawn[asked.rule] += 1
        present = [feature for feature in self._all if _has(feature, asked.case)]
        for feature in present:
            self.met[feature.name] += 1
            # A case of another rule may have the feature by an addition.
            if asked.rule in feature.rules:
                self._sources.setdefault(feature.name, {})[asked.rule] = None
        had = {feature.name for feature in present}
        pairs = {*combinations(sorted(had), 2), *combinations(sorted(self._aims), 2)}
        self.pairs.update(pairs)

    def blocks(self, left: Callable[[], int]) -> Iterator[Block]:
        """Yield the next cases as long as some are left.

        Args:
            left: Returns how many cases are left.
        """
        while left():
            before = left()
            if self._wanting():
                yield from self._of_rules(left)
                yield from self._of_features(left)
            else:
                yield self._block("rules", self._asked(self.rules, lambda _: True), before)
            if left() == before:
                return  # All possible cases have been drawn.

    def _of_features(self, left: Callable[[], int]) -> Iterator[Block]:
        """Yield one case of each feature that was never met, or two of one that was met before.

        A case may meet several features, so each choice takes the one that was met least by then.
        """
        cases = 0
        while cases < 2 * BLOCK and left() and (wanting := self._wanting()):
            had = self.met[wanting[0].name]
            block = self._focused(wanting[0], min(2 if had else 1, left()))
            yield block
            cases += block.cases
            if self.met[wanting[0].name] == had:
                self.features.remove(wanting[0])  # No rule's property draws it.

    def _wanting(self) -> list[Feature]:
        """Return the features that were not met often enough, those met least first."""
        wanting = [feature for feature in self.features if self.met[feature.name] < ENOUGH]
        return sorted(wanting, key=lambda feature: self.met[feature.name])

    def _of_rules(self, left: Callable[[], int]) -> Iterator[Block]:
        """Yield a case of each of the rules that have drawn least."""
        for rule in sorted(self.rules, key=self.drawn.__getitem__)[:BLOCK]:
            if left():
                yield self._block(rule, self._asked([rule], lambda _: True), 1)

    def _focused(self, feature: Feature, cases: int) -> Block:
        """Return a block of cases that all have a feature."""
        # Rules that have drawn it do so more often than those that may.
        rules = self._sources.get(feature.name, feature.rules)
        if feature.way is not None:
            asked = self._in_a_way(feature.way, feature.rules)
        elif feature.of_samplers:
            asked = self._long(feature)
        elif feature.axis:
            asked = self._large(feature)
        else:
            asked = self._asked(rules, partial(_has, feature))
        names = [feature.name]
        for _ in range(_ADDED):
            offered = [name for name in CROSSED if self.scope.has(name) and name not in names]
            if offered:
                names.append(min(offered, key=partial(self._times_met, tuple(names))))
        return self._block(feature.name, self._crossed(asked, feature, names[1:]), cases, names)

    def _crossed(
        self, asked: SearchStrategy[Asked], feature: Feature, added: list[str]
    ) -> SearchStrategy[Asked]:
        """Return a strategy for cases of a feature that also have some capabilities."""
        number = self._blocks // _LASTS if self._blocks % _LASTS == 0 else None

        def with_additions(drawn: Asked) -> Asked:
            case = drawn.case
            if not isinstance(case, TrainingCase):
                return drawn
            for name in added:
                joint = crossed(case, name, self.scope)
                case = joint if feature.present(joint) else case
            if number is not None:
                # A layer that is used late replaces other unused layers, at which a block may aim.
                longer = (lasting(case, chosen) for chosen in (number, number - number % 2))
                case = next(filter(feature.present, longer), case)
            return drawn._replace(case=self.scope.fit(case))

        return asked.map(with_additions)

    def _times_met(self, names: tuple[str, ...], other: str) -> tuple[int, int]:
        """Return how often a capability was met together with some features, and at all."""
        together = sum(self.pairs[min(name, other), max(name, other)] for name in names)
        return together, self.met[other]

    def _asked(self, rules: Iterable[str], wanted: Callable[[Case], bool]) -> SearchStrategy[Asked]:
        """Return a strategy for some rules' cases that are as wanted."""

        def of_rule(rule: str) -> SearchStrategy[Asked]:
            return cases_for(rule, self.scope).filter(wanted).map(lambda case: Asked(rule, case))

        return st.sampled_from(list(rules)).flatmap(of_rule)

    def _large(self, feature: Feature) -> SearchStrategy[Asked]:
        """Return a strategy for the cases of a feature's rules, made large along its axis."""

        @st.composite
        def asked(draw: st.DrawFn) -> Asked:
            rule = draw(st.sampled_from(feature.rules))
            case = draw(cases_for(rule, self.scope).filter(_is_training))
            return Asked(rule, self.scope.fit(grown(case, feature.axis, draw)))

        return asked()

    def _long(self, feature: Feature) -> SearchStrategy[Asked]:
        """Return a strategy for the cases of a sampler's rules, with a long dataset."""

        @st.composite
        def asked(draw: st.DrawFn) -> Asked:
            rule = draw(st.sampled_from(feature.rules))
            case = draw(cases_for(rule, self.scope).filter(_is_of_a_sampler))
            long = prolonged(case, draw, drop_last=feature.name == _DROPPING)
            return Asked(rule, self.scope.fit_shards(long))

        return asked()

    def _in_a_way(self, way: type[ShardSituation], rules: tuple[str, ...]) -> SearchStrategy[Asked]:
        """Return a strategy for cases that ask a sampler in a way."""

        @st.composite
        def asked(draw: st.DrawFn) -> Asked:
            rule = draw(st.sampled_from(rules))
            case = draw(cases_for(rule, self.scope).filter(_is_of_a_sampler))
            situation = way.drawn(lambda values: draw(st.sampled_from(values)))
            return Asked(rule, self.scope.fit_shards(replace(case, situations=(situation,))))

        return asked()

    def _block(
        self, about: str, asked: SearchStrategy[Asked], cases: int, aims: Iterable[str] = ()
    ) -> Block:
        """Return the next block, whose cases are to have some features at once."""
        self._blocks += 1
        self._aims = frozenset(aims)
        return Block(f"survey/{self._blocks}/{about}", asked, cases)


def _has(feature: Feature, case: Case) -> bool:
    return isinstance(case, ShardCase) == feature.of_samplers and feature.present(case)


def _is_training(case: Case) -> TypeGuard[TrainingCase]:
    return isinstance(case, TrainingCase)


def _is_of_a_sampler(case: Case) -> TypeGuard[ShardCase]:
    return isinstance(case, ShardCase)


def _of_samplers(claimed: list[str], scope: Scope) -> Iterator[Feature]:
    """Yield every way to ask a sampler within a scope, and long datasets, with the rules that draw it."""
    for way in WAYS:
        rules = tuple(rule for rule in claimed if _draws(rule, way))
        if rules and scope.has(way.capability):
            yield Feature(way.capability, partial(_asks, way), rules, of_samplers=True, way=way)
    rules = tuple(rule for rule in claimed if ALL_RULES[rule].draws.options.get("scaled"))
    if rules:
        yield Feature(_LONG, is_long, rules, of_samplers=True)
        if scope.has("drop_last"):
            yield Feature(
                _DROPPING,
                lambda case: is_long(case) and case.data.drop_last,
                rules,
                of_samplers=True,
            )


def _draws(rule: str, way: type[ShardSituation]) -> bool:
    options = ALL_RULES[rule].draws.options
    return bool(options.get("saved" if way.rule == "SHARD-9" else "asked"))


def _asks(way: type[ShardSituation], case: ShardCase) -> bool:
    return any(isinstance(situation, way) for situation in case.situations)


def _features(claimed: list[str], unlike: list[str], scope: Scope) -> Iterator[Feature]:
    """Yield every feature that cases within a scope may have, with the rules that draw it."""
    for name, capability in TRAINING.items():
        if scope.has(name):
            needing = [
                rule
                for rule in claimed
                if capability.conditions.intersection(ALL_RULES[rule].needs)
            ]
            of_kind = [
                rule
                for situation in capability.probe.situations
                for rule in _drawing(type(situation), claimed)
            ]
            drawing = tuple(needing or of_kind or unlike)
            yield Feature(name, capability.present, drawing)
            for variety, present in capability.varieties.items():
                yield Feature(f"{name}: {variety}", present, drawing)
    for kind in SITUATIONS:
        wanting = _drawing(kind, claimed)
        # Some situations are drawn in any case, others only if a rule's property asks for them.
        if not kind.capabilities() and (wanting or not kind.options or any(kind.options.values())):
            drawing = tuple(wanting or unlike)
            yield Feature(vars(kind)["kind"], partial(_is_in, kind), drawing)
    accumulating = tuple(
        rule for rule in unlike if ALL_RULES[rule].draws.options.get("accumulated")
    )
    for axis, present in LARGE.items():
        drawing = accumulating if axis == "backwards" and accumulating else tuple(unlike)
        yield Feature(f"many {axis}", present, drawing, axis=axis)


def _is_in(kind: type[Situation], case: TrainingCase) -> bool:
    return case.get(kind) is not None


def _drawing(kind: type[Situation], rules: list[str]) -> list[str]:
    """Return the rules whose properties set an option of a situation."""
    return [
        rule for rule in rules if not kind.options.keys().isdisjoint(ALL_RULES[rule].draws.options)
    ]
