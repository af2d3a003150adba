"""Other ways to drive an implementation that fails: it may be right in one of them.

The suite drives an implementation by usual names. If a name misleads, or a declaration is missing,
a right implementation fails. Each way is tried on the failing case, and is told if the case holds
so; it changes no verdict.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, Literal, NamedTuple

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.plain_case import failure_of
from ddp_invariants.discovery.result import failures
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError, LoadFailure
from ddp_invariants.implementation.declarations import Declarations, Padding
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure

_PADDINGS: dict[Padding, str] = {
    "none": "the ranks may then get different numbers of indices, and of batches",
    "batch": "shards are then filled up with whole batches",
}
_FORMATS: tuple[Literal["bfloat16", "float16"], ...] = ("float16", "bfloat16")
"""The formats in which gradients may travel; numbers in the first one lie closer."""
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


def holding(
    pool: Pool, ddp: Ddp, scope: Scope, failing: TrainingEvidence, *, named: bool = False
) -> tuple[str, ...]:
    """Return in words the ways in which a failing case holds, or the pairs if no single one does.

    Args:
        pool: The ranks.
        ddp: The DDP.
        scope: The limits of its cases.
        failing: The evidence of the case.
        named: True for the ways alone that leave out a call which the suite has chosen by its name.
    """
    every = [
        way
        for way in ways(ddp, scope.declared, failing.ranks[0].driven)
        if way.options or not named
    ]
    for chosen in (combinations(every, 1), combinations(every, 2)):
        held = list[str]()
        for together in chosen:
            outcome = _tried(pool, ddp, scope, failing.case, together)
            if outcome == "hangs":
                return tuple(held)  # Others may hang, too, and each costs seconds.
            held += [_told(together)] if outcome == "holds" else []
        if held:
            return tuple(held)
    return ()


def declarable(
    evidence: TrainingEvidence | ShardEvidence, scope: Scope, failure: Failure
) -> list[str]:
    """Return in words the declarations with which a failing case breaks no rule of the core.

    Args:
        evidence: The evidence of the case.
        scope: The declarations as they are.
        failure: The failure. A declaration that excludes its rule is none, with two exceptions:
            unequal shards give unequal numbers of batches, and values without a recognised cause
            may be those of another update.
    """
    rule, lines = failure.rule, list[str]()
    if isinstance(evidence, ShardEvidence):
        unequal = any(each.rule == "SHARD-1" for each in failures(evidence, scope))
        rule = "SHARD-1" if rule == "SHARD-6" and unequal else rule
        for padding, meaning in _PADDINGS.items():
            declared = replace(scope, sampler=replace(scope.sampler, padding=padding))
            if _holds(evidence, declared, rule):
                lines.append(
                    f'padding = "{padding}" in a [sampler] table (docs/adapter.md): {meaning}'
                )
        return lines
    for exactness in _FORMATS if scope.declared.exactness == "bitwise" else ():
        rounding = replace(scope, declared=replace(scope.declared, exactness=exactness))
        if _holds(evidence, rounding, rule):
            meaning = f"gradients may then be rounded to {exactness} on the way"
            return [f'exactness = "{exactness}" in a [ddp] table (docs/adapter.md): {meaning}']
    own = replace(scope, declared=replace(scope.declared, update="own"))
    known = scope.declared.update not in ("", "own") and rule == "PARAM-3"
    if known and not failure.perhaps and _holds(evidence, own, "PARAM-1"):
        lines.append(
            'update = "own" in a [ddp] table (docs/adapter.md): only if it is meant to make another '
            "update than torch's; parameters are then compared between ranks alone"
        )
    return lines


def _holds(evidence: TrainingEvidence | ShardEvidence, scope: Scope, rule: str) -> bool:
    """Return whether the scope does not exclude a rule, and no rule of the core fails."""
    return not scope.excluded(rule) and all(
        ALL_RULES[each.rule].level != "core" for each in failures(evidence, scope)
    )


def _tried(
    pool: Pool, ddp: Ddp, scope: Scope, case: TrainingCase, together: tuple[Way, ...]
) -> Literal["holds", "fails", "hangs"]:
    """Run a case in some ways together, also with fractions, and judge the rules of the core."""
    options: dict[str, Any] = dict(chain.from_iterable(way.options.items() for way in together))
    declares = dict(chain.from_iterable(way.declares.items() for way in together))
    scope = replace(scope, declared=replace(scope.declared, **declares))
    changed = replace(ddp, **options, declares={**ddp.declares, **declares})
    # The gradients of a small case can be zero by chance, which hides the failure.
    for same in dict.fromkeys((case, replace(case, values="real"))):
        try:
            evidence = pool.train(scope.fit(same), changed, patience=PATIENCE)
        except (LoadFailure, CaseError):
            return "fails"  # An adapter may forbid an option, and the case a declaration.
        if evidence.incident is not None:
            return "hangs"
        failure = failure_of(evidence, scope)
        if failure is not None and failure.ends_all:
            return "fails"
    return "holds"


def _told(together: tuple[Way, ...]) -> str:
    names = " and ".join(
        way.name if way.options else f"the declaration {way.name}" for way in together
    )
    return f"{names} ({'; '.join(way.meaning for way in together)})"
