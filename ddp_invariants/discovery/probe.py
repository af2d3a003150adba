"""Find out what an implementation takes, before any property runs: one small case per capability.

What it refuses on every rank is not drawn afterwards, and is listed; what is silently wrong is
drawn, and so becomes a violation, unless the implementation declares it unsupported, and then it is
printed as that.
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
from ddp_invariants.discovery.capabilities import BASE, SAMPLING, TRAINING
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

HANGS = 3
"""Probes that may hang before no other is run."""
HUNG_PATIENCE = 3.0
"""Seconds a probe gets once one has hung; one that does not hang takes some milliseconds."""


class Standing(Enum):
    """What became of a capability."""

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
        standing: What was found.
        words: The same in words.
        declared: Whether it is declared unsupported.
        expected: The deviation that is expected of it; empty for none.
    """

    capability: str
    standing: Standing
    words: str = ""
    declared: bool = False
    expected: str = ""

    @property
    def never_met(self) -> bool:
        """Whether it was left out for a reason of its own, not because everything is broken or hangs."""
        return self.standing is Standing.UNKNOWN and bool(self.words)

    @property
    def excused(self) -> bool:
        """Whether cases are not to contain it."""
        return (
            self.standing in (Standing.REFUSED, Standing.ABSENT)
            or self.declared
            or bool(self.expected)
        )


@dataclass(frozen=True)
class Discovery:
    """All that was found out about a pair on trial.

    Attributes:
        ddp: The DDP's description (`driving.Description`, plain).
        sampler: The sampler's.
        probed: Of the DDP's capabilities.
        dealt: Of the sampler's capabilities.
        driven: How the DDP is driven, a line each.
        buckets: How it was seen to fill buckets (`Declarations.buckets`); empty where it fills
            none.
        deviating: Rules that it is expected to breach, and why.
        backend: Over what ranks communicated, and where their tensors were.
    """

    ddp: Mapping[str, Any]
    sampler: Mapping[str, Any]
    probed: tuple[Probed, ...] = ()
    dealt: tuple[Probed, ...] = ()
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
        """What the DDP declares."""
        return declare(Declarations, self.ddp["declares"])

    @cached_property
    def declared_sampler(self) -> SamplerDeclarations:
        """What the sampler declares."""
        return declare(SamplerDeclarations, self.sampler["declares"])

    def scope(self, max_world_size: int) -> Scope:
        """What cases may contain."""
        without = frozenset(
            probed.capability for probed in (*self.probed, *self.dealt) if probed.excused
        )
        declared = replace(self.declared, buckets=self.declared.buckets or self.buckets)
        return Scope(
            max_world_size, without, declared, self.declared_sampler, self.deviating, self.backend
        )

    def claims_refused(self) -> list[str]:
        """Capabilities that are claimed and not there, in words."""
        claimed = {*self.declared.supports, *self.declared_sampler.supports}
        return [
            f"it claims {one.capability!r} ({CAPABILITIES[one.capability]}), which is {one.standing.value}"
            + (f": {one.words}" if one.words else "")
            for one in (*self.probed, *self.dealt)
            if one.capability in claimed
            and (one.standing in (Standing.REFUSED, Standing.ABSENT) or one.never_met)
        ]

    def stale(self) -> list[str]:
        """Deviations that are expected where all is right, in words. What is refused now is at least said aloud."""
        return [
            f"{one.capability!r} is right, and was {one.expected}; take the deviation out of its file"
            for one in self.probed
            if one.expected and one.standing is Standing.RIGHT
        ]

    def pinned(self) -> tuple[Declarations, SamplerDeclarations]:
        """The declarations with what was found refused or wrong added, so that a later change shows."""

        def add(declared: Any, probed: tuple[Probed, ...]) -> Any:
            unsupported = sorted(
                {
                    *declared.unsupported,
                    *(
                        one.capability
                        for one in probed
                        if one.standing in (Standing.REFUSED, Standing.WRONG)
                    ),
                }
            )
            supports = [one.capability for one in probed if one.standing is Standing.RIGHT]
            return replace(declared, supports=tuple(supports), unsupported=tuple(unsupported))

        return add(self.declared, self.probed), add(self.declared_sampler, self.dealt)


