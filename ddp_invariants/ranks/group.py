"""Process groups: gloo connections that outlive a case, under a wrapper that does not.

Connecting W ranks costs tens of milliseconds, a case a few. So the connections are
kept, and every case gets a fresh `ObservedGroup` over them, which notes what the case
sent. Only a case that left the connections as it found them may hand them on.

[Note: quiescence] They are as found when every rank noted the same sequence of
collectives and all of them completed. An unjoined collective of one case would otherwise
be matched by the first of the next.
"""

import datetime as dt
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddp_invariants.case import SENTINEL

_c10d: Any = torch._C._distributed_c10d  # Its classes are public names of torch.distributed without type stubs.
_GLOO = _c10d.ProcessGroup.BackendType.GLOO
_CPU = torch.device("cpu")

Sent = tuple[str, str, int, str]
"""One collective: kind, dtype, elements, and the reduce operation or source rank."""


class Connections:
    """A gloo group among some ranks, to be wrapped anew for each case.

    Args:
        path: File of the store the ranks meet at.
        rank: This process's rank in the group.
        world_size: Ranks in the group.
        timeout: Seconds after which gloo gives up on a collective by itself. The harness's deadline comes first.
    """

    def __init__(self, path: str, rank: int, world_size: int, timeout: float) -> None:
        self.rank, self.world_size = rank, world_size
        self.timeout = dt.timedelta(seconds=timeout)
        self.store = _c10d.FileStore(path, world_size)
        self.gloo = _c10d.ProcessGroupGloo(_c10d.PrefixStore("gloo", self.store), rank, world_size, self.timeout)


IN_LISTS = ("allreduce", "reduce", "recv", "broadcast")
"""Collectives whose first argument lists the tensors that take the result: undefined until it has come."""
IN_ONE = ("_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single")
"""Collectives whose first argument is the one tensor that takes the result, and whose second the one that is sent."""
FUTURE_DELAY = 0.002
"""Seconds after which a withheld result is handed to a future: nothing tells when somebody waits for one."""


class WithheldWork(_c10d.Work):  # type: ignore[misc]  # the base class has no type stubs
    """A collective whose result reaches the caller's buffers only when the caller waits for it.

    The contents of a buffer between the start of a collective and its completion are undefined, so a right program
    cannot tell.

    Attributes:
        done: Whether the result has been handed over.
        overwritten: Whether the caller wrote to a buffer while it was in flight.
        sent: What was sent, to name it by.
    """

    def __init__(self, inner: Any, tensors: list[torch.Tensor], results: list[torch.Tensor], sent: Sent,
                 others: "list[WithheldWork]", sentinel: float) -> None:
        super().__init__()
        self.inner, self.sent, self._others = inner, sent, others
        self.done = self.overwritten = False
        self._tensors, self._results = tensors, results
        self._lock = threading.Lock()
        self._future: Any = None
        with torch.no_grad():
            for tensor in tensors:
                tensor.detach().fill_(sentinel if tensor.is_floating_point() or tensor.is_complex() else 77)
        self._snapshots = [tensor.detach().clone() for tensor in tensors]

    def _hand_over(self) -> None:
        with self._lock:
            if self.done:
                return
            self.inner.wait()
            with torch.no_grad():
                for tensor, snapshot, result in zip(self._tensors, self._snapshots, self._results, strict=True):
                    self.overwritten |= not _same(tensor.detach(), snapshot)
                    tensor.detach().copy_(result)
            self.done = True
            # Two collectives into one buffer (a tied parameter) are in order: what the first hands over is no foreign write.
            for other in self._others:
                other.look_again(self._tensors)

    def look_again(self, handed_over: list[torch.Tensor]) -> None:
        """Take what another collective has just put into a buffer of this one as what the buffer holds."""
        addresses = {tensor.untyped_storage().data_ptr() for tensor in handed_over}
        if not self.done and any(tensor.untyped_storage().data_ptr() in addresses for tensor in self._tensors):
            self._snapshots = [tensor.detach().clone() for tensor in self._tensors]

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the result and hand it over."""
        del timeout
        self._hand_over()
        return True

    def synchronize(self) -> None:
        """The same, by another name."""
        self._hand_over()

    def is_completed(self) -> bool:
        """Polling is a way to wait: hand over once the collective is done."""
        if not self.done and self.inner.is_completed():
            self._hand_over()
        return self.done

    def is_success(self) -> bool:
        """Whether it is done."""
        return self.done

    def exception(self) -> None:
        """None: an exception is raised by wait."""

    def result(self) -> list[torch.Tensor]:
        """The buffers, with the result."""
        self._hand_over()
        return self._tensors

    def get_future(self) -> Any:
        """A future that completes a little later, whether or not anybody waits for it."""
        if self._future is None:
            future = self._future = torch.futures.Future()

            def hand_over() -> None:
                time.sleep(FUTURE_DELAY)
                try:
                    self._hand_over()
                except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to who waits for the future
                    future.set_exception(error)
                else:
                    future.set_result(list(self._tensors))

            threading.Thread(target=hand_over, daemon=True).start()
        return self._future


class ObservedGroup(_c10d.ProcessGroup):  # type: ignore[misc]  # the base class has no type stubs
    """A process group that forwards to kept connections and notes every collective.

    torch's C++ code (the Reducer of its DDP) calls the same overridden methods as Python code does.
    """

    def __init__(self, connections: Connections, *, withhold: bool) -> None:
        super().__init__(connections.rank, connections.world_size)
        self._withhold = withhold
        self._set_default_backend(_GLOO)
        self._register_backend(_CPU, _GLOO, connections.gloo)
        self._inner = _c10d.ProcessGroup(connections.rank, connections.world_size)
        self._inner._set_default_backend(_GLOO)
        self._inner._register_backend(_CPU, _GLOO, connections.gloo)
        self._name, self._description = "", "undefined"
        self.sent: list[Sent] = []
        self._works: list[Any] = []
        self._silent_works: list[Any] = []
        self._withheld: list[WithheldWork] = []

    def in_flight(self) -> list[tuple[Sent, str]]:
        """Withheld collectives that are not as they should be now: nobody waited for them, or their buffer was written."""
        found = [(work.sent, "written to while in flight" if work.overwritten else "not waited for")
                 for work in self._withheld if work.overwritten or not work.done]
        self._withheld = [work for work in self._withheld if not work.done]
        return found

    def finished(self, patience: float) -> bool:
        """Whether every collective started has completed, within `patience` seconds.

        Patience, because gloo completes a Work's future first and the Work a moment later: who waited for the future
        may be here in between.
        """
        until = time.monotonic() + patience
        while not all(work.is_completed() for work in self._works):
            if time.monotonic() > until:
                return False
            time.sleep(0.0001)
        return all(_waited(work, until - time.monotonic()) for work in self._silent_works)

    def _note(self, kind: str, arguments: tuple[Any, ...]) -> None:
        # A gather's outputs are empty on all ranks but one: its input tells.
        tensor = _first_tensor(arguments[1] if kind == "gather" else arguments)
        operation = ""
        for argument in arguments[1:]:
            if hasattr(argument, "reduceOp"):
                operation = str(argument.reduceOp.op).rpartition(".")[2]
            elif hasattr(argument, "rootRank"):
                operation = f"from {argument.rootRank}"
        if tensor is None:
            self.sent.append((kind, "", 0, operation))
        else:
            self.sent.append((kind, str(tensor.dtype)[6:], tensor.numel(), operation))

    # Names, which torch asks for both through C++ virtuals and through Python attributes.

    def getBackendName(self) -> str:
        """Gloo, as far as anybody asks."""
        return "gloo"

    def setGroupName(self, name: str) -> None:
        """Remember the name torch gives the group."""
        self._name = name
        self._inner._set_group_name(name)

    def getGroupName(self) -> str:
        """The name torch gave the group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """Remember the description torch gives the group."""
        self._description = description
        self._inner._set_group_desc(description)

    def getGroupDesc(self) -> str:
        """The description torch gave the group."""
        return self._description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)


