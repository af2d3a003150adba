"""Other ways to drive an implementation whose plain case fails: it may be right in one of them.

The suite drives an implementation by usual names. If a name misleads, or a declaration is missing,
a right implementation fails at once. Each way is tried on the plain case, and is told if the case
holds so; it changes no verdict.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, Literal, NamedTuple

from ddp_invariants.discovery.plain_case import failure_of, plain_case
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import LoadFailure
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.pool import Pool

PATIENCE = 3.0
"""Seconds that a way gets; one that does not hang takes some milliseconds."""


class Way(NamedTuple):
    """One other way.

    Attributes:
        name: What the user would write.
        meaning: What is different then.
        options: The changed options of the DDP.
        declares: The changed declarations.
    """

    name: str
    meaning: str
    options: Mapping[str, str]
    declares: Mapping[str, Any]


def ways(ddp: Ddp, declared: Declarations, how: Mapping[str, str]) -> Iterator[Way]:
    """Yield the ways that differ from the present one.

    Args:
        ddp: The DDP.
        declared: Its declarations.
        how: The calls that the suite has chosen, by moment.
    """
    for option, moment in (("finish", "after backward"), ("start", "before each batch")):
        if moment in how and not getattr(ddp, option):
            meaning = f"{how[moment]} is then not called {moment}"
            yield Way(f"--{option} none", meaning, {option: "none"}, {})
    if declared.gradients == "all" and declared.stack is None:
        meaning = "gradients are then averaged in the optimizer's step at the latest"
        yield Way('gradients = "hidden"', meaning, {}, {"gradients": "hidden"})
    if declared.init == "wrap":
        meaning = "the user's program then makes the ranks equal before it wraps the module"
        yield Way('init = "seed"', meaning, {}, {"init": "seed"})


def holding(pool: Pool, ddp: Ddp, scope: Scope, how: Mapping[str, str]) -> tuple[str, ...]:
    """Return in words the ways in which the plain case holds, or the pairs if no single one does.

    Args:
        pool: The ranks.
        ddp: The DDP whose plain case fails.
        scope: The limits of its cases.
        how: As above.
    """
    every = [*ways(ddp, scope.declared, how)]
    for chosen in (combinations(every, 1), combinations(every, 2)):
        held = list[str]()
        for together in chosen:
            outcome = _tried(pool, ddp, scope, together)
            if outcome == "hangs":
                return tuple(held)  # Others may hang, too, and each costs seconds.
            held += [_told(together)] if outcome == "holds" else []
        if held:
            return tuple(held)
    return ()


def _tried(
    pool: Pool, ddp: Ddp, scope: Scope, together: tuple[Way, ...]
) -> Literal["holds", "fails", "hangs"]:
    """Run the plain case in some ways together."""
    options: dict[str, Any] = dict(chain.from_iterable(way.options.items() for way in together))
    declares = dict(chain.from_iterable(way.declares.items() for way in together))
    scope = replace(scope, declared=replace(scope.declared, **declares))
    changed = replace(ddp, **options, declares={**ddp.declares, **declares})
    try:
        evidence = pool.train(plain_case(scope), changed, patience=PATIENCE)
    except LoadFailure:
        return "fails"  # An adapter may forbid an option.
    if evidence.incident is not None:
        return "hangs"
    return "holds" if failure_of(evidence, scope) is None else "fails"


def _told(together: tuple[Way, ...]) -> str:
    names = " and ".join(
        way.name if way.options else f"the declaration {way.name}" for way in together
    )
    return f"{names} ({'; '.join(way.meaning for way in together)})"
