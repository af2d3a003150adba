"""The connections of one simulated rank in one group."""

import datetime as dt
from typing import Any

import torch

from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.observed import Connections
from ddp_invariants.ranks.groups.simulated.backend import SimulatedBackend
from ddp_invariants.ranks.groups.simulated.gloo import unconnected_gloo
from ddp_invariants.ranks.groups.simulated.shared import Simulation

# These classes are public names of torch.distributed without type stubs.
_c10d: Any = torch._C._distributed_c10d


class SimulatedConnections(Connections):
    """The connections of one simulated rank in one group. They serve one case.

    Args:
        simulation: The case's simulation.
        name: The name by which all ranks of the group know it.
        store: The store of the group.
        rank: This rank's number in the group.
        world_size: Ranks in the group.
        timeout: The time after which gloo would give up.
    """

    patience = 0.0

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        store: Any,
        rank: int,
        world_size: int,
        timeout: dt.timedelta,
    ) -> None:
        self.rank, self.world_size, self.timeout, self.store = rank, world_size, timeout, store
        self.rank_device, self.carrier = RankDevice(), "gloo"
        self._simulation, self._name = simulation, name

    def branch(
        self, store: Any, rank: int, world_size: int, timeout: dt.timedelta, carrier: str
    ) -> "SimulatedConnections":
        """Return this rank's connections in a group that the implementation makes."""
        del carrier
        store.add("simulated", 1)
        name = store._underlying_non_prefix_store.added
        return SimulatedConnections(self._simulation, name, store, rank, world_size, timeout)

    def carries(self, group: Any) -> None:
        """Give an observed group a backend for code that asks for it; it never sends."""
        kind = _c10d.ProcessGroup.BackendType.GLOO
        group._set_default_backend(kind)
        gloo = unconnected_gloo(self.rank, self.world_size)
        group._register_backend(torch.device("cpu"), kind, gloo)

    def sender(self) -> SimulatedBackend:
        """Return the backend to which an observed group forwards."""
        group = self._simulation.group(self._name, self.world_size)
        return SimulatedBackend(self._simulation, group, self.rank)

    def delay(self, seconds: float) -> None:
        """Let other ranks run for some virtual seconds."""
        self._simulation.turns.sleep(seconds)
