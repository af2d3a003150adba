"""The gate of an upgrade: the same cases under two interpreters.

Each sort of difference is shrunk to its smallest case.
"""

import hashlib
import json
import subprocess
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Discovery
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import HarnessError
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.search import Asked, independent
from ddp_invariants.search.strategies import cases_for, unlike
from ddp_invariants.upgrades.accepted import Accepted
from ddp_invariants.upgrades.baseline import Answer, Environment
from ddp_invariants.upgrades.comparison import (
    Offer,
    before_any_case,
    compared,
    warnings_of,
)
from ddp_invariants.upgrades.difference import Difference
from ddp_invariants.upgrades.pace import Cost, Ratio, cost, ratios

SHRINK_RUNS = 150
"""Largest number of cases run on both sides to shrink the case of a new sort of difference."""
REPEATS = 3
"""Number of repeated runs of a smallest case on both sides."""
NEEDED = """
import json, platform, sys
import numpy, torch
cpu = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo") \
if line.startswith("model name")]
lines = torch.__config__.show().splitlines()
blas = [line.strip(" -") for line in lines if "Math Kernel" in line or "CPU cap" in line]
print(json.dumps({"torch": torch.__version__, "numpy": numpy.__version__, \
"version": platform.python_version(),
                  "cpu": (cpu or [platform.machine()])[0], "blas": "; ".join(blas)[:400]}))
"""
"""Asks an interpreter for everything that numbers depend on. Every rank has one thread."""


def side(python: str) -> Environment:
    """Return the environment of an interpreter.

    Raises:
        HarnessError: The path is no interpreter, or the interpreter lacks torch or numpy, or is too
            old.
    """
    try:
        # `-I` isolates the interpreter; otherwise it would import modules from this folder.
        process = subprocess.run(
            [python, "-I", "-c", NEEDED], capture_output=True, text=True, timeout=120, check=False
        )
    except OSError as error:
        raise HarnessError(
            f"{python} cannot be run as a Python interpreter: {error.strerror}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{python} did not import torch within {error.timeout:.0f} s") from error
    try:
        environment = Environment(python, **json.loads(process.stdout))
    except (ValueError, TypeError) as error:
        last = process.stderr.strip().splitlines()[-1:] or ["it printed no error"]
        raise HarnessError(f"{python} cannot import torch and numpy: {last[0]}") from error
    if tuple(int(part) for part in environment.version.split(".")[:2]) < (3, 11):
        raise HarnessError(f"{python} is Python {environment.version}; ranks need 3.11 or newer")
    return environment


@dataclass(frozen=True)
class ShrunkDifference:
    """A sort of difference, and the smallest case that shows it.

    Attributes:
        difference: The difference in that case.
        case: The case; None if the difference shows before any case is run.
        seen: Number of the `REPEATS` repeated runs that showed the difference again.
        accepted: The reason for accepting it; empty if it is not accepted.
        script: The script that shows it, or the reason why there is none; empty if none was
            requested.
    """

    difference: Difference
    case: Case | None
    seen: int = REPEATS
    accepted: str = ""
    script: str = ""

    @property
    def counts(self) -> bool:
        """True if the difference closes the gate.

        Rounding is reported and never judged; a difference that does not repeat is not judged
        either.
        """
        return self.difference.kind != "rounding" and not self.accepted and self.seen == REPEATS

    @property
    def state(self) -> str:
        """The note beside the difference; empty if it is a plain change."""
        if self.accepted:
            return f"accepted: {self.accepted}"
        return "" if self.seen == REPEATS else f"seen again in {self.seen} of {REPEATS} runs"


