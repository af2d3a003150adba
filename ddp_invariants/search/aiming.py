"""Cases that aim at conditions which a rule needs and has not met yet.

A condition of a capability is met by a case that contains it, so a search need not wait until
chance draws one. Small budgets gain most: with ten cases, a use that one case in ten has is often
missing.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.capabilities import TRAINING

Present = Callable[[TrainingCase], bool]

TRIES = 8
"""Cases that aim at each condition."""


def aimed(drawn: SearchStrategy[Any], conditions: Iterable[str]) -> SearchStrategy[Any] | None:
    """Return those of a rule's cases that contain what some conditions are about.

    Args:
        drawn: The cases that the rule's property draws.
        conditions: Conditions that the rule needs.

    Returns:
        A strategy; None if no condition is one of a capability of training.
    """
    contents = list(_contents(frozenset(conditions)))
    if not contents:
        return None
    return st.sampled_from(contents).flatmap(drawn.filter)


def _contents(conditions: frozenset[str]) -> Iterator[Present]:
    """Yield the functions that tell whether a case contains a capability, or a variety of it."""
    for capability in TRAINING.values():
        if capability.conditions & conditions:
            yield capability.present
            yield from capability.varieties.values()
