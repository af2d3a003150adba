"""Process groups: connections that outlive a case, under a wrapper made for each case.

Connecting W ranks costs tens of milliseconds, a case a few. So the suite keeps the connections.
Every case gets a fresh `ObservedGroup` over them, which records the collectives of the case. The
next case reuses the connections only if this case left them as it found them.

[Note: quiescence] The connections are as found if every rank recorded the same sequence of
collectives and all of them completed. Otherwise the first collective of the next case would be
matched with an unjoined collective of this one.
"""

import datetime as dt
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.ranks.groups.compiled import never_compiled
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.works import Log, ObservedWork, Row, WithheldWork
from ddp_invariants.records.trace import ASYNCHRONOUS, GAPS, UNEVEN, WAITED

# These classes are public names of torch.distributed without type stubs.
_c10d: Any = torch._C._distributed_c10d


class Connections:
    """A backend's connections among some ranks, to be wrapped anew for each case.

    Args:
        store: The store through which the ranks meet.
        rank: This process's rank in the group.
        world_size: Ranks in the group.
        timeout: The time after which the backend gives up on a collective by itself. The harness's
            deadline comes first.
        rank_device: The device of this process's tensors.
        carrier: torch's name of the backend; empty for the device's own backend.

    Attributes:
        devices: Of the tensors the backend takes.
        kind: The backend among torch's.
        patience: Seconds in which a collective completes that all ranks have started.
    """

    patience = 0.05

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        timeout: dt.timedelta,
        rank_device: RankDevice,
        carrier: str = "",
    ) -> None:
        self.rank, self.world_size, self.timeout, self.store = rank, world_size, timeout, store
        self.rank_device, self.carrier = rank_device, carrier or rank_device.carrier
        if rank_device.on_device:  # Work queued on a device takes its time.
            self.patience = 2.0
        own = _c10d.PrefixStore(self.carrier, store)
        if self.carrier == "nccl":
            options = _c10d.ProcessGroupNCCL.Options()
            options._timeout = timeout
            options.global_ranks_in_group = list(range(world_size))
            self.backend = _c10d.ProcessGroupNCCL(own, rank, world_size, options)
            self.kind, self.devices = _c10d.ProcessGroup.BackendType.NCCL, [rank_device.device]
        else:
            self.backend = _c10d.ProcessGroupGloo(own, rank, world_size, timeout)
            self.kind = _c10d.ProcessGroup.BackendType.GLOO
            self.devices = [torch.device("cpu")] + (
                [rank_device.device] if rank_device.on_device else []
            )

    def meet(self) -> None:
        """Send once, so that the backend is connected before the first case.

        Some backends connect at first use. Their threads and file descriptors must not be counted
        as a case's.
        """
        sent = torch.zeros(1, device=self.devices[-1])
        for begin in (self.backend.allreduce, self.backend.broadcast):
            begin([sent]).wait()
        self.rank_device.finish()

    def carries(self, group: Any) -> None:
        """Make a group send over these connections."""
        group._set_default_backend(self.kind)
        for device in self.devices:
            group._register_backend(device, self.kind, self.backend)

    def sender(self) -> Any:
        """Return a plain group over these connections."""
        group = _c10d.ProcessGroup(self.rank, self.world_size)
        if self.carrier == "nccl":
            # Otherwise NCCL guesses the device of a barrier from the rank in the process's first group.
            group.bound_device_id = self.rank_device.device
        self.carries(group)
        return group

    def branch(
        self, store: Any, rank: int, world_size: int, timeout: dt.timedelta, carrier: str
    ) -> "Connections":
        """Return this rank's connections in a group that the implementation makes.

        No collective of it may take longer than one over these connections.
        """
        timeout = min(timeout, self.timeout)
        return Connections(store, rank, world_size, timeout, self.rank_device, carrier)

    def delay(self, seconds: float) -> None:
        """Wait some seconds before a collective starts."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Timing:
    """The changes made to the timing of one rank's collectives (`cases.program.Perturbation`).

    Attributes:
        withhold: True if a result is handed over only when it is waited for.
        sentinel: The value a buffer holds until then.
        delays: Seconds to wait before each call, taken in turn; empty if calls start at once. After
            `MOST_DELAYED` seconds of delays in a group they are short.
        slowed: Seconds for which the device is kept busy before each collective, on the stream
            that it is sent from.
    """

    withhold: bool = False
    sentinel: float = SENTINEL
    delays: tuple[float, ...] = ()
    slowed: float = 0.0


MOST_DELAYED = 0.5
"""Seconds by which a rank's calls in a group may be delayed in all before the delays become short.