def _waited(work: Any, patience: float) -> bool:
    """Whether a Work is done, asked by waiting: gloo's reduce-scatter never says `is_completed`, not even when waited for."""
    try:
        return bool(work.wait(dt.timedelta(seconds=max(patience, 0.001))))
    except RuntimeError:
        return False


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal, where NaN equals NaN: it may be the sentinel."""
    return bool(torch.equal(one, other) or ((one == other) | ((one != one) & (other != other))).all())


def _first_tensor(value: Any) -> torch.Tensor | None:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def _forwarded(kind: str) -> Callable[..., Any]:
    def forward(self: ObservedGroup, *arguments: Any, **options: Any) -> Any:
        self._note(kind, (*arguments, *options.values()))
        work = getattr(self._inner, kind)(*arguments, **options)
        if isinstance(work, _c10d.Work):
            (self._silent_works if "reduce_scatter" in kind else self._works).append(work)
        return work

    def withheld(self: ObservedGroup, target: Any, *arguments: Any, **options: Any) -> Any:
        tensors: list[torch.Tensor] = [target] if kind in IN_ONE else target
        roots = [getattr(argument, "rootRank", None) for argument in (*arguments, *options.values())]
        sends = kind == "broadcast" and self.rank() in roots
        if not self._withhold or sends or any(tensor.layout != torch.strided for tensor in tensors):
            return forward(self, target, *arguments, **options)
        results = [tensor.detach().clone() for tensor in tensors]
        if kind in IN_ONE:  # What is sent may be part of what takes the result, which is about to be overwritten.
            arguments = (arguments[0].detach().clone(), *arguments[1:])
        inner = forward(self, results[0] if kind in IN_ONE else results, *arguments, **options)
        work = WithheldWork(inner, tensors, results, self.sent[-1], self._withheld, SENTINEL)
        self._withheld.append(work)
        return work

    chosen = withheld if kind in (*IN_LISTS, *IN_ONE) else forward
    chosen.__name__ = kind
    return chosen


# The names of collectives change between torch versions: forward what this one has.
_COLLECTIVES = ("all", "broadcast", "reduce", "gather", "scatter", "send", "recv", "barrier", "monitored_barrier",
                "_all", "_reduce")
for _name in dir(_c10d.ProcessGroup):
    if _name.startswith(_COLLECTIVES) and callable(getattr(_c10d.ProcessGroup, _name)):
        setattr(ObservedGroup, _name, _forwarded(_name))


_pending: list[Any] = []
"""The group torch's next call for one shall get: its creators are not told for whom they create."""


