"""A simulated case: all its ranks in this process, as threads of which one runs at any time."""

import datetime as dt
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.processes import threads as kernel
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.simulated import promises
from ddp_invariants.ranks.groups.simulated.arrivals import Arrivals
from ddp_invariants.ranks.groups.simulated.connections import SimulatedConnections
from ddp_invariants.ranks.groups.simulated.gloo import unconnected_gloo
from ddp_invariants.ranks.groups.simulated.order import Order
from ddp_invariants.ranks.groups.simulated.promises import Promises
from ddp_invariants.ranks.groups.simulated.shared import Simulation
from ddp_invariants.ranks.groups.simulated.state import RankState
from ddp_invariants.ranks.groups.simulated.store import SimulatedStore
from ddp_invariants.ranks.groups.simulated.turns import NotSimulated, Turns
from ddp_invariants.ranks.groups.works import Log
from ddp_invariants.ranks.rounds import Round
from ddp_invariants.records.trace import LastWords
from ddp_invariants.situations import turns

# These functions are torch's own and have no type stubs.
_c10d: Any = torch._C._distributed_c10d
_TIMEOUT = dt.timedelta(seconds=300)
_LOOK = 0.25
"""Seconds between two looks at the processor time of ranks that have not ended."""
_IDLE = 2
"""Factor on the processor time that ranks may take, for the time in which all of them sleep."""
_words: list[LastWords] = []
"""The memory of each rank's last calls; made once, since a case must open nothing."""


def supported() -> str:
    """Return why this torch cannot be simulated; empty if it can."""
    name = "_set_thread_isolation_mode"
    return "" if hasattr(_c10d, name) else f"torch {torch.__version__} has no {name}"


@dataclass
class Outcome:
    """The result of a simulated case.

    Attributes:
        headers: The plain part of each rank's evidence; None for a rank that did not end.
        blobs: Its bits.
        stuck: For each rank that did not end, the object that it waits for, in words.
        stacks: The stacks of these ranks.
        calls: Their last calls.
        late: True if they took too long; otherwise none of them could run.
        refused: Why the case cannot be simulated; empty if it can.
        for_good: True if no case of the implementation can be, for that reason.
        failed: An error of the harness itself.
    """

    headers: list[dict[str, Any] | None]
    blobs: list[bytearray]
    stuck: dict[int, str] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    calls: dict[int, Any] = field(default_factory=dict)
    late: bool = False
    refused: str = ""
    for_good: bool = True
    failed: BaseException | None = None


class World:
    """The ranks of one simulated case.

    Args:
        case: The case.
        driver: The implementation under test.
        number: The number of the case, under which its last calls are kept.
    """

    def __init__(self, case: TrainingCase, driver: Driver, number: int) -> None:
        self._case, self._driver, self._number = case, driver, number
        size = case.ranks_needed
        plan = case.get(turns.Turns) or turns.Turns()
        self._turns = Turns(size, Order(plan.order, plan.seed, size, plan.behind), self._swap)
        self._arrivals = Arrivals(self._turns, plan, size)
        self._promises = Promises(self._arrivals, size)
        self._simulation = Simulation(self._arrivals, self._promises)
        self._store = SimulatedStore(self._turns)
        shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        self._states = [
            RankState(rank, {"RANK": str(rank), "LOCAL_RANK": str(rank), **shared})
            for rank in range(size)
        ]
        self._states.append(RankState(-1, {}))  # The process's own: `_swap` takes it as number -1.
        self._outcome = Outcome([None] * size, [bytearray()] * size)
        for rank in range(size):
            unconnected_gloo(rank, size)
        while len(_words) < size:
            _words.append(LastWords.alone())

    def run(self, seconds: float) -> Outcome:
        """Run all ranks until they have ended, or none can run, or they have taken too long.

        Args:
            seconds: The processor time that they may take. They may sleep for twice as long. The
                time in which they queue for a processor does not count.
        """
        _c10d._set_thread_isolation_mode(True)  # noqa: FBT003 - torch's; groups by name, by thread
        threads = [
            threading.Thread(target=self._rank, args=(rank,), daemon=True)
            for rank in range(self._case.ranks_needed)
        ]
        for thread in threads:
            thread.start()
        promises.begin(self._promises)
        spent = _Spent()
        self._turns.start()
        outcome, taken = self._outcome, self._turns
        while not taken.finished(_LOOK):
            spent.look()
            late = spent.busy > seconds or spent.idle > _IDLE * seconds
            if late or taken.refused:
                outcome.stuck, outcome.late = taken.unended(), late
                break
        promises.end()
        outcome.refused, outcome.for_good = taken.refused, taken.for_good
        outcome.stuck = outcome.stuck or taken.stuck
        if outcome.stuck:
            outcome.stacks = taken.stacks()
            outcome.calls = {rank: _words[rank].read(self._number) for rank in outcome.stuck}
            return outcome
        for thread in threads:
            thread.join()
        _wait_until_gone([thread.native_id for thread in threads])
        return outcome

    def _swap(self, before: int, after: int) -> None:
        self._states[before].take()
        self._states[after].put()

    def _rank(self, rank: int) -> None:
        """Be one rank: this is what its thread runs."""
        self._turns.begin(rank)
        try:
            self._train(rank)
        except NotSimulated:
            pass
        except BaseException as error:  # noqa: BLE001 - the harness's own, reported by the process
            self._outcome.failed = error
        finally:
            self._turns.end(rank)

    def _train(self, rank: int) -> None:
        torch.set_num_threads(1)
        case = self._case
        everyone = self._connections("everyone", rank, case.ranks_needed)
        training = None
        if case.outside and rank in case.members:
            number = case.members.index(rank)
            training = self._connections("training", number, case.world_size)
        log = Log(_words[rank], self._number)
        record, groups, _ = Round(
            case, self._driver, everyone, training, log, str(self._number)
        ).train()
        self._outcome.headers[rank] = {
            **record.header(),
            "sent": groups.sent(),
            "groups": groups.members,
            "left": [],
            "flights": self._arrivals.flights(rank),
        }
        self._outcome.blobs[rank] = record.blob

    def _connections(self, name: str, rank: int, size: int) -> SimulatedConnections:
        return SimulatedConnections(self._simulation, name, self._store, rank, size, _TIMEOUT)


class _Spent:
    """The time that this process has spent since a moment.

    Attributes:
        busy: Its seconds of processor time.
        idle: The seconds in which it neither had a processor nor queued for one.
    """

    def __init__(self) -> None:
        self._began, self._busy_before = time.monotonic(), time.process_time()
        self._queued, self._seen = 0.0, _queues()
        self.busy = self.idle = 0.0

    def look(self) -> None:
        """Take account of the time since the last look."""
        seen = _queues()
        self._queued += sum(each - self._seen.get(thread, 0.0) for thread, each in seen.items())
        self._seen = seen
        self.busy = time.process_time() - self._busy_before
        self.idle = time.monotonic() - self._began - self.busy - self._queued


def _queues() -> dict[int, float]:
    """Return for each other thread of this process the seconds that it has queued for a processor."""
    looked, own = kernel.look(os.getpid()) or {}, threading.get_native_id()
    return {tid: look.queued / 1e9 for tid, look in looked.items() if tid != own and not look.below}


def _wait_until_gone(threads: list[int | None]) -> None:
    """Wait until the kernel counts ended threads no more, shortly after Python joined them."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until and any(
        os.path.exists(f"/proc/self/task/{thread}")  # noqa: PTH110 - in every case
        for thread in threads
    ):
        time.sleep(0)
