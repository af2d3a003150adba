"""The probe of the way in which gradients are sent: in filled buckets, and during the backward."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.discovery.result import first_failure, in_words
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Buckets
from ddp_invariants.invariants.buckets import overlapping, reductions_per_step
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.situations.capability import BASE

BETWEEN = 100
"""Bytes: more than one tensor of the simplest case, less than two."""
_ABOVE = 1 << 20
"""Bytes: more than all tensors of the simplest case."""
_SHOWS: dict[Buckets, int] = {"within": 4, "reach": 2}
"""The number of buckets of the simplest case's four tensors under `BETWEEN`."""
FILLED: dict[Buckets, str] = {
    "within": "closed before they would exceed their capacity",
    "reach": "closed once they reach it",
}
"""The fill rules in words."""


@dataclass(frozen=True)
class Sending:
    """The way in which gradients are sent.

    Attributes:
        rule: How buckets are filled; empty if no known rule fits.
        overlaps: True if a reduction starts before the last gradient is computed.
        ignores: The failure if a promised capacity has no effect; empty for none.
        ignored: The capacity that shows it, in bytes; 0 for none.
        waits: The failure if a promised overlap is missing under `BETWEEN`; empty for none.
    """

    rule: Buckets = ""
    overlaps: bool = False
    ignores: str = ""
    ignored: int = 0
    waits: str = ""

    def fills_as(self, declared: Buckets) -> bool:
        """Return whether buckets are filled by a known rule, and by the declared one if any is."""
        return self.rule != "" and self.rule == (declared or self.rule)


UNSEEN = Sending()
"""The result for an implementation whose buckets nobody can see."""


def probe(bucket_cap: int) -> TrainingCase:
    """Return the case that is run under a bucket capacity in bytes."""
    return replace(BASE, bucket_cap=bucket_cap, steps=3)


def of(
    run: Callable[[TrainingCase], TrainingEvidence], scope: Scope, promised: frozenset[str]
) -> Sending:
    """Return the way in which gradients are sent under two bucket capacities.

    Args:
        run: A function that runs a probe.
        scope: The scope of the probes.
        promised: The capabilities that the signature promises.
    """
    small, large = (run(probe(cap)) for cap in (BETWEEN, _ABOVE))
    counts = reductions_per_step(small)[1:], reductions_per_step(large)[1:]
    rule: Buckets = next(
        (how for how, expected in _SHOWS.items() if counts == ([expected] * 2, [1, 1])), ""
    )
    # Some implementations keep a layer's parameters together. That shows only if layers have
    # two parameters.
    biased = replace(
        BASE,
        model=Model(4, (Layer("linear", 4, bias=True),) * 4),
        bucket_cap=BETWEEN - 30,
        steps=3,
    )
    within = replace(
        scope,
        declared=replace(scope.declared, buckets=rule),
        without=scope.without - {"bucketing", "overlap"},
    )
    if rule and first_failure(run(biased), within, ("COMM-4",)):
        rule = ""

    def broken(evidence: TrainingEvidence, capability: str, broken_rule: str) -> str:
        """Return the failure of a rule about a promised capability, in words."""
        return in_words(first_failure(evidence, within, (broken_rule,) * (capability in promised)))

    # Other rules of filling may be right, but a capacity that changes nothing is ignored.
    ignores, ignored = "", 0
    if counts[0] == counts[1]:
        ignores, ignored = next(
            (
                (words, cap)
                for evidence, cap in ((small, BETWEEN), (large, _ABOVE))
                if (words := broken(evidence, "bucketing", "COMM-4"))
            ),
            ("", 0),
        )
    waits = broken(small, "overlap", "COMM-5")
    return Sending(rule, overlapping(small), ignores, ignored, waits)
