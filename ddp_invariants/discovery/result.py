"""The result of probing: a standing for each capability, and everything else that is discovered."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, Literal, NamedTuple

from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import (
    CAPABILITIES,
    Buckets,
    Declarations,
    SamplerDeclarations,
    declare,
)
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import SHIPPED, judge
from ddp_invariants.processes.backends import ON_THE_CPU, Backend
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure

Side = Literal["ddp", "sampler"]
"""The two parts of an implementation."""


class Standing(Enum):
    """The result of a capability's probe."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASHED = "crashes"
    ABSENT = "not offered"
    UNKNOWN = "not probed"


@dataclass(frozen=True)
class Probed:
    """One capability's probe.

    Attributes:
        capability: Its name.
        standing: The result.
        words: The result in words.
        declared: True if it is declared unsupported.
        expected: The expected deviation; empty for none.
        lacks: The capability that this one needs and whose probe failed; empty for none.
        bucket_cap: The bucket capacity in bytes under which it was seen to be wrong, if that is
            what was probed (`discovery.sending`); otherwise 0.
    """

    capability: str
    standing: Standing
    words: str = ""
    declared: bool = False
    expected: str = ""
    lacks: str = ""
    bucket_cap: int = 0

    @property
    def never_met(self) -> bool:
        """True if it was left out for a reason of its own.

        False if no capability was probed because everything is broken or hangs.
        """
        return self.standing is Standing.UNKNOWN and bool(self.words)

    @property
    def excused(self) -> bool:
        """True if cases must not contain the capability."""
        return (
            self.standing in (Standing.REFUSED, Standing.ABSENT)
            or bool(self.lacks)
            or self.declared
            or bool(self.expected)
        )


class PlainFailure(NamedTuple):
    """The failure of an implementation in its plainest case.

    Its capabilities are probed only if all rules of the core hold there.

    Attributes:
        case: The case in words.
        fact: The rule and the fact, or the exception.
        where: The rank, the step and what was seen there, or the last frame of the exception.
        refused: True if every rank raised on purpose, so that no rule is violated.
        left_out: The rules that fail, if none of them is of the core; the probes leave them out.
        otherwise: The ways, in words, to drive the implementation in which the case holds.
    """

    case: str
    fact: str
    where: str
    refused: bool
    left_out: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """The rule that the plain case breaks; empty if every rank raised on purpose."""
        rule = self.fact.partition(": ")[0]
        return rule if rule in SHIPPED else ""

    @property
    def ends_all(self) -> bool:
        """True if no capability can be probed."""
        return not self.left_out


@dataclass(frozen=True)
class Discovery:
    """All discovered facts about a DDP and a sampler.

    Attributes:
        ddp: The DDP's description (`ranks.driving.ddp.Description`, plain).
        sampler: The sampler's.
        ddp_probes: Of the DDP's capabilities.
        sampler_probes: Of the sampler's capabilities.
        driven: How the DDP is driven, a line each.
        buckets: How it was seen to fill buckets (`Declarations.buckets`); empty if it fills none.
        deviating: Rules that it is expected to violate, and why.
        backend: The backend and the device of the tensors.
        not_simulated: Why its cases cannot be simulated; empty if they can.
        plain_failure: The failure of the plain case; None if it holds.
    """

    ddp: Mapping[str, Any]
    sampler: Mapping[str, Any]
    ddp_probes: tuple[Probed, ...] = ()
    sampler_probes: tuple[Probed, ...] = ()
    driven: tuple[str, ...] = ()
    buckets: Buckets = ""
    deviating: tuple[tuple[str, str], ...] = ()
    backend: Backend = ON_THE_CPU
    not_simulated: str = ""
    plain_failure: PlainFailure | None = None

    @property
    def torch(self) -> str:
        """Version of torch in the ranks."""
        return str(self.ddp["torch"])

    @property
    def sides_under_test(self) -> tuple[Side, ...]:
        """The sides that are not the reference; both if both are.

        The reference stands beside an implementation of the other side, and is not on trial then.
        """
        references: dict[Side, str] = {"ddp": Ddp().name, "sampler": Sampler().name}
        described = {"ddp": self.ddp, "sampler": self.sampler}
        sides = tuple(
            side for side, name in references.items() if described[side].get("name") != name
        )
        return sides or tuple(references)

    @property
    def probes_under_test(self) -> tuple[Probed, ...]:
        """The probes of these sides."""
        probes = {"ddp": self.ddp_probes, "sampler": self.sampler_probes}
        return tuple(probed for side in self.sides_under_test for probed in probes[side])

    @cached_property
    def declared(self) -> Declarations:
        """The declarations of the DDP."""
        return declare(Declarations, self.ddp["declares"])

    @cached_property
    def declared_sampler(self) -> SamplerDeclarations:
        """The declarations of the sampler."""
        return declare(SamplerDeclarations, self.sampler["declares"])

    @property
    def why_unprobed(self) -> str:
        """The reason why capabilities without a result were not probed, as the end of their list."""
        left = [probe for probe in self.probes_under_test if probe.standing is Standing.UNKNOWN]
        if self.nothing_probed:
            return ", since the plain case fails"
        return "" if all(probe.words for probe in left) else ", since other probes hang or die"

    @property
    def nothing_probed(self) -> bool:
        """True if the plain case fails so that no capability can be probed."""
        return self.plain_failure is not None and self.plain_failure.ends_all

    @property
    def broken(self) -> str:
        """The rule that the plain case breaks; empty if it breaks none."""
        return "" if self.plain_failure is None else self.plain_failure.rule

    def scope(self, max_world_size: int) -> Scope:
        """Return the limits on what cases may contain."""
        without = frozenset(
            probed.capability
            for probed in (*self.ddp_probes, *self.sampler_probes)
            if probed.excused
        )
        declared = replace(self.declared, buckets=self.declared.buckets or self.buckets)
        return Scope(
            max_world_size,
            without,
            declared,
            self.declared_sampler,
            self.deviating,
            self.backend,
            not_simulated=self.not_simulated,
        )

    def claims_refused(self) -> list[str]:
        """Return the claimed capabilities that are missing, in words."""
        claimed = {*self.declared.supports, *self.declared_sampler.supports}
        return [
            f"it claims {probe.capability!r} ({CAPABILITIES[probe.capability]}), which is "
            f"{probe.standing.value}" + (f": {probe.words}" if probe.words else "")
            for probe in (*self.ddp_probes, *self.sampler_probes)
            if probe.capability in claimed
            and (probe.standing in (Standing.REFUSED, Standing.ABSENT) or probe.never_met)
        ]

    def stale(self) -> list[str]:
        """Return the expected deviations that no longer show, in words.

        A deviation that is now refused is not stale: a refusal is at least reported.
        """
        return [
            f"{probe.capability!r} is right now, but its deviation is {probe.expected}; remove the "
            "deviation from its file"
            for probe in self.ddp_probes
            if probe.expected and probe.standing is Standing.RIGHT
        ]

    def pinned(self) -> tuple[Declarations, SamplerDeclarations]:
        """Return the declarations with the probes' results added, so that a later change shows."""

        def add(declared: Any, probed: tuple[Probed, ...]) -> Any:
            unsupported = sorted(
                {
                    *declared.unsupported,
                    *(
                        probe.capability
                        for probe in probed
                        if probe.standing in (Standing.REFUSED, Standing.WRONG, Standing.CRASHED)
                    ),
                }
            )
            supports = [probe.capability for probe in probed if probe.standing is Standing.RIGHT]
            return replace(declared, supports=tuple(supports), unsupported=tuple(unsupported))

        return add(self.declared, self.ddp_probes), add(self.declared_sampler, self.sampler_probes)