def _create(*_: Any) -> Any:
    return _pending.pop()


def lone_rank(rank: int, world_size: int) -> None:
    """Make a default group that knows its rank and size and can do nothing, for code that asks for no more."""
    _pending[:] = [_c10d.ProcessGroup(rank, world_size)]
    dist.init_process_group("observed", store=_c10d.HashStore(), rank=rank, world_size=world_size)


dist.Backend.register_backend("observed", _create, devices=["cpu"])

_init_process_group, _destroy_process_group = dist.init_process_group, dist.destroy_process_group
_joined = 0
"""How often the implementation on trial has asked for a default group while a case has one."""


def _join(*arguments: Any, **options: Any) -> None:
    """`init_process_group` for implementations that call it themselves: during a case there is a group, and they are in it.

    Raises:
        ValueError: They expect another rank or world size.
    """
    global _joined  # noqa: PLW0603 - torch.distributed's own state is the process's, and so is this
    if not _active:
        _init_process_group(*arguments, **options)
        return
    for name, ours in (("rank", dist.get_rank()), ("world_size", dist.get_world_size())):
        if options.get(name, -1) not in (-1, ours):
            raise ValueError(f"init_process_group was called with {name}={options[name]}, but this process has {name} {ours}")
    _joined += 1


def _leave(group: Any = None) -> None:
    """`destroy_process_group`: leaves what was only joined as it is."""
    global _joined  # noqa: PLW0603 - as above
    if _active and _joined and group in (None, dist.group.WORLD):
        _joined -= 1
        return
    _destroy_process_group(group)


_active: list["Session"] = []
"""The session of the case that runs, if one does."""
# Replaced for good and before any implementation is imported, since `from torch.distributed import …` keeps what it finds.
for _name, _ours in (("init_process_group", _join), ("destroy_process_group", _leave)):
    setattr(dist, _name, _ours)
    setattr(dist.distributed_c10d, _name, _ours)


class Session:
    """torch.distributed as one case finds it: initialised, with a default group and perhaps a subgroup.

    Args:
        connections: Of all ranks of the case.
        training: Connections of the ranks that train, where they are not all (`TrainingCase.outside`).
        members: Their ranks in the default group.
        number: Of the case, so that no two cases share keys of the store.
        plain: Make plain gloo groups instead of observed ones: a counterexample must not depend on the observer.
        withhold: Have observed groups withhold results until they are waited for.
    """

    def __init__(self, connections: Connections, training: Connections | None, members: list[int], number: int,
                 *, plain: bool, withhold: bool) -> None:
        self.groups: list[ObservedGroup] = []
        # torch wraps it at every initialisation and never takes the wrapper off.
        self._exception_hook = sys.excepthook
        store = _c10d.PrefixStore(f"case{number}", connections.store)
        backend = "gloo" if plain else "observed"
        _pending[:] = [] if plain else [ObservedGroup(connections, withhold=withhold)]
        _init_process_group(backend, store=store, rank=connections.rank, world_size=connections.world_size,
                            timeout=connections.timeout)
        self._world = dist.group.WORLD
        self._adopt(self._world, store)
        self.subgroup: Any = None
        if len(members) < connections.world_size:
            if training is not None and not plain:
                _pending.append(ObservedGroup(training, withhold=withhold))
            self.subgroup = dist.new_group(members, backend=backend, timeout=connections.timeout)
            if training is not None:
                self._adopt(self.subgroup, store)
        _active.append(self)

    def _adopt(self, group: Any, store: Any) -> None:
        if not isinstance(group, ObservedGroup):
            return
        self.groups.append(group)
        # So that implementations which ask for the backend are told what really carries their data.
        dist.distributed_c10d._world.pg_map[group] = ("gloo", store)

    def in_flight(self) -> list[tuple[Sent, str]]:
        """What is still in flight and should not be, over all groups; see `ObservedGroup.in_flight`."""
        return [found for group in self.groups for found in group.in_flight()]

    def sent(self) -> list[list[Sent]]:
        """What this rank sent, per group."""
        return [group.sent for group in self.groups]

    def counts(self) -> list[int]:
        """How many collectives this rank has sent so far, per group."""
        return [len(group.sent) for group in self.groups]

    def end(self) -> None:
        """The implementation's part is over."""
        global _joined  # noqa: PLW0603 - as above
        _active.clear()
        _joined = 0

    def close(self) -> bool:
        """Leave torch.distributed uninitialised; whether nothing of the case was still in flight."""
        self.end()
        still = dist.is_initialized() and dist.group.WORLD is self._world
        finished = all(group.finished(0.05) for group in self.groups)
        if dist.is_initialized():
            _destroy_process_group()
        sys.excepthook = self._exception_hook
        return still and finished
