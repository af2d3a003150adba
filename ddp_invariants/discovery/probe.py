"""Probes of an implementation's capabilities, before any property runs: one small case for each.

A capability refused on every rank is not drawn afterwards, and is listed. A wrong one is
drawn, and so becomes a violation. If the implementation declares it unsupported, it is printed as
that instead.

Most probes are simulated, if the implementation can be, and several capabilities share a case
(`joined`). If that case fails, each of them is probed alone. A probe that fails alone runs again on
real ranks, and they decide. The probes of the way in which gradients are sent run on real ranks
alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery import otherwise, sending
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.deviations import expected, remarks
from ddp_invariants.discovery.elsewhere import elsewhere
from ddp_invariants.discovery.inherited import inherited, relatives
from ddp_invariants.discovery.joined import groups, joined
from ddp_invariants.discovery.not_offered import lacking_as_declared, lacking_as_driven
from ddp_invariants.discovery.plain_case import failure_of
from ddp_invariants.discovery.probe_case import probe_case, small_enough
from ddp_invariants.discovery.promises import promised
from ddp_invariants.discovery.refusals import raised_everywhere, refusal_of, unnoted
from ddp_invariants.discovery.result import (
    Discovery,
    Probed,
    Side,
    Standing,
    first_failure,
    in_words,
)
from ddp_invariants.discovery.sampler_probe import of_sampler
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.discovery.simulation import why_not_simulated
from ddp_invariants.errors import CaseError, LoadFailure
from ddp_invariants.implementation.declarations import (
    Buckets,
    Declarations,
    declare,
)
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import SHIPPED, judge
from ddp_invariants.invariants.buf import MOVED
from ddp_invariants.invariants.crashes import crash_of
from ddp_invariants.invariants.sampler_view import sharding
from ddp_invariants.invariants.view import training
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.situations.capability import BASE

SIDES: tuple[Side, ...] = ("ddp", "sampler")
HANGS = 3
"""Number of hanging probes after which no other probe is run."""
HUNG_PATIENCE = 3.0
"""Seconds a probe gets once one has hung; a probe that does not hang takes some milliseconds."""
_BEFORE_A_REFUSAL = ("INIT", "CALL-1", "COMM-1")
"""Rules about what came before an exception: the wrapping, forwards that returned, and calls.

