"""Failures of probes that no declaration and no expected deviation explains.

The property of the rule that failed judges the probe's case, too, and reports a violation. If that
property does not run, or the failure does not repeat, the implementation is still not right: a
session that has seen such a failure certifies nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ddp_invariants.cases.case import Case
from ddp_invariants.discovery import sending
from ddp_invariants.discovery.probe_case import probe_case, small_enough
from ddp_invariants.discovery.result import Discovery, Probed, Standing
from ddp_invariants.discovery.sampler_probe import SAMPLER_CASES
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants.crashes import CRASHES
from ddp_invariants.invariants.live import ENDS
from ddp_invariants.records.verdict import Failure

_PROBED_BY = {"no_sync": "accumulation", "equal_buffers": "buffers"}
"""The training capabilities that another capability's probe shows."""


class Unsettled(NamedTuple):
    """A failure of a probe.

    Attributes:
        capability: The capability.
        failure: The failure.
        case: The case of the probe.
    """

    capability: str
    failure: Failure
    case: Case


def unsettled(discovery: Discovery, max_world_size: int) -> Iterator[Unsettled]:
    """Yield the failures of probes that nothing explains.

    Args:
        discovery: The results of the probes.
        max_world_size: The most ranks of a case.
    """
    scope = discovery.scope(max_world_size)
    probes = (*discovery.ddp_probes, *discovery.sampler_probes)
    for probed in probes:
        if probed.standing in (Standing.WRONG, Standing.CRASHED) and not probed.excused:
            # Others are left out because this one failed: its own probe contains them, and may have
            # failed by them.
            left_out = {each.capability for each in probes if each.lacks == probed.capability}
            within = replace(scope, without=scope.without - left_out)
            yield Unsettled(probed.capability, _failure(probed), case_of(probed, within))


def suspects(
    discovery: Discovery, max_world_size: int, without: frozenset[str] = frozenset()
) -> tuple[tuple[str, Case], ...]:
    """Return the cases of these failures, each with the rule that failed.

    Args:
        discovery: The results of the probes.
        max_world_size: The most ranks of a case.
        without: Capabilities whose failures do not count.
    """
    return tuple(
        (each.failure.rule, each.case)
        for each in unsettled(discovery, max_world_size)
        if each.capability not in without
    )


def _failure(probed: Probed) -> Failure:
    where = f"the probe of the capability {probed.capability!r}"
    if probed.standing is Standing.WRONG:
        rule, _, fact = probed.words.partition(": ")
        return Failure(rule, fact, where, "")
    asked = probed.capability in SAMPLER_CASES and SAMPLER_CASES[probed.capability].situations
    return Failure("SHARD-4" if asked else ENDS, CRASHES, where, probed.words)


def case_of(probed: Probed, scope: Scope) -> Case:
    """Return the case that showed the failure."""
    if probed.bucket_cap:
        return scope.fit(small_enough(sending.probe(probed.bucket_cap), scope.max_world_size))
    capability = probed.capability
    if capability in SAMPLER_CASES:
        return scope.fit_shards(SAMPLER_CASES[capability])
    name = _PROBED_BY.get(capability, capability)
    case, _ = probe_case(name, scope)
    return replace(case, steps=3) if capability == "equal_buffers" else case