Delays of 20 ms before hundreds of calls would take a case to its deadline.
"""
SHORT_DELAY = 0.001
"""Seconds of a short delay, at most."""
IN_LISTS = ("allreduce", "reduce", "recv", "broadcast")
"""Collectives whose first argument lists the result tensors, undefined until completion."""
IN_ONE = ("_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single")
"""Collectives whose first argument is the one result tensor, and whose second is the one sent."""
_MESSAGES = ("send", "recv", "recv_anysource")
"""Calls that concern two ranks. gloo passes the address of their tensor to a socket."""


class ObservedGroup(_c10d.ProcessGroup):  # type: ignore[misc]  # the base class has no type stubs
    """A process group that forwards to kept connections and records every collective.

    The C++ code of torch (the Reducer of its DDP) calls the same overridden methods as Python code
    does.
    """

    def __init__(self, connections: Connections, log: "Log", timing: Timing) -> None:
        super().__init__(connections.rank, connections.world_size)
        self._log, self._timing = log, timing
        self.label = ""
        connections.carries(self)
        self._inner = connections.sender()
        # Kept as long as the group is: nobody else keeps the connections of a subgroup.
        self._connections = connections
        self._name, self._description = "", "undefined"
        self.calls: list[Row] = []
        self._delayed = 0.0
        self._looked_at = 0
        self._works: list[Any] = []
        self._silent_works: list[Any] = []
        # torch's C++ code may hold the C++ half of a work alone, as `join` does with another divisor.
        # Without its Python half, which nobody else holds, such a work never ends.
        self._handed_out: list[ObservedWork] = []
        self._withheld: list[WithheldWork] = []
        self._coalescing = False

    def in_flight(self) -> list[tuple[Row, str]]:
        """Return the withheld collectives that have a defect, and the defect of each.

        A defect is that nobody waited for a collective, or that its buffer was written to in
        flight.
        """
        defects = [
            (work.row, "written to while in flight" if work.overwritten else "not waited for")
            for work in self._withheld
            if work.overwritten or not work.done
        ]
        # Of the collectives that are not withheld, those that nobody has waited for.
        fresh, self._looked_at = self.calls[self._looked_at :], len(self.calls)
        defects += [
            (row, "not waited for")
            for row in fresh
            if row[ASYNCHRONOUS]
            and row[WAITED] is None
            and row[0] in (*UNEVEN, "allreduce_coalesced", "gather", "scatter")
        ]
        self._withheld = [work for work in self._withheld if not work.done]
        return defects

    def finished(self, patience: float) -> bool:
        """Return whether every started collective completes within `patience` seconds.

        The patience is needed because gloo completes a Work's future first and the Work a moment
        later. A caller that waited for the future may arrive here in between.
        """
        until = time.monotonic() + patience
        while not all(work.is_completed() for work in self._works):
            if time.monotonic() > until:
                return False
            time.sleep(0.0001)
        return all(_completes(work, until - time.monotonic()) for work in self._silent_works)

    def _require_taken(self, kind: str, arguments: tuple[Any, ...]) -> None:
        """Refuse a message that the backend would crash with.

        Raises:
            RuntimeError: gloo shall send a device's tensor to another rank.
        """
        if kind not in _MESSAGES or self._connections.carrier != "gloo":
            return
        tensor = _first_tensor(arguments)
        if tensor is not None and tensor.device.type != "cpu":
            raise RuntimeError(
                f"gloo sends and receives tensors of a CPU only: {kind} got a tensor on {tensor.device}"
            )

    def _issue(self, kind: str, arguments: tuple[Any, ...]) -> tuple[Row, int]:
        """Record a collective as it is issued, start it late if delays are set, and return it.

        Returns:
            The recorded row and its number.
        """
        issued = self._log.now()
        if self._timing.delays:
            seconds = self._timing.delays[len(self.calls) % len(self._timing.delays)]
            if self._delayed > MOST_DELAYED:
                seconds = min(seconds, SHORT_DELAY)
            self._delayed += seconds
            self._connections.delay(seconds)
        # A gather's outputs are empty on all ranks but one, so its input shows the dtype and size.
        tensor = _first_tensor(arguments[1] if kind == "gather" else arguments)
        # A caller that names no operation gets torch's default, SUM. A joined rank's shadow of a
        # reduction does so.
        operation, asynchronous = "SUM" if "reduce" in kind else "", True
        for argument in arguments[1:]:
            if hasattr(argument, "reduceOp"):
                operation = str(argument.reduceOp.op).rpartition(".")[2]
            elif hasattr(argument, "rootRank"):
                operation = f"from {argument.rootRank}"
            asynchronous = getattr(argument, "asyncOp", asynchronous)
        dtype, elements = ("", 0) if tensor is None else (str(tensor.dtype)[6:], tensor.numel())
        # Autograd computes a device's operations in a thread of its own, for which backward waits.
        aside = threading.get_ident() != self._log.thread and not (
            self._connections.rank_device.on_device and torch._C._current_graph_task_id() != -1
        )
        gaps = tensor is not None and has_gaps(tensor)
        row = [kind, dtype, elements, operation, asynchronous, _site(), issued, None, aside, gaps]
        self.calls.append(row)
        return row, self._log.words.issue(self.label, row)

    def _start_coalescing(self, device: torch.device) -> None:
        """Let the backend take the next collectives, or messages, as one."""
        self._inner._start_coalescing(device)
        self._coalescing = True

    def _end_coalescing(self, device: torch.device) -> Any:
        """Send what the backend has taken as one, and return the work.

        The work belongs to several calls, so nobody notes when it is waited for.
        """
        self._coalescing = False
        work = self._inner._end_coalescing(device)
        if isinstance(work, _c10d.Work):
            self._works.append(work)
        return work

    def shutdown(self) -> None:
        """Do nothing: the connections outlive the case."""

    # Names, which torch reads both through C++ virtuals and through Python attributes.

    def getBackendName(self) -> str:
        """Return the backend that really carries the data."""
        return self._connections.carrier

    def setGroupName(self, name: str) -> None:
        """Set the name that torch gives the group."""
        self._name = name
        self._inner._set_group_name(name)

    def getGroupName(self) -> str:
        """Return the name that torch gave the group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """Set the description that torch gives the group."""
        self._description = description
        self._inner._set_group_desc(description)

    def getGroupDesc(self) -> str:
        """Return the description that torch gave the group."""
        return self._description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)