def first_failure(
    evidence: TrainingEvidence | ShardEvidence, scope: Scope, rules: Iterable[str] = SHIPPED
) -> Failure | None:
    """Return the first failure of some rules that a probe shows; None if they hold."""
    return next(failures(evidence, scope, rules), None)


def failures(
    evidence: TrainingEvidence | ShardEvidence, scope: Scope, rules: Iterable[str] = SHIPPED
) -> Iterator[Failure]:
    """Yield the failures of some rules that a probe shows, in the order of the rules."""
    findings = judge(evidence, scope.declared, scope.sampler)
    for rule, finding in findings.items():
        if finding.failure is not None and rule in rules and not scope.excluded(rule):
            yield finding.failure


def in_words(failure: Failure | None) -> str:
    """Return the rule and the fact of a failure; empty for none."""
    return f"{failure.rule}: {failure.fact}" if failure is not None else ""


def to_plain(discovery: Discovery) -> dict[str, Any]:
    """Return the discovery as JSON-ready data, for the workers of a session."""

    def rows(probed: tuple[Probed, ...]) -> list[list[Any]]:
        return [
            [
                probe.capability,
                probe.standing.value,
                probe.words,
                probe.declared,
                probe.expected,
                probe.lacks,
                probe.bucket_cap,
            ]
            for probe in probed
        ]

    return {
        "ddp": discovery.ddp,
        "sampler": discovery.sampler,
        "ddp_probes": rows(discovery.ddp_probes),
        "sampler_probes": rows(discovery.sampler_probes),
        "driven": list(discovery.driven),
        "buckets": discovery.buckets,
        "deviating": discovery.deviating,
        "backend": [discovery.backend.backend, discovery.backend.device],
        "not_simulated": discovery.not_simulated,
        # The workers of pytest-xdist take no tuple of a class of its own.
        "plain_failure": discovery.plain_failure
        and [[*each] if isinstance(each, tuple) else each for each in discovery.plain_failure],
    }


def from_plain(plain: Mapping[str, Any]) -> Discovery:
    """Read a discovery from the data of `to_plain`."""

    def probed(rows: list[list[Any]]) -> tuple[Probed, ...]:
        return tuple(Probed(name, Standing(finding), *rest) for name, finding, *rest in rows)

    return Discovery(
        plain["ddp"],
        plain["sampler"],
        probed(plain["ddp_probes"]),
        probed(plain["sampler_probes"]),
        tuple(plain["driven"]),
        plain["buckets"],
        tuple((rule, why) for rule, why in plain["deviating"]),
        Backend(*plain["backend"]),
        plain["not_simulated"],
        _plain_failure(plain["plain_failure"]),
    )


def _plain_failure(row: list[Any] | None) -> PlainFailure | None:
    if row is None:
        return None
    case, fact, where, refused, left_out, otherwise = row
    return PlainFailure(case, fact, where, refused, tuple(left_out), tuple(otherwise))
