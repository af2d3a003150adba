"""The gate of an upgrade: the same cases under two interpreters, each sort of difference shrunk to its smallest case."""

import datetime as dt
import hashlib
import json
import subprocess
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ddp_invariants import __version__
from ddp_invariants.cases.case import Case, TrainingCase, describe
from ddp_invariants.cases.fields import STRICT
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.deviations import current, tables
from ddp_invariants.discovery.probe import Discovery, discover
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import BaselineError, HarnessError
from ddp_invariants.implementation.spec import Ddp, Sampler, options
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.search import Asked, independent
from ddp_invariants.search.strategies import cases_for, unlike
from ddp_invariants.upgrades.baseline import FORM, Answer, Environment, Head
from ddp_invariants.upgrades.comparison import (
    Difference,
    Offer,
    before_any_case,
    compared,
    warnings_of,
)
from ddp_invariants.upgrades.pace import Cost, Ratio, cost, ratios

SHRINK_RUNS = 150
"""Cases run on both sides, after a new sort of difference was seen, to make its case smaller."""
_COSTLY = ("LIVE-3", "LIVE-4", "COMM-6")
"""Rules whose cases end processes or repeat themselves, or that observe and never judge."""
REPEATS = 3
"""How often a smallest case is run again on both sides."""
NEEDED = """
import json, platform, sys
import numpy, torch
cpu = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
told = torch.__config__.show().splitlines()
blas = [line.strip(" -") for line in told if "Math Kernel" in line or "CPU cap" in line]
print(json.dumps({"torch": torch.__version__, "numpy": numpy.__version__, "version": platform.python_version(),
                  "cpu": (cpu or [platform.machine()])[0], "blas": "; ".join(blas)[:400]}))
"""
"""Asks an interpreter what numbers depend on. Every rank has one thread."""


def side(python: str) -> Environment:
    """What an interpreter has.

    Raises:
        HarnessError: It is none, or lacks torch or numpy, or is too old.
    """
    try:
        # From its own folder, or what lies here would be imported.
        told = subprocess.run(
            [python, "-I", "-c", NEEDED], capture_output=True, text=True, timeout=120, check=False
        )
    except OSError as error:
        raise HarnessError(
            f"{python} is no interpreter that can be run: {error.strerror}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{python} did not import torch within {error.timeout:.0f} s") from error
    try:
        found = Environment(python, **json.loads(told.stdout))
    except (ValueError, TypeError) as error:
        last = told.stderr.strip().splitlines()[-1:] or ["it said nothing of use"]
        raise HarnessError(f"{python} cannot import torch and numpy: {last[0]}") from error
    if tuple(int(part) for part in found.version.split(".")[:2]) < (3, 11):
        raise HarnessError(f"{python} is Python {found.version}; ranks need 3.11 or newer")
    return found


