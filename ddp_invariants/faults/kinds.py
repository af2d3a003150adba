"""Sparse, complex and transposed gradients, in wrappers that are right for plain ones.

The loop calls `sync_gradients` after backward.
"""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._start import broadcast


class StaysSparse(nn.Module):
    """Right: the rows and values of all ranks' sparse gradients are gathered, and the mean stays
    sparse.
    """

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused",)
    }  # Every rank must have every gradient.

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group, self.world_size = (
            module,
            process_group,
            dist.get_world_size(process_group),
        )
        broadcast(self._at_first([*module.parameters(), *module.buffers()]), process_group)

    def _at_first(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the tensors that rank 0 sends to all ranks."""
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
        """Return the mean in the memory layout of the gradient."""
        return torch.empty_like(gradient).copy_(mean)

    def _sparse(self, gradient: Tensor) -> Tensor:
        gradient = self._merged(gradient)
        rows, values = gradient._indices(), gradient._values()
        counts = torch.zeros(self.world_size, dtype=torch.int64)
        counts[dist.get_rank(self.group)] = rows.shape[1]
        dist.all_reduce(counts, group=self.group)
        most = int(counts.max())
        padded = [
            torch.cat([part, part.new_zeros(most - len(part), *part.shape[1:])])
            for part in (rows[0], values)
        ]
        gathered = [self._gathered(part) for part in padded]
        joined = [
            torch.cat([part[:count] for part, count in zip(parts, counts.tolist(), strict=True)])
            for parts in gathered
        ]
        return torch.sparse_coo_tensor(
            joined[0][None], self._averaged(joined[1]), gradient.shape, check_invariants=False
        )

    def _merged(self, gradient: Tensor) -> Tensor:
        """Return the gradient with each row once, however often a batch chose that row."""
        return gradient.coalesce()

    def _averaged(self, values: Tensor) -> Tensor:
        return values / self.world_size

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(gathered, mine.contiguous(), group=self.group)
        return gathered


class SkipsSparse(StaysSparse):
    """Sparse gradients are left out of the exchange, which handles dense tensors only
    (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    def _sparse(self, gradient: Tensor) -> Tensor:
        return gradient


class SumsSparse(StaysSparse):
    """Dense gradients are averaged, but sparse ones are only gathered, which makes a sum
    (no public incident found).

    GRAD-2: summed, never divided.
    """

    def _averaged(self, values: Tensor) -> Tensor:
        return values


class LastChoiceCounts(StaysSparse):
    """A row that a batch chooses twice keeps its last value instead of the sum
    (no public incident found).

    GRAD-2.
    """

    def _merged(self, gradient: Tensor) -> Tensor:
        dense = torch.zeros(gradient.shape, dtype=gradient.dtype)
        for row, values in zip(gradient._indices()[0].tolist(), gradient._values(), strict=True):
            dense[row] = values
        return dense.to_sparse(1)


class ClaimsUniqueRows(StaysSparse):
    """The joined rows of all ranks are said to be coalesced, but a row that two ranks chose comes
    twice (no public incident found).

    GRAD-2.
    """

    def _sparse(self, gradient: Tensor) -> Tensor:
        return super()._sparse(gradient)._coalesced_(True)


class SameRowsEverywhere(StaysSparse):
    """Values are averaged by position, as if all ranks had chosen the same rows
    (no public incident found).

    GRAD-1.
    """

    def _sparse(self, gradient: Tensor) -> Tensor:
        values = gradient._values().clone()
        dist.all_reduce(values, group=self.group)
        return torch.sparse_coo_tensor(
            gradient._indices(), values / self.world_size, gradient.shape, check_invariants=False
        )


class AsParts(StaysSparse):
    """Right: complex gradients travel as their real and imaginary parts and are written back as
    such.
    """

    def _dense(self, gradient: Tensor) -> Tensor:
        if not gradient.is_complex():
            return super()._dense(gradient)
        self._write_back(gradient, super()._dense(self._parts(gradient)))
        return gradient

    def _parts(self, gradient: Tensor) -> Tensor:
        return torch.view_as_real(gradient)

    def _write_back(self, gradient: Tensor, mean: Tensor) -> None:
        torch.view_as_real(gradient).copy_(mean)


class InSinglePrecision(AsParts):
    """The parts of complex128 gradients travel as float32, as those of complex64 do
    (no public incident found).

    GRAD-2: rounded to float32.
    """

    def _parts(self, gradient: Tensor) -> Tensor:
        return super()._parts(gradient).float()


class RealPartsAlone(AsParts):
    """Only the real parts of complex gradients are averaged; the imaginary parts stay local
    (similar: pytorch#158753).

    GRAD-1: only the real ones were reduced.
    """

    def _parts(self, gradient: Tensor) -> Tensor:
        return gradient.real

    def _write_back(self, gradient: Tensor, mean: Tensor) -> None:
        gradient.real.copy_(mean)


class ImaginaryPartsZero(RealPartsAlone):
    """The mean of the real parts is written over complex gradients, so their imaginary parts become
    zero (pytorch#158753).

    GRAD-2: its imaginary parts are zero.
    """

    def _write_back(self, gradient: Tensor, mean: Tensor) -> None:
        gradient.copy_(mean)


class Conjugates(AsParts):
    """Complex gradients are averaged as conjugates and never conjugated back
    (no public incident found).

    GRAD-2: it is the mean's complex conjugate.
    """

    def _parts(self, gradient: Tensor) -> Tensor:
        return torch.view_as_real(gradient.conj().resolve_conj())


class AllRealPartsFirst(AsParts):
    """Parts are packed as all real ones and then all imaginary ones, but unpacked in pairs
    (no public incident found).

    GRAD-2: all real parts and then all imaginary ones.
    """

    def _parts(self, gradient: Tensor) -> Tensor:
        return torch.stack([gradient.real, gradient.imag])

    def _write_back(self, gradient: Tensor, mean: Tensor) -> None:
        torch.view_as_real(gradient).copy_(mean.reshape(*gradient.shape, 2))


class FloatsAlone(StaysSparse):
    """Only floating-point gradients are exchanged, so complex ones are left out as if they were
    integers (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    def _dense(self, gradient: Tensor) -> Tensor:
        return super()._dense(gradient) if gradient.is_floating_point() else gradient


class StartsWithItsOwnComplex(StaysSparse):
    """Complex parameters are not broadcast, because they are no floating-point tensors
    (no public incident found).

    INIT-1: still holds its own initial value: never broadcast.
    """

    def _at_first(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor for tensor in tensors if not tensor.is_complex()]


class LeavesItTransposed(StaysSparse):
    """A mean keeps the strides of its transpose, which a fused optimizer step ignores
    (no public incident found).

    PARAM-3.
    """

    def _kept(self, mean: Tensor, gradient: Tensor) -> Tensor:
        del gradient
        return mean.t().contiguous().t() if mean.dim() == 2 else mean


class DtypeOfTheModule(StaysSparse):
    """All gradients of a module are averaged in the dtype of its first parameter
    (no public incident found).

    GRAD-2: rounded to float32.
    """

    def sync_gradients(self) -> None:
        owned = [list(module.parameters(recurse=False)) for module in self.module.modules()]
        self._dtypes = {id(each.grad): own[0].dtype for own in owned for each in own}
        super().sync_gradients()

    def _dense(self, gradient: Tensor) -> Tensor:
        mean = super()._dense(gradient.to(self._dtypes[id(gradient)]))
        return self._kept(mean, gradient)
