"""Wrappers that are right where parameters are plain, and whose gradients or steps of a kind of their own go wrong.

The exchange is a call after backward, `sync_gradients`.
"""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._start import broadcast


class StaysSparse(nn.Module):
    """Right: of sparse gradients the rows and values of all ranks are gathered, and the mean is sparse, too."""

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused",)
    }  # All ranks have all gradients.

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group, self.world_size = (
            module,
            process_group,
            dist.get_world_size(process_group),
        )
        broadcast(self._at_first([*module.parameters(), *module.buffers()]), process_group)

    def _at_first(self, tensors: list[Tensor]) -> list[Tensor]:
        """What rank 0 sends to all."""
        return tensors

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    @torch.no_grad()
    def sync_gradients(self) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad = (
                    self._sparse(parameter.grad)
                    if parameter.grad.is_sparse
                    else self._dense(parameter.grad)
                )

    def _dense(self, gradient: Tensor) -> Tensor:
        flat = gradient.contiguous()
        dist.all_reduce(flat, group=self.group)
        return self._kept(flat.div_(self.world_size), gradient)

    def _kept(self, mean: Tensor, gradient: Tensor) -> Tensor:
        """The mean, lying as the gradient does."""
        return torch.empty_like(gradient).copy_(mean)

    def _sparse(self, gradient: Tensor) -> Tensor:
        gradient = self._merged(gradient)
        rows, values = gradient._indices(), gradient._values()
        counts = torch.zeros(self.world_size, dtype=torch.int64)
        counts[dist.get_rank(self.group)] = rows.shape[1]
        dist.all_reduce(counts, group=self.group)
        most = int(counts.max())
        padded = [
            torch.cat([one, one.new_zeros(most - len(one), *one.shape[1:])])
            for one in (rows[0], values)
        ]
        everyones = [self._gathered(one) for one in padded]
        found = [
            torch.cat([one[:count] for one, count in zip(ones, counts.tolist(), strict=True)])
            for ones in everyones
        ]
        return torch.sparse_coo_tensor(
            found[0][None], self._averaged(found[1]), gradient.shape, check_invariants=False
        )

    def _merged(self, gradient: Tensor) -> Tensor:
        """With a row once, however often it was chosen."""
        return gradient.coalesce()

    def _averaged(self, values: Tensor) -> Tensor:
        return values / self.world_size

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        everyones = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everyones, mine.contiguous(), group=self.group)
        return everyones


class SkipsSparse(StaysSparse):
    """Sparse gradients are left out of the exchange, which takes dense tensors alone (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    def _sparse(self, gradient: Tensor) -> Tensor:
        return gradient


class SumsSparse(StaysSparse):
    """Dense gradients are averaged, sparse ones only gathered, so that they are a sum (no public incident found).

    GRAD-2: summed, never divided.
    """

    def _averaged(self, values: Tensor) -> Tensor:
        return values


class LastChoiceCounts(StaysSparse):
    """A row that a batch chooses twice is assigned, not added up, before the exchange (no public incident found).

    GRAD-2.
    """

    def _merged(self, gradient: Tensor) -> Tensor:
        dense = torch.zeros(gradient.shape, dtype=gradient.dtype)
        for row, values in zip(gradient._indices()[0].tolist(), gradient._values(), strict=True):
            dense[row] = values
        return dense.to_sparse(1)


class SameRowsEverywhere(StaysSparse):
    """Values are averaged place by place, as if all ranks had chosen the same rows (no public incident found).

    GRAD-1.
    """

    def _sparse(self, gradient: Tensor) -> Tensor:
        values = gradient._values().clone()
        dist.all_reduce(values, group=self.group)
        return torch.sparse_coo_tensor(
            gradient._indices(), values / self.world_size, gradient.shape, check_invariants=False
        )


class AsParts(StaysSparse):
    """Right: complex gradients travel as their parts, which are real, and are written back as such."""

    def _dense(self, gradient: Tensor) -> Tensor:
        if not gradient.is_complex():
            return super()._dense(gradient)
        self._write_back(gradient, super()._dense(self._parts(gradient)))
        return gradient

    def _parts(self, gradient: Tensor) -> Tensor:
        return torch.view_as_real(gradient)

    def _write_back(self, gradient: Tensor, mean: Tensor) -> None:
        torch.view_as_real(gradient).copy_(mean)


class RealPartsAlone(AsParts):
    """The real parts of complex gradients are averaged; the imaginary ones stay as they are (pytorch#158753 for its like).

    GRAD-1: only the real ones were reduced.
    """

    def _parts(self, gradient: Tensor) -> Tensor:
        return gradient.real

    def _write_back(self, gradient: Tensor, mean: Tensor) -> None:
        gradient.real.copy_(mean)


class ImaginaryPartsZero(RealPartsAlone):
    """A mean of real parts is written over complex gradients, whose imaginary parts are zero from then on (pytorch#158753).

    GRAD-2: its imaginary parts are zero.
    """

    def _write_back(self, gradient: Tensor, mean: Tensor) -> None:
        gradient.copy_(mean)


class Conjugates(AsParts):
    """Complex gradients are averaged as their conjugates, which nobody turns back (no public incident found).

    GRAD-2: it is the mean's complex conjugate.
    """

    def _parts(self, gradient: Tensor) -> Tensor:
        return torch.view_as_real(gradient.conj().resolve_conj())


class AllRealPartsFirst(AsParts):
    """Parts are packed as all real ones and then all imaginary ones, and unpacked in pairs (no public incident found).

    GRAD-2: all real parts and then all imaginary ones.
    """

    def _parts(self, gradient: Tensor) -> Tensor:
        return torch.stack([gradient.real, gradient.imag])

    def _write_back(self, gradient: Tensor, mean: Tensor) -> None:
        torch.view_as_real(gradient).copy_(mean.reshape(*gradient.shape, 2))


class FloatsAlone(StaysSparse):
    """What is no floating-point tensor is taken for integers and is not exchanged, complex ones too (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    def _dense(self, gradient: Tensor) -> Tensor:
        return super()._dense(gradient) if gradient.is_floating_point() else gradient


class StartsWithItsOwnComplex(StaysSparse):
    """Rank 0's parameters are sent to all but for complex ones, which are no floating-point tensors (no public incident found).

    INIT-1: still holds what it built: never broadcast.
    """

    def _at_first(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor for tensor in tensors if not tensor.is_complex()]


class LeavesItTransposed(StaysSparse):
    """A mean is left with the strides of its transpose, which a fused step does not heed (no public incident found).

    PARAM-3.
    """

    def _kept(self, mean: Tensor, gradient: Tensor) -> Tensor:
        del gradient
        return mean.t().contiguous().t() if mean.dim() == 2 else mean
