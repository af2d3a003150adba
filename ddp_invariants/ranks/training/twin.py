"""The unwrapped twin of the module under test, which gives each rank's local gradients."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ddp_invariants.ranks.training.layout import Layout, lay_out, layout_of
from ddp_invariants.ranks.training.model import Replica, entries
from ddp_invariants.ranks.training.program import Batch, Program
from ddp_invariants.ranks.training.recorder import Record, has_own_memory, plain_of
from ddp_invariants.ranks.training.setup import Position, Setup

Named = tuple[str, Tensor]


class Twin:
    """An unwrapped module that computes the same batches from the same parameters.

    Attributes:
        module: The module.
        layouts: The strides and alignment of the parameters under test.
        moved: True if the parameters under test may lie elsewhere since `layouts` was taken. A
            step that puts a plain parameter into other memory is seen without it.
        followed: True if the twin made each forward of the step. Otherwise its buffers are not
            those that the step leaves.
    """

    def __init__(self, setup: Setup, program: Program, position: Position, record: Record) -> None:
        self.case, self.program = setup.case, program
        self.position, self.record = position, record
        self.module: Replica = setup.replica()
        self.named = list(self.module.named_parameters())
        self.layouts: list[Layout] = []
        self.moved, self.followed = True, True
        self._places: list[tuple[int, tuple[int, ...]]] = []
        self._thawed = setup.case.sometimes_frozen

    def follow(self, named: Sequence[Named], buffers: Sequence[Named]) -> None:
        """Take the values of the tensors that the forward under test starts from."""
        tensors: list[Tensor] = [parameter for _, parameter in self.named]
        tensors += self.module.buffers() if buffers else ()
        with torch.no_grad():
            for tensor, (_, value) in zip(tensors, [*named, *buffers], strict=True):
                tensor.copy_(plain_of(value))

    def lie_where(self, named: Sequence[Named]) -> None:
        """Lie in memory as the tensors under test, if these have moved.

        Args:
            named: The tensors that the layers under test compute with.
        """
        places = [
            (parameter.data_ptr(), parameter.stride())
            for _, parameter in named
            if has_own_memory(parameter)
        ]
        if self.moved or places != self._places:
            self.moved, self._places = False, places
            self.lie_as([layout_of(parameter) for _, parameter in named])

    def follow_gathered(self, gathered: Mapping[str, Tensor]) -> None:
        """Start from the tensors that the layers under test computed with."""
        with torch.no_grad():
            for name, tensor in (*self.named, *self.module.named_buffers()):
                if name in gathered and gathered[name].shape == tensor.shape:
                    tensor.copy_(gathered[name])

    def lie_as(self, layouts: list[Layout]) -> None:
        """Give the parameters these strides and alignments."""
        self.layouts = layouts
        lay_out(self.module, layouts)

    def outputs(self, number: int, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Return the loss of a micro-step's forward and the tensor its backward starts from.

        None if the random numbers that the forward drew are not known.
        """
        effects = self.program.effects
        if not all(s.repeat(self.module, number, batch[0]) for s in effects):
            self.followed = False
            return None
        return self.program.losses(self.module, batch, self.module)

    def micro_step(self, micro_step: int, batch: Batch, loss: Tensor) -> None:
        """Repeat a forward and backward, and note them beside the loss under test."""
        losses = self.outputs(self.position.step * self.case.accumulation + micro_step, batch)
        if losses is not None:
            self.note(micro_step, losses[1], losses[0], loss)

    def joint(self, batches: Iterable[Batch], losses: Sequence[Tensor]) -> None:
        """Repeat the forwards of several micro-steps and one backward of their summed losses.

        Autograd adds up the gradients it meets in an order of its own, so a sum of separate
        backwards may round otherwise.
        """
        step, forwards = self.position.step, []
        for micro_step, batch in enumerate(batches):
            for effect in self.program.effects:
                effect.before_pass(self.module, step, micro_step)
            forward = self.outputs(step * self.case.accumulation + micro_step, batch)
            if forward is None:
                return
            forwards.append(forward)
        total = torch.stack([share for _, share in forwards]).sum()
        self.note(0, total, forwards[0][0], losses[0])
        for micro_step in range(1, len(forwards)):
            self.note(micro_step, None, forwards[micro_step][0], losses[micro_step])

    def note(self, micro_step: int, share: Tensor | None, twin_loss: Tensor, loss: Tensor) -> None:
        """Note a micro-step's losses and the twin's gradients.

        Args:
            micro_step: Its number in the step.
            share: The tensor its backward starts from; None where the backward of another
                micro-step gave all gradients, so that these are zero.
            twin_loss: The twin's loss.
            loss: The loss under test.
        """
        for _, parameter in self.named:
            parameter.grad = None
        if share is not None:
            share.backward()
        # Unused parameters count as zero, and so do those that are frozen at this step alone.
        if share is None or self.case.unused or self._thawed:
            for name, parameter in self.named:
                if parameter.grad is None and (parameter.requires_grad or name in self._thawed):
                    parameter.grad = torch.zeros_like(parameter)
        number = self.position.step * self.case.accumulation + micro_step
        gradients = [(name, parameter.grad) for name, parameter in self.named]
        self.record.tensors("local", number, gradients)
        if self.case.sparse:
            self.record.tensors(
                "entries",
                number,
                ((name, None if g is None else entries(g)) for name, g in gradients),
            )
        self.record.tensors("loss", number, (("loss", loss), ("twin", twin_loss)))
