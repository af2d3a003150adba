"""The state of torch.distributed during a case: initialised, with observed groups.

After the case it is as it was before. The functions with which implementations make groups find the
case's groups, and make observed groups.
"""

import datetime as dt
import sys
from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh

from ddp_invariants.ranks.groups.observed import Connections, ObservedGroup, Timing
from ddp_invariants.ranks.groups.works import Log, Row
from ddp_invariants.records.trace import label

# These classes are public names of torch.distributed without type stubs.
_c10d: Any = torch._C._distributed_c10d

_pending: list[Any] = []
"""The group for torch's next creation, since torch does not say for which group it creates."""


def _create(store: Any, rank: int, world_size: int, timeout: dt.timedelta) -> Any:
    if _pending:
        return _pending.pop()
    case_groups = _active[0]
    carrier = _branching[0] if _branching else ""
    return case_groups.observe(
        case_groups.connections.branch(store, rank, world_size, timeout, carrier)
    )


def lone_rank(rank: int, world_size: int) -> None:
    """Make a default group that knows its rank and size but cannot communicate.

    Some code only asks for rank and size.
    """
    _pending[:] = [_c10d.ProcessGroup(rank, world_size)]
    dist.init_process_group("observed", store=_c10d.HashStore(), rank=rank, world_size=world_size)


def lone_group(rank: int, ranks: Sequence[int]) -> Any:
    """Return a group of some ranks of the default group, which cannot communicate either.

    Args:
        rank: This rank's number in the group.
        ranks: Their numbers in the default group, which `lone_rank` made.
    """
    _pending[:] = [_c10d.ProcessGroup(rank, len(ranks))]
    return _new_group([*ranks], use_local_synchronization=True)


dist.Backend.register_backend("observed", _create, devices=["cpu", "cuda"])

_init_process_group, _destroy_process_group = dist.init_process_group, dist.destroy_process_group
_new_group, _batch_isend_irecv = dist.new_group, dist.batch_isend_irecv
_joined = 0
"""The number of times the implementation under test asked for a default group during the case."""


def _join(*arguments: Any, **options: Any) -> None:
    """Replace `init_process_group` for implementations that call it themselves.

    During a case the process already has a group and is a member of it.

    Raises:
        ValueError: The caller expects another rank or world size.
    """
    global _joined  # noqa: PLW0603 - process-wide state, as torch.distributed's is
    if not _active:
        _init_process_group(*arguments, **options)
        return
    for name, actual in (("rank", dist.get_rank()), ("world_size", dist.get_world_size())):
        if options.get(name, -1) not in (-1, actual):
            raise ValueError(
                f"init_process_group was called with {name}={options[name]}, but this process "
                f"has {name} {actual}"
            )
    _joined += 1


def _leave(group: Any = None) -> None:
    """Replace `destroy_process_group`: a group that was only joined stays."""
    global _joined  # noqa: PLW0603 - as above
    if _active and _joined and group in (None, dist.group.WORLD):
        _joined -= 1
        return
    if _active and group in (None, dist.group.WORLD):
        _active[0].destroyed = True
    _destroy_process_group(group)


@wraps(dist.new_group)
def _branch(
    ranks: Any = None, timeout: Any = None, backend: Any = None, *arguments: Any, **options: Any
) -> Any:
    """Replace `new_group`: during a case with observed groups the new group is observed, too."""
    if not _active or not _active[0].groups or (carrier := _active[0].carrier_of(backend)) is None:
        return _new_group(ranks, timeout, backend, *arguments, **options)
    _branching[:] = [carrier]
    try:
        group = _new_group(ranks, timeout, "observed", *arguments, **options)
    finally:
        _branching.clear()
    _active[0].adopt(group)
    return group


@wraps(dist.batch_isend_irecv)
def _send_as_one(operations: list[Any]) -> Any:
    """Replace `batch_isend_irecv`, which groups messages only in torch's own class of groups.

    NCCL sends one message of a pair of ranks after another. So two ranks that both send first would
    wait for each other.
    """
    group = getattr(operations[0], "group", None) if operations else None
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, ObservedGroup) or group.getBackendName() != "nccl":
        return _batch_isend_irecv(operations)
    device = operations[0].tensor.device
    with dist.distributed_c10d._coalescing_manager(group, device, async_ops=True) as manager:
        for message in operations:
            peer = {"group_dst" if message.op is dist.isend else "group_src": message.group_peer}
            message.op(message.tensor, group=message.group, tag=message.tag, **peer)
    return manager.works


