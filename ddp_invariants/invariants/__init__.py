"""The rules, as pure functions of evidence.

A rule reads one case's evidence. It reports how many comparisons found nothing wrong, or a failure,
or that evidence is missing. Add a rule to the module of its invariant.
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
"""Every rule by id, in the order of the specification; user-defined rules (`own`) follow."""
SHIPPED = tuple(ALL_RULES)
"""The ids of the rules that come with the package."""
OWN = 100
"""Smallest number of a user-defined rule."""


def own(identifier: str, requirement: str, needs: tuple[str, ...] = ()) -> Callable[[Judge], Judge]:
    """Register a judge as a user-defined rule, in the process that imports it.

    A user-defined rule is certified like any other.

    Args:
        identifier: The rule's invariant and a number of at least `OWN`, as `COMM-100`. The
            invariant decides what is judged. SHARD rules judge a sampler; all others judge
            training. COMM rules also see what is sent.
        requirement: The requirement, in one sentence.
        needs: Situations without which the rule has proved nothing. The judge enters the situations
            it meets in `tally.met`.

    Raises:
        ValueError: The identifier does not have this form.
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
    """Judge one case by every rule about its kind of evidence.

    The declarations say what to expect.
    """
    if isinstance(evidence, ShardEvidence):
        shard_view = ShardView(evidence, sampler)
        return {identifier: rule.find(shard_view) for identifier, rule in sharding.rules.items()}
    view = EvidenceView(evidence, declared)
    # A run may diverge. The rules recognise an overflow by its value; a numpy warning adds nothing.
    with np.errstate(all="ignore"):
        return {identifier: rule.find(view) for identifier, rule in training.rules.items()}


_CAUSES_FIRST = (
    "COMM-1",
    "LIVE-2",
    "LIVE-3",
    "LIVE-1",
    "COMM-3",
    "GPU-1",
    "COMM-2",  # A race can produce any of the failures below.
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
    "PARAM-4",  # World size 1: a smallest case has it only if the fault needs it.
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
"""The rules in causal order: in one case, a rule's failure explains the failures of later rules.

Of two rules about the same values, the narrower comes first. In the smallest case that shows a
fault, the narrower rule's situation is present only because the fault needs it.
"""

assert set(_CAUSES_FIRST) | {"COMM-6"} == set(ALL_RULES)


def root_failure(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that explains the other failures of its case; None if there is none."""
    return min(failures, key=_depth, default=None)


def _depth(failure: Failure) -> float:
    """Return the position of a failure in the causal order."""
    after = failure.rule
    # A failure of INIT-1, -2 or -4 says more: it names the values that the other ranks received.
    if failure.rule == "INIT-3" and failure.fact == init.SOURCE_CHANGED:
        after = "INIT-4"
    if failure.rule == "GRAD-5" and any(cause.kind in LOW for cause in failure.causes):
        # The step does not matter: the first step's values survived the low precision by chance.
        after = "GRAD-2"
    # A user-defined rule comes last: the shipped rules are known to explain others.
    if after not in _CAUSES_FIRST:
        return len(_CAUSES_FIRST)
    return _CAUSES_FIRST.index(after) + 0.5 * (after != failure.rule)
