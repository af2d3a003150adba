"""Persistent ranks: run a case on them, return their evidence, replace them when in doubt."""

import contextlib
import ipaddress
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.errors import EvidenceError, HarnessError, LoadFailure, WireError
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes import wire
from ddp_invariants.processes.backends import ON_THE_CPU, Backend, DeviceInfo
from ddp_invariants.processes.process import HostClient, Process
from ddp_invariants.processes.remote import RemoteHost, RemoteProcess, connected
from ddp_invariants.records.evidence import (
    Incident,
    Layout,
    RankEvidence,
    ShardEvidence,
    Slot,
    TrainingEvidence,
    rank_evidence,
    together,
)
from ddp_invariants.records.trace import agreed

DEADLINE = 10.0
"""Seconds a case may take. The slowest correct case of a default run takes under one."""
SLOWED = 4
"""Factor on that time for a case that keeps a device busy on purpose, since ranks may share one."""
LOADING = 120.0
"""Seconds that loading an implementation may take: some import many large packages."""
CONNECTING = 30.0
"""Seconds ranks may take to connect; over loopback they take some tens of milliseconds."""
GRACE = 2.0
"""Seconds the other ranks get after one has died or raised: gloo reports it within 40 ms."""
RENEWAL = 500
"""Cases after which ranks are replaced even if nothing is wrong with them."""
_KEEPER = -1
"""The rank number of a process that keeps the ranks' stores, if they are on several machines."""

Frame = tuple[dict[str, Any], bytes]


@dataclass
class _Meeting:
    """A connected group: its name in the ranks, and its store's anonymous file, if there is one."""

    name: str
    file: int | None = None


@dataclass
class Outcome:
    """The answers of the ranks, and the incident that explains missing answers."""

    frames: dict[int, Frame] = field(default_factory=dict)
    incident: Incident | None = None


