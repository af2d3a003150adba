"""Probes of an implementation's capabilities, before any property runs: one small case for each.

A capability refused on every rank is not drawn afterwards, and is listed. A silently wrong one is
drawn, and so becomes a violation. If the implementation declares it unsupported, it is printed as
that instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.capabilities import SAMPLING, TRAINING
from ddp_invariants.discovery.deviations import expected
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError, LoadFailure
from ddp_invariants.implementation.declarations import (
    CAPABILITIES,
    Buckets,
    Declarations,
    SamplerDeclarations,
    declare,
)
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import SHIPPED, judge
from ddp_invariants.invariants.buf import MOVED
from ddp_invariants.invariants.comm import overlapping, reductions_per_step
from ddp_invariants.processes.backends import ON_THE_CPU, Backend
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.situations.capability import BASE

HANGS = 3
"""Number of hanging probes after which no other probe is run."""
HUNG_PATIENCE = 3.0
"""Seconds a probe gets once one has hung; a probe that does not hang takes some milliseconds."""


class Standing(Enum):
    """The result of a capability's probe."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "silently wrong"
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
    """

    capability: str
    standing: Standing
    words: str = ""
    declared: bool = False
    expected: str = ""

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
            or self.declared
            or bool(self.expected)
        )


@dataclass(frozen=True)
class Discovery:
    """All discovered facts about a DDP and a sampler.

    Attributes:
        ddp: The DDP's description (`driving.Description`, plain).
        sampler: The sampler's.
        ddp_probes: Of the DDP's capabilities.
        sampler_probes: Of the sampler's capabilities.
        driven: How the DDP is driven, a line each.
        buckets: How it was seen to fill buckets (`Declarations.buckets`); empty if it fills none.
        deviating: Rules that it is expected to violate, and why.
        backend: The backend and the device of the tensors.
    """

    ddp: Mapping[str, Any]
    sampler: Mapping[str, Any]
    ddp_probes: tuple[Probed, ...] = ()
    sampler_probes: tuple[Probed, ...] = ()
    driven: tuple[str, ...] = ()
    buckets: Buckets = ""
    deviating: tuple[tuple[str, str], ...] = ()
    backend: Backend = ON_THE_CPU

    @property
    def torch(self) -> str:
        """Version of torch in the ranks."""
        return str(self.ddp["torch"])

    @cached_property
    def declared(self) -> Declarations:
        """The declarations of the DDP."""
        return declare(Declarations, self.ddp["declares"])

    @cached_property
    def declared_sampler(self) -> SamplerDeclarations:
        """The declarations of the sampler."""
        return declare(SamplerDeclarations, self.sampler["declares"])

    def scope(self, max_world_size: int) -> Scope:
        """Return the limits on what cases may contain."""
        without = frozenset(
            probed.capability
            for probed in (*self.ddp_probes, *self.sampler_probes)
            if probed.excused
        )
        declared = replace(self.declared, buckets=self.declared.buckets or self.buckets)
        return Scope(
            max_world_size, without, declared, self.declared_sampler, self.deviating, self.backend
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
                        if probe.standing in (Standing.REFUSED, Standing.WRONG)
                    ),
                }
            )
            supports = [probe.capability for probe in probed if probe.standing is Standing.RIGHT]
            return replace(declared, supports=tuple(supports), unsupported=tuple(unsupported))

        return add(self.declared, self.ddp_probes), add(self.declared_sampler, self.sampler_probes)


def discover(
    pool: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int, files: Sequence[Path] = ()
) -> Discovery:
    """Load a DDP and a sampler and probe them.

    Args:
        pool: Ranks to probe on.
        ddp: The DDP.
        sampler: The sampler.
        max_world_size: Most ranks a probe may need.
        files: Of expected deviations, beside the shipped file.

    Raises:
        DeviationError: One of these files cannot be used.
        LoadFailure: One of the two cannot be tested at all: it does not load, or is no wrapper.
    """
    # Describe both before either is probed.
    described, dealing = (
        pool.describe(ddp),
        pool.describe(sampler),
    )
    return replace(
        of_ddp(pool, ddp, described, max_world_size, files),
        sampler=dealing,
        sampler_probes=of_sampler(pool, sampler, dealing, max_world_size),
    )


def of_ddp(
    pool: Pool,
    ddp: Ddp,
    described: Mapping[str, Any],
    max_world_size: int,
    files: Sequence[Path] = (),
) -> Discovery:
    """Probe a DDP; the result depends on no sampler.

    Args:
        pool: As above.
        ddp: As above.
        described: The answer of `Pool.describe`.
        max_world_size: As above.
        files: As above.

    Raises:
        DeviationError: As above.
        LoadFailure: It is no wrapper.
    """
    declared = declare(Declarations, described["declares"])
    lacking = frozenset(described["lacks"]) | frozenset(
        {"accumulation"} if declared.accumulation == "none" else ()
    )
    if declared.gradients == "hidden":
        # A parameter without a gradient may get a zero, which may move it. Hidden gradients do not
        # show that.
        lacking |= {"unused", "freeze", "unfreeze"}
        # Only the oracle could check such a step, and it computes no second derivatives.
        lacking |= {"penalty"}
    if declared.reduction == "sum":
        # A gradient left from the last sum may be summed again or not, depending on the hooks. No
        # declaration says which is meant.
        lacking |= {"never_zeroed", "retained"}
    # Sending is probed last; nothing before depends on it.
    without = lacking | frozenset(declared.unsupported) | {"bucketing", "overlap", "equal_buffers"}
    scope = Scope(max_world_size, without, declared, backend=pool.backend)
    probes = _Probes(pool, ddp, scope)
    base = probes.run(BASE)
    _require_wrapper(ddp, base)
    how = base.ranks[0].driven
    if how.get("accumulation") == "each" and (
        declared.reduction == "sum" or ("before each batch" in how and not declared.accumulation)
    ):
        # The name does not say whether this hook runs before each step or before each micro-step.
        # So accumulation is not tested.
        lacking |= {"accumulation"}
        probes.scope = replace(probes.scope, without=probes.scope.without | lacking)
    if how.get("without communication", "no_sync") != "no_sync":
        lacking |= {"no_sync_nested"}  # A switch cannot be nested.
        probes.scope = replace(probes.scope, without=probes.scope.without | lacking)
    if "backward" in how:  # An engine's own backward is not told that another one follows.
        lacking |= {"retained", "scaler"}
    if {
        "gradients",
        "step",
    } & how.keys():  # They lie elsewhere, or an engine changes them as it likes.
        lacking |= {"clipping", "scaler"}
    if "uneven batches" not in how:
        lacking |= {"join"}
    if "subgroup" in without | lacking:
        lacking |= {"resized"}  # One of the two worlds is a part of all processes.
    if how.get("accumulation") == "each":
        lacking |= {"no_sync_nested", "no_sync_error"}
        probes.scope = replace(probes.scope, without=probes.scope.without | lacking)
    driven = [
        *described["driven"],
        *(f"{when}: {call}" for when, call in sorted(base.ranks[0].driven.items())),
    ]
    probed = tuple(probes.all(lacking, base))
    buckets, shown = probes.sending(probed)
    driven += [f"buckets: {_FILLED[buckets]}"] if buckets else []
    known = expected(ddp, str(described["torch"]), files)
    reasons = {item.capability: str(item) for item in known}
    probed, shown = (
        tuple(replace(item, expected=reasons.get(item.capability, "")) for item in some)
        for some in (probed, shown)
    )
    return Discovery(
        described,
        {},
        (*probed, *shown),
        (),
        tuple(driven),
        buckets,
        tuple((item.rule, str(item)) for item in known if item.rule),
        pool.backend,
    )


def _small_enough(case: TrainingCase, max_world_size: int) -> TrainingCase:
    """Reduce a case to at most so many ranks.

    Raises:
        CaseError: Its contents need more ranks.
    """
    smaller = replace(case, world_size=min(case.world_size, max_world_size))
    if smaller.ranks_needed > max_world_size:
        raise CaseError(f"it needs {smaller.ranks_needed} ranks")
    return smaller


def _refusal(evidence: TrainingEvidence) -> str:
    """Return the exception raised on every rank; empty if the run did not end that way."""
    raised = [rank.raised for rank in evidence.ranks]
    if evidence.incident is not None or any(error is None for error in raised):
        return ""
    first = raised[0]
    assert first is not None
    return (
        f"{first.type} in {first.phase}: {first.message.splitlines()[0] if first.message else ''}"
    )


def _require_wrapper(ddp: Ddp, base: TrainingEvidence) -> None:
    """Refuse an object that is no wrapper before any property runs.

    Raises:
        LoadFailure: It cannot wrap the simplest model, for a reason that is no verdict.
    """
    refusal = _refusal(base)
    failure = base.ranks[0].raised
    if not refusal or failure is None or failure.phase != "wrap" or base.ranks[0].structure_after:
        return
    text = failure.message.lower()
    if any(word in text for word in ("cuda", "nvidia", "nccl")):
        raise LoadFailure(
            f"--ddp {ddp}: wrapping the simplest model raised {refusal}; it needs CUDA, "
            "which this machine does not have"
        )
    if failure.type in ("TypeError", "AttributeError"):
        raise LoadFailure(
            f"--ddp {ddp}: wrapping the simplest model raised {refusal}; it is no wrapper, or "
            "it needs arguments (--ddp-arg NAME=VALUE), a --setup call or an adapter"
        )


class _Probes:
    """Small cases run one by one on the implementation under test, until several have hung."""

    def __init__(self, pool: Pool, ddp: Ddp, scope: Scope) -> None:
        self.pool, self.ddp, self.scope = pool, ddp, scope
        self.hung = 0

    def run(
        self, case: TrainingCase, scope: Scope | None = None, *, hangs: bool = False
    ) -> TrainingEvidence:
        """Run a probe, fitted to the declarations, and return its evidence.

        A probe that often hangs gets less patience.
        """
        scope = scope or self.scope
        evidence = self.pool.train(
            scope.fit(_small_enough(case, scope.max_world_size)),
            self.ddp,
            patience=HUNG_PATIENCE if self.hung or hangs else None,
        )
        self.hung += evidence.incident is not None
        return evidence

    def all(self, lacking: frozenset[str], base: TrainingEvidence) -> list[Probed]:
        """Run every training capability's probe.

        No probe runs if the simplest case already fails: its verdict gives the reason.
        """
        broken = (
            base.incident is not None or bool(_refusal(base)) or _failure(base, self.scope) != ""
        )
        declared = self.scope.declared
        probed = []
        for name in TRAINING:
            excused = name in declared.unsupported
            if name in lacking:
                probed.append(Probed(name, Standing.ABSENT))
            elif broken or self.hung >= HANGS:
                probed.append(Probed(name, Standing.UNKNOWN, declared=excused))
            else:
                probed.append(self._probe(name, declared=excused))
            # Report a failure of buffers only once.
            if name == "buffers" and probed[-1].standing is not Standing.RIGHT:
                self.scope = replace(self.scope, without=self.scope.without | {name})
        return [
            *probed,
            self._no_sync(
                base, next(probe for probe in probed if probe.capability == "accumulation")
            ),
        ]

    def sending(self, probed: tuple[Probed, ...]) -> tuple[Buckets, tuple[Probed, ...]]:
        """Probe the sending of gradients: bucket filling, overlap and equal buffers.

        The fill rule and overlap are read off the collectives under two bucket capacities.

        Returns:
            The fill rule, and the probes of the three capabilities.
        """
        fill_rule: Buckets = ""
        overlaps, declared = False, self.scope.declared
        if (
            any(
                probe.capability == "bucket_cap" and probe.standing is Standing.RIGHT
                for probe in probed
            )
            and declared.gradients != "hidden"
        ):
            small, large = (
                self.run(replace(BASE, bucket_cap=cap, steps=3)) for cap in (_BETWEEN, 1 << 20)
            )
            counts = reductions_per_step(small)[1:], reductions_per_step(large)[1:]
            fill_rule = next(
                (how for how, expected in _SHOWS.items() if counts == ([expected] * 2, [1, 1])), ""
            )
            overlaps = overlapping(small)
            # Some implementations keep a layer's parameters together. That shows only if layers
            # have two parameters.
            biased = replace(
                BASE,
                model=Model(4, (Layer("linear", 4, bias=True),) * 4),
                bucket_cap=_BETWEEN - 30,
                steps=3,
            )
            scope = replace(
                self.scope,
                declared=replace(declared, buckets=fill_rule),
                without=self.scope.without - {"bucketing"},
            )
            fill_rule = (
                "" if not fill_rule or _failure(self.run(biased), scope, ("COMM-4",)) else fill_rule
            )
        unknown = (
            Standing.UNKNOWN
            if any(probe.standing is Standing.UNKNOWN for probe in probed)
            else Standing.ABSENT
        )
        standings = [
            ("bucketing", fill_rule and fill_rule == (declared.buckets or fill_rule)),
            ("overlap", overlaps),
        ]
        shown = tuple(
            Probed(
                name,
                Standing.RIGHT
                if seen
                else unknown
                if name in declared.supports
                else Standing.ABSENT,
                declared=name in declared.unsupported,
            )
            for name, seen in standings
        )
        return fill_rule, (*shown, self._equal_buffers(probed))

    def _equal_buffers(self, probed: tuple[Probed, ...]) -> Probed:
        """Probe whether the ranks' buffers are equal again when the next forward starts.

        Each batch changes the buffers. Equality is not required. An implementation that claims it
        and fails is wrong; without the claim each rank may keep its own buffers.
        """
        name, declared = "equal_buffers", self.scope.declared
        buffers, excused = (
            next(probe for probe in probed if probe.capability == "buffers"),
            name in declared.unsupported,
        )
        if buffers.standing is not Standing.RIGHT:
            return Probed(
                name,
                Standing.UNKNOWN if buffers.standing is Standing.UNKNOWN else Standing.ABSENT,
                declared=excused,
            )
        finding = judge(self.run(replace(TRAINING["buffers"].probe, steps=3)), declared)["BUF-1"]
        if MOVED in finding.met and finding.failure is None:
            return Probed(name, Standing.RIGHT, declared=excused)
        if finding.failure is not None and name in declared.supports:
            return Probed(name, Standing.WRONG, f"BUF-1: {finding.failure.fact}", excused)
        return Probed(name, Standing.ABSENT, declared=excused)

    def _no_sync(self, base: TrainingEvidence, accumulation: Probed) -> Probed:
        """Return the probe of backwards without communication.

        The probe of accumulation used them if they exist.
        """
        excused = "no_sync" in self.scope.declared.unsupported
        if (
            base.ranks[0].driven.get("accumulation", "each") != "no_sync"
            and accumulation.standing is not Standing.UNKNOWN
        ):
            return Probed("no_sync", Standing.ABSENT, declared=excused)
        return replace(accumulation, capability="no_sync", declared=excused)

    def _probe(self, name: str, *, declared: bool) -> Probed:
        try:
            case = _small_enough(TRAINING[name].probe, self.scope.max_world_size)
        except CaseError:
            return Probed(
                name, Standing.UNKNOWN, "it needs more ranks than --max-world-size", declared
            )
        scope = replace(self.scope, without=self.scope.without - {name})
        if not TRAINING[name].present(scope.fit(case)):
            return Probed(name, Standing.ABSENT, "its declarations exclude such a case", declared)
        evidence = self.run(case, scope, hangs=name in ("unused", "crossed"))
        failure, refusal = _failure(evidence, scope), _refusal(evidence)
        # A refusal on every rank is not silently wrong, even at a later step. An error of wrapping
        # happened before the refusal.
        if failure and (not refusal or failure.startswith("INIT")):
            return Probed(name, Standing.WRONG, failure, declared)
        return Probed(name, Standing.REFUSED if refusal else Standing.RIGHT, refusal, declared)


_BETWEEN = 100
"""Bytes: more than one tensor of the simplest case, less than two."""
_SHOWS: dict[Buckets, int] = {"within": 4, "reach": 2}
"""The number of buckets of the simplest case's four tensors under that capacity."""
_FILLED: dict[Buckets, str] = {
    "within": "closed before they would exceed their capacity",
    "reach": "closed once they reach it",
}


