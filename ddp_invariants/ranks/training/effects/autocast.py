"""Forwards under `torch.autocast` to bfloat16 (`TrainingCase.autocast`)."""

from contextlib import AbstractContextManager

import torch

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.ranks.training.effect import Effect, effect


@effect
class Autocast(Effect):
    """Forwards under `torch.autocast` to bfloat16."""

    @classmethod
    def concerns(cls, case: TrainingCase) -> bool:
        """Return whether forwards run under autocast."""
        return case.autocast

    def around_forward(self) -> AbstractContextManager[object]:
        """Return the autocast context of the rank's device."""
        return torch.autocast(self.setup.rank_device.device.type, torch.bfloat16)
