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
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

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


class ObservedGroup(_c10d.ProcessGroup):  # type: ignore[misc]  # the base class has no type stubs
    """A process group that forwards to kept connections and notes every collective.

    torch's C++ code (the Reducer of its DDP) calls the same overridden methods as Python code does.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections.rank, connections.world_size)
        self._set_default_backend(_GLOO)
        self._register_backend(_CPU, _GLOO, connections.gloo)
        self._inner = _c10d.ProcessGroup(connections.rank, connections.world_size)
        self._inner._set_default_backend(_GLOO)
        self._inner._register_backend(_CPU, _GLOO, connections.gloo)
        self._name, self._description = "", "undefined"
        self.sent: list[Sent] = []
        self._works: list[Any] = []

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
        return True

    def _note(self, kind: str, arguments: tuple[Any, ...]) -> None:
        tensor = _first_tensor(arguments)
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


def _first_tensor(value: Any) -> torch.Tensor | None:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def _forwarded(kind: str) -> Callable[..., Any]:
    def forward(self: ObservedGroup, *arguments: Any, **options: Any) -> Any:
        self._note(kind, (*arguments, *options.values()))
        work = getattr(self._inner, kind)(*arguments, **options)
        if isinstance(work, _c10d.Work):
            self._works.append(work)
        return work

    forward.__name__ = kind
    return forward


# The names of collectives change between torch versions: forward what this one has.
_COLLECTIVES = ("all", "broadcast", "reduce", "gather", "scatter", "send", "recv", "barrier", "monitored_barrier",
                "_all", "_reduce")
for _name in dir(_c10d.ProcessGroup):
    if _name.startswith(_COLLECTIVES) and callable(getattr(_c10d.ProcessGroup, _name)):
        setattr(ObservedGroup, _name, _forwarded(_name))


_pending: list[Connections] = []
"""Connections the next group created by torch shall use: its creators are not told for whom they create."""


def _create(*_: Any) -> ObservedGroup:
    return ObservedGroup(_pending.pop())


dist.Backend.register_backend("observed", _create, devices=["cpu"])


class Session:
    """torch.distributed as one case finds it: initialised, with a default group and perhaps a subgroup.

    Args:
        connections: Of all ranks of the case.
        training: Connections of the ranks that train, where they are not all (`TrainingCase.outside`).
        members: Their ranks in the default group.
        number: Of the case, so that no two cases share keys of the store.
        plain: Make plain gloo groups instead of observed ones: a counterexample must not depend on the observer.
    """

    def __init__(self, connections: Connections, training: Connections | None, members: list[int], number: int,
                 *, plain: bool) -> None:
        self.groups: list[ObservedGroup] = []
        # torch wraps it at every initialisation and never takes the wrapper off.
        self._exception_hook = sys.excepthook
        store = _c10d.PrefixStore(f"case{number}", connections.store)
        backend = "gloo" if plain else "observed"
        _pending[:] = [] if plain else [connections]
        dist.init_process_group(backend, store=store, rank=connections.rank, world_size=connections.world_size,
                                timeout=connections.timeout)
        self._world = dist.group.WORLD
        self._adopt(self._world, store)
        self.subgroup: Any = None
        if len(members) < connections.world_size:
            if training is not None and not plain:
                _pending.append(training)
            self.subgroup = dist.new_group(members, backend=backend, timeout=connections.timeout)
            if training is not None:
                self._adopt(self.subgroup, store)

    def _adopt(self, group: Any, store: Any) -> None:
        if not isinstance(group, ObservedGroup):
            return
        self.groups.append(group)
        # So that implementations which ask for the backend are told what really carries their data.
        dist.distributed_c10d._world.pg_map[group] = ("gloo", store)

    def sent(self) -> list[list[Sent]]:
        """What this rank sent, per group."""
        return [group.sent for group in self.groups]

    def close(self) -> bool:
        """Leave torch.distributed uninitialised; whether nothing of the case was still in flight."""
        still = dist.is_initialized() and dist.group.WORLD is self._world
        finished = all(group.finished(0.05) for group in self.groups)
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = self._exception_hook
        return still and finished
