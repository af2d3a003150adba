"""The rules, as pure functions of evidence.

A rule judges one case's evidence. It returns how many values it compared, and the failure, if any;
or it says which evidence is missing. Add a rule to the module of its invariant: one row
(`rule.Row`) with all that is known of the rule, above the function that judges it.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations
from ddp_invariants.invariants import (
    buf,
    call,
    comm,
    gpu,
    grad,
    grad_schedule,
    init,
    live,
    live_program,
    loss,
    mem,
    mod,
    param,
    param_own,
    rng,
    shard,
    shard_capabilities,
    state,
)
from ddp_invariants.invariants.draws import Draws, ShardDraws
from ddp_invariants.invariants.rule import Row, Rule, invariant_of
from ddp_invariants.invariants.sampler_view import UNDECLARED as UNDECLARED_SAMPLER
from ddp_invariants.invariants.sampler_view import ShardView, sharding
from ddp_invariants.invariants.view import UNDECLARED, EvidenceView, training
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure, Finding

__all__ = [
    "ALL_RULES",
    "INVARIANTS",
    "SHIPPED",
    "buf",
    "call",
    "comm",
    "gpu",
    "grad",
    "grad_schedule",
    "init",
    "judge",
    "live",
    "live_program",
    "loss",
    "mem",
    "mod",
    "own",
    "param",
    "param_own",
    "rng",
    "root_failure",
    "shard",
    "shard_capabilities",
    "state",
]

Judge = TypeVar("Judge", bound=Callable[..., Failure | None])

INVARIANTS = {
    "INIT": "Identical initialisation",
    "SHARD": "Disjoint shards",
    "LOSS": "Losses",
    "GRAD": "Identical gradients",
    "PARAM": "Identical parameters",
    "BUF": "Buffers",
    "CALL": "Calls of the model",
    "COMM": "Collectives",
    "LIVE": "Hangs, exceptions, deaths",
    "STATE": "Saved state",
    "MEM": "Memory",
    "MOD": "The module itself",
    "RNG": "Random numbers",
    "GPU": "Streams of a GPU",
}
"""The titles of the invariants and of the other subjects that rules are about, in the order of the
specification."""
_RULES: dict[str, Rule[EvidenceView] | Rule[ShardView]] = {**sharding.rules, **training.rules}
ALL_RULES = {
    identifier: _RULES[identifier]
    for identifier in sorted(
        _RULES,
        key=lambda rule: ([*INVARIANTS].index(invariant_of(rule)), int(rule.partition("-")[2])),
    )
}
"""Every rule by id, in the order of the specification; then the rules that `own` added."""
SHIPPED = tuple(ALL_RULES)
"""The ids of the rules that come with the package."""
OWN = 100
"""The lowest number of a user's own rule."""


def own(identifier: str, requirement: str, needs: tuple[str, ...] = ()) -> Callable[[Judge], Judge]:
    """Register a judge as a user's own rule, in the process that imports it.

    An own rule is certified like any other.

    Args:
        identifier: The name of the rule's group and a number from `OWN` on, such as
            `COMM-100`. A SHARD rule judges a sampler, and every other rule judges training. A COMM
            rule sees the collectives, too.
        requirement: The requirement, in one sentence.
        needs: Conditions without which the rule has proved nothing. The judge enters them in
            `tally.met`.

    Raises:
        ValueError: The identifier is of another form.
    """
    invariant, _, number = identifier.partition("-")
    if invariant not in INVARIANTS or not number.isdecimal() or int(number) < OWN:
        raise ValueError(
            f"{identifier}: a rule of your own is called GROUP-NUMBER, the group one of "
            f"{', '.join(INVARIANTS)}, the number {OWN} or more"
        )

    def register(judge: Judge) -> Judge:
        row = Row(
            identifier,
            requirement,
            needs,
            draws=ShardDraws() if invariant == "SHARD" else Draws(),
            observed_groups=invariant == "COMM",
            counts_when_injected=invariant == "LIVE",
        )
        rule_set: Any = sharding if row.is_about_samplers else training
        rule_set.add(row, judge)
        ALL_RULES[identifier] = rule_set.rules[identifier]
        return judge

    return register


def judge(
    evidence: TrainingEvidence | ShardEvidence,
    declared: Declarations = UNDECLARED,
    sampler: SamplerDeclarations = UNDECLARED_SAMPLER,
) -> dict[str, Finding]:
    """Judge one case by every rule about its kind of evidence.

    The declarations say what to expect.
    """
    if isinstance(evidence, ShardEvidence):
        shard_view = ShardView(evidence, sampler)
        return {identifier: rule.find(shard_view) for identifier, rule in sharding.rules.items()}
    view = EvidenceView(evidence, declared)
    # A run may diverge. Rules see an overflow in the values, so numpy need not warn.
    with np.errstate(all="ignore"):
        return {identifier: rule.find(view) for identifier, rule in training.rules.items()}


def _causes_first() -> tuple[str, ...]:
    """Return the rules' ids in the order in which a failure of one explains failures of later ones.

    Raises:
        AssertionError: The rows do not make one order.
    """
    following = {rule.after: rule.id for rule in ALL_RULES.values() if rule.after}
    firsts = following.keys() - set(following.values())
    assert len(firsts) == 1, f"in the order of causes these rules are first: {sorted(firsts)}"
    order = [*firsts]
    while order[-1] in following:
        order.append(following[order[-1]])
    misplaced = {rule.id for rule in ALL_RULES.values() if rule.after} - set(order)
    assert not misplaced, f"in the order of causes another rule has their place: {misplaced}"
    return tuple(order)


_CAUSES_FIRST = _causes_first()
"""The rules by their rows' `after`."""


def root_failure(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that explains the other failures of its case; None if there is none."""
    return min(failures, key=_depth, default=None)


def _depth(failure: Failure) -> float:
    """Return how far down the order of causes a failure is.

    A rule outside the order, such as one of a user's own, comes last.
    """
    rule = ALL_RULES.get(failure.rule)
    moved = rule.moved_after if rule is not None else None
    if moved is not None and moved.when(failure):
        return _CAUSES_FIRST.index(moved.rule) + 0.5
    if failure.rule not in _CAUSES_FIRST:
        return len(_CAUSES_FIRST)
    return _CAUSES_FIRST.index(failure.rule)