def _completes(work: Any, patience: float) -> bool:
    """Return whether a Work completes, by waiting for it.

    The reduce-scatter of gloo never reports `is_completed`, not even after a wait.
    """
    try:
        return bool(work.wait(dt.timedelta(seconds=max(patience, 0.001))))
    except RuntimeError:
        return False


def has_gaps(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a tensor are not next to one another in memory."""
    if tensor.layout != torch.strided or not tensor.numel():
        return False
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) > tensor.numel()


def _as_sent(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements that gloo sends and writes: a view with gaps is taken as if without.

    A copy of such a view has no gaps, so gloo would compute something else with it. On a device, gloo
    leaves gaps as they are, and NCCL refuses such a view.
    """
    if not has_gaps(tensor):
        return tensor
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _can_be_withheld(tensor: torch.Tensor) -> bool:
    """Return whether a copy without gaps can be sent in place of a tensor."""
    on_cpu = tensor.device.type == "cpu"
    return tensor.layout == torch.strided and (on_cpu or not has_gaps(tensor))


def _first_tensor(value: Any) -> torch.Tensor | None:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


_HARNESS_AND_TORCH = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), "<")
_STANDARD = sysconfig.get_path("stdlib")


@lru_cache(maxsize=4096)
def _implementation_file(path: str) -> str:
    """Return the name of an implementation's file; empty for the harness, torch and Python."""
    standard = path.startswith(_STANDARD) and "-packages" not in path
    return "" if standard or path.startswith(_HARNESS_AND_TORCH) else Path(path).name


