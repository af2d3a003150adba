"""torch.distributed as a case finds it: initialised, its groups observed, and as it was before once the case is over.

What implementations call to make groups themselves finds the case's groups, and makes observed
ones.
"""

import datetime as dt
import sys
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh

from ddp_invariants.ranks.groups.observed import Connections, Log, ObservedGroup, Row, Timing
from ddp_invariants.records.trace import label

_c10d: Any = (
    torch._C._distributed_c10d
)  # Its classes are public names of torch.distributed without type stubs.

_pending: list[Any] = []
"""The group torch's next call for one shall get: its creators are not told for whom they create."""


def _create(store: Any, rank: int, world_size: int, timeout: dt.timedelta) -> Any:
    if _pending:
        return _pending.pop()
    session = _active[0]
    return session.observe(
        Connections(store, rank, world_size, timeout, session.place, *_branching)
    )


def lone_rank(rank: int, world_size: int) -> None:
    """Make a default group that knows its rank and size and can do nothing, for code that asks for no more."""
    _pending[:] = [_c10d.ProcessGroup(rank, world_size)]
    dist.init_process_group("observed", store=_c10d.HashStore(), rank=rank, world_size=world_size)


dist.Backend.register_backend("observed", _create, devices=["cpu", "cuda"])

_init_process_group, _destroy_process_group = dist.init_process_group, dist.destroy_process_group
_new_group = dist.new_group
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
            raise ValueError(
                f"init_process_group was called with {name}={options[name]}, but this process has {name} {ours}"
            )
    _joined += 1


def _leave(group: Any = None) -> None:
    """`destroy_process_group`: leaves what was only joined as it is."""
    global _joined  # noqa: PLW0603 - as above
    if _active and _joined and group in (None, dist.group.WORLD):
        _joined -= 1
        return
    _destroy_process_group(group)


@wraps(dist.new_group)
def _branch(
    ranks: Any = None, timeout: Any = None, backend: Any = None, *arguments: Any, **options: Any
) -> Any:
    """`new_group`: during a case whose groups are observed the new one is so too."""
    if not _active or not _active[0].groups or (carrier := _active[0].carrier_of(backend)) is None:
        return _new_group(ranks, timeout, backend, *arguments, **options)
    _branching[:] = [carrier]
    try:
        group = _new_group(ranks, timeout, "observed", *arguments, **options)
    finally:
        _branching.clear()
    _active[0].adopt(group)
    return group


_CARRIERS = {"gloo": "gloo", "cpu:gloo": "gloo", "nccl": "nccl", "cuda:nccl": "nccl"}
"""The backends whose groups are observed, by the names that they are asked for."""
_branching: list[str] = []
"""The one of the group that is made now."""
_active: list["Session"] = []
"""The session of the case that runs, if one does."""
_kept: list["Session"] = []
"""The last case's session, where an implementation made groups: their connections end when the next case begins, by when all
ranks have answered; before, they could end another rank's wait."""
# Replaced for good and before any implementation is imported, since `from torch.distributed import
# …` keeps what it finds.
for _name, _ours in (
    ("init_process_group", _join),
    ("destroy_process_group", _leave),
    ("new_group", _branch),
):
    for _module in (dist, dist.distributed_c10d, device_mesh):
        if hasattr(_module, _name):
            setattr(_module, _name, _ours)


class Session:
    """torch.distributed as one case finds it: initialised, with a default group and perhaps a subgroup.

    Args:
        connections: Of all ranks of the case.
        training: Connections of the ranks that train, where they are not all
            (`TrainingCase.outside`).
        members: Their ranks in the default group.
        name: Of the run, so that no two share keys of the store.
        log: What the groups note in.
        timing: What is done to the timing of this rank's collectives.
        plain: Make plain groups instead of observed ones: a counterexample must not depend on the
            observer.

    Attributes:
        store: Where the ranks of the run meet.
        place: Where this rank's tensors are.
        groups: The observed groups, the default one first.
        members: Each one's ranks in the default group.
    """

    def __init__(
        self,
        connections: Connections,
        training: Connections | None,
        members: list[int],
        name: str,
        log: Log,
        timing: Timing,
        *,
        plain: bool,
    ) -> None:
        _kept.clear()
        self.groups: list[ObservedGroup] = []
        self.members: list[list[int]] = []
        self._timing, self.log, self.place = timing, log, connections.place
        if not plain:
            log.begin()
        # torch wraps it at every initialisation and never takes the wrapper off.
        self._exception_hook = sys.excepthook
        self.store = store = _c10d.PrefixStore(name, connections.store)
        backend = connections.carrier if plain else "observed"
        _pending[:] = [] if plain else [self.observe(connections)]
        _init_process_group(
            backend,
            store=store,
            rank=connections.rank,
            world_size=connections.world_size,
            timeout=connections.timeout,
        )
        self._world = dist.group.WORLD
        self.adopt(self._world)
        self.subgroup: Any = None
        if len(members) < connections.world_size:
            if training is not None and not plain:
                _pending.append(self.observe(training))
            self.subgroup = _new_group(members, backend=backend, timeout=connections.timeout)
            self.adopt(self.subgroup)
        self._given = len(self.groups)
        _active.append(self)

    def observe(self, connections: Connections) -> ObservedGroup:
        """A group over connections that notes in this case's log."""
        return ObservedGroup(connections, self.log, self._timing)

    def adopt(self, group: Any) -> None:
        """Take in a group torch has made, unless this rank is none of its members."""
        if not isinstance(group, ObservedGroup):
            return
        members = sorted(dist.get_process_group_ranks(group))
        group.label = label(members, self.members.count(members))
        self.groups.append(group)
        self.members.append(members)
        # So that implementations which ask for the backend are told what really carries their data.
        made_with = dist.distributed_c10d._world.pg_map
        made_with[group] = (group.getBackendName(), made_with[group][1])

    def carrier_of(self, backend: Any) -> str | None:
        """What carries a group that is asked for by the name of a backend; None where it is not to be observed."""
        carrier = self.place.carrier if backend is None else _CARRIERS.get(str(backend))
        return carrier if carrier in ("gloo", self.place.carrier) else None

    def in_flight(self) -> list[tuple[Row, str]]:
        """What is still in flight and should not be, over all groups; see `ObservedGroup.in_flight`."""
        return [found for group in self.groups for found in group.in_flight()]

    def sent(self) -> list[list[Row]]:
        """What this rank sent, per group."""
        return [group.calls for group in self.groups]

    def counts(self) -> list[int]:
        """How many collectives this rank has sent so far, per group."""
        return [len(group.calls) for group in self.groups]

    @property
    def branched(self) -> bool:
        """Whether the implementation made groups of its own."""
        return len(self.groups) > self._given

    def end(self) -> None:
        """The implementation's part is over."""
        global _joined  # noqa: PLW0603 - as above
        _active.clear()
        _joined = 0

    def close(self) -> bool:
        """Leave torch.distributed uninitialised; whether nothing of the case was still in flight."""
        self.end()
        if self.branched:
            _kept.append(self)
        still = dist.is_initialized() and dist.group.WORLD is self._world
        patience = 2.0 if self.place.on_device else 0.05  # What is queued there takes its time.
        finished = all(group.finished(patience) for group in self.groups)
        if finished:
            self.place.finish()
        if dist.is_initialized():
            _destroy_process_group()
        sys.excepthook = self._exception_hook
        return still and finished
