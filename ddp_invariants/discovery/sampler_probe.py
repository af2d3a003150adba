"""Probes of a sampler's capabilities: one small case for each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.required import SAMPLING
from ddp_invariants.discovery.result import Probed, Standing, first_failure, in_words
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import SamplerDeclarations, declare
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants.asked import differs_when_asked
from ddp_invariants.invariants.crashes import CRASHES
from ddp_invariants.invariants.diagnosis import shards
from ddp_invariants.invariants.live import ENDS
from ddp_invariants.invariants.rule import Tally, Unjudged
from ddp_invariants.invariants.sampler_view import ShardView
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.situations.asking import WAYS

SAMPLER_CASES = {
    "shuffle": ShardCase(world_size=2, epochs=(0, 1), data=Data(samples=8, shuffle=True)),
    "drop_last": ShardCase(world_size=2, data=Data(samples=8, drop_last=True)),
    "uneven": ShardCase(world_size=2, epochs=(0, 1), data=Data(samples=7)),
    "short": ShardCase(world_size=3, data=Data(samples=2)),
    "no_samples": ShardCase(world_size=2, data=Data(samples=0)),
    "resume": ShardCase(world_size=2, data=Data(samples=8), saved_after=2),
    # Three ranks take up after two rounds of theirs. Other places are judged once this one is right.
    "elastic": ShardCase(world_size=2, data=Data(samples=12), saved_after=3, resumed_by=3),
    "workers": ShardCase(world_size=2, data=Data(samples=9), workers=2),
    "large_seed": ShardCase(data=Data(samples=8, shuffle=True, seed=2**63 - 1), epochs=(0, 1)),
    "negative_seed": ShardCase(data=Data(samples=8, shuffle=True, seed=-1), epochs=(0, 1)),
    "large_epoch": ShardCase(data=Data(samples=8, shuffle=True), epochs=(0, 2**31)),
    **{
        way.capability: ShardCase(
            data=Data(samples=8, shuffle=True), epochs=(1,), situations=(way(),)
        )
        for way in WAYS
    },
}


_JUDGED = {"resume": ("SHARD-9",), "elastic": ("SHARD-9",), "workers": ("SHARD-10",)}


def of_sampler(
    pool: Pool, sampler: Sampler, described: Mapping[str, Any], max_world_size: int
) -> tuple[Probed, ...]:
    """Probe every sampler capability, without a DDP.

    Args:
        pool: Ranks to probe on.
        sampler: The sampler.
        described: The answer of `Pool.describe`.
        max_world_size: The largest number of ranks that a probe may need.
    """
    declared = declare(SamplerDeclarations, described["declares"])
    # A stream without end has no epoch of which a rest, or a worker's part, could be told.
    of_epochs = frozenset({"resume", "elastic", "workers"} if _is_endless(declared) else ())
    lacking = frozenset(described["lacks"]) | of_epochs
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
        if any(probe.words.startswith("LIVE-1: the process") for probe in probed):
            probed.append(Probed(name, Standing.UNKNOWN, declared=excused))
            continue
        evidence = pool.shards(_fitted(SAMPLER_CASES[name], declared), sampler)
        if evidence.incident is not None:
            probed.append(
                Probed(
                    name, Standing.WRONG, f"LIVE-1: the process {evidence.incident.kind}", excused
                )
            )
            continue
        ended = first_failure(evidence, scope, (ENDS,))
        if ended is not None:
            crashed = ended.fact == CRASHES
            standing = Standing.CRASHED if crashed else Standing.WRONG
            words = ended.got if crashed else in_words(ended)
            probed.append(Probed(name, standing, words, excused))
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
        if name == "workers" and "workers" not in declared.supports and _repeats(evidence):
            probed.append(Probed(name, Standing.ABSENT, declared=excused))
            continue
        if SAMPLER_CASES[name].situations:
            probed.append(replace(_asked(name, evidence, declared), declared=excused))
            continue
        # Only the rules that depend on the length: all others show for any length.
        failure = first_failure(
            evidence, scope, _JUDGED.get(name, ("SHARD-1", "SHARD-2", "SHARD-3"))
        )
        standing = Standing.WRONG if failure else Standing.RIGHT
        probed.append(Probed(name, standing, in_words(failure), excused))
    return tuple(probed)


def _fitted(case: ShardCase, declared: SamplerDeclarations) -> ShardCase:
    """Return a probe as the cases of a session are: a stream without end has no padding."""
    whole = replace(case, data=replace(case.data, drop_last=True))
    return whole if _is_endless(declared) else case


def _is_endless(declared: SamplerDeclarations) -> bool:
    return declared.padding == "endless"


def _repeats(evidence: ShardEvidence) -> bool:
    """Return whether each worker of a DataLoader yields all samples of its rank.

    No document says that every iterable divides them.
    """
    answer = evidence.answers[0]
    worked = answer.get("worked")  # It is missing if the sampler raised in this process alone.
    return worked is not None and shards.repeated(worked, answer["shards"][-1])


def _asked(name: str, evidence: ShardEvidence, declared: SamplerDeclarations) -> Probed:
    """Judge nothing but the other way to ask."""
    view = ShardView(evidence, declared)
    try:
        asked = view.answer["asked"]
        failure = differs_when_asked(view, Tally())
    except Unjudged as reason:
        return Probed(name, Standing.UNKNOWN, str(reason))
    if failure is not None and failure.fact == CRASHES:
        return Probed(name, Standing.CRASHED, failure.got)
    if failure is not None:
        return Probed(name, Standing.WRONG, f"{failure.rule}: {failure.fact}")
    if asked and all(asked[0]["raised"]):
        return Probed(name, Standing.REFUSED, asked[0]["raised"][0])
    absent = not asked or None in asked[0]["got"]
    return Probed(name, Standing.ABSENT if absent else Standing.RIGHT)