def _site() -> str:
    """Return the file and line of the implementation that issues the collective, else `torch`."""
    frame = sys._getframe(2)
    while frame is not None:
        name = _implementation_file(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return "torch"


def _forwarded(kind: str) -> Callable[..., Any]:
    def forward(self: ObservedGroup, *arguments: Any, **options: Any) -> Any:
        self._require_taken(kind, arguments)
        row, number = self._issue(kind, (*arguments, *options.values()))
        rank_device, slowed = self._connections.rank_device, self._timing.slowed
        with (
            rank_device.slowed(slowed, waited_for=not row[ASYNCHRONOUS])
            if slowed
            else nullcontext()
        ):
            work = getattr(self._inner, kind)(*arguments, **options)
        if not isinstance(work, _c10d.Work):
            # The caller's stream waits for a call that is not asynchronous, and NCCL returns no work.
            if not row[ASYNCHRONOUS]:
                row[WAITED] = self._log.now()
            return work
        (self._silent_works if "reduce_scatter" in kind else self._works).append(work)
        self._handed_out.append(ObservedWork(work, row, number, self._log))
        return self._handed_out[-1]

    def withheld(self: ObservedGroup, target: Any, *arguments: Any, **options: Any) -> Any:
        # A list of tensors may be given as one tensor, as torch's DDP does for a joined rank.
        alone = kind in IN_ONE or isinstance(target, torch.Tensor)
        given: list[torch.Tensor] = [target] if alone else target
        roots = [
            argument if isinstance(argument, int) else getattr(argument, "rootRank", None)
            for argument in (*arguments, *options.values())
        ]
        sends = kind == "broadcast" and self.rank() in roots
        if (
            not self._timing.withhold
            or sends
            or self._coalescing
            or any(not _can_be_withheld(tensor) for tensor in given)
        ):
            return forward(self, target, *arguments, **options)
        tensors = [_as_sent(tensor) for tensor in given]
        results = [tensor.detach().clone() for tensor in tensors]
        # The tensor that is sent may be part of the one that takes the result and is about to be
        # overwritten.
        if kind in IN_ONE:
            arguments = (arguments[0].detach().clone(), *arguments[1:])
        begun = forward(self, results[0] if alone else results, *arguments, **options)
        if begun is None:
            for tensor, result in zip(tensors, results, strict=True):
                tensor.detach().copy_(result)
            return None
        begun.row[GAPS] = has_gaps(given[0])
        work = WithheldWork(
            begun,
            tensors,
            results,
            self._withheld,
            self._timing.sentinel,
            self._connections.rank_device,
        )
        self._withheld.append(work)
        return work

    chosen = withheld if kind in (*IN_LISTS, *IN_ONE) else forward
    chosen.__name__ = kind
    return chosen


# The names of collectives change between torch versions: forward those that this one has.
_COLLECTIVES = (
    "all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
    "monitored_barrier",
    "_all",
    "_reduce",
)
for _name in dir(_c10d.ProcessGroup):
    if _name.startswith(_COLLECTIVES) and callable(getattr(_c10d.ProcessGroup, _name)):
        setattr(ObservedGroup, _name, _forwarded(_name))
for _kind in (ObservedGroup, ObservedWork, WithheldWork):
    never_compiled(_kind)
