"""The strategy that a property's `@given` names, and the cases that it draws in a session."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ddp_invariants.invariants import ALL_RULES

T = TypeVar("T")
Source = Callable[[str], SearchStrategy[Any]]
"""A function that gives the cases of a rule's property."""
_SOURCE: ContextVar[Source] = ContextVar("source")


@contextmanager
def drawn_from(source: Source) -> Iterator[None]:
    """Have `cases_of` draw from a source inside the `with` block.

    Args:
        source: The source, which is asked once for each rule.
    """
    known: dict[str, SearchStrategy[Any]] = {}

    def ask(rule: str) -> SearchStrategy[Any]:
        if rule not in known:
            known[rule] = source(rule)
        return known[rule]

    token = _SOURCE.set(ask)
    try:
        yield
    finally:
        _SOURCE.reset(token)


@st.composite
def _drawn(draw: st.DrawFn, rule: str) -> Any:
    try:
        source = _SOURCE.get()
    except LookupError:
        raise RuntimeError(
            f"cases_of({rule!r}) draws for the implementation of a session: run the test with "
            "pytest and its fixture `ranks`"
        ) from None
    return draw(source(rule))


def cases_of(rule: str) -> SearchStrategy[Any]:
    """Return the cases of a rule's property, for the implementation that the session tests.

    Args:
        rule: The id of the rule, such as `GRAD-2`.

    Returns:
        A strategy for `TrainingCase`, or for `ShardCase` if the rule is about samplers.

    Raises:
        KeyError: There is no such rule.
    """
    if rule not in ALL_RULES:
        raise KeyError(f"there is no rule {rule!r}")
    return independent(_drawn(rule))


def independent(drawn: SearchStrategy[T]) -> SearchStrategy[T]:
    """Return a strategy for the same values, each drawn by itself.

    Hypothesis follows each value with up to five that copy parts of it over one another. With equal
    coins and small numbers such values are alike: only some twenty of a hundred are independent.
    Hypothesis leaves collections of unique elements alone, so a value is drawn in one.
    """
    return st.lists(drawn, min_size=1, max_size=1, unique_by=lambda _: None).map(
        lambda values: values[0]
    )