def discover(
    pool: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int, files: Sequence[Path] = ()
) -> Discovery:
    """Load what is on trial and probe it.

    Args:
        pool: Ranks to probe it on.
        ddp: The DDP.
        sampler: The sampler.
        max_world_size: Most ranks a probe may need.
        files: Of deviations that are expected, beside the one that is shipped.

    Raises:
        DeviationError: One of these cannot be used.
        LoadFailure: One of the two cannot be put on trial at all: it does not load, or is no
            wrapper.
    """
    described, dealing = (
        pool.describe(ddp),
        pool.describe(sampler),
    )  # Both, before either is probed.
    return replace(
        of_ddp(pool, ddp, described, max_world_size, files),
        sampler=dealing,
        dealt=of_sampler(pool, sampler, dealing, max_world_size),
    )


def of_ddp(
    pool: Pool,
    ddp: Ddp,
    described: Mapping[str, Any],
    max_world_size: int,
    files: Sequence[Path] = (),
) -> Discovery:
    """Probe a DDP; what is found out about it depends on no sampler.

    Args:
        pool: As above.
        ddp: As above.
        described: What `Pool.describe` says of it.
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
        # Whether a parameter without a gradient got a zero, which may move it, is not seen.
        lacking |= {"unused", "freeze", "unfreeze"}
        lacking |= {
            "penalty"
        }  # The oracle, which alone could tell what a step must come to, knows no second derivatives.
    if declared.reduction == "sum":
        # What is left of a sum is summed again or not, as it is hooked: nothing says which is
        # meant.
        lacking |= {"never_zeroed", "retained"}
    # What is sent is looked at last, and breaks nothing before.
    without = lacking | frozenset(declared.unsupported) | {"bucketing", "overlap", "equal_buffers"}
    scope = Scope(max_world_size, without, declared, backend=pool.backend)
    probes = _Probes(pool, ddp, scope)
    base = probes.run(BASE)
    _require_wrapper(ddp, base)
    how = base.ranks[0].driven
    if how.get("accumulation") == "each" and (
        declared.reduction == "sum" or ("before each batch" in how and not declared.accumulation)
    ):
        # Whether its call before a batch belongs before a step or a micro-step, nothing tells: it
        # is not put to that test.
        lacking |= {"accumulation"}
        probes.scope = replace(probes.scope, without=probes.scope.without | lacking)
    if how.get("without communication", "no_sync") != "no_sync":
        lacking |= {"no_sync_nested"}  # A switch knows no depth.
        probes.scope = replace(probes.scope, without=probes.scope.without | lacking)
    if "backward" in how:  # The engine's own, which is not told that another follows.
        lacking |= {"retained", "scaler"}
    if {
        "gradients",
        "step",
    } & how.keys():  # They lie elsewhere, or an engine makes of them what it likes.
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
        *(f"{when}: {what}" for when, what in sorted(base.ranks[0].driven.items())),
    ]
    probed = tuple(probes.all(lacking, base))
    buckets, shown = probes.sending(probed)
    driven += [f"buckets: {_FILLED[buckets]}"] if buckets else []
    known = expected(ddp, str(described["torch"]), files)
    why = {one.capability: str(one) for one in known}
    probed, shown = (
        tuple(replace(one, expected=why.get(one.capability, "")) for one in some)
        for some in (probed, shown)
    )
    return Discovery(
        described,
        {},
        (*probed, *shown),
        (),
        tuple(driven),
        buckets,
        tuple((one.rule, str(one)) for one in known if one.rule),
        pool.backend,
    )


def _small_enough(case: TrainingCase, max_world_size: int) -> TrainingCase:
    """A case on at most so many ranks.

    Raises:
        CaseError: What it contains takes more.
    """
    smaller = replace(case, world_size=min(case.world_size, max_world_size))
    if smaller.ranks_needed > max_world_size:
        raise CaseError(f"it takes {smaller.ranks_needed} ranks")
    return smaller


def _refusal(evidence: TrainingEvidence) -> str:
    """What was raised on every rank; empty where that is not how it ended."""
    raised = [rank.raised for rank in evidence.ranks]
    if evidence.incident is not None or any(one is None for one in raised):
        return ""
    first = raised[0]
    assert first is not None
    return f"{first['type']} in {first['phase']}: {first['message'].splitlines()[0] if first['message'] else ''}"


def _require_wrapper(ddp: Ddp, base: TrainingEvidence) -> None:
    """Refuse what is no wrapper before any property runs.

    Raises:
        LoadFailure: It cannot wrap the simplest model, for a reason that is no verdict.
    """
    refusal = _refusal(base)
    told = base.ranks[0].raised
    if not refusal or told is None or told["phase"] != "wrap" or base.ranks[0].structure_after:
        return
    text = told["message"].lower()
    if any(word in text for word in ("cuda", "nvidia", "nccl")):
        raise LoadFailure(
            f"--ddp {ddp}: wrapping the simplest model raised {refusal}; it needs CUDA, not offered here"
        )
    if told["type"] in ("TypeError", "AttributeError"):
        raise LoadFailure(
            f"--ddp {ddp}: wrapping the simplest model raised {refusal}; it is no wrapper, or needs arguments "
            "(--ddp-arg NAME=VALUE), a --setup call or an adapter"
        )


class _Probes:
    """Small cases run one by one on the implementation on trial, until several have hung."""

    def __init__(self, pool: Pool, ddp: Ddp, scope: Scope) -> None:
        self.pool, self.ddp, self.scope = pool, ddp, scope
        self.hung = 0

    def run(
        self, case: TrainingCase, scope: Scope | None = None, *, hangs: bool = False
    ) -> TrainingEvidence:
        """The evidence of a probe, fitted to what is declared; of one that often hangs after less patience."""
        scope = scope or self.scope
        evidence = self.pool.train(
            scope.fit(_small_enough(case, scope.max_world_size)),
            self.ddp,
            patience=HUNG_PATIENCE if self.hung or hangs else None,
        )
        self.hung += evidence.incident is not None
        return evidence

    def all(self, lacking: frozenset[str], base: TrainingEvidence) -> list[Probed]:
        """Every training capability's probe; none where the simplest case already fails: its verdict says why."""
        broken = (
            base.incident is not None or bool(_refusal(base)) or _breach(base, self.scope) != ""
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
            if (
                name == "buffers" and probed[-1].standing is not Standing.RIGHT
            ):  # What is said of them is said once.
                self.scope = replace(self.scope, without=self.scope.without | {name})
        return [
            *probed,
            self._no_sync(base, next(one for one in probed if one.capability == "accumulation")),
        ]

    def sending(self, probed: tuple[Probed, ...]) -> tuple[Buckets, tuple[Probed, ...]]:
        """How buckets are filled, whether that and overlap are seen in what is sent under two capacities; and equal buffers."""
        found: Buckets = ""
        overlaps, declared = False, self.scope.declared
        if (
            any(one.capability == "bucket_cap" and one.standing is Standing.RIGHT for one in probed)
            and declared.gradients != "hidden"
        ):
            small, large = (
                self.run(replace(BASE, bucket_cap=cap, steps=3)) for cap in (_BETWEEN, 1 << 20)
            )
            counts = reductions_per_step(small)[1:], reductions_per_step(large)[1:]
            found = next(
                (how for how, expected in _SHOWS.items() if counts == ([expected] * 2, [1, 1])), ""
            )
            overlaps = overlapping(small)
            # Some keep what belongs to a layer together, which shows only where layers have two
            # parameters.
            biased = replace(
                BASE,
                model=Model(4, (Layer("linear", 4, bias=True),) * 4),
                bucket_cap=_BETWEEN - 30,
                steps=3,
            )
            scope = replace(
                self.scope,
                declared=replace(declared, buckets=found),
                without=self.scope.without - {"bucketing"},
            )
            found = "" if not found or _breach(self.run(biased), scope, ("COMM-4",)) else found
        unknown = (
            Standing.UNKNOWN
            if any(one.standing is Standing.UNKNOWN for one in probed)
            else Standing.ABSENT
        )
        standings = [
            ("bucketing", found and found == (declared.buckets or found)),
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
        return found, (*shown, self._equal_buffers(probed))

    def _equal_buffers(self, probed: tuple[Probed, ...]) -> Probed:
        """Whether the ranks' buffers, which each batch moves, are equal again when the next forward starts.

        It is no duty: who claims it and does not is wrong, who does not claim it leaves each rank
            its own.
        """
        name, declared = "equal_buffers", self.scope.declared
        buffers, excused = (
            next(one for one in probed if one.capability == "buffers"),
            name in declared.unsupported,
        )
        if buffers.standing is not Standing.RIGHT:
            return Probed(
                name,
                Standing.UNKNOWN if buffers.standing is Standing.UNKNOWN else Standing.ABSENT,
                declared=excused,
            )
        found = judge(self.run(replace(TRAINING["buffers"].probe, steps=3)), declared)["BUF-1"]
        if MOVED in found.met and found.failure is None:
            return Probed(name, Standing.RIGHT, declared=excused)
        if found.failure is not None and name in declared.supports:
            return Probed(name, Standing.WRONG, f"BUF-1: {found.failure.fact}", excused)
        return Probed(name, Standing.ABSENT, declared=excused)

    def _no_sync(self, base: TrainingEvidence, accumulation: Probed) -> Probed:
        """Whether backwards can go without communication: it is what accumulation was probed with, where it is there."""
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
            return Probed(name, Standing.ABSENT, "outside what it declares", declared)
        evidence = self.run(case, scope, hangs=name in ("unused", "crossed"))
        failure, refusal = _breach(evidence, scope), _refusal(evidence)
        # What is refused on every rank, if only at a later step, is not silently wrong; what
        # wrapping made wrong was so before.
        if failure and (not refusal or failure.startswith("INIT")):
            return Probed(name, Standing.WRONG, failure, declared)
        return Probed(name, Standing.REFUSED if refusal else Standing.RIGHT, refusal, declared)


_BETWEEN = 100
"""Bytes: more than one tensor of the simplest case, less than two."""
_SHOWS: dict[Buckets, int] = {"within": 4, "reach": 2}
"""How many buckets the simplest case's four tensors make under that capacity."""
_FILLED: dict[Buckets, str] = {
    "within": "closed before they would exceed their capacity",
    "reach": "closed once they reach it",
}


def _breach(
    evidence: TrainingEvidence | ShardEvidence, scope: Scope, rules: Iterable[str] = SHIPPED
) -> str:
    """The first of some rules that a probe breaches, in words."""
    findings = judge(evidence, scope.declared, scope.sampler)
    return next(
        (
            f"{rule}: {finding.failure.fact}"
            for rule, finding in findings.items()
            if finding.failure is not None and rule in rules and not scope.excluded(rule)
        ),
        "",
    )


QUESTIONS = {
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
    """Every sampler capability's probe, which takes no DDP.

    Args:
        pool: As above.
        sampler: As above.
        described: What `Pool.describe` says of it.
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
        if (
            name in lacking or name not in QUESTIONS
        ):  # A rank that is given is asked in every question.
            probed.append(
                Probed(
                    name, Standing.ABSENT if name in lacking else Standing.RIGHT, declared=excused
                )
            )
            continue
        if any(
            one.words.startswith("LIVE-1") for one in probed
        ):  # A hang takes its whole deadline: one is enough.
            probed.append(Probed(name, Standing.UNKNOWN, declared=excused))
            continue
        evidence = pool.shards(QUESTIONS[name], sampler)
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
        # What depends on the length: all else shows whatever it is.
        failure = _breach(evidence, scope, _JUDGED.get(name, ("SHARD-1", "SHARD-2", "SHARD-3")))
        probed.append(Probed(name, Standing.WRONG if failure else Standing.RIGHT, failure, excused))
    return tuple(probed)


def to_plain(discovery: Discovery) -> dict[str, Any]:
    """As JSON-ready data, for the workers of a session."""

    def rows(probed: tuple[Probed, ...]) -> list[list[Any]]:
        return [
            [one.capability, one.standing.value, one.words, one.declared, one.expected]
            for one in probed
        ]

    return {
        "ddp": discovery.ddp,
        "sampler": discovery.sampler,
        "probed": rows(discovery.probed),
        "dealt": rows(discovery.dealt),
        "driven": list(discovery.driven),
        "buckets": discovery.buckets,
        "deviating": discovery.deviating,
        "way": [discovery.backend.backend, discovery.backend.device],
    }


def from_plain(plain: Mapping[str, Any]) -> Discovery:
    """From what `to_plain` gave."""

    def probed(rows: list[list[Any]]) -> tuple[Probed, ...]:
        return tuple(Probed(name, Standing(finding), *rest) for name, finding, *rest in rows)

    return Discovery(
        plain["ddp"],
        plain["sampler"],
        probed(plain["probed"]),
        probed(plain["dealt"]),
        tuple(plain["driven"]),
        plain["buckets"],
        tuple((rule, why) for rule, why in plain["deviating"]),
        Backend(*plain["way"]),
    )
