"""The levels of cases: how ordinary the program of a case is, and what makes it less ordinary."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ddp_invariants.cases.case import Case, ShardCase
from ddp_invariants.cases.levels import Level, highest
from ddp_invariants.cases.situation import KINDS
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.required import SAMPLING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.rule import Row

ENOUGH = 5
"""Ordinary cases on which a core rule must be judged at least, for a verdict about its core.

They must also have met each condition that the rule needs and that ordinary cases can meet.
"""

_OF_SAMPLERS: dict[str, Callable[[ShardCase], bool]] = {
    "short": lambda case: 0 < case.data.samples < case.world_size,
    "no_samples": lambda case: case.data.samples == 0,
    "resume": lambda case: case.saved_after is not None,
    "elastic": lambda case: case.resumed_by is not None,
    "workers": lambda case: case.workers > 0,
    "large_seed": lambda case: abs(case.data.seed) >= 2**31,
    "negative_seed": lambda case: case.data.seed < 0,
    "large_epoch": lambda case: max(case.epochs) > 2**16,
}
"""The capabilities of a sampler that ordinary programs do not use, and how a case contains each.

The other ways to ask a sampler are situations of a case.
"""
_UNCOMMON = {
    name: capability for name, capability in TRAINING.items() if capability.level != "core"
}


def uncommon(case: Case) -> dict[str, Level]:
    """Return what makes a case less ordinary: capabilities and situations, with their levels.

    The result is empty for an ordinary case.
    """
    if isinstance(case, ShardCase):
        return {
            **{name: "extended" for name, present in _OF_SAMPLERS.items() if present(case)},
            **{situation.capability: situation.level for situation in case.situations},
        }
    names = {name: each.level for name, each in _UNCOMMON.items() if each.present(case)}
    for situation in case.situations:
        # A situation with capabilities is named by them.
        if situation.level != "core" and not names.keys() & situation.capabilities().keys():
            names[situation.kind] = situation.level
    return names


def without(case: Case, name: str, scope: Scope) -> Case:
    """Return a case without one of the names of `uncommon`.

    Raises:
        CaseError: There is no such case.
    """
    narrower = replace(scope, without=scope.without | {name})
    if isinstance(case, ShardCase):
        return narrower.fit_shards(case)
    if name in KINDS:
        return case.without(KINDS[name])
    return narrower.fit(case)


def unimplied(levels: Mapping[str, Level]) -> dict[str, Level]:
    """Return the names that say most: without those that another of them needs anyway.

    A layer that is trained later, for example, is a frozen layer at first.
    """
    needed = {
        part
        for name in levels
        if name in TRAINING
        for part in uncommon(TRAINING[name].probe)
        if part != name
    }
    return {name: level for name, level in levels.items() if name not in needed}


def level_of(rule: str, names: Iterable[Level]) -> Level:
    """Return the level of a rule's failure in a case.

    Args:
        rule: The rule; one that this process does not know is `extended`.
        names: The levels of what makes the case less ordinary.
    """
    own: Level = ALL_RULES[rule].level if rule in ALL_RULES else "extended"
    return highest((own, *names))


def ordinary(scope: Scope) -> Scope:
    """Return the scope in which only ordinary cases are drawn."""
    return replace(
        scope,
        without=scope.without
        | _UNCOMMON.keys()
        | (_OF_SAMPLERS.keys() | {name for name in SAMPLING if name not in _PLAIN}),
    )


_PLAIN = ("shuffle", "in_order", "drop_last", "given_rank", "set_epoch", "uneven")
"""The capabilities of a sampler that ordinary programs use."""
_BEYOND = frozenset[str]().union(
    *(capability.conditions for capability in _UNCOMMON.values()), SAMPLING["short"]
)


def plainly(case: Case) -> Case:
    """Return a case without situations that no scope can exclude."""
    if isinstance(case, ShardCase):
        return case
    return case.without(*(kind for kind in KINDS.values() if kind.level != "core"))


def needed_of_ordinary(rule: Row) -> tuple[str, ...]:
    """Return the conditions of a core rule that ordinary cases can meet; none for other rules."""
    return tuple(need for need in rule.needs if need not in _BEYOND and rule.level == "core")
