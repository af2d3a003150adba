"""Persistent ranks: run a case on them, hand back what they saw, replace them when in doubt."""

import contextlib
import fcntl
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ddp_invariants.case import ShardCase, TrainingCase
from ddp_invariants.evidence import (
    EvidenceError,
    Incident,
    Layout,
    RankEvidence,
    ShardEvidence,
    Slot,
    TrainingEvidence,
    rank_evidence,
)
from ddp_invariants.implementation import Ddp, Sampler
from ddp_invariants.ranks import wire
from ddp_invariants.ranks.hosts import HarnessError, HostClient
from ddp_invariants.trace import WORDS_SIZE, LastWords, agreed

DEADLINE = 10.0
"""Seconds a case may take. The slowest right case of a default run takes under one."""
LOADING = 120.0
"""Seconds loading an implementation may take: some import half the ecosystem."""
CONNECTING = 30.0
"""Seconds ranks may take to connect over loopback; they take some tens of milliseconds."""
GRACE = 2.0
"""Seconds the other ranks get after one has died or raised: gloo tells survivors within 40 ms."""
RENEWAL = 500
"""Cases after which ranks are replaced even if nothing is wrong with them."""
_OUTPUT_KEPT = 8000
"""Bytes kept of what a rank prints, and of its stacks."""
_PIPE = 1 << 16

Frame = tuple[dict[str, Any], bytes]


class LoadFailure(Exception):
    """An implementation cannot be put on trial; the message is one sentence for the user."""


@dataclass
class Process:
    """One rank: its process, the socket it serves, the pipe it prints to and the anonymous file that takes its stacks.

    What it prints is read while it is waited for, and only the end is kept: a rank that floods its output takes time, never
    memory. Its stacks have a place of their own, so that no flood washes them away.
    """

    host: HostClient
    pid: int
    control: socket.socket
    output: int
    stacks: int
    words_file: int
    words: LastWords
    ended: bool = False
    tail: bytes = b""
    loaded: set[Ddp | Sampler] = field(default_factory=set)
    altered_by: Ddp | Sampler | None = None

    @classmethod
    def start(cls, host: HostClient, rank: int) -> Self:
        """Have a host fork it.

        Raises:
            HarnessError: It cannot.
        """
        ours, theirs = socket.socketpair()
        output, printing = os.pipe()
        os.set_blocking(output, False)
        stacks = os.memfd_create(f"rank{rank}")
        fcntl.fcntl(stacks, fcntl.F_SETFL, os.O_APPEND)
        words = os.memfd_create(f"words{rank}")
        os.ftruncate(words, WORDS_SIZE)
        try:
            return cls(host, host.fork(rank, theirs, printing, stacks), ours, output, stacks, words, LastWords(words))
        except HarnessError:
            ours.close()
            for descriptor in (output, stacks, words):
                os.close(descriptor)
            raise
        finally:
            theirs.close()
            os.close(printing)

    def asked(self) -> None:
        """Forget what it has printed and where it was."""
        for _ in range(16):  # A flood has no end.
            if not self.drain():
                break
        self.tail = b""
        if os.fstat(self.stacks).st_size:
            os.ftruncate(self.stacks, 0)

    def drain(self) -> bool:
        """Take from the pipe what it has printed; whether there was anything."""
        if self.ended:
            return False
        try:
            piece = os.read(self.output, _PIPE)
        except BlockingIOError:
            return False
        self.ended = not piece  # It has closed its stdout and stderr, or is gone with all who had inherited them.
        self.tail = (self.tail + piece)[-_OUTPUT_KEPT:]
        return bool(piece)

    def printed(self) -> str:
        """Its stacks, where it was asked for them or crashed, and the end of what it has printed since it was last asked."""
        self.drain()
        stacks = os.pread(self.stacks, _OUTPUT_KEPT, 0)
        return "\n".join(text for piece in (stacks, self.tail) if (text := piece.decode(errors="replace").strip("\0\n ")))

    @property
    def words_path(self) -> str:
        """Where it finds the memory for its last words."""
        return f"/proc/{os.getpid()}/fd/{self.words_file}"

    def retire(self) -> int | None:
        """End it for good. Returns its exit status if it had ended by itself."""
        self.words.close()
        os.close(self.words_file)
        self.control.close()
        os.close(self.output)
        os.close(self.stacks)
        return self.host.end(self.pid)