_CARRIERS = {"gloo": "gloo", "cpu:gloo": "gloo", "nccl": "nccl", "cuda:nccl": "nccl"}
"""The backends whose groups are observed, by the names that callers use."""
_branching: list[str] = []
"""The backend of the group that is being made now."""
_active: list["CaseGroups"] = []
"""The groups of the running case, if one runs."""
_kept: list["CaseGroups"] = []
"""The last case's groups, if the implementation made groups of its own.

The connections of these groups end when the next case begins: by then all ranks have answered. An
earlier end could end another rank's wait.
"""
PER_RANK = ("_pending", "_branching", "_active", "_kept", "_joined")
"""Names of this module whose values each simulated rank has for itself."""
# Replaced for good and before any implementation is imported, since `from torch.distributed import
# …` keeps the function that it finds.
for _name, _replacement in (
    ("init_process_group", _join),
    ("destroy_process_group", _leave),
    ("new_group", _branch),
    ("batch_isend_irecv", _send_as_one),
):
    for _module in (dist, dist.distributed_c10d, device_mesh):
        if hasattr(_module, _name):
            setattr(_module, _name, _replacement)


class CaseGroups:
    """The state of torch.distributed during one case: a default group and perhaps a subgroup.

    Args:
        connections: Of all ranks of the case.
        training: Connections of the ranks that train, if not all do (`TrainingCase.outside`).
        members: Their ranks in the default group.
        name: Of the run, so that no two runs share keys of the store.
        log: The log in which the groups record.
        timing: The changes to the timing of this rank's collectives.
        plain: Make plain groups instead of observed ones: a counterexample must not depend on the
            observer.

    Attributes:
        connections: Of all ranks of the case.
        store: The store through which the ranks of the run meet.
        rank_device: The device of this rank's tensors.
        groups: The observed groups, the default one first.
        members: Each group's ranks in the default group.
        destroyed: True if the implementation destroyed the default group, which it did not make.
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
        self.destroyed = False
        self.members: list[list[int]] = []
        self._timing, self.log, self.rank_device = timing, log, connections.rank_device
        self.connections = connections
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
        """Make a group over connections that records in this case's log."""
        return ObservedGroup(connections, self.log, self._timing)

    def adopt(self, group: Any) -> None:
        """Add a group that torch has made, unless this rank is none of its members."""
        if not isinstance(group, ObservedGroup):
            return
        members = sorted(dist.get_process_group_ranks(group))
        group.label = label(members, self.members.count(members))
        self.groups.append(group)
        self.members.append(members)
        # Implementations that ask for the backend shall get the one that really carries their data.
        made_with = dist.distributed_c10d._world.pg_map
        made_with[group] = (group.getBackendName(), made_with[group][1])

    def carrier_of(self, backend: Any) -> str | None:
        """Return the backend that carries a new group, None if the group is not to be observed."""
        carrier = self.rank_device.carrier if backend is None else _CARRIERS.get(str(backend))
        return carrier if carrier in ("gloo", self.rank_device.carrier) else None

    def in_flight(self) -> list[tuple[Row, str]]:
        """Return the in-flight defects of all groups; see `ObservedGroup.in_flight`."""
        return [defect for group in self.groups for defect in group.in_flight()]

    def sent(self) -> list[list[Row]]:
        """Return the collectives that this rank sent, per group."""
        return [group.calls for group in self.groups]

    def counts(self) -> list[int]:
        """Return the number of collectives this rank has sent so far, per group."""
        return [len(group.calls) for group in self.groups]

    @property
    def branched(self) -> bool:
        """True if the implementation made groups of its own."""
        return len(self.groups) > self._given

    def end(self) -> None:
        """End the implementation's part."""
        global _joined  # noqa: PLW0603 - as above
        _active.clear()
        _joined = 0

    def close(self) -> bool:
        """Leave torch.distributed uninitialised, and return whether nothing was in flight."""
        self.end()
        if self.branched:
            _kept.append(self)
        still = dist.is_initialized() and dist.group.WORLD is self._world
        finished = all(group.finished(self.connections.patience) for group in self.groups)
        if finished:
            self.rank_device.finish()
        if dist.is_initialized():
            _destroy_process_group()
        sys.excepthook = self._exception_hook
        return still and finished
