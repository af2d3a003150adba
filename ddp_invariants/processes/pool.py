"""Persistent ranks: run a case on them, return their evidence, replace them when in doubt."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn, Self

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.errors import EvidenceError, LoadFailure
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes import losses
from ddp_invariants.processes.answers import quiescent, training_evidence
from ddp_invariants.processes.backends import ON_THE_CPU, Backend, DeviceInfo
from ddp_invariants.processes.exchange import (
    CONNECTING,
    GRACE,
    MORTAL,
    SIMULATOR,
    UNHURRIED,
    RankProcesses,
)
from ddp_invariants.processes.pace import Pace
from ddp_invariants.records.dealings import Dealing, from_one_row
from ddp_invariants.records.decoding import simulated_evidence, together
from ddp_invariants.records.evidence import Incident, ShardEvidence, TrainingEvidence
from ddp_invariants.records.indices import unpacked

DEADLINE = 10.0
"""Seconds a case may take. The slowest correct case of a default run takes under one."""
SLOWED = 4
"""Factor on that time for a case that keeps a device busy on purpose, since ranks may share one."""
SIMULATED = 2
"""Factor on that time for a simulated case, which also ends by the time of its ranks."""
ITEMS = 200_000
"""Samples and ranks, counted once for each rank, that add that time once more to a sampler's case.

