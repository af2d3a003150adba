"""The processes of a pool's ranks: their start, their connections, and the exchange of frames.

[Note: deaths] gloo reports a rank's death only to collectives that exchange messages with that rank.
A sum of two elements among three ranks may need none of its messages. If a program starts several
collectives, and first waits for such a one, then its ranks wait for one another: one does not look
at the error of another collective, and a second waits for the messages of the first. They fail when
gloo's timeout ends. So the timeout is short where a case kills a rank, and the ranks get that time.
"""

import contextlib
import ipaddress
import os
import select
import signal
import socket
import time
from dataclasses import dataclass
from io import FileIO
from typing import Any

from ddp_invariants.errors import AlteredHarness, HarnessError, LoadFailure, WireError
from ddp_invariants.processes import wire
from ddp_invariants.processes.answers import Answer, Answers, is_readable
from ddp_invariants.processes.backends import Backend
from ddp_invariants.processes.pace import Patience
from ddp_invariants.processes.process import HostClient, Process
from ddp_invariants.processes.remote import RemoteHost, RemoteProcess, connected
from ddp_invariants.processes.watch import Watch
from ddp_invariants.records.evidence import Incident

CONNECTING = 30.0
"""Seconds ranks may take to connect; over loopback they take some tens of milliseconds."""
UNHURRIED = 300.0
"""Seconds after which a collective fails. Far above every deadline: the harness prints a hang's stacks."""
MORTAL = 5.0
"""The same where the case kills a rank; see [Note: deaths]."""
GRACE = 2.0
"""Seconds the other ranks get after one has died or raised: gloo reports it within 40 ms."""
ENDING = 2.0
"""Seconds that the kernel gets to end a killed process; an idle machine takes milliseconds."""
_KEEPER = -1
"""The rank number of a process that keeps the ranks' stores, if they are on several machines."""

SIMULATOR = -2
"""The rank number of a process that runs all ranks of simulated cases."""


@dataclass
class _Meeting:
    """A connected group: its name in the ranks, and its store's anonymous file, if there is one."""

    name: str
    file: FileIO | None = None


