"""The sides of a comparison: the implementation under test under two interpreters.

Both run each case at the same time. A training case is simulated where both sides can be, and some
run over the real backend from the start, as in a session.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Discovery
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.places import Places
from ddp_invariants.upgrades.baseline import Answer
from ddp_invariants.upgrades.comparison import Offer, before_any_case, warnings_of
from ddp_invariants.upgrades.pace import Cost, cost

VARIES = "another in each process"
"""The text of a fact that names its process or the time, for example."""


class Pair(NamedTuple):
    """Two sides' answers to one case.

    Attributes:
        old: The old side's answer.
        new: The new side's answer.
        simulated: True if both were simulated.
    """

    old: Answer
    new: Answer
    simulated: bool

    @property
    def hung(self) -> bool:
        """True if the ranks of a side hung."""
        return any(
            answer.incident is not None and answer.incident.kind == "hung"
            for answer in (self.old, self.new)
        )

    def costs(self) -> list[tuple[Cost, Cost]]:
        """Return the cost on both sides; nothing if a side was not measured to its end."""
        old, new = cost(self.old), cost(self.new)
        return [] if old is None or new is None else [(old, new)]


class Sides:
    """Two sides, with the implementation under test on both.

    Args:
        old: Ranks under one interpreter.
        new: Ranks under the other.
        ddp: The DDP.
        sampler: The sampler.
        max_world_size: Largest W.

    Attributes:
        scope: The limits of the cases that both sides can run.
        at_once: The differences that show before any case is run.
        warned: By side, the warnings that it gave, each with the first case.
        ran: The number of drawn cases, by the place where they ran first.
    """

    def __init__(
        self, old: Pool, new: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int
    ) -> None:
        self._pools, self._ddp, self._sampler = (old, new), ddp, sampler
        # One pool that stands for both sides answers one question at a time.
        self._threads = ThreadPoolExecutor(1 if old is new else 2)
        first, second = self._threads.map(
            lambda pool: discovered_side(pool, ddp, sampler, max_world_size), self._pools
        )
        scopes = [discovery.scope(max_world_size) for discovery, _ in (first, second)]
        why_not = scopes[0].not_simulated or scopes[1].not_simulated
        self.scope = Scope(
            max_world_size,
            scopes[0].without | scopes[1].without,
            scopes[0].declared,
            scopes[0].sampler,
            not_simulated=why_not,
        )
        self.at_once = before_any_case(first[1], second[1])
        self.warned: tuple[dict[str, Case], dict[str, Case]] = {}, {}
        self.ran = Counter[str]()
        self._places = Places(old.backend, why_not)
        self._turn = 0

    def answers(
        self, case: Case, *, fresh: bool = False, real: bool = False, counted: bool = False
    ) -> Pair:
        """Run a case on both sides.

        Args:
            case: The case.
            fresh: Run it in new processes.
            real: Run it over the real backend, even if it can be simulated.
            counted: Count it among the drawn cases.
        """
        pair = None
        if not (fresh or real) and self._places.simulates(case):
            pair = self._simulated(case)
        if pair is None:
            run = partial(answer_of, ddp=self._ddp, sampler=self._sampler, fresh=fresh)
            # The sides take turns to run first, so that neither always finds the machine warm.
            self._turn ^= 1
            order = (self._turn, 1 - self._turn)
            asked = {side: self._threads.submit(run, self._pools[side], case) for side in order}
            pair = Pair(asked[0].result(), asked[1].result(), simulated=False)
            self._places.ran_really(case)
        self.ran["simulated" if pair.simulated else "real"] += counted
        for side, answer in enumerate((pair.old, pair.new)):
            for title in warnings_of(answer):
                self.warned[side].setdefault(title, case)
        return pair

    def _simulated(self, case: Case) -> Pair | None:
        """Run a case in the simulation; None, now and from then on, if a side cannot be simulated."""
        assert isinstance(case, TrainingCase)
        asked = [self._threads.submit(pool.simulate, case, self._ddp) for pool in self._pools]
        old, new = (each.result() for each in asked)
        if old is None or new is None:
            reasons = (pool.not_simulated.get(self._ddp, "") for pool in self._pools)
            self._places.why_not = next(filter(None, reasons), "a simulation gave no answer")
            return None
        return Pair(old, new, simulated=True)


def discovered_side(
    pool: Pool, ddp: Ddp, sampler: Sampler, max_world_size: int
) -> tuple[Discovery, Offer]:
    """Return the probed implementation and its offer, and give the pool new ranks.

    A warning that is given once per process must not be lost in a probe.
    """
    discovery = discover(pool, ddp, sampler, max_world_size)
    surfaces, calls = [], []
    for _ in range(2):
        pool.anew()
        surfaces.append(pool.surface(ddp, sampler))
        calls.append([pool.describe(each) for each in (ddp, sampler)])
    pool.anew()
    of_ddp, of_sampler = (_agreed(*described) for described in zip(*calls, strict=True))
    of_surface = _steady(*surfaces)
    probes = (*discovery.ddp_probes, *discovery.sampler_probes)
    offer = Offer(
        of_ddp,
        of_sampler,
        {probe.capability: (probe.standing.value, probe.words[:300]) for probe in probes},
        of_surface,
    )
    return discovery, offer


def _agreed(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a call, without defaults that differ between two processes."""
    return {**first, "defaults": _steady(first["defaults"], second["defaults"])}


def _steady(first: dict[str, str], second: dict[str, str]) -> dict[str, str]:
    """Return what two processes told, with a note where they differ."""
    return {name: text if text == second.get(name) else VARIES for name, text in first.items()}


def answer_of(pool: Pool, case: Case, ddp: Ddp, sampler: Sampler, *, fresh: bool = False) -> Answer:
    """Run a case on one side, and return its evidence."""
    return (
        pool.train(case, ddp, fresh=fresh)
        if isinstance(case, TrainingCase)
        else pool.shards(case, sampler, fresh=fresh)
    )