@dataclass(frozen=True)
class Gated:
    """The result of a comparison.

    Attributes:
        differences: Every sort of difference.
        cases: Number of cases run on both sides.
        stale: Accepted changes that do not show.
        pace: Speed and memory ratios of both sides; empty if one side is a baseline file.
    """

    differences: tuple[ShrunkDifference, ...]
    cases: int
    stale: tuple[Accepted, ...] = ()
    pace: tuple[Ratio, ...] = ()

    @property
    def status(self) -> int:
        """The exit status: 0 same, 1 changed beyond the accepted changes, 2 inconclusive.

        Inconclusive means that a difference was seen once and not in every repeated run.
        """
        if any(entry.counts for entry in self.differences):
            return 1
        return 2 if any(entry.seen < REPEATS for entry in self.differences) else 0


class Gate:
    """Two sides, with the implementation under test on both.

    Args:
        old: Ranks under one interpreter.
        new: Ranks under the other.
        ddp: The DDP.
        sampler: The sampler.
        max_world_size: Largest W.
    """

    def __init__(
        self, old: Pool, new: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int
    ) -> None:
        self.pools, self.ddp, self.sampler = (old, new), ddp, sampler
        sides = [discovered_side(pool, ddp, sampler, max_world_size) for pool in self.pools]
        scopes = [side.scope(max_world_size) for side in sides]
        self.scope = Scope(
            max_world_size,
            scopes[0].without | scopes[1].without,
            scopes[0].declared,
            scopes[0].sampler,
        )
        self.at_once = before_any_case(*(offer_of(side) for side in sides))
        self._turn = 0
        self._warned: tuple[dict[str, Case], dict[str, Case]] = {}, {}

    def answers(self, case: Case, *, fresh: bool = False) -> tuple[Answer, Answer]:
        """Run a case on both sides.

        The sides take turns to run first, so that neither always finds the machine warm.
        """
        self._turn ^= 1
        by_side = {
            side: answer_of(self.pools[side], case, self.ddp, self.sampler, fresh=fresh)
            for side in (self._turn, 1 - self._turn)
        }
        for side, answer in by_side.items():
            for title in warnings_of(answer):
                self._warned[side].setdefault(title, case)
        return by_side[0], by_side[1]

    def differences(self, case: Case, *, fresh: bool = False) -> list[Difference]:
        """Run a case on both sides, in new processes if requested, and compare."""
        return compared(*self.answers(case, fresh=fresh), self.scope.declared, self.scope.sampler)

    def run(self, count: int, number: int, allowed: Sequence[Accepted] = ()) -> Gated:
        """Search for every sort of difference.

        Args:
            count: Number of cases to draw in all.
            number: The seed.
            allowed: The accepted changes.

        Raises:
            HarnessError: The harness failed.
        """
        why = {change.change: change.reason for change in allowed}
        entries = [
            ShrunkDifference(difference, None, accepted=why.get(difference.name, ""))
            for difference in self.at_once
        ]
        drawn, rounds, costs = 0, 0, list[tuple[Cost, Cost]]()
        while drawn < count:
            known, seen = {entry.difference.name for entry in entries}, 0
            for case in drawn_cases(self.scope, count - drawn, f"{number}/{rounds}"):
                seen += 1
                answers = self.answers(case)
                spent = [cost(answer) for answer in answers]
                costs += (
                    [(spent[0], spent[1])] if spent[0] is not None and spent[1] is not None else []
                )
                another = self._another(
                    case, compared(*answers, self.scope.declared, self.scope.sampler), known
                )
                if another:
                    entries += [self._shrunk(case, difference, why) for difference in another]
                    break
            drawn, rounds = drawn + max(seen, 1), rounds + 1
        entries += self._only_warned({entry.difference.name for entry in entries}, why)
        return replace(gated(entries, min(drawn, count), allowed), pace=tuple(ratios(costs)))

    def _another(
        self, case: Case, differences: Sequence[Difference], known: Container[str]
    ) -> list[Difference]:
        """Return the differences of new sorts.

        A difference that may move to another case must also show in new processes.
        """
        fresh = {
            difference.name: difference
            for difference in differences[::-1]
            if difference.name not in known
        }
        if any(difference.moves for difference in fresh.values()):
            alone = {
                difference.name: difference for difference in self.differences(case, fresh=True)
            }
            fresh = {
                name: alone.get(name, difference)
                for name, difference in fresh.items()
                if not difference.moves or name in alone
            }
        return list(fresh.values())

    def _only_warned(self, known: Container[str], why: dict[str, str]) -> list[ShrunkDifference]:
        """Return the warnings that only one side gave, if no drawn case has reported them."""
        entries: list[ShrunkDifference] = []
        for warned, opposite in (self._warned, self._warned[::-1]):
            for title, case in warned.items():
                if title not in opposite:
                    again = self._another(case, self.differences(case, fresh=True), known)
                    entries += [
                        self._shrunk(case, difference, why)
                        for difference in again
                        if difference.subject == title
                    ]
        return entries

    def _shrunk(self, case: Case, difference: Difference, why: dict[str, str]) -> ShrunkDifference:
        """Return a sort of difference with the smallest case that still shows it."""
        runs, smaller, name = 0, True, difference.name
        while smaller and runs < SHRINK_RUNS:
            smaller = False
            for candidate in simpler(case):
                runs += 1
                if any(
                    shown.name == name
                    for shown in self.differences(candidate, fresh=difference.moves)
                ):
                    case, smaller = candidate, True
                    break
                if runs >= SHRINK_RUNS:
                    break
        again = [
            next(
                (
                    shown
                    for shown in self.differences(case, fresh=difference.moves)
                    if shown.name == name
                ),
                None,
            )
            for _ in range(REPEATS)
        ]
        repeated = [shown for shown in again if shown is not None]
        return ShrunkDifference(
            repeated[0] if repeated else difference, case, len(repeated), why.get(name, "")
        )