def _failure(
    evidence: TrainingEvidence | ShardEvidence, scope: Scope, rules: Iterable[str] = SHIPPED
) -> str:
    """Return the first of some rules that a probe violates, in words."""
    findings = judge(evidence, scope.declared, scope.sampler)
    return next(
        (
            f"{rule}: {finding.failure.fact}"
            for rule, finding in findings.items()
            if finding.failure is not None and rule in rules and not scope.excluded(rule)
        ),
        "",
    )


SAMPLER_CASES = {
    "shuffle": ShardCase(world_size=2, epochs=(0, 1), data=Data(samples=8, shuffle=True)),
    "drop_last": ShardCase(world_size=2, data=Data(samples=8, drop_last=True)),
    "uneven": ShardCase(world_size=2, epochs=(0, 1), data=Data(samples=7)),
    "short": ShardCase(world_size=3, data=Data(samples=2)),
    "no_samples": ShardCase(world_size=2, data=Data(samples=0)),
    "resume": ShardCase(world_size=2, data=Data(samples=8), saved_after=2),
    "elastic": ShardCase(world_size=2, data=Data(samples=12), saved_after=2, resumed_by=3),
    "workers": ShardCase(world_size=2, data=Data(samples=9), workers=2),
}


_JUDGED = {"resume": ("SHARD-9",), "elastic": ("SHARD-9",), "workers": ("SHARD-10",)}


