"""Inputs and outputs of forwards in several forms (`situations.call_shape`)."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica, loss_of
from ddp_invariants.ranks.training.program import Batch
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.ranks.training.shaped import (
    ShapedReplica,
    arguments_for,
    described,
    described_call,
    outputs_in,
)
from ddp_invariants.situations import call_shape

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(call_shape.CallShape) is not None)
class CallShape(Effect):
    """Inputs and outputs in the forms of the micro-step, and a trained part before the wrapper."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        shape = self.case.get(call_shape.CallShape)
        assert shape is not None
        self.shape, self.number = shape, 0
        self.rows: list[list[Any]] = []
        self.replica: Replica | None = None
        self.twin: Replica | None = None
        self.stepper: Stepper | None = None
        self.fronts: dict[str, Tensor] = {}
        self.criterion: Callable[[Tensor], Tensor] | None = None

    def on_replica(self, replica: Replica) -> None:
        """Remember the replica, which may be called before the case's own wrapper is there."""
        self.replica = replica

    def on_twin(self, twin: Replica) -> None:
        """Remember the twin."""
        self.twin = twin

    def begin(self, stepper: "Stepper") -> None:
        """Remember the stepper."""
        self.stepper = stepper

    def before_step(self, stepper: "Stepper", indices: Any) -> None:
        """Start the gradients of the trained part anew."""
        del stepper, indices
        self.fronts = {}

    def before_pass(self, replica: Replica, step: int, micro_step: int) -> None:
        """Give the replica the form of a micro-step."""
        self.number = step * self.case.accumulation + micro_step
        assert isinstance(replica, ShapedReplica)
        of_inputs, replica.form = self.shape.forms(self.number)
        replica.gain = 2.0 if of_inputs in ("option", "none") else 1.0

    def before_loss(self, batch: Batch) -> None:
        """Keep the loss of the batch for the next forward, which may return it."""
        _, targets, tags = batch
        self.criterion = partial(loss_of, self.case.loss, targets=targets, tags=tags)

    def through(self, module: Callable[..., Any]) -> Callable[[Tensor], Any]:
        """Return a function that calls a module in the form of the micro-step.

        The function notes the call of the wrapper as the program makes it and as the module gets
        it, and the result as the module returns it and as the program gets it.
        """
        replica, form = self._replica_of(module), self.shape.forms(self.number)[0]

        def call(inputs: Tensor) -> Tensor:
            if form in call_shape.TRAINS:
                front = self._front("twin" if replica is self.twin else "wrapped", inputs)
                inputs = (inputs * front).t().contiguous().t()
            args, kwargs = arguments_for(form, inputs)
            replica.calls.clear()
            # A forward whose loss nobody computes returns its outputs.
            replica.criterion, self.criterion = self.criterion, None
            result = module(*args, **kwargs)
            replica.criterion = None
            if replica is not module:
                made = replica.calls[-1] if replica.calls else ("", "")
                row = [described_call(args, kwargs), *made, described(result)]
                self.rows.append([self.number, *row])
            return outputs_in(replica.form, result)

        return call

    def _replica_of(self, module: Any) -> ShapedReplica:
        """Return the replica that a module is, or that the wrapper has."""
        replica = module if isinstance(module, ShapedReplica) else self.replica
        assert isinstance(replica, ShapedReplica)
        return replica

    def _front(self, name: str, inputs: Tensor) -> Tensor:
        """Return the parameter before the wrapper: ones, so that no input changes. Shape (D in,)."""
        if name not in self.fronts:
            self.fronts[name] = torch.ones_like(inputs[0]).requires_grad_()
        return self.fronts[name]

    def after_update(self, record: Record) -> None:
        """Note the gradients of the trained part before the wrapper, and of that before the twin."""
        if len(self.fronts) > 1 and self.stepper is not None and self.stepper.twin.followed:
            gradients = [(name, self.fronts[name].grad) for name in ("wrapped", "twin")]
            record.tensors("front", self.stepper.position.step, gradients)

    def end(self, record: Record) -> None:
        """Note the calls."""
        record.facts["shaped"] = self.rows
