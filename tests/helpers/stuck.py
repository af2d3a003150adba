"""Wrong implementations whose ranks call different collectives, or never end."""

import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class OnRankOne(Reference):
    """A base class that calls something at the end of backward; rank 1 calls something else."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.own: Any = dist.new_group()
        self.first: Any = dist.new_group([0, 1])

    def finish_gradient_synchronization(self) -> None:
        """Call it after the reference's reductions."""
        if dist.get_rank() == 1:
            self.different()
        else:
            self.usual()

    def usual(self) -> None:
        """Call what the other ranks call."""
        dist.all_reduce(torch.ones(2))

    def different(self) -> None:
        """Call what rank 1 calls."""
        raise NotImplementedError


class Missing(OnRankOne):
    """Wrong: rank 1 calls nothing, and then as many collectives less than the other ranks."""

    def different(self) -> None:
        """Call nothing."""


class OtherKind(OnRankOne):
    """Wrong: rank 1 calls another collective."""

    def different(self) -> None:
        """Broadcast."""
        dist.broadcast(torch.ones(2), 0)


class OtherShape(OnRankOne):
    """Wrong: rank 1 sends more elements."""

    def different(self) -> None:
        """Send three elements."""
        dist.all_reduce(torch.ones(3))


class OtherDtype(OnRankOne):
    """Wrong: rank 1 sends another dtype."""

    def different(self) -> None:
        """Send float64."""
        dist.all_reduce(torch.ones(2, dtype=torch.float64))


class OtherRoot(OnRankOne):
    """Wrong: rank 1 broadcasts from another root."""

    def usual(self) -> None:
        """Broadcast from rank 0."""
        dist.broadcast(torch.ones(2), 0)

    def different(self) -> None:
        """Broadcast from rank 1."""
        dist.broadcast(torch.ones(2), 1)


class OtherGroup(OnRankOne):
    """Wrong: rank 1 calls in another group."""

    def different(self) -> None:
        """Send in the group made here."""
        dist.all_reduce(torch.ones(2), group=self.own)


class OtherOrder(OnRankOne):
    """Wrong: rank 1 calls two collectives of two groups in another order."""

    def usual(self) -> None:
        """Send in the world first."""
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), group=self.own)

    def different(self) -> None:
        """Send in the own group first."""
        dist.all_reduce(torch.ones(2), group=self.own)
        dist.all_reduce(torch.ones(2))


class FromAThread(Reference):
    """An implementation that communicates from a thread of its own."""

    def finish_gradient_synchronization(self) -> None:
        """Send from a thread."""
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(2)))
        thread.start()
        thread.join()


class Loops(OnRankOne):
    """Wrong: rank 1 loops for ever."""

    def different(self) -> None:
        """Loop."""
        while True:
            pass


class Sleeps(OnRankOne):
    """Wrong: rank 1 sleeps for ever."""

    def different(self) -> None:
        """Sleep."""
        time.sleep(10**6)


class SendsAnExpandedTensor(Reference):
    """Sends a tensor whose elements share memory, if the model has more than one parameter."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        if len([*module.parameters()]) > 1:
            dist.broadcast(torch.ones(1).expand(3), 0)