@dataclass(frozen=True)
class Accepted:
    """A change that a team has read and goes along with.

    Attributes:
        change: Its name, as a report gives it: `discrete: collectives`.
        reason: Why.
        link: Where it is told in public; may be empty.
        expires: The day from which on it is to be read again.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    change: str
    reason: str
    expires: dt.date
    link: str = ""

    @property
    def title(self) -> str:
        """What a message calls it."""
        return f"the accepted change {self.change!r}"


def accepted(path: Path, today: dt.date) -> tuple[Accepted, ...]:
    """The accepted changes in a file of `[[accepted]]` tables.

    Raises:
        DeviationError: It cannot be read, or one of them has expired.
    """
    found = tables(path, "accepted", Accepted)
    current(found, path, today)
    return found


@dataclass(frozen=True)
class Found:
    """A sort of difference, and the smallest case that shows it.

    Attributes:
        difference: In that case.
        case: None where it shows before any case is run.
        seen: In how many of `REPEATS` runs of the case it was seen again.
        accepted: Why it is accepted; empty where it is not.
        script: The script that shows it, or why there is none; empty where none was asked for.
    """

    difference: Difference
    case: Case | None
    seen: int = REPEATS
    accepted: str = ""
    script: str = ""

    @property
    def counts(self) -> bool:
        """Whether it closes the gate: rounding is told and never judged, and neither is what does not repeat."""
        return self.difference.kind != "rounding" and not self.accepted and self.seen == REPEATS

    @property
    def state(self) -> str:
        """What is to be said beside it; empty where it simply changed."""
        if self.accepted:
            return f"accepted: {self.accepted}"
        return "" if self.seen == REPEATS else f"seen again in {self.seen} of {REPEATS} runs"


@dataclass(frozen=True)
class Gated:
    """What a comparison came to.

    Attributes:
        found: Every sort of difference.
        cases: Run on both sides.
        stale: Changes that are accepted and do not show.
        pace: What they took on both sides; nothing of a side that is not at hand.
    """

    found: tuple[Found, ...]
    cases: int
    stale: tuple[Accepted, ...] = ()
    pace: tuple[Ratio, ...] = ()

    @property
    def status(self) -> int:
        """0 same, 1 changed beyond what is accepted, 2 inconclusive: something differed once and not again."""
        if any(one.counts for one in self.found):
            return 1
        return 2 if any(one.seen < REPEATS for one in self.found) else 0


class Gate:
    """Two sides, and what is on trial under both.

    Args:
        old: Ranks under the one interpreter.
        new: Ranks under the other.
        ddp: The DDP.
        sampler: The sampler.
        max_world_size: Largest W.
    """

    def __init__(
        self, old: Pool, new: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int
    ) -> None:
        self.pools, self.ddp, self.sampler = (old, new), ddp, sampler
        sides = [_discovered(pool, ddp, sampler, max_world_size) for pool in self.pools]
        scopes = [one.scope(max_world_size) for one in sides]
        self.scope = Scope(
            max_world_size,
            scopes[0].without | scopes[1].without,
            scopes[0].declared,
            scopes[0].sampler,
        )
        self.at_once = before_any_case(*(_offered(one) for one in sides))
        self._turn = 0
        self._warned: tuple[dict[str, Case], dict[str, Case]] = {}, {}

    def answers(self, case: Case, *, fresh: bool = False) -> tuple[Answer, Answer]:
        """Run a case on both sides, the one first and the other in turn, so that neither always finds the machine warm."""
        self._turn ^= 1
        found = {
            side: _answered(self.pools[side], case, self.ddp, self.sampler, fresh=fresh)
            for side in (self._turn, 1 - self._turn)
        }
        for side, answer in found.items():
            for what in warnings_of(answer):
                self._warned[side].setdefault(what, case)
        return found[0], found[1]

    def differences(self, case: Case, *, fresh: bool = False) -> list[Difference]:
        """Run a case on both sides, in new processes if so wanted, and compare."""
        return compared(*self.answers(case, fresh=fresh), self.scope.declared, self.scope.sampler)

    def run(self, count: int, number: int, allowed: Sequence[Accepted] = ()) -> Gated:
        """Search for every sort of difference.

        Args:
            count: Cases to draw in all.
            number: The seed.
            allowed: Changes that are accepted.

        Raises:
            HarnessError: The harness failed.
        """
        why = {one.change: one.reason for one in allowed}
        found = [Found(one, None, accepted=why.get(one.name, "")) for one in self.at_once]
        drawn, rounds, costs = 0, 0, list[tuple[Cost, Cost]]()
        while drawn < count:
            known, seen = {one.difference.name for one in found}, 0
            for case in _drawn(self.scope, count - drawn, f"{number}/{rounds}"):
                seen += 1
                answers = self.answers(case)
                spent = [cost(one) for one in answers]
                costs += (
                    [(spent[0], spent[1])] if spent[0] is not None and spent[1] is not None else []
                )
                another = self._another(
                    case, compared(*answers, self.scope.declared, self.scope.sampler), known
                )
                if another:
                    found += [self._shrunk(case, one, why) for one in another]
                    break
            drawn, rounds = drawn + max(seen, 1), rounds + 1
        found += self._only_warned({one.difference.name for one in found}, why)
        return replace(_gated(found, min(drawn, count), allowed), pace=tuple(ratios(costs)))

    def _another(
        self, case: Case, found: Sequence[Difference], known: Container[str]
    ) -> list[Difference]:
        """The differences of sorts that are not known yet; of those that move only what new processes show, too."""
        fresh = {one.name: one for one in found[::-1] if one.name not in known}
        if any(one.moves for one in fresh.values()):
            alone = {one.name: one for one in self.differences(case, fresh=True)}
            fresh = {
                name: alone.get(name, one)
                for name, one in fresh.items()
                if not one.moves or name in alone
            }
        return list(fresh.values())

    def _only_warned(self, known: Container[str], why: dict[str, str]) -> list[Found]:
        """What one side warned of in some case, and the other in none, where no case that was drawn has told it."""
        found: list[Found] = []
        for ours, theirs in (self._warned, self._warned[::-1]):
            for what, case in ours.items():
                if what not in theirs:
                    again = self._another(case, self.differences(case, fresh=True), known)
                    found += [self._shrunk(case, one, why) for one in again if one.what == what]
        return found

    def _shrunk(self, case: Case, difference: Difference, why: dict[str, str]) -> Found:
        """A sort of difference that a case showed, with the smallest case made of it that shows it still."""
        runs, smaller, name = 0, True, difference.name
        while smaller and runs < SHRINK_RUNS:
            smaller = False
            for one in simpler(case):
                runs += 1
                if any(
                    found.name == name for found in self.differences(one, fresh=difference.moves)
                ):
                    case, smaller = one, True
                    break
                if runs >= SHRINK_RUNS:
                    break
        again = [
            next(
                (one for one in self.differences(case, fresh=difference.moves) if one.name == name),
                None,
            )
            for _ in range(REPEATS)
        ]
        repeated = [one for one in again if one is not None]
        return Found(
            repeated[0] if repeated else difference, case, len(repeated), why.get(name, "")
        )


def _discovered(pool: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int) -> Discovery:
    """What is on trial, probed, with new ranks after it: a warning given once a process is not to be lost in a probe."""
    found = discover(pool, ddp, sampler, max_world_size)
    pool.anew()
    return found


def _offered(found: Discovery) -> Offer:
    """What a side offers, as it was found out."""
    return Offer(
        dict(found.ddp),
        dict(found.sampler),
        {
            one.capability: (one.standing.value, one.words[:300])
            for one in (*found.probed, *found.dealt)
        },
    )


def _drawn(scope: Scope, count: int, name: str) -> list[Case]:
    """Cases of all rules' properties in turn, fixed by a name: every third of a sampler's, which are few rules and cheap."""
    rules = [rule for rule in ALL_RULES if not scope.excluded(rule) and rule not in _COSTLY]
    about = {
        of_sampler: unlike(rule for rule in rules if rule.startswith("SHARD") == of_sampler)
        for of_sampler in (True, False)
    }
    asked = (
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
    @given(independent(asked))
    def property_(one: Asked) -> None:
        drawn.append(one.case)

    property_()
    return drawn


def _gated(found: Sequence[Found], cases: int, allowed: Sequence[Accepted]) -> Gated:
    names = {one.difference.name for one in found}
    return Gated(tuple(found), cases, tuple(one for one in allowed if one.change not in names))


# A side that is not at hand.


def record(
    pool: Pool,
    ddp: Ddp,
    sampler: Sampler,
    here: Environment,
    *,
    cases: int,
    number: int,
    max_world_size: int,
) -> tuple[Head, Iterator[Answer]]:
    """What a side answers to a corpus of cases: the head of a baseline, and the answers as they come.

    Args:
        pool: Ranks under its interpreter.
        ddp: The DDP.
        sampler: The sampler.
        here: The interpreter.
        cases: How many.
        number: The seed.
        max_world_size: Largest W.
    """
    found = _discovered(pool, ddp, sampler, max_world_size)
    corpus = _drawn(found.scope(max_world_size), cases, str(number))
    head = Head(
        __version__, FORM, here, _offered(found), options(ddp, sampler), number, len(corpus)
    )
    return head, (_answered(pool, case, ddp, sampler) for case in corpus)


def _answered(pool: Pool, case: Case, ddp: Ddp, sampler: Sampler, *, fresh: bool = False) -> Answer:
    return (
        pool.train(case, ddp, fresh=fresh)
        if isinstance(case, TrainingCase)
        else pool.shards(case, sampler, fresh=fresh)
    )


def against(
    head: Head,
    answers: Sequence[Answer],
    pool: Pool,
    ddp: Ddp,
    sampler: Sampler,
    here: Environment,
    *,
    max_world_size: int,
    allowed: Sequence[Accepted] = (),
) -> Gated:
    """Compare a side with what another answered and is not at hand any more: nothing can be made smaller.

    Numbers are compared only where both were made by one model of processor.

    Args:
        head: Of the baseline.
        answers: Its cases, and what was answered.
        pool: Ranks under the interpreter that is at hand.
        ddp: The DDP.
        sampler: The sampler.
        here: The interpreter at hand.
        max_world_size: Largest W of a probe.
        allowed: Changes that are accepted.

    Raises:
        BaselineError: An answer in the baseline is none.
        HarnessError: The harness failed.
    """
    why = {one.change: one.reason for one in allowed}
    found = _discovered(pool, ddp, sampler, max_world_size)
    at_once = before_any_case(head.offer, _offered(found))
    comparable = head.environment.cpu == here.cpu
    declared, declared_sampler = found.scope(max_world_size).declared, found.declared_sampler

    warned: tuple[set[str], set[str]] = set(), set()

    def differences(answer: Answer, *, fresh: bool = False) -> list[Difference]:
        here_answered = _answered(pool, answer.case, ddp, sampler, fresh=fresh)
        try:
            for texts, one in zip(warned, (answer, here_answered), strict=True):
                texts.update(warnings_of(one))
            ours = compared(answer, here_answered, declared, declared_sampler)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise BaselineError(
                f"what the baseline holds of {describe(answer.case)} is no answer to it: "
                f"{type(error).__name__}: {error}"
            ) from error
        return [one for one in ours if comparable or one.kind not in ("rounding", "number")]

    smallest: dict[str, tuple[Answer, Difference]] = {}
    for answer in answers:
        for one in differences(answer):
            known = smallest.get(one.name)
            if known is None or len(describe(answer.case)) < len(describe(known[0].case)):
                smallest[one.name] = answer, one
    gated = [Found(one, None, accepted=why.get(one.name, "")) for one in at_once]
    for name, (answer, first) in smallest.items():
        # What both sides warned of somewhere may have moved from one case to another: that of old
        # cannot be asked again.
        if first.moves and first.what in warned[0] & warned[1]:
            continue
        again = [
            one
            for _ in range(REPEATS)
            for one in differences(answer, fresh=first.moves)[::-1]
            if one.name == name
        ]
        gated.append(
            Found(
                again[0] if again else first,
                answer.case,
                min(len(again), REPEATS),
                why.get(name, ""),
            )
        )
    return _gated(gated, len(answers), allowed)
