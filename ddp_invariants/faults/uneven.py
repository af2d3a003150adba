"""Ranks run out of batches: each step asks who still has one, and whoever has none takes part with zeros.

The shape of torch's join: a rank that leaves its loop goes on answering the others' collectives
until all have left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._start import broadcast


class Joins(nn.Module):
    """Right: a call after backward averages all gradients; under join() those without a batch count as zero."""

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("unused", "in_parts")}

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.world_size, self.rank = (
            dist.get_world_size(process_group),
            dist.get_rank(process_group),
        )
        self._joining, self._active, self._steps = False, self.world_size, 0
        broadcast([*module.parameters(), *module.buffers()], process_group)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        """To be called after every backward."""
        if self._joining:
            self._ask(1)
            self._steps += 1
        for parameter in self._trained():
            assert parameter.grad is not None
            parameter.grad.copy_(self._sum(parameter.grad) / self._divisor())

    @contextmanager
    def join(self) -> Iterator[None]:
        """For a loop over as many batches as this rank has."""
        self._joining, self._steps = True, 0
        yield
        while self._ask(0):
            for parameter in self._trained():
                self._sum(self._without_a_batch(parameter))
        self._agree()
        self._joining = False

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def _ask(self, mine: int) -> int:
        """How many ranks still have a batch."""
        active = torch.tensor([mine])
        dist.all_reduce(active, group=self.group)
        self._active = int(active)
        return self._active

    def _sum(self, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def _divisor(self) -> int:
        return self.world_size

    def _without_a_batch(self, parameter: nn.Parameter) -> Tensor:
        return torch.zeros_like(parameter)

    def _agree(self) -> None:
        """Give all ranks the parameters of one that had the most batches."""
        most = torch.tensor([self._steps * self.world_size + self.rank])
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
        self._take_from(int(most) % self.world_size)

    def _take_from(self, rank: int) -> None:
        with torch.no_grad():
            for parameter in self.module.parameters():
                whole = parameter.contiguous()
                dist.broadcast(whole, group_src=rank, group=self.group)
                parameter.copy_(whole)


class CountsThoseLeft(Joins):
    """Right: sums are divided by the ranks that still have a batch, and that is declared."""

    declares: ClassVar[dict[str, Any]] = {**Joins.declares, "divisor": "active"}

    def _divisor(self) -> int:
        return self._active


class DividesByThoseLeft(Joins):
    """Sums are divided by the ranks that still have a batch, where all are meant (pytorch#42577).

    GRAD-11: ranks that are left.
    """

    def _divisor(self) -> int:
        return self._active


class SendsItsLastGradientAgain(Joins):
    """A rank without a batch takes part with what its last backward left (a classic).

    GRAD-11: sends its last gradient again.
    """

    def _without_a_batch(self, parameter: nn.Parameter) -> Tensor:
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


class KeepsWhatItHad(Joins):
    """A rank that ran out of batches keeps the parameters it had then (no public incident found). GRAD-11."""

    def _agree(self) -> None:
        pass


class TakesRankZeros(Joins):
    """In the end all take rank 0's parameters, which may have been the first to run out (no public incident found). GRAD-11."""

    def _agree(self) -> None:
        self._take_from(0)


class JoinsInBfloat16(Joins):
    """Right: sums travel in bfloat16, as it declares, those of ranks without a batch, too."""

    declares: ClassVar[dict[str, Any]] = {
        "exactness": "bfloat16",
        "unsupported": (*Joins.declares["unsupported"], "complex"),
    }

    def _sum(self, gradient: Tensor) -> Tensor:
        return super()._sum(gradient.to(torch.bfloat16)).to(gradient.dtype)


class JoinsUncompressed(JoinsInBfloat16):
    """Sums travel in bfloat16, and what a rank without a batch sends does not (pytorch#60611). COMM-1."""

    _without = False

    def _without_a_batch(self, parameter: nn.Parameter) -> Tensor:
        self._without = True
        return super()._without_a_batch(parameter)

    def _sum(self, gradient: Tensor) -> Tensor:
        return Joins._sum(self, gradient) if self._without else super()._sum(gradient)

    def _agree(self) -> None:
        self._without = False
        super()._agree()
