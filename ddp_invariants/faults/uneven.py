"""Uneven inputs: each step counts the ranks that still have a batch; the others send zeros.

This is the shape of torch's join. A rank that has left its loop keeps answering the collectives of
the other ranks until all ranks have left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._start import broadcast


class Joins(nn.Module):
    """Right: a call after backward averages all gradients; under join(), ranks without a batch
    count as zero.
    """

    declares: ClassVar[dict[str, Any]] = {
        "accumulation": "none",
        "unsupported": ("unused", "in_parts"),
    }

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
        """Average the gradients; the loop calls this after every backward."""
        if self._joining:
            self._ask(1)
            self._steps += 1
        for parameter in self._trained():
            if parameter.grad is None:
                raise RuntimeError("a parameter has no gradient: every parameter must be used")
            parameter.grad.copy_(self._sum(parameter.grad) / self._divisor())

    @contextmanager
    def join(self) -> Iterator[None]:
        """Return a context for a loop over as many batches as this rank has."""
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
        """Return how many ranks still have a batch."""
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
        """Give all ranks the parameters of a rank that had the most batches."""
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
    """Right: sums are divided by the number of ranks that still have a batch, as declared."""

    declares: ClassVar[dict[str, Any]] = {**Joins.declares, "divisor": "active"}

    def _divisor(self) -> int:
        return self._active


class DividesByThoseLeft(Joins):
    """Sums are divided by the number of ranks that still have a batch, instead of all ranks
    (pytorch#42577).

    GRAD-11: ranks that are left.
    """

    def _divisor(self) -> int:
        return self._active


class SendsItsLastGradientAgain(Joins):
    """A rank without a batch sends the gradient of its last backward (a well-known mistake).

    GRAD-11: sends its last gradient again.
    """

    def _without_a_batch(self, parameter: nn.Parameter) -> Tensor:
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


class KeepsWhatItHad(Joins):
    """A rank that ran out of batches keeps the parameters it had then (no public incident found).

    GRAD-11.
    """

    def _agree(self) -> None:
        pass


class TakesRankZeros(Joins):
    """At the end all ranks take the parameters of rank 0, which may have been the first to run out
    (no public incident found).

    GRAD-11.
    """

    def _agree(self) -> None:
        self._take_from(0)


class JoinsInBfloat16(Joins):
    """Right: sums travel in bfloat16, as declared, also from ranks without a batch."""

    declares: ClassVar[dict[str, Any]] = {
        **Joins.declares,
        "exactness": "bfloat16",
        "unsupported": (*Joins.declares["unsupported"], "complex"),
    }

    def _sum(self, gradient: Tensor) -> Tensor:
        return super()._sum(gradient.to(torch.bfloat16)).to(gradient.dtype)


class JoinsUncompressed(JoinsInBfloat16):
    """Sums travel in bfloat16, but a rank without a batch sends its zeros uncompressed
    (pytorch#60611).

    COMM-1.
    """

    _without = False

    def _without_a_batch(self, parameter: nn.Parameter) -> Tensor:
        self._without = True
        return super()._without_a_batch(parameter)

    def _sum(self, gradient: Tensor) -> Tensor:
        return Joins._sum(self, gradient) if self._without else super()._sum(gradient)

    def _agree(self) -> None:
        self._without = False
        super()._agree()


class JoinsAccumulated(Joins):
    """Right: gradients accumulate in no_sync(), and the next call averages the sums."""

    declares: ClassVar[dict[str, Any]] = {"unsupported": Joins.declares["unsupported"]}

    _accumulates = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context in which a call after backward sends nothing."""
        before, self._accumulates = self._accumulates, True
        try:
            yield
        finally:
            self._accumulates = before

    def sync_gradients(self) -> None:
        """Average the gradients, unless more are to be added."""
        if not self._accumulates:
            super().sync_gradients()


class SendsTheLastBackward(JoinsAccumulated):
    """Once a rank has run out of batches, the others send the gradient of their last backward alone
    (no public incident found).

    GRAD-11.
    """

    def forward(self, *inputs: Any) -> Any:
        gradients = [parameter.grad for parameter in self._trained()]
        self._earlier = {id(each): each.clone() for each in gradients if each is not None}
        return super().forward(*inputs)

    def _sum(self, gradient: Tensor) -> Tensor:
        earlier = self._earlier.pop(id(gradient), None)
        left = self._active < self.world_size
        return super()._sum(gradient - earlier if left and earlier is not None else gradient)