class Pool:
    """The ranks of one pytest worker.

    Args:
        addresses: The hosts' addresses (`Hosts.addresses`, or those of a job,
            `cluster.Cluster.addresses`). Ranks are assigned to them in turn.
        deadline: Seconds a case may take before its ranks are declared hung.
        backend: The backend and the devices of the ranks.
    """

    def __init__(
        self, addresses: list[str], deadline: float = DEADLINE, backend: Backend = ON_THE_CPU
    ) -> None:
        self._hosts = [connected(address) for address in addresses]
        self._ranks: dict[int, Process | RemoteProcess] = {}
        self._meetings: dict[tuple[int, ...], _Meeting] = {}
        self._number, self._since_renewal = 0, 0
        self._scattering: set[Ddp | Sampler] = set()
        self.deadline, self.patience_for_loading, self.backend = deadline, LOADING, backend

    def close(self) -> None:
        """End all ranks."""
        self._retire()
        for host in self._hosts:
            host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Requests.

    def anew(self) -> None:
        """End all ranks, so that the next request goes to new processes without any history."""
        self._retire()

    def describe(self, implementation: Ddp | Sampler) -> dict[str, Any]:
        """Load an implementation in a rank and return its description.

        Returns:
            `driving.Description` as plain data, torch's version, and `made_of`: its files
            (`naming.Source`).

        Raises:
            LoadFailure: It cannot be tested.
        """
        return self._load(implementation, [0], made_of=True)

    def device_infos(self, ranks: int = 1) -> list[DeviceInfo]:
        """Return the device information of the first ranks.

        Raises:
            HarnessError: A rank gives no answer.
        """
        seen = self._asked(
            "say what they see", {rank: {"do": "look"} for rank in range(ranks)}, CONNECTING
        )
        names = [column.name for column in fields(DeviceInfo) if column.name != "node"]
        return [
            DeviceInfo(**{name: seen[rank][name] for name in names}, node=self._host(rank).node)
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
        outcome = self._ask(
            {rank: {**request, "device": self._device_of(rank)} for rank in ranks},
            self.patience_for_loading,
        )
        if outcome.incident is not None:
            self._retire()
            how = "; ".join(outcome.incident.ranks.values())
            raise LoadFailure(
                f"--{side} {implementation}: importing it ended or hung the process, which {how}"
            )
        for rank in ranks:
            self._ranks[rank].loaded.add(implementation)
            if outcome.frames[rank][0]["changed"]:
                self._ranks[rank].altered_by = implementation
        if outcome.frames[ranks[0]][0]["declares"].get("layout") == "scatter":
            self._scattering.add(implementation)
        return outcome.frames[ranks[0]][0]

    def _require_loaded(self, implementation: Ddp | Sampler, ranks: list[int]) -> None:
        if any(
            process.altered_by not in (None, implementation) for process in self._ranks.values()
        ):
            # Importing another implementation has changed the process, as some do: they patch
            # torch.
            self._retire()
        missing = [rank for rank in ranks if implementation not in self._process(rank).loaded]
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
        ranks, fresh = list(range(case.ranks_needed)), fresh or not observed
        if fresh:
            self._retire()
        self._require_loaded(ddp, ranks)
        everyone = self._meet(tuple(ranks))
        training = self._meet(tuple(ranks[case.outside :])) if case.outside else everyone
        request = {
            "do": "train",
            "case": case,
            "ddp": ddp.to_plain(),
            "everyone": everyone.name,
            "training": training.name,
            "number": self._number + 1,
            "plain": not observed,
        }
        nodes = [self._host(rank).node for rank in ranks]
        patience = patience or self.deadline * (SLOWED if case.perturbation.on_device else 1)
        outcome = self._ask(
            {
                rank: {
                    **request,
                    "local": (nodes[:rank].count(nodes[rank]), nodes.count(nodes[rank])),
                }
                for rank in ranks
            },
            patience,
            mortal=case.kills,
        )
        evidence = self._evidence(case, outcome)
        if fresh or not _quiescent(ranks, outcome, kept=2 if case.outside else 1):
            self._retire()
        else:
            self._renew()
        return evidence

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
        if fresh:
            self._retire()
        self._require_loaded(sampler, [0, 1])
        if sampler in self._scattering:
            return self._scattered(case, sampler, patience or self.deadline, fresh=fresh)
        request = {"do": "shards", "case": case, "sampler": sampler.to_plain()}
        outcome = self._ask(
            {0: {**request, "disturb": 1}, 1: {**request, "disturb": 1001}},
            patience or self.deadline,
        )
        if (
            fresh
            or outcome.incident is not None
            or any(header.get("changed") for header, _ in outcome.frames.values())
        ):
            self._retire()
        else:
            self._renew()
        answers = tuple(outcome.frames[rank][0] for rank in sorted(outcome.frames))
        return ShardEvidence(case, answers, outcome.incident)

    def _scattered(
        self, case: ShardCase, sampler: Sampler, patience: float, *, fresh: bool
    ) -> ShardEvidence:
        """Ask twice for shards that the ranks of a group make together.

        The second time each rank is another process.
        """
        answers, incident, quiet = [], None, True
        for turn in (0, 1):
            ranks = list(range(turn, turn + case.world_size))
            self._require_loaded(sampler, ranks)
            request = {
                "do": "hold",
                "case": case,
                "sampler": sampler.to_plain(),
                "group": self._meet(tuple(ranks)).name,
                "number": self._number + 1,
                "disturb": 1 + 1000 * turn,
            }
            outcome = self._ask(dict.fromkeys(ranks, request), patience)
            incident, quiet = outcome.incident, quiet and _quiescent(ranks, outcome, kept=1)
            if incident is not None:
                break
            answers.append(together([outcome.frames[rank][0] for rank in ranks]))
        if fresh or not quiet:
            self._retire()
        else:
            self._renew()
        return ShardEvidence(case, tuple(answers), incident)

    # Communication with ranks.

    def _ask(
        self, requests: dict[int, dict[str, Any]], patience: float, *, mortal: bool = False
    ) -> Outcome:
        """Send every rank its request, and collect the answers until `patience` (seconds) ends.

        A mortal rank is killed when it raises, as a program ends that does not catch the exception.
        Another rank may be waiting for this rank, rather than for the rank that ended first.

        Raises:
            HarnessError: A process cannot be started, or a silent process cannot be examined.
        """
        try:
            return self._exchange(requests, patience, mortal=mortal)
        except HarnessError:  # Some ranks have not answered, and must never be asked again.
            self._retire()
            raise

    def _exchange(
        self, requests: dict[int, dict[str, Any]], patience: float, *, mortal: bool
    ) -> Outcome:
        self._number += 1
        outcome = Outcome()
        waiting: dict[socket.socket, int] = {}
        incoming: dict[socket.socket, wire.Incoming] = {}
        for rank, request in requests.items():
            process = self._process(rank)
            process.forget_output()
            waiting[process.control] = rank
            incoming[process.control] = wire.Incoming()
            # It has died since; reading from it below reports that.
            with contextlib.suppress(OSError):
                wire.send(process.control, {**request, "to": self._number})
        # Counted from here: the start of processes is not under test.
        started = time.monotonic()
        until, dead, raised = started + patience, set[int](), False
        while waiting and (left := until - time.monotonic()) > 0:
            for control in self._ready(waiting, left):
                try:
                    frame = incoming[control].take(control)
                except (OSError, WireError):
                    dead.add(waiting.pop(control))
                    continue
                if frame is None:
                    continue
                rank = waiting.pop(control)
                if frame[0].get("to") != self._number:
                    dead.add(rank)
                    continue
                outcome.frames[rank] = frame
                failed = bool(frame[0].get("facts", {}).get("raised"))
                raised |= failed
                if mortal and failed:
                    self._ranks[rank].signal(signal.SIGKILL)
            if dead or raised:
                until = min(until, time.monotonic() + GRACE)
        self._reject_failures(outcome)
        if waiting or dead:
            outcome.incident = self._incident(
                set(waiting.values()), dead, time.monotonic() - started
            )
        return outcome

    def _ready(self, waiting: dict[socket.socket, int], seconds: float) -> list[socket.socket]:
        """Return the sockets with an incoming message, after at most some seconds.

        Meanwhile read the ranks' printed output.
        """
        printing = {
            self._ranks[rank].output: rank
            for rank in waiting.values()
            if not self._ranks[rank].ended
        }
        sources: list[Any] = [*waiting, *printing]
        ready, _, _ = select.select(sources, [], [], seconds)
        for descriptor in printing.keys() & set(ready):
            self._ranks[printing[descriptor]].drain()
        return [source for source in ready if source in waiting]

    def _reject_failures(self, outcome: Outcome) -> None:
        for header, _ in outcome.frames.values():
            if "unusable" in header:
                self._retire()
                raise LoadFailure(header["unusable"])
            if "failed" in header:
                failure = header["failed"]
                self._retire()
                raise HarnessError(
                    f"a rank's serve loop raised {failure['type']}: "
                    f"{failure['message']}\n{failure['traceback']}"
                )

    def _incident(self, hung: set[int], dead: set[int], seconds: float) -> Incident:
        """Describe ranks that gave no answer: their stacks, or how they ended."""
        for rank in hung:
            self._ranks[rank].signal(signal.SIGUSR1)
        if hung:
            time.sleep(0.1)  # faulthandler writes the stacks from a signal handler, in under 50 ms.
        statuses = {rank: self._ranks[rank].status(1.0) for rank in dead}
        ended = {
            rank: "closed its connection or sent what is no evidence"
            if status is None
            else _how(status)
            for rank, status in statuses.items()
        }
        stacks = {
            rank: self._ranks[rank].printed() + self._ranks[rank].native_waits()
            for rank in hung | dead
        }
        waiting = dict.fromkeys(hung, f"gave no answer within {seconds:.1f} s")
        last_calls = {rank: self._ranks[rank].last_calls(self._number) for rank in hung | dead}
        return Incident(
            "died" if dead else "hung",
            {**waiting, **ended},
            stacks,
            seconds,
            {rank: calls for rank, calls in last_calls.items() if calls is not None},
            statuses,
        )

    def _evidence(self, case: TrainingCase, outcome: Outcome) -> TrainingEvidence:
        ranks, incident = [], outcome.incident
        layouts: dict[tuple[Slot, ...], Layout] = {}
        for rank in range(case.outside, case.ranks_needed):
            evidence = RankEvidence({})
            if rank in outcome.frames:
                try:
                    evidence = rank_evidence(*outcome.frames[rank], layouts)
                except EvidenceError as error:
                    incident = outcome.incident = Incident(
                        "died", {rank: str(error)}, {rank: self._ranks[rank].printed()}, 0.0
                    )
            ranks.append(evidence)
        return TrainingEvidence(case, tuple(ranks), incident)

    # Processes and connections.

    def _host(self, rank: int) -> HostClient | RemoteHost:
        """Return the host of a rank."""
        return self._hosts[max(rank, 0) % len(self._hosts)]

    def _device_of(self, rank: int) -> tuple[str, int]:
        """Return the backend, and the rank's number on its machine; they decide its device."""
        node = self._host(rank).node
        return self.backend.backend, sum(
            self._host(lower_rank).node == node for lower_rank in range(rank)
        )

    def _process(self, rank: int) -> Process | RemoteProcess:
        """Return the process of a rank, started if there is none."""
        if rank not in self._ranks:
            self._ranks[rank] = self._host(rank).start(max(rank, 0))
        return self._ranks[rank]

    def _meet(self, ranks: tuple[int, ...]) -> _Meeting:
        """Return connected groups among these ranks: the existing ones, or new ones."""
        if ranks in self._meetings:
            return self._meetings[ranks]
        store, file = self._store(ranks)
        meeting = self._meetings[ranks] = _Meeting(f"{ranks[0]}-{ranks[-1]}", file)
        self._asked(
            "connect to one another",
            {
                rank: {
                    "do": "connect",
                    "name": meeting.name,
                    "store": store,
                    "rank": number,
                    "world_size": len(ranks),
                    "device": self._device_of(rank),
                }
                for number, rank in enumerate(ranks)
            },
            CONNECTING,
        )
        return meeting

    def _store(self, ranks: tuple[int, ...]) -> tuple[str, int | None]:
        """Return the address of a new store for these ranks, and its file if it is one."""
        heres = [host.here() for host in map(self._host, ranks) if isinstance(host, RemoteHost)]
        if not heres:
            file = os.memfd_create("store")
            return f"/proc/{os.getpid()}/fd/{file}", file
        address = next(
            (here for here in heres if not ipaddress.ip_address(here).is_loopback), heres[0]
        )
        return self._asked(
            "keep a store", {_KEEPER: {"do": "keep", "address": address}}, CONNECTING
        )[_KEEPER]["store"], None

    def introduce(self, request: dict[str, Any]) -> list[str | None]:
        """Send this process's message through the job's store, and return all ranks' messages.

        See `stores.introduced`.

        Raises:
            HarnessError: The launcher's store cannot be reached.
        """
        answer = self._asked(
            "reach the job's store",
            {0: {"do": "introduce", **request}},
            2 * request["patience"] + GRACE,
        )[0]
        if "unreachable" in answer:
            raise HarnessError(
                f"the job's store at {request['host']}:{request['port']} is not to be reached: "
                f"{answer['unreachable']}"
            )
        messages: list[str | None] = answer["said"]
        return messages

    def _asked(
        self, task: str, requests: dict[int, dict[str, Any]], patience: float
    ) -> dict[int, dict[str, Any]]:
        """Return the answers of all processes to requests outside any case.

        Raises:
            HarnessError: A process gave no answer.
        """
        outcome = self._ask(requests, patience)
        if outcome.incident is not None:
            self._retire()
            raise HarnessError(
                f"ranks could not {task}: {outcome.incident.ranks} {outcome.incident.stacks}"
            )
        return {rank: header for rank, (header, _) in outcome.frames.items()}

    def _retire(self) -> None:
        """End all ranks.

        All, because a store's file may be closed only when no process has it open. Otherwise the
        FileStore of a living rank would write its farewell into the next file with the same
        descriptor.
        """
        for process in self._ranks.values():
            process.retire()
        for meeting in self._meetings.values():
            if meeting.file is not None:
                os.close(meeting.file)
        self._ranks.clear()
        self._meetings.clear()

    def _renew(self) -> None:
        self._since_renewal += 1
        if self._since_renewal >= RENEWAL:
            self._retire()
            self._since_renewal = 0


def _quiescent(ranks: list[int], outcome: Outcome, kept: int) -> bool:
    """Return whether the connections of the first `kept` groups may be used again.

    See [Note: quiescence] in group.py.
    """
    if outcome.incident is not None:
        return False
    headers = [outcome.frames[rank][0] for rank in ranks]
    trained = [header for header in headers if header["records"]]
    return all(
        header["quiescent"] and not header["changed"] and not header["facts"].get("raised")
        for header in headers
    ) and all(_agreed(header, kept) == _agreed(trained[0], kept) for header in trained)


def _agreed(header: dict[str, Any], groups: int) -> list[list[list[Any]]]:
    """Return a rank's collectives in its first groups: the fields that all ranks must share."""
    return [[list(agreed(*row[:4])) for row in calls] for calls in header["sent"][:groups]]


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