One process asks for all ranks, and each rank may list the samples, or the shards of all ranks.
"""
MANY = 3
"""Factor on that time for all small cases of a sampler at once."""
LOADING = 120.0
"""Seconds that loading an implementation may take: some import many large packages."""
SETTLING = 3.0
"""Seconds that a rank waits at most for threads that end a moment after a run, if it is fresh."""
RENEWAL = 500
"""Cases after which ranks are replaced even if nothing is wrong with them."""


class Pool:
    """The ranks of one pytest worker.

    Args:
        addresses: The hosts' addresses (`Hosts.addresses`, or those of a job,
            `job.Cluster.addresses`). Ranks are assigned to them in turn.
        deadline: Seconds a case may take before its ranks are declared hung.
        backend: The backend and the devices of the ranks.

    Attributes:
        processes: The ranks' processes.
        not_simulated: The implementations that cannot be simulated, with the reasons.
    """

    def __init__(
        self, addresses: list[str], deadline: float = DEADLINE, backend: Backend = ON_THE_CPU
    ) -> None:
        self.processes, self._since_renewal = RankProcesses(addresses, backend), 0
        self._simulated, self._losses = 0, losses.Losses()
        self._scattering: set[Ddp | Sampler] = set()
        self.not_simulated: dict[Ddp, str] = {}
        self._paces = defaultdict[Ddp | Sampler, Pace](Pace)
        self.deadline, self.patience_for_loading, self.backend = deadline, LOADING, backend

    def close(self) -> None:
        """End all ranks."""
        self.processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def limit(self, deadline: float) -> None:
        """Give every case this deadline, also the first one of an implementation.

        Planted faults neither import nor compile, and many of them hang.
        """
        self.deadline, self._paces = deadline, defaultdict(partial(Pace, first=False))

    def anew(self) -> None:
        """End all ranks, so that the next request goes to new processes without any history."""
        self.processes.retire()

    def describe(self, implementation: Ddp | Sampler) -> dict[str, Any]:
        """Load an implementation in a rank and return its description.

        Returns:
            `ranks.driving.ddp.Description` as plain data, torch's version, and `made_of`: its files
            (`ranks.driving.imports.Source`).

        Raises:
            LoadFailure: It cannot be tested.
        """
        return self._losses.run(
            implementation,
            lambda: self._load(implementation, [0], made_of=True),
            lost=lambda ended: _refuse(implementation, f"the process {ended}"),
            altered=lambda altered: _refuse(implementation, altered),
        )

    def surface(self, ddp: Ddp, sampler: Sampler) -> dict[str, str]:
        """Return the facts of two implementations that a program meets before it trains.

        A process that gives no answer is a fact, too.

        Raises:
            HarnessError: The harness failed.
        """
        request = {"do": "surface", "ddp": ddp.to_plain(), "sampler": sampler.to_plain()}
        answers = self.processes.ask({0: request}, self.patience_for_loading)
        if answers.incident is None:
            found: dict[str, str] = answers.header(0)["facts"]
            return found
        self.processes.retire()
        return {"all facts": "; ".join(answers.incident.ranks.values())}

    def device_infos(self, ranks: int = 1) -> list[DeviceInfo]:
        """Return the device information of the first ranks.

        Raises:
            HarnessError: A rank gives no answer.
        """
        reports = self.processes.require_answers(
            "report their devices", {rank: {"do": "look"} for rank in range(ranks)}, CONNECTING
        )
        names = [column.name for column in fields(DeviceInfo) if column.name != "node"]
        return [
            DeviceInfo(
                **{name: reports[rank][name] for name in names}, node=self.processes.host(rank).node
            )
            for rank in range(ranks)
        ]

    def _load(
        self, implementation: Ddp | Sampler, ranks: list[int], *, made_of: bool = False
    ) -> dict[str, Any]:
        """Make ranks import an implementation, and return the first rank's description of it.

        No case's deadline applies.
        """
        side = "ddp" if isinstance(implementation, Ddp) else "sampler"
        request = {"do": "describe", side: implementation.to_plain(), "made_of": made_of}
        answers = self.processes.ask(
            {rank: {**request, "device": self.processes.device_of(rank)} for rank in ranks},
            self.patience_for_loading,
        )
        if answers.incident is not None:
            self.processes.retire()
            _refuse(implementation, f"the process {'; '.join(answers.incident.ranks.values())}")
        for rank in ranks:
            self.processes.running[rank].loaded.add(implementation)
            if answers.header(rank)["changed"]:
                self.processes.running[rank].altered_by = implementation
        if answers.header(ranks[0])["declares"].get("layout") == "scatter":
            self._scattering.add(implementation)
        return answers.header(ranks[0])

    def _require_loaded(self, implementation: Ddp | Sampler, ranks: list[int]) -> None:
        if any(
            process.altered_by not in (None, implementation)
            for process in self.processes.running.values()
        ):
            # Importing another implementation has changed the process, as some do: they patch
            # torch.
            self.processes.retire()
        missing = [
            rank for rank in ranks if implementation not in self.processes.process(rank).loaded
        ]
        if missing:
            self._load(implementation, missing)

    def train(
        self,
        case: TrainingCase,
        ddp: Ddp,
        *,
        fresh: bool = False,
        observed: bool = True,
        patience: float | None = None,
    ) -> TrainingEvidence:
        """Run a training case.

        Args:
            case: The case.
            ddp: The implementation under test.
            fresh: Use new processes, made for this case and ended after it.
            observed: Observe the groups. They are plain gloo groups otherwise, which can serve
                one case only.
            patience: Seconds to wait, instead of the pool's deadline.

        Raises:
            HarnessError: The harness failed; nothing follows for the implementation.
            LoadFailure: The implementation does not load in a rank.
        """
        fresh = fresh or not observed
        patience = patience or self.deadline * (SLOWED if case.perturbation.on_device else 1)
        return self._losses.run(
            ddp,
            lambda: self._train(case, ddp, patience, fresh=fresh, observed=observed),
            lost=lambda ended: losses.training(case, ended=ended),
            altered=lambda altered: losses.training(case, raised=altered),
        )

    def _train(
        self, case: TrainingCase, ddp: Ddp, patience: float, *, fresh: bool, observed: bool
    ) -> TrainingEvidence:
        ranks, timeout = list(range(case.ranks_needed)), UNHURRIED
        if case.kills:
            timeout, patience = MORTAL, max(patience, GRACE + MORTAL)
        if fresh or case.kills:
            self.processes.retire()
        self._require_loaded(ddp, ranks)
        everyone = self.processes.meet(tuple(ranks), timeout)
        training = self.processes.meet(case.members, timeout) if case.outside else everyone
        request = {
            "do": "train",
            "case": case,
            "ddp": ddp.to_plain(),
            "everyone": everyone.name,
            "training": training.name,
            "number": self.processes.requests + 1,
            "plain": not observed,
            "settling": min(SETTLING, patience / 4) / (1 if fresh else 10),
        }
        nodes = [self.processes.host(rank).node for rank in ranks]
        answers = self.processes.ask(
            {
                rank: {
                    **request,
                    "local": (nodes[:rank].count(nodes[rank]), nodes.count(nodes[rank])),
                }
                for rank in ranks
            },
            self._paces[ddp].patience(patience),
            mortal=case.kills,
        )
        self._paces[ddp].learn(answers.spent, ended=answers.incident is None)
        evidence = training_evidence(
            case, answers, lambda rank: self.processes.running[rank].printed()
        )
        if fresh or not quiescent(ranks, answers, kept=2 if case.outside else 1):
            self.processes.retire()
        else:
            self._renew()
        return evidence

    def simulate(self, case: TrainingCase, ddp: Ddp) -> TrainingEvidence | None:
        """Run a training case with all its ranks in one process, one rank at a time.

        Returns:
            The evidence; None if the case cannot be simulated, or no case of the implementation can
            (`not_simulated`).

        Raises:
            HarnessError: The harness failed; nothing follows for the implementation.
            LoadFailure: The implementation does not load in a rank.
        """

        def lost(ended: str) -> None:
            self.not_simulated[ddp] = f"the process of its simulation {ended}"

        return self._losses.run(
            ddp,
            lambda: self._simulate(case, ddp),
            lost=lost,
            altered=lambda altered: losses.training(case, raised=altered),
        )

    def _simulate(self, case: TrainingCase, ddp: Ddp) -> TrainingEvidence | None:
        self._require_loaded(ddp, [SIMULATOR])
        seconds = self._paces[ddp].patience(self.deadline).busy
        answers = self.processes.ask(
            {
                SIMULATOR: {
                    "do": "simulate",
                    "case": case,
                    "ddp": ddp.to_plain(),
                    "number": self.processes.requests + 1,
                    "seconds": seconds,
                }
            },
            SIMULATED * seconds + GRACE,
        )
        self._simulated += 1
        if answers.incident is not None:
            self.processes.end(SIMULATOR)
            self.not_simulated[ddp] = "the process of its simulation " + "; ".join(
                answers.incident.ranks.values()
            )
            return None
        answer = answers.by_rank[SIMULATOR]
        header = answer.header
        if (
            any(header.get(name) for name in ("refused", "stuck", "changed"))
            or self._simulated % RENEWAL == 0
        ):
            self.processes.end(SIMULATOR)
        if header.get("refused"):
            if header["for_good"]:
                self.not_simulated[ddp] = str(header["refused"])
            return None
        try:
            return simulated_evidence(case, header, answer.blob)
        except EvidenceError as error:
            self.processes.end(SIMULATOR)
            self.not_simulated[ddp] = f"its simulation gave evidence that cannot be read: {error}"
            return None

    def shards(
        self,
        case: ShardCase,
        sampler: Sampler,
        *,
        fresh: bool = False,
        patience: float | None = None,
    ) -> ShardEvidence:
        """Ask a sampler for all shards, in two processes with different hash seeds.

        A sampler that scatters is asked in twice as many processes as there are ranks.

        Args:
            case: The case.
            sampler: The sampler under test.
            fresh: Use new processes, ended afterwards.
            patience: Seconds to wait, instead of the pool's deadline.

        Raises:
            HarnessError: The harness failed; nothing follows for the sampler.
            LoadFailure: The sampler does not load in a rank.
        """
        times = 1 + case.world_size * (case.data.samples + case.world_size) // ITEMS
        patience = times * (patience or self.deadline)
        return self._losses.run(
            sampler,
            lambda: self._shards(case, sampler, patience, fresh=fresh),
            lost=lambda ended: losses.shards(case, ended=ended),
            altered=lambda altered: losses.shards(case, raised=altered),
        )

    def _shards(
        self, case: ShardCase, sampler: Sampler, patience: float, *, fresh: bool
    ) -> ShardEvidence:
        if fresh:
            self.processes.retire()
        self._require_loaded(sampler, [0, 1])
        if sampler in self._scattering:
            return self._scattered(case, sampler, patience, fresh=fresh)
        request = {"do": "shards", "case": case, "sampler": sampler.to_plain()}
        answers = self.processes.ask(
            {0: {**request, "disturb": 1}, 1: {**request, "disturb": 1001}},
            self._paces[sampler].patience(patience),
        )
        self._paces[sampler].learn(answers.spent, ended=answers.incident is None)
        if (
            fresh
            or answers.incident is not None
            or any(answer.changed for answer in answers.by_rank.values())
        ):
            self.processes.retire()
        else:
            self._renew()
        headers = [answers.header(rank) for rank in sorted(answers.by_rank)]
        try:
            return ShardEvidence(case, tuple(map(unpacked, headers)), answers.incident)
        except EvidenceError as error:
            return ShardEvidence(case, (), Incident("died", {0: str(error)}, {}, 0.0))

    def dealings(self, cases: Sequence[ShardCase], sampler: Sampler) -> list[Dealing | None]:
        """Ask a sampler for the shards of many small cases at once, in one process.

        Returns:
            By case; None for each that the sampler raised on. The list is empty if the process did
            not answer.
        """
        return self._losses.run(
            sampler, lambda: self._dealings(cases, sampler), lost=lambda _: [], altered=lambda _: []
        )

    def _dealings(self, cases: Sequence[ShardCase], sampler: Sampler) -> list[Dealing | None]:
        self._require_loaded(sampler, [0])
        request = {"do": "deal", "cases": cases, "sampler": sampler.to_plain()}
        answers = self.processes.ask({0: request}, MANY * self.deadline)
        self.processes.retire()  # Thousands of samplers may leave something behind.
        if answers.incident is not None:
            return []
        try:
            return from_one_row(cases, unpacked(answers.header(0)["row"]))
        except EvidenceError:
            return []

    def _scattered(
        self, case: ShardCase, sampler: Sampler, patience: float, *, fresh: bool
    ) -> ShardEvidence:
        """Ask twice for shards that the ranks of a group make together.

        The second time each rank is another process.
        """
        merged, incident, quiet = [], None, True
        for turn in (0, 1):
            ranks = list(range(turn, turn + case.world_size))
            self._require_loaded(sampler, ranks)
            request = {
                "do": "hold",
                "case": case,
                "sampler": sampler.to_plain(),
                "group": self.processes.meet(tuple(ranks)).name,
                "number": self.processes.requests + 1,
                "disturb": 1 + 1000 * turn,
            }
            answers = self.processes.ask(
                dict.fromkeys(ranks, request), self._paces[sampler].patience(patience)
            )
            self._paces[sampler].learn(answers.spent, ended=answers.incident is None)
            incident, quiet = answers.incident, quiet and quiescent(ranks, answers, kept=1)
            if incident is not None:
                break
            merged.append(together([answers.header(rank) for rank in ranks]))
        if fresh or not quiet:
            self.processes.retire()
        else:
            self._renew()
        return ShardEvidence(case, tuple(merged), incident)

    def _renew(self) -> None:
        self._since_renewal += 1
        if self._since_renewal >= RENEWAL:
            self.processes.retire()
            self._since_renewal = 0


def _refuse(implementation: Ddp | Sampler, why: str) -> NoReturn:
    """Raise the error that an implementation cannot be loaded."""
    side = "ddp" if isinstance(implementation, Ddp) else "sampler"
    raise LoadFailure(f"--{side} {implementation}: while it was imported, {why}")