def of_sampler(
    pool: Pool, sampler: Sampler, described: Mapping[str, Any], max_world_size: int
) -> tuple[Probed, ...]:
    """Probe every sampler capability, without a DDP.

    Args:
        pool: As above.
        sampler: As above.
        described: The answer of `Pool.describe`.
        max_world_size: As above.
    """
    lacking, declared = (
        frozenset(described["lacks"]),
        declare(SamplerDeclarations, described["declares"]),
    )
    probed = list[Probed]()
    scope = Scope(max_world_size, lacking, sampler=declared)
    for name in SAMPLING:
        excused = name in declared.unsupported
        # Every question gives a rank.
        if name in lacking or name not in SAMPLER_CASES:
            probed.append(
                Probed(
                    name, Standing.ABSENT if name in lacking else Standing.RIGHT, declared=excused
                )
            )
            continue
        # A hang takes its whole deadline: one is enough.
        if any(probe.words.startswith("LIVE-1") for probe in probed):
            probed.append(Probed(name, Standing.UNKNOWN, declared=excused))
            continue
        evidence = pool.shards(SAMPLER_CASES[name], sampler)
        if evidence.incident is not None:
            probed.append(
                Probed(
                    name, Standing.WRONG, f"LIVE-1: the process {evidence.incident.kind}", excused
                )
            )
            continue
        raised = [answer["raised"] for answer in evidence.answers if answer.get("raised")]
        if len(raised) == len(evidence.answers):
            first = raised[0]
            probed.append(
                Probed(name, Standing.REFUSED, f"{first['type']}: {first['message']}", excused)
            )
            continue
        if name == "resume" and all(answer.get("resumed") is None for answer in evidence.answers):
            probed.append(Probed(name, Standing.ABSENT, declared=excused))
            continue
        # Only the rules that depend on the length: all others show for any length.
        failure = _failure(evidence, scope, _JUDGED.get(name, ("SHARD-1", "SHARD-2", "SHARD-3")))
        probed.append(Probed(name, Standing.WRONG if failure else Standing.RIGHT, failure, excused))
    return tuple(probed)


def to_plain(discovery: Discovery) -> dict[str, Any]:
    """Return the discovery as JSON-ready data, for the workers of a session."""

    def rows(probed: tuple[Probed, ...]) -> list[list[Any]]:
        return [
            [probe.capability, probe.standing.value, probe.words, probe.declared, probe.expected]
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
    )
