"""A rank: it serves cases over its socket until the controller closes the connection."""

import contextlib
import datetime as dt
import faulthandler
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch

from ddp_invariants import situations
from ddp_invariants.cases import case as cases
from ddp_invariants.errors import LoadError, is_exhaustion
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes import threads, wire
from ddp_invariants.ranks import fingerprint, limits, shards, simulation
from ddp_invariants.ranks.all_dealings import all_dealings
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.driving.sampler import SamplerMaker, environment
from ddp_invariants.ranks.groups import stores
from ddp_invariants.ranks.groups.device import RankDevice, take_device
from ddp_invariants.ranks.groups.distributed import CaseGroups
from ddp_invariants.ranks.groups.isolation import Surroundings, child_processes, kernel_counts
from ddp_invariants.ranks.groups.observed import Connections, Timing
from ddp_invariants.ranks.groups.simulated import gloo
from ddp_invariants.ranks.groups.works import Log
from ddp_invariants.ranks.rounds import Round, closed
from ddp_invariants.ranks.surface import surface
from ddp_invariants.ranks.training import recorder
from ddp_invariants.records import indices
from ddp_invariants.records.trace import LastWords

_STORE_TIMEOUT = dt.timedelta(seconds=300)
"""Far above every deadline, so that the harness ends a hang and prints its stacks."""

Answer = tuple[dict[str, Any], Sequence[bytearray]]
"""The plain part of an answer, and raw bytes, in parts that the controller gets as one."""


