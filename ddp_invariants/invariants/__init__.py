"""The rules, as pure functions of evidence.

A rule sees one case's evidence and says: nothing wrong among so many comparisons, a
breach here, or that it lacks its evidence. Add a rule to the module of its invariant.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations
from ddp_invariants.invariants import buf, comm, gpu, grad, init, live, loss, mem, param, rng, state
from ddp_invariants.invariants.diagnosis.predictions import LOW
from ddp_invariants.invariants.rule import Rule
from ddp_invariants.invariants.shard import UNDECLARED as UNDECLARED_SAMPLER
from ddp_invariants.invariants.shard import ShardView, sharding
from ddp_invariants.invariants.view import UNDECLARED, EvidenceView, training
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure, Finding

__all__ = [
    "ALL_RULES",
    "SHIPPED",
    "buf",
    "comm",
    "gpu",
    "grad",
    "init",
    "judge",
    "live",
    "loss",
    "mem",
    "own",
    "param",
    "rng",
    "root_failure",
    "state",
]

Judge = TypeVar("Judge", bound=Callable[..., Failure | None])

_ORDER = (
    "INIT",
    "SHARD",
    "LOSS",
    "GRAD",
    "PARAM",
    "BUF",
    "COMM",
    "LIVE",
    "STATE",
    "MEM",
    "RNG",
    "GPU",
)
_RULES: dict[str, Rule[EvidenceView] | Rule[ShardView]] = {**training.rules, **sharding.rules}
ALL_RULES = {
    identifier: _RULES[identifier]
    for identifier in sorted(
        _RULES, key=lambda rule: (_ORDER.index(rule.split("-")[0]), int(rule.split("-")[1]))
    )
}
"""Every rule by id, in the order of the specification; then those that were added (`own`)."""
SHIPPED = tuple(ALL_RULES)
"""The ids of those that come with the package."""
OWN = 100
"""Number from which on a rule is somebody's own."""


def own(identifier: str, requirement: str, needs: tuple[str, ...] = ()) -> Callable[[Judge], Judge]:
    """Register a judge as a rule of one's own, in the process that imports it; it is certified like any other.

    Args:
        identifier: The invariant it belongs to and a number from `OWN` on, as `COMM-100`. The
            invariant says what is judged: SHARD a sampler, all others training; COMM what is sent,
            too.
        requirement: What must hold, in one sentence.
        needs: Situations without which it has proved nothing: the judge enters them in `tally.met`.

    Raises:
        ValueError: It is not called so.
    """
    invariant, _, number = identifier.partition("-")
    if invariant not in _ORDER or not number.isdecimal() or int(number) < OWN:
        raise ValueError(
            f"{identifier}: a rule of your own is called INVARIANT-NUMBER, the invariant one of "
            f"{', '.join(_ORDER)}, the number {OWN} or more"
        )

    def register(judge: Judge) -> Judge:
        rule_set: Any = sharding if invariant == "SHARD" else training
        rule_set.rule(identifier, requirement, needs)(judge)
        ALL_RULES[identifier] = rule_set.rules[identifier]
        return judge

    return register


def judge(
    evidence: TrainingEvidence | ShardEvidence,
    declared: Declarations = UNDECLARED,
    sampler: SamplerDeclarations = UNDECLARED_SAMPLER,
) -> dict[str, Finding]:
    """Judge one case by every rule about its kind of evidence, as far as what is declared says what to expect."""
    if isinstance(evidence, ShardEvidence):
        shard_view = ShardView(evidence, sampler)
        return {identifier: rule.find(shard_view) for identifier, rule in sharding.rules.items()}
    view = EvidenceView(evidence, declared)
    # A run may diverge: what overflows is told from what does not by its value, not by a warning.
    with np.errstate(all="ignore"):
        return {identifier: rule.find(view) for identifier, rule in training.rules.items()}


_CAUSES_FIRST = (
    "COMM-1",
    "LIVE-2",
    "LIVE-3",
    "LIVE-1",
    "COMM-3",
    "GPU-1",
    "COMM-2",  # What luck decides is wrong in any of the ways below.
    "INIT-3",
    "INIT-1",
    "INIT-2",
    "INIT-4",
    "BUF-1",
    "RNG-1",
    "LOSS-1",
    "BUF-2",
    "LOSS-2",
    "LOSS-3",
    "PARAM-4",  # In a world of one rank, which a smallest case has only where it needs it.
    "STATE-1",
    "STATE-2",
    "GRAD-4",
    "PARAM-5",
    "LIVE-5",
    "GRAD-7",
    "PARAM-6",
    "GRAD-9",
    "GRAD-11",
    "GRAD-8",
    "GRAD-13",
    "GRAD-1",
    "GRAD-5",
    "GRAD-2",
    "GRAD-3",
    "GRAD-6",
    "GRAD-12",
    "GRAD-10",
    "PARAM-1",
    "PARAM-2",
    "PARAM-3",
    "COMM-4",
    "COMM-5",
    "LIVE-4",
    "MEM-1",
    "SHARD-7",
    "SHARD-5",
    "SHARD-4",
    "SHARD-1",
    "SHARD-2",
    "SHARD-3",
    "SHARD-6",
    "SHARD-8",
    "SHARD-9",
    "SHARD-10",
)
"""Rules in the order in which the breach of one explains those of later ones, in one and the same case. Of two about the same
values the narrower comes first: in the smallest case that shows a fault, its situation is there
because the fault needs it."""

assert set(_CAUSES_FIRST) | {"COMM-6"} == set(ALL_RULES)


def root_failure(failures: Iterable[Failure]) -> Failure | None:
    """Of the breaches of one case, the one that explains the others; None of none."""
    return min(failures, key=_depth, default=None)


def _depth(failure: Failure) -> float:
    """How far down the causes a breach is."""
    after = failure.rule
    if (
        failure.rule == "INIT-3" and failure.fact == init.SOURCE_CHANGED
    ):  # What all ranks got tells more.
        after = "INIT-4"
    if failure.rule == "GRAD-5" and any(cause.kind in LOW for cause in failure.causes):
        after = "GRAD-2"  # It is not the step that matters, but that the first one's values happened to survive.
    if (
        after not in _CAUSES_FIRST
    ):  # Somebody's own: what those that are known to explain others do not tell.
        return len(_CAUSES_FIRST)
    return _CAUSES_FIRST.index(after) + 0.5 * (after != failure.rule)
