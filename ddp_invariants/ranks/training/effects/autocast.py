"""Forwards under `torch.autocast` to bfloat16 (`TrainingCase.autocast`)."""

from contextlib import AbstractContextManager

import torch

from ddp_invariants.ranks.training.effect import Effect, effect


@effect(lambda case: case.autocast)
class Autocast(Effect):
    """Forwards under `torch.autocast` to bfloat16."""

    def around_forward(self) -> AbstractContextManager[object]:
        """Return the autocast context of the rank's device."""
        return torch.autocast(self.setup.rank_device.device.type, torch.bfloat16)