class Rank:
    """A rank's state that outlives a case: its device, connections and loaded implementations."""

    def __init__(self, control: socket.socket, words: LastWords) -> None:
        self.control, self.words = control, words
        self.stores: list[Any] = []
        self.connections: dict[str, Connections] = {}
        self.rank_device: RankDevice | None = None
        self.surroundings: Surroundings | None = None
        self._drivers: dict[str, Driver] = {}
        self._samplers: dict[str, SamplerMaker] = {}

    def driver(self, plain: dict[str, Any]) -> Driver:
        """Return the DDP of a description, loaded on first use."""
        key = json.dumps(plain)
        if key not in self._drivers:
            self._drivers[key] = Driver(Ddp.from_plain(plain))
        return self._drivers[key]

    def sampler(self, plain: dict[str, Any]) -> SamplerMaker:
        """Return the sampler of a description, loaded on first use."""
        key = json.dumps(plain)
        if key not in self._samplers:
            self._samplers[key] = SamplerMaker(Sampler.from_plain(plain))
        return self._samplers[key]

    def answer(self, request: dict[str, Any]) -> Answer:
        """Return the answer to one request."""
        verb = request["do"]
        self._prepare(request)
        if verb == "train":
            return self._train(request)
        if verb == "simulate":
            return self._simulate(request)
        if verb == "connect":
            self._connect(request)
            return {}, ()
        if verb == "keep":
            store, address = stores.kept(request["address"])
            self.stores.append(store)
            return {"store": address}, ()
        if verb == "introduce":
            return stores.introduced(request), ()
        if verb == "look":
            # Counting devices initialises nothing.
            return {
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "nccl": torch.distributed.is_nccl_available(),
                "devices": torch.cuda.device_count(),
                "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            }, ()
        if verb == "describe":
            return self._describe(request), ()
        if verb == "surface":
            driver, maker = self.driver(request["ddp"]), self.sampler(request["sampler"])
            return {"facts": surface(driver, maker)}, ()
        if verb == "deal":
            asked = map(situations.from_plain, request["cases"])
            dealt = [case for case in asked if isinstance(case, cases.ShardCase)]
            row = all_dealings(dealt, self.sampler(request["sampler"]))
            return {"row": indices.packed(row)}, ()
        return self._shards(request) if verb == "shards" else self._held(request), ()

    def _prepare(self, request: dict[str, Any]) -> None:
        """Take the process's device and bound its memory, on the first request that names a device.

        That request comes before any import, because an import may look for devices.
        """
        if self.rank_device is None and "device" in request:
            self.rank_device = take_device(*request["device"])
            # A device's own addresses take gigabytes, which the implementation must not answer for.
            if not self.rank_device.on_device:
                limits.bound_memory()

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Describe an implementation, and report the changes that importing it made.

        The implementation is loaded on first use. It may change its own process by that.
        """
        before, self.surroundings = Surroundings(), None
        try:
            loaded = (
                self.driver(request["ddp"])
                if "ddp" in request
                else self.sampler(request["sampler"])
            )
            described = asdict(loaded.describe())
            described["made_of"] = asdict(loaded.made_of) if request.get("made_of") else None
        except LoadError:
            raise
        except BaseException as error:
            raised = recorder.exception_data(error, "describe", 0)
            raise LoadError(f"loading it raised {raised['type']}: {raised['message']}") from error
        fingerprint.of_this_process().accept_reading()
        return {**described, "torch": torch.__version__, "changed": before.changed()}

    def _connect(self, request: dict[str, Any]) -> None:
        assert self.rank_device is not None
        store = stores.reached(request["store"], request["world_size"], _STORE_TIMEOUT)
        connections = Connections(
            store,
            request["rank"],
            request["world_size"],
            dt.timedelta(seconds=request["timeout"]),
            self.rank_device,
        )
        if self.rank_device.on_device:
            connections.meet()
        self.connections[request["name"]] = connections

    def _shards(self, request: dict[str, Any]) -> dict[str, Any]:
        case = situations.from_plain(request["case"])
        assert isinstance(case, cases.ShardCase)
        sampler = self.sampler(request["sampler"])
        self.surroundings, counts = self.surroundings or Surroundings(), _counts()
        answer = shards.shards(case, sampler, disturb=request["disturb"])
        return {**indices.packed(answer), "changed": _changed(self.surroundings, counts)}

    def _held(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return this rank's shard of a sampler that scatters data in a group.

        The answer also reports the state of the connections, as a training case does.
        """
        case, group = situations.from_plain(request["case"]), self.connections[request["group"]]
        assert isinstance(case, cases.ShardCase)
        sampler = self.sampler(request["sampler"])
        self.surroundings, counts = self.surroundings or Surroundings(), _counts()
        groups = CaseGroups(
            group,
            None,
            list(range(case.world_size)),
            str(request["number"]),
            Log(self.words, request["number"]),
            Timing(),
            plain=False,
        )
        with environment(group.rank, case.world_size):
            answer = shards.shards(
                case, sampler, disturb=request["disturb"] + group.rank, ranks=[group.rank]
            )
        groups.end()
        quiescent = closed(groups)
        return {
            **answer,
            "records": ["a shard"],
            "facts": {"raised": answer.get("raised")},
            "sent": groups.sent(),
            "quiescent": quiescent,
            "changed": _changed(self.surroundings, counts),
        }

    def _train(self, request: dict[str, Any]) -> Answer:
        case = situations.from_plain(request["case"])
        assert isinstance(case, cases.TrainingCase)
        driver = self.driver(request["ddp"])
        everyone = self.connections[request["everyone"]]
        local_rank, local_size = request["local"]
        os.environ.update(
            WORLD_SIZE=str(case.ranks_needed),
            LOCAL_WORLD_SIZE=str(local_size),
            LOCAL_RANK=str(local_rank),
        )
        log = Log(self.words, request["number"])
        self.surroundings = self.surroundings or Surroundings()
        # Taken here, after the connections made since the last case have added theirs.
        counts = _counts()
        left: list[list[int]] = []
        runs = case.runs
        for number, run in enumerate(runs):
            record, groups, quiescent = Round(
                run,
                driver,
                everyone,
                self.connections.get(request["training"]) if case.outside else None,
                log,
                f"{request['number']}.{number}",
                plain=request["plain"],
            ).train()
            if len(runs) > 1:
                _meet(groups.store, everyone)
                gc.collect()
                left.append(_resources())
        if case.rounds > 1:
            left.append(_settled(left, request["settling"]))
        header = {
            **record.header(),
            "sent": groups.sent(),
            "groups": groups.members,
            "quiescent": quiescent,
            "left": left,
            "changed": _changed(self.surroundings, counts),
        }
        return header, [record.blob]

    def _simulate(self, request: dict[str, Any]) -> Answer:
        """Run all ranks of a case in this process."""
        case = situations.from_plain(request["case"])
        assert isinstance(case, cases.TrainingCase)
        refused = simulation.supported()
        if refused:
            return {"refused": refused, "for_good": True}, ()
        driver = self.driver(request["ddp"])
        world = simulation.World(case, driver, request["number"])
        self.surroundings, counts = self.surroundings or Surroundings(), _counts()
        outcome = world.run(request["seconds"])
        if outcome.failed is not None:
            error = recorder.exception_data(outcome.failed, "simulate", 0)
            outcome.refused = f"its simulation raised {error['type']}: {error['message']}"
        changed = [] if outcome.stuck or outcome.refused else _changed(self.surroundings, counts)
        return {
            "refused": outcome.refused,
            "for_good": outcome.for_good,
            "ranks": outcome.headers,
            "sizes": [len(blob) for blob in outcome.blobs],
            "stuck": outcome.stuck,
            "late": outcome.late,
            "stacks": outcome.stacks,
            "calls": outcome.calls,
            "changed": changed,
        }, outcome.blobs


def _meet(store: Any, connections: Connections) -> None:
    """Wait some seconds for all ranks, since the next round drops the last round's groups."""
    store.set(f"over/{connections.rank}", "")
    with contextlib.suppress(RuntimeError):  # A rank that is late shows by itself.
        store.wait(
            [f"over/{rank}" for rank in range(connections.world_size)], dt.timedelta(seconds=5)
        )


def _resources() -> list[int]:
    """Count this process's threads, open descriptors and child processes."""
    return [*kernel_counts().values(), child_processes()]


def _settled(left: list[list[int]], seconds: float) -> list[int]:
    """Return the counts that remain, after a wait if one of them has grown in every round.

    A thread may end a moment after the wrapper that it served. The wait ends as soon as no such
    count is above that after the first round.

    Args:
        left: The counts after each round.
        seconds: The longest wait.
    """
    columns = list(zip(*left, strict=True))
    grown = [all(a < b for a, b in pairwise(counts)) for counts in columns]
    until, now = time.monotonic() + seconds, left[-1]
    while time.monotonic() < until and any(
        grew and count > counts[0] for grew, count, counts in zip(grown, now, columns, strict=True)
    ):
        time.sleep(0.01)  # Nothing tells when a foreign thread ends.
        now = _resources()
    return now


def _counts() -> dict[str, int]:
    """Count threads and open descriptors, without the threads of backends that simulations keep."""
    counts = kernel_counts()
    return {**counts, "threads": counts["threads"] - gloo.threads()}


def _changed(surroundings: Surroundings, counts: dict[str, int]) -> list[str]:
    """Return the changes that the case left behind.

    The implementation may have broken the functions that find them.
    """
    try:
        return surroundings.changed() + [
            name for name, count in _counts().items() if count != counts[name]
        ]
    except Exception as error:  # noqa: BLE001 - as above
        return [f"the functions that find changes ({type(error).__name__})"]


def serve(control: socket.socket, rank: int, stacks: int, words: int) -> int:
    """Answer requests until the controller closes the connection.

    Args:
        control: The connection.
        rank: This process's number.
        stacks: Descriptor of the file that takes stacks, of a crash or on SIGUSR1.
        words: Descriptor of the memory that takes its last words. It is closed here.

    Returns:
        The process's exit status.
    """
    threads.permit_looks()
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks)
    # Line by line, so that printed output belongs to the case that printed it.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    state, resident = Rank(control, LastWords(words)), limits.resident()
    os.close(words)
    harness = fingerprint.of_this_process()
    while True:
        message = wire.receive(control)
        if message is None:
            return 0
        (request, _), began = message, time.perf_counter()
        try:
            header, blobs = state.answer(request)
        except LoadError as error:
            exhausted = is_exhaustion(error.__cause__)
            header, blobs = {"unusable": str(error), "exhausted": exhausted}, ()
        except Exception as error:  # noqa: BLE001 - a harness failure: the controller reports it
            header, blobs = {"failed": recorder.exception_data(error, request["do"], 0)}, ()
        cost = [
            time.perf_counter() - began,
            resident,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        ]
        header = {**header, "to": request["to"], "cost": cost, "altered": harness.altered()}
        wire.send(control, header, *blobs)
