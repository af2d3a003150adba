"""A fact of a surface: the text of an answer, or the type of the exception that it raised."""

import warnings
from collections.abc import Callable, Collection

from ddp_invariants.ranks.training.recorder import warned

Ask = Callable[[], object]


def answered(ask: Ask) -> tuple[str, set[str]]:
    """Return the text of an answer or the type of its exception, and its warnings' categories."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            text = str(ask())
        except BaseException as error:  # noqa: BLE001 - the type of any exception is the fact
            text = f"raises {type(error).__name__}"
    return text, {given.partition(":")[0] for given in warned(caught)}


def fact(ask: Ask) -> str:
    """Return the text of an answer, or the type of its exception.

    Its warnings are left out: cases compare them.
    """
    return answered(ask)[0]


def fact_with_warnings(ask: Ask, usual: Collection[str]) -> str:
    """Return a fact, with the categories of its warnings besides the usual ones."""
    text, categories = answered(ask)
    unusual = sorted(categories.difference(usual))
    return f"{text}, with {', '.join(unusual)}" if unusual else text


def facts(asked: dict[str, Ask]) -> dict[str, str]:
    """Return each fact by its name."""
    return {name: fact(ask) for name, ask in asked.items()}