def discovered_side(pool: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int) -> Discovery:
    """Return the probed implementation, and give the pool new ranks.

    A warning that is given once per process must not be lost in a probe.
    """
    discovery = discover(pool, ddp, sampler, max_world_size)
    pool.anew()
    return discovery


def offer_of(discovery: Discovery) -> Offer:
    """Return the facts known of a side before any case is run."""
    return Offer(
        dict(discovery.ddp),
        dict(discovery.sampler),
        {
            probe.capability: (probe.standing.value, probe.words[:300])
            for probe in (*discovery.ddp_probes, *discovery.sampler_probes)
        },
    )


def drawn_cases(scope: Scope, count: int, name: str) -> list[Case]:
    """Return cases of all rules' properties in turn; the name determines them.

    Every third case is a sampler's: sampler rules are few, and their cases cheap.
    """
    rules = [
        rule
        for rule in ALL_RULES.values()
        if not (scope.excluded(rule.id) or rule.draws.costly or rule.level == "observed")
    ]
    about = {
        of_sampler: unlike(rule.id for rule in rules if rule.is_about_samplers == of_sampler)
        for of_sampler in (True, False)
    }
    examples = (
        st.sampled_from((True, False, False))
        .flatmap(lambda of_sampler: st.sampled_from(about[of_sampler]))
        .flatmap(lambda rule: cases_for(rule, scope).map(lambda case: Asked(rule, case)))
    )
    drawn: list[Case] = []
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()

    @seed(int.from_bytes(digest, "big"))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(independent(examples))
    def property_(example: Asked) -> None:
        drawn.append(example.case)

    property_()
    return drawn


def gated(entries: Sequence[ShrunkDifference], cases: int, allowed: Sequence[Accepted]) -> Gated:
    """Return the result of a comparison, with the accepted changes that did not show."""
    names = {entry.difference.name for entry in entries}
    return Gated(
        tuple(entries), cases, tuple(change for change in allowed if change.change not in names)
    )


def answer_of(pool: Pool, case: Case, ddp: Ddp, sampler: Sampler, *, fresh: bool = False) -> Answer:
    """Run a case on one side, and return its evidence."""
    return (
        pool.train(case, ddp, fresh=fresh)
        if isinstance(case, TrainingCase)
        else pool.shards(case, sampler, fresh=fresh)
    )
