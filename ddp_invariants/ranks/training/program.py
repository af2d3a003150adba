"""The user's program around the model: its batches, its forwards and its loss."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect
from ddp_invariants.ranks.training.model import Replica, loss_of
from ddp_invariants.ranks.training.setup import Setup

Batch = tuple[Tensor, Tensor, Tensor]
"""Inputs (B, D in) in the first dtype of the model, targets (B, D out) and tags (B,) in float64."""


class Program:
    """The user's program around the model: its batches, its forwards and its loss."""

    def __init__(self, setup: Setup, effects: tuple[Effect, ...]) -> None:
        self.setup, self.effects = setup, effects

    def batch(self, indices: Any, step: int) -> Batch:
        """Return the samples of some indices on the rank's device."""
        setup = self.setup
        inputs_BD = setup.dataset.inputs_ND[indices]
        for effect in self.effects:
            effect.on_samples(inputs_BD, step)
        inputs = torch.from_numpy(inputs_BD)
        if setup.case.model.layers[0].dtype != "float64":
            inputs = inputs.float()
        targets, tags = (
            torch.from_numpy(values[indices])
            for values in (setup.dataset.targets_ND, setup.dataset.tags_N)
        )
        inputs, targets, tags = (
            setup.rank_device.put(tensor) for tensor in (inputs, targets, tags)
        )
        for effect in self.effects:
            effect.on_inputs(inputs)
        return inputs, targets, tags

    def forward(self, module: Callable[[Tensor], Any], inputs: Tensor) -> Any:
        """Run a forward as the program does."""
        with ExitStack() as contexts:
            for effect in self.effects:
                contexts.enter_context(effect.around_forward())
                module = effect.through(module)
            return module(inputs)

    def losses(
        self, module: Callable[[Tensor], Any], batch: Batch, replica: Replica
    ) -> tuple[Tensor, Tensor]:
        """Run a forward, and return its loss and the tensor its backward starts from.

        Args:
            module: What the program calls.
            batch: The batch.
            replica: The replica that computes the outputs.
        """
        for effect in self.effects:
            effect.before_loss(batch)
        return self.loss(self.forward(module, batch[0]), batch, replica)

    def loss(self, outputs: Any, batch: Batch, replica: Replica) -> tuple[Tensor, Tensor]:
        """Return a micro-step's loss, and the tensor its backward starts from.

        Backward starts from the loss divided by the micro-steps of a step. A module may return its
        loss, a 0-d tensor.
        """
        _, targets, tags = batch
        case = self.setup.case
        loss = loss_of(case.loss, outputs, targets, tags) if outputs.dim() else outputs
        for effect in self.effects:
            loss = effect.on_loss(loss, outputs, batch, replica)
        share = loss / case.accumulation if case.accumulation > 1 else loss
        for effect in self.effects:
            share = effect.on_share(share)
        return loss, share
