"""Torch's loss scaler on every rank (`TrainingCase.scaler`); ranks do not share its state."""

import torch
from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.ranks.training.trained import Trained


@effect(lambda case: case.scaler is not None)
class Scaler(Effect):
    """A loss scaler on every rank, used as a program uses one."""

    scaler: torch.amp.GradScaler

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.begin_again()

    def begin_again(self) -> None:
        """Make the scaler as it is before the first step."""
        plan = self.case.scaler
        assert plan is not None
        self.scaler = torch.amp.GradScaler(
            self.setup.rank_device.device.type,
            init_scale=2.0**plan.log2_scale,
            growth_factor=2.0**plan.log2_growth,
            backoff_factor=2.0**-plan.log2_backoff,
            growth_interval=plan.interval,
        )

    def on_share(self, share: Tensor) -> Tensor:
        """Scale the loss that backward starts from."""
        return self.scaler.scale(share)

    def on_gradients(self, trained: Trained) -> None:
        """Unscale gradients if the program does so itself, as it must before it clips them."""
        assert self.case.scaler is not None
        if self.case.scaler.unscaled or self.case.clip is not None:
            self.scaler.unscale_(trained.optimizer)

    def update(self, trained: Trained) -> bool:
        """Make the optimizer step, or skip the step if gradients overflow."""
        self.scaler.step(trained.optimizer)
        self.scaler.update()
        return True

    def after_update(self, record: Record) -> None:
        """Note the scale of the next step."""
        record.facts.setdefault("scales", []).append(self.scaler.get_scale())