@dataclass
class _Meeting:
    """A connected group: its store's anonymous file, and its name in the ranks."""

    store: int
    name: str


@dataclass
class Outcome:
    """The answers of the ranks asked, and what became of those that gave none."""

    frames: dict[int, Frame] = field(default_factory=dict)
    incident: Incident | None = None


class Pool:
    """The ranks of one pytest worker.

    Args:
        addresses: Of the hosts (`Hosts.addresses`).
        deadline: Seconds a case may take before its ranks are declared hung.
    """

    def __init__(self, addresses: list[str], deadline: float = DEADLINE) -> None:
        self._hosts = [HostClient(address) for address in addresses]
        self._ranks: dict[int, Process] = {}
        self._meetings: dict[tuple[int, ...], _Meeting] = {}
        self._number, self._since_renewal = 0, 0
        self.deadline, self.patience_for_loading = deadline, LOADING

    def close(self) -> None:
        """End all ranks."""
        self._retire()
        for host in self._hosts:
            host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What can be asked.

    def anew(self) -> None:
        """End all ranks: what comes next is asked of new processes, which have told nobody anything yet."""
        self._retire()

    def describe(self, implementation: Ddp | Sampler) -> dict[str, Any]:
        """Load an implementation in a rank and say what it is (`driving.Description`, as plain data, and torch's version).

        Raises:
            LoadFailure: It cannot be put on trial.
        """
        return self._load(implementation, [0])

    def _load(self, implementation: Ddp | Sampler, ranks: list[int]) -> dict[str, Any]:
        """Have ranks import an implementation, outside any case's deadline; the first rank's description of it."""
        side = "ddp" if isinstance(implementation, Ddp) else "sampler"
        request = {"do": "describe", side: implementation.to_plain()}
        outcome = self._ask(dict.fromkeys(ranks, request), self.patience_for_loading)
        if outcome.incident is not None:
            self._retire()
            how = "; ".join(outcome.incident.ranks.values())
            raise LoadFailure(f"--{side} {implementation}: importing it ended or hung the process, which {how}")
        for rank in ranks:
            self._ranks[rank].loaded.add(implementation)
            if outcome.frames[rank][0]["changed"]:
                self._ranks[rank].altered_by = implementation
        return outcome.frames[ranks[0]][0]

    def _require_loaded(self, implementation: Ddp | Sampler, ranks: list[int]) -> None:
        if any(process.altered_by not in (None, implementation) for process in self._ranks.values()):
            self._retire()  # Importing another one has changed the world it would run in: patched torch, as some do.
        missing = [rank for rank in ranks if implementation not in self._process(rank).loaded]
        if missing:
            self._load(implementation, missing)

    def train(self, case: TrainingCase, ddp: Ddp, *, fresh: bool = False, observed: bool = True,
              patience: float | None = None) -> TrainingEvidence:
        """Run a training case.

        Args:
            case: The case.
            ddp: The implementation on trial.
            fresh: Use new processes, made for this case and ended after it.
            observed: Observe the groups; otherwise they are plain gloo groups, which are good for one case.
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
        request = {"do": "train", "case": case, "ddp": ddp.to_plain(), "everyone": everyone.name, "training": training.name,
                   "number": self._number + 1, "plain": not observed}
        outcome = self._ask({rank: {**request, "words": self._ranks[rank].words_path} for rank in ranks},
                            patience or self.deadline, mortal=case.kills)
        evidence = self._evidence(case, outcome)
        if fresh or not _quiescent(ranks, outcome, kept=2 if case.outside else 1):
            self._retire()
        else:
            self._renew()
        return evidence

    def shards(self, case: ShardCase, sampler: Sampler, *, fresh: bool = False, patience: float | None = None) -> ShardEvidence:
        """Ask a sampler for all shards, in two processes with different hash seeds.

        Args:
            case: What to ask.
            sampler: The sampler on trial.
            fresh: Use new processes, ended afterwards.
            patience: Seconds to wait, instead of the pool's deadline.

        Raises:
            HarnessError: The harness failed; nothing follows for the sampler.
            LoadFailure: The sampler does not load in a rank.
        """
        if fresh:
            self._retire()
        self._require_loaded(sampler, [0, 1])
        request = {"do": "shards", "case": case, "sampler": sampler.to_plain()}
        outcome = self._ask({0: {**request, "disturb": 1}, 1: {**request, "disturb": 1001}}, patience or self.deadline)
        if fresh or outcome.incident is not None or any(header.get("changed") for header, _ in outcome.frames.values()):
            self._retire()
        else:
            self._renew()
        answers = tuple(outcome.frames[rank][0] for rank in sorted(outcome.frames))
        return ShardEvidence(case, answers, outcome.incident)

    # Asking.

    def _ask(self, requests: dict[int, dict[str, Any]], patience: float, *, mortal: bool = False) -> Outcome:
        """Send every rank its request and collect the answers, until all have answered or patience (seconds) ends.

        Mortal ranks end when they raise, as a program does that does not catch it: others may wait for them, not for the rank
        that ended first.
        """
        self._number += 1
        outcome = Outcome()
        waiting: dict[socket.socket, int] = {}
        incoming: dict[socket.socket, wire.Incoming] = {}
        for rank, request in requests.items():
            process = self._process(rank)
            process.asked()
            waiting[process.control] = rank
            incoming[process.control] = wire.Incoming()
            with contextlib.suppress(OSError):  # It has died since; reading from it below says so.
                wire.send(process.control, {**request, "to": self._number})
        # Counted from here: starting processes is no part of what is on trial.
        started = time.monotonic()
        until, dead, raised = started + patience, set[int](), False
        while waiting and (left := until - time.monotonic()) > 0:
            for control in self._ready(waiting, left):
                try:
                    frame = incoming[control].take(control)
                except (OSError, wire.WireError):
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
                    _signal(self._ranks[rank].pid, signal.SIGKILL)
            if dead or raised:
                until = min(until, time.monotonic() + GRACE)
        self._reject_failures(outcome)
        if waiting or dead:
            outcome.incident = self._incident(set(waiting.values()), dead, time.monotonic() - started)
        return outcome

    def _ready(self, waiting: dict[socket.socket, int], seconds: float) -> list[socket.socket]:
        """The sockets that have something to say, after at most so many seconds; what ranks print is read on the way."""
        printing = {self._ranks[rank].output: rank for rank in waiting.values() if not self._ranks[rank].ended}
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
                told = header["failed"]
                self._retire()
                raise HarnessError(f"a rank's serve loop raised {told['type']}: {told['message']}\n{told['traceback']}")

    def _incident(self, hung: set[int], dead: set[int], seconds: float) -> Incident:
        """What is known of ranks that gave no answer: their stacks, or how they ended."""
        for rank in hung:
            _signal(self._ranks[rank].pid, signal.SIGUSR1)
        if hung:
            time.sleep(0.1)  # faulthandler writes the stacks from a signal handler, in under 50 ms.
        statuses = {rank: self._ranks[rank].host.status(self._ranks[rank].pid, 1.0) for rank in dead}
        ended = {rank: "closed its connection or sent what is no evidence" if status is None else _how(status)
                 for rank, status in statuses.items()}
        stacks = {rank: self._ranks[rank].printed() + _threads(self._ranks[rank].pid) for rank in hung | dead}
        waiting = dict.fromkeys(hung, f"gave no answer within {seconds:.1f} s")
        said = {rank: self._ranks[rank].words.read(self._number) for rank in hung | dead}
        return Incident("died" if dead else "hung", {**waiting, **ended}, stacks, seconds,
                        {rank: calls for rank, calls in said.items() if calls is not None}, statuses)

    def _evidence(self, case: TrainingCase, outcome: Outcome) -> TrainingEvidence:
        ranks, incident = [], outcome.incident
        layouts: dict[tuple[Slot, ...], Layout] = {}
        for rank in range(case.outside, case.ranks_needed):
            evidence = RankEvidence({})
            if rank in outcome.frames:
                try:
                    evidence = rank_evidence(*outcome.frames[rank], layouts)
                except EvidenceError as error:
                    incident = outcome.incident = Incident("died", {rank: str(error)}, {rank: self._ranks[rank].printed()}, 0.0)
            ranks.append(evidence)
        return TrainingEvidence(case, tuple(ranks), incident)

    # Processes and connections.

    def _process(self, rank: int) -> Process:
        """The process of a rank, started if there is none."""
        if rank not in self._ranks:
            host = self._hosts[rank % len(self._hosts)]
            self._ranks[rank] = Process.start(host, rank)
        return self._ranks[rank]

    def _meet(self, ranks: tuple[int, ...]) -> _Meeting:
        """Connected gloo groups among these ranks: those at hand, or new ones."""
        if ranks in self._meetings:
            return self._meetings[ranks]
        store = os.memfd_create("store")
        meeting = self._meetings[ranks] = _Meeting(store, f"{ranks[0]}-{ranks[-1]}")
        path = f"/proc/{os.getpid()}/fd/{store}"
        outcome = self._ask({rank: {"do": "connect", "name": meeting.name, "path": path, "rank": number,
                                    "world_size": len(ranks)} for number, rank in enumerate(ranks)}, CONNECTING)
        if outcome.incident is not None:
            self._retire()
            raise HarnessError(f"ranks could not connect over loopback: {outcome.incident.ranks} {outcome.incident.stacks}")
        return meeting

    def _retire(self) -> None:
        """End all ranks.

        All, because a store's file may be closed only when nobody has it open: the FileStore of a rank that lived on would
        write its farewell into whatever file got the descriptor next.
        """
        for process in self._ranks.values():
            process.retire()
        for meeting in self._meetings.values():
            os.close(meeting.store)
        self._ranks.clear()
        self._meetings.clear()

    def _renew(self) -> None:
        self._since_renewal += 1
        if self._since_renewal >= RENEWAL:
            self._retire()
            self._since_renewal = 0


def _quiescent(ranks: list[int], outcome: Outcome, kept: int) -> bool:
    """Whether the connections may be used again, those of the first so many groups; see [Note: quiescence] in group.py."""
    if outcome.incident is not None:
        return False
    headers = [outcome.frames[rank][0] for rank in ranks]
    trained = [header for header in headers if header["records"]]
    return (all(header["quiescent"] and not header["changed"] and not header["facts"].get("raised") for header in headers)
            and all(_agreed(header, kept) == _agreed(trained[0], kept) for header in trained))


def _agreed(header: dict[str, Any], groups: int) -> list[list[list[Any]]]:
    """What a rank issued in its first groups, as far as all ranks must have issued the same."""
    return [[list(agreed(*row[:4])) for row in calls] for calls in header["sent"][:groups]]


def _threads(pid: int) -> str:
    """Where a rank's native threads wait, as the kernel sees it; empty when the process is gone."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            lines.append(f"\nthread {task.name} {(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}")
    return "".join(lines)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # It has ended in the meantime.
        os.kill(pid, number)


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