class RankProcesses:
    """The processes of a pool's ranks.

    Args:
        addresses: The hosts' addresses. Ranks are assigned to them in turn.
        backend: The backend and the devices of the ranks.

    Attributes:
        running: The process of each rank that is running.
        requests: The number of requests so far.
    """

    def __init__(self, addresses: list[str], backend: Backend) -> None:
        self.hosts = [connected(address) for address in addresses]
        self.running: dict[int, Process | RemoteProcess] = {}
        self.requests, self.backend = 0, backend
        self._meetings: dict[tuple[int, ...], _Meeting] = {}

    def close(self) -> None:
        """End all ranks, and disconnect from the hosts."""
        self.retire()
        for host in self.hosts:
            host.close()

    # Requests and answers.

    def ask(
        self,
        requests: dict[int, dict[str, Any]],
        patience: Patience | float,
        *,
        mortal: bool = False,
    ) -> Answers:
        """Send every rank its request, and collect the answers until `patience` (seconds) ends.

        A mortal rank is killed when it raises, as a program ends that does not catch the exception.
        Another rank may be waiting for this rank, rather than for the rank that ended first. The
        other ranks get more time then; see [Note: deaths].

        Raises:
            HarnessError: A process cannot be started, or a silent process cannot be examined.
            HostLost: A host ended, and its ranks with it.
            AlteredHarness: The implementation replaced code of the harness.
        """
        try:
            whole = patience if isinstance(patience, Patience) else Patience.of(patience)
            return self._exchange(requests, whole, mortal=mortal)
        except HarnessError:  # Some ranks have not answered, and must never be asked again.
            self.retire()
            raise

    def _exchange(
        self, requests: dict[int, dict[str, Any]], patience: Patience, *, mortal: bool
    ) -> Answers:
        answers, waiting = Answers(), self._send(requests)
        incoming = {control: wire.Incoming() for control in waiting}
        # Counted from here: the start of processes is not under test.
        watch = Watch(
            {rank: self.running[rank] for rank in requests},
            self.requests,
            patience,
            looks=self.backend.device == "cpu",
        )
        dead, raised = set[int](), False
        while waiting:
            hung, silent = watch.ends(waiting.values()), len(waiting)
            for control in self._ready(waiting, 0.0 if hung else watch.pause):
                try:
                    frame = incoming[control].take(control)
                except (OSError, WireError):
                    dead.add(waiting.pop(control))
                    continue
                if frame is None:
                    continue
                rank = waiting.pop(control)
                if frame[0].get("to") != self.requests or not is_readable(frame[0]):
                    dead.add(rank)
                    continue
                answer = answers.by_rank[rank] = Answer(*frame)
                raised |= answer.raised
                if mortal and answer.raised:
                    self.running[rank].signal(signal.SIGKILL)
            if dead or raised:
                watch.hasten(GRACE + MORTAL if mortal else GRACE)
            # An answer may have come while this process, too, queued for a processor.
            if hung and len(waiting) == silent:
                break
        answers.spent = watch.spent
        self._reject_altered(answers)
        if waiting or dead:
            answers.drop_lost()
            answers.incident = self._incident(set(waiting.values()), dead, watch)
        self._reject_failures(answers)
        return answers

    def _send(self, requests: dict[int, dict[str, Any]]) -> dict[socket.socket, int]:
        """Send every rank its request, and return the ranks by the sockets that they answer on."""
        self.requests += 1
        waiting: dict[socket.socket, int] = {}
        for rank, request in requests.items():
            process = self.process(rank)
            process.forget_output()
            waiting[process.control] = rank
            # It has died since; reading from it reports that.
            with contextlib.suppress(OSError):
                wire.send(process.control, {**request, "to": self.requests})
        return waiting

    def _ready(self, waiting: dict[socket.socket, int], seconds: float) -> list[socket.socket]:
        """Return the sockets with an incoming message, after at most some seconds.

        Meanwhile read the ranks' printed output.
        """
        printing = {
            process.output: rank
            for rank in waiting.values()
            if not (process := self.running[rank]).ended and process.output is not None
        }
        sources: list[Any] = [*waiting, *printing]
        ready, _, _ = select.select(sources, [], [], seconds)
        for descriptor in printing.keys() & set(ready):
            self.running[printing[descriptor]].drain()
        return [source for source in ready if source in waiting]

    def _reject_altered(self, answers: Answers) -> None:
        # Before all else, because an altered harness may fail in any way.
        if answers.altered():
            self.retire()
            raise AlteredHarness(answers.altered())

    def _reject_failures(self, answers: Answers) -> None:
        for header in (answer.header for answer in answers.by_rank.values()):
            if "unusable" in header:
                self.retire()
                # The implementation is not to blame if the system has run out of something.
                raise (HarnessError if header.get("exhausted") else LoadFailure)(header["unusable"])
            if "failed" in header:
                failure = header["failed"]
                self.retire()
                raise HarnessError(
                    f"a rank's serve loop raised {failure['type']}: "
                    f"{failure['message']}\n{failure['traceback']}"
                )

    def _incident(self, hung: set[int], dead: set[int], watch: Watch) -> Incident:
        """Describe ranks that gave no answer: their stacks, or how they ended."""
        seconds, seen = watch.elapsed, watch.seen(hung)
        for rank in hung:
            self.running[rank].signal(signal.SIGUSR1)
        if hung:
            time.sleep(0.1)  # faulthandler writes the stacks from a signal handler, in under 50 ms.
        stacks = {
            rank: self.running[rank].printed() + self.running[rank].native_waits()
            for rank in hung | dead
        }
        last_calls = {rank: self.running[rank].last_calls(self.requests) for rank in hung | dead}
        late = self._late_endings(hung)
        statuses = {rank: self.running[rank].status(1.0) for rank in dead} | late
        ended = {
            rank: "closed its connection or sent an unreadable answer"
            if status is None
            else _how(status)
            for rank, status in statuses.items()
        }
        waiting = dict.fromkeys(hung - late.keys(), f"gave no answer within {seconds:.1f} s")
        return Incident(
            "died" if ended else "hung",
            {**waiting, **ended},
            stacks,
            seconds,
            {rank: calls for rank, calls in last_calls.items() if calls is not None},
            statuses,
            seen,
            overload=watch.overload,
        )

    def _late_endings(self, hung: set[int]) -> dict[int, int]:
        """Kill silent ranks, and return the exit statuses of those that had ended by themselves.

        The kernel may take seconds to end a process on a busy machine. Until then its connection is
        open, and the rank seems to hang. Its exit status is not the kill's.
        """
        for rank in hung:
            self.running[rank].signal(signal.SIGKILL)
        statuses = {rank: self.running[rank].status(ENDING) for rank in hung}
        sent_here = (-signal.SIGUSR1, -signal.SIGKILL)
        return {
            rank: status
            for rank, status in statuses.items()
            if status is not None and status not in sent_here
        }

    # Processes and connections.

    def host(self, rank: int) -> HostClient | RemoteHost:
        """Return the host of a rank."""
        return self.hosts[max(rank, 0) % len(self.hosts)]

    def device_of(self, rank: int) -> tuple[str, int]:
        """Return the backend, and the rank's number on its machine; they decide its device."""
        node = self.host(rank).node
        return self.backend.backend, sum(
            self.host(lower_rank).node == node for lower_rank in range(rank)
        )

    def process(self, rank: int) -> Process | RemoteProcess:
        """Return the process of a rank, started if there is none."""
        if rank not in self.running:
            self.running[rank] = self.host(rank).start(max(rank, 0))
        return self.running[rank]

    def meet(self, ranks: tuple[int, ...], timeout: float = UNHURRIED) -> _Meeting:
        """Return connected groups among these ranks: the existing ones, or new ones.

        Args:
            ranks: The ranks.
            timeout: Seconds after which a collective of new groups fails by itself.
        """
        if ranks in self._meetings:
            return self._meetings[ranks]
        store, file = self._store(ranks)
        meeting = self._meetings[ranks] = _Meeting("-".join(map(str, ranks)), file)
        self.require_answers(
            "connect to one another",
            {
                rank: {
                    "do": "connect",
                    "name": meeting.name,
                    "store": store,
                    "rank": number,
                    "world_size": len(ranks),
                    "device": self.device_of(rank),
                    "timeout": timeout,
                }
                for number, rank in enumerate(ranks)
            },
            CONNECTING,
        )
        return meeting

    def _store(self, ranks: tuple[int, ...]) -> tuple[str, FileIO | None]:
        """Return the address of a new store for these ranks, and its file if it is one."""
        own_addresses = [
            host.own_address() for host in map(self.host, ranks) if isinstance(host, RemoteHost)
        ]
        if not own_addresses:
            file = FileIO(os.memfd_create("store"), "r+")
            return f"/proc/{os.getpid()}/fd/{file.fileno()}", file
        address = next(
            (text for text in own_addresses if not ipaddress.ip_address(text).is_loopback),
            own_addresses[0],
        )
        return self.require_answers(
            "open a store", {_KEEPER: {"do": "keep", "address": address}}, CONNECTING
        )[_KEEPER]["store"], None

    def introduce(self, request: dict[str, Any]) -> list[str | None]:
        """Send this process's message through the job's store, and return all ranks' messages.

        See `stores.introduced`.

        Raises:
            HarnessError: The launcher's store cannot be reached.
        """
        answer = self.require_answers(
            "reach the job's store",
            {0: {"do": "introduce", **request}},
            2 * request["patience"] + GRACE,
        )[0]
        if "unreachable" in answer:
            raise HarnessError(
                f"cannot reach the job's store at {request['host']}:{request['port']}: "
                f"{answer['unreachable']}"
            )
        messages: list[str | None] = answer["messages"]
        return messages

    def require_answers(
        self, task: str, requests: dict[int, dict[str, Any]], patience: float
    ) -> dict[int, dict[str, Any]]:
        """Return the answers of all processes to requests outside any case.

        Raises:
            HarnessError: A process gave no answer.
        """
        answers = self.ask(requests, patience)
        if answers.incident is not None:
            self.retire()
            raise HarnessError(
                f"ranks could not {task}: {answers.incident.ranks} {answers.incident.stacks}"
            )
        return {rank: answer.header for rank, answer in answers.by_rank.items()}

    def end(self, rank: int) -> None:
        """End one process that is connected to no other, if it runs."""
        if rank in self.running:
            self.running.pop(rank).retire()

    def retire(self) -> None:
        """End all ranks.

        All, because a store's file may be closed only when no process has it open. Otherwise the
        FileStore of a living rank would write its farewell into the next file with the same
        descriptor.
        """
        while self.running:
            self.running.popitem()[1].retire()
        while self._meetings:
            file = self._meetings.popitem()[1].file
            if file is not None:
                file.close()


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