Calls that differ are often the cause of the exception, which gloo raises and NCCL does not.
"""


def sides_of(rules: Iterable[str]) -> list[Side]:
    """Return the sides of the implementation that some rules are about."""
    judged: dict[Side, Collection[str]] = {"ddp": training.rules, "sampler": sharding.rules}
    named = {*rules}
    return [side for side in SIDES if named.intersection(judged[side])]


def discover(
    pool: Pool,
    ddp: Ddp,
    sampler: Sampler,
    max_world_size: int,
    files: Sequence[Path] = (),
    *,
    sides: Collection[Side] = SIDES,
) -> Discovery:
    """Load a DDP and a sampler and probe them.

    Args:
        pool: Ranks to probe on.
        ddp: The DDP.
        sampler: The sampler.
        max_world_size: The largest number of ranks that a probe may need.
        files: Of expected deviations, beside the shipped file.
        sides: The sides to probe; the other one is loaded only.

    Raises:
        DeviationError: One of these files cannot be used.
        LoadFailure: One of the two cannot be tested at all: it does not load, or is no wrapper.
    """
    # Describe both before either is probed.
    described, dealing = pool.describe(ddp), pool.describe(sampler)
    discovered = (
        of_ddp(pool, ddp, described, max_world_size, files)
        if "ddp" in sides
        else Discovery(described, {}, backend=pool.backend)
    )
    probed = of_sampler(pool, sampler, dealing, max_world_size) if "sampler" in sides else ()
    return replace(discovered, sampler=dealing, sampler_probes=probed)


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
    lacking = lacking_as_declared(described, declared)
    # Sending is probed last; nothing before depends on it.
    without = lacking | frozenset(declared.unsupported) | {"bucketing", "overlap", "equal_buffers"}
    scope = Scope(max_world_size, without, declared, backend=pool.backend)
    probes = _Probes(pool, ddp, scope, promised(ddp, described))
    base = probes.run(BASE)
    _require_wrapper(ddp, base)
    how = base.ranks[0].driven
    lacking |= lacking_as_driven(how, declared)
    if "subgroup" in without | lacking:
        # One of the two worlds is a part of all processes.
        lacking |= {"resized", "smaller_before"}
    if "state" in without:
        lacking |= {"states_exchanged"}
    undrawn = lacking if how.get("accumulation") == "each" else lacking & {"no_sync_nested"}
    probes.scope = replace(scope, without=scope.without | undrawn)
    not_simulated = why_not_simulated(pool, ddp, probes.scope)
    probes.simulated = not not_simulated
    driven = [
        *described["driven"],
        *(f"{when}: {call}" for when, call in sorted(how.items())),
    ]
    plain_failure = failure_of(base, probes.scope)
    broken = plain_failure is not None and plain_failure.ends_all
    if plain_failure is not None:
        probes.rules -= {*plain_failure.left_out}
        if broken and not plain_failure.refused and base.incident is None:
            held = otherwise.holding(pool, ddp, probes.scope, base)
            plain_failure = plain_failure._replace(otherwise=held)
    probed = tuple(probes.all(lacking, base, broken=broken))
    buckets, shown = probes.sending(probed, how)
    driven += [f"buckets: {sending.FILLED[buckets]}"] if buckets else []
    torch = str(described["torch"])
    known = expected(ddp, torch, files)
    right = {item.capability for item in probed if item.standing is Standing.RIGHT}
    reasons, fixed = remarks(known, right)
    kin = relatives(pool, ddp, how)
    reasons |= inherited(pool, (ddp, kin), probes.scope, probed, torch, files)
    return Discovery(
        described,
        {},
        tuple(
            replace(
                item,
                expected=reasons.get(item.capability, ""),
                words=fixed.get(item.capability, item.words),
            )
            for item in (*probed, *shown)
        ),
        (),
        tuple(driven),
        buckets,
        tuple((item.rule, str(item)) for item in known if item.rule),
        pool.backend,
        not_simulated,
        plain_failure,
    )


def _require_wrapper(ddp: Ddp, base: TrainingEvidence) -> None:
    """Refuse an object that is no wrapper before any property runs.

    Raises:
        LoadFailure: It cannot wrap the simplest model, for a reason that is no verdict.
    """
    refusal = raised_everywhere(base)
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


_NEEDED = ("buffers", "unused", "unfreeze", "nested_inputs")
"""Capabilities that the cases of others need, too."""


class _Probes:
    """Small cases run one by one on the implementation under test, until several have hung.

    Attributes:
        hung: The number of cases that hung.
        simulated: True if cases may be simulated.
        failed: The capabilities that failed and that further probes leave out, with their standings.
        rules: The rules that judge the probes: all but those that fail in the plain case.
    """

    def __init__(self, pool: Pool, ddp: Ddp, scope: Scope, promises: frozenset[str]) -> None:
        self.pool, self.ddp, self.scope, self.promised = pool, ddp, scope, promises
        self.hung = 0
        self.simulated = False
        self.failed: dict[str, str] = {}
        self.rules = frozenset(SHIPPED)

    def run(
        self, case: TrainingCase, scope: Scope | None = None, *, hangs: bool = False
    ) -> TrainingEvidence:
        """Run a probe on real ranks, fitted to the declarations, and return its evidence.

        A probe that often hangs gets less patience.
        """
        scope = scope or self.scope
        evidence = self.pool.train(
            scope.fit(small_enough(case, scope.max_world_size)),
            self.ddp,
            patience=HUNG_PATIENCE if self.hung or hangs else None,
        )
        self.hung += evidence.incident is not None
        return evidence

    def _holds_simulated(self, case: TrainingCase, scope: Scope) -> bool:
        """Return True if a probe runs in the simulation to its end and every rule holds."""
        if not self.simulated:
            return False
        evidence = self.pool.simulate(scope.fit(small_enough(case, scope.max_world_size)), self.ddp)
        return (
            evidence is not None
            and evidence.incident is None
            and all(rank.raised is None for rank in evidence.ranks)
            and first_failure(evidence, scope, self.rules) is None
        )

    def all(self, lacking: frozenset[str], base: TrainingEvidence, *, broken: bool) -> list[Probed]:
        """Run every training capability's probe.

        No probe runs if the simplest case is broken: its verdict gives the reason.
        """
        declared = self.scope.declared
        probed = []
        together = self.simulated and not broken
        right = self._right_together(lacking) if together else frozenset[str]()
        for name in TRAINING:
            excused = name in declared.unsupported
            if name in lacking:
                probed.append(Probed(name, Standing.ABSENT))
            elif name in right:
                probed.append(Probed(name, Standing.RIGHT))
            elif broken or self.hung >= HANGS:
                probed.append(Probed(name, Standing.UNKNOWN, declared=excused))
            else:
                probed.append(self._probe(name, declared=excused))
            # Report a failure of what others need only once.
            if name in _NEEDED and probed[-1].standing is not Standing.RIGHT:
                if probed[-1].standing is not Standing.ABSENT:
                    self.failed[name] = probed[-1].standing.value
                self.scope = replace(self.scope, without=self.scope.without | {name})
        return [
            *probed,
            self._no_sync(
                base, next(probe for probe in probed if probe.capability == "accumulation")
            ),
        ]

    def _right_together(self, lacking: frozenset[str]) -> frozenset[str]:
        """Return capabilities that are right, as simulated cases with several of them show.

        Args:
            lacking: The capabilities that are not probed.
        """
        left_out = lacking | {*self.scope.declared.unsupported}
        right, waiting = set[str](), [*reversed(groups())]
        while waiting:
            names = tuple(name for name in waiting.pop() if name not in left_out)
            case = joined(names) if len(names) > 1 else None
            if case is None:
                continue
            if self._holds_simulated(case, self.scope):
                fitted = self.scope.fit(case)
                right |= {name for name in names if TRAINING[name].present(fitted)}
            else:
                half = len(names) // 2
                waiting += [names[half:], names[:half]]
        return frozenset(right)

    def sending(
        self, probed: tuple[Probed, ...], how: Mapping[str, str]
    ) -> tuple[Buckets, tuple[Probed, ...]]:
        """Probe the sending of gradients: bucket filling, overlap and equal buffers.

        The fill rule and overlap are read off the collectives under two bucket capacities.

        Returns:
            The fill rule, and the probes of the three capabilities.
        """
        declared = self.scope.declared
        capped = any(
            probe.capability == "bucket_cap" and probe.standing is Standing.RIGHT
            for probe in probed
        )
        promised = self.promised - {*declared.unsupported}
        if "after backward" in how:  # The program calls the reduction, which overlaps with nothing.
            promised -= {"overlap"}
        seen = (
            sending.of(self.run, self.scope, promised)
            if capped and declared.gradients != "hidden"
            else sending.UNSEEN
        )
        unknown = (
            Standing.UNKNOWN
            if any(probe.standing is Standing.UNKNOWN and not probe.never_met for probe in probed)
            else Standing.ABSENT
        )
        shown = tuple(
            Probed(
                name,
                Standing.WRONG
                if wrong
                else Standing.RIGHT
                if right
                else unknown
                if name in declared.supports
                else Standing.ABSENT,
                wrong,
                name in declared.unsupported,
                bucket_cap=cap,
            )
            for name, right, wrong, cap in (
                ("bucketing", seen.fills_as(declared.buckets), seen.ignores, seen.ignored),
                ("overlap", seen.overlaps, seen.waits, sending.BETWEEN if seen.waits else 0),
            )
        )
        return seen.rule, (*shown, self._equal_buffers(probed))

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
        claimed = name in {*declared.supports, *self.promised}
        if buffers.standing is not Standing.RIGHT:
            unknown = claimed and buffers.standing is Standing.UNKNOWN
            return Probed(name, Standing.UNKNOWN if unknown else Standing.ABSENT, declared=excused)
        finding = judge(self.run(replace(TRAINING["buffers"].probe, steps=3)), declared)["BUF-1"]
        if MOVED in finding.met and finding.failure is None:
            return Probed(name, Standing.RIGHT, declared=excused)
        if finding.failure is not None and claimed:
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
            case, scope = probe_case(name, self.scope)
        except CaseError:
            return Probed(
                name, Standing.UNKNOWN, "it needs more ranks than --max-world-size", declared
            )
        if not TRAINING[name].present(case):
            for other, standing in self.failed.items():
                if other != name and TRAINING[other].present(TRAINING[name].probe):
                    why = f"it needs {other}: {standing}"
                    return Probed(name, Standing.UNKNOWN, why, declared, lacks=other)
            return Probed(name, Standing.ABSENT, "its declarations exclude such a case", declared)
        if self._holds_simulated(case, scope):
            return Probed(name, Standing.RIGHT, declared=declared)
        evidence = self.run(case, scope, hangs=name in ("unused", "unreached", "crossed"))
        failure = in_words(first_failure(evidence, scope, self.rules))
        refusal = refusal_of(evidence)
        crashed = crash_of(evidence)
        if crashed is not None:
            return Probed(name, Standing.CRASHED, crashed.got, declared)
        if unseen := unnoted(evidence):
            return Probed(name, Standing.UNKNOWN, unseen, declared)
        # A refusal on every rank is not wrong, even at a later step.
        if failure and (not refusal or failure.startswith(_BEFORE_A_REFUSAL)):
            return Probed(name, Standing.WRONG, failure, declared)
        if not refusal:
            return Probed(name, Standing.RIGHT, declared=declared)
        wrong = self._wrong_elsewhere(name, case, scope)
        return replace(wrong or Probed(name, Standing.REFUSED, refusal), declared=declared)

    def _wrong_elsewhere(self, name: str, case: TrainingCase, scope: Scope) -> Probed | None:
        """Return what a refused capability shows in another position or size if that is wrong."""
        for variant in elsewhere(case, TRAINING[name]):
            if variant.ranks_needed > scope.max_world_size or self.hung >= HANGS:
                continue
            evidence = self.run(variant, scope)
            crashed = crash_of(evidence)
            failure = in_words(first_failure(evidence, scope, self.rules))
            if crashed is not None:
                return Probed(name, Standing.CRASHED, crashed.got)
            if failure and not refusal_of(evidence):
                return Probed(name, Standing.WRONG, failure)
        return None
