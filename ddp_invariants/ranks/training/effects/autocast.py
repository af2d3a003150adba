"""Forwards under `torch.autocast` to bfloat16 (`TrainingCase.autocast`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.situations import autocast


@effect(lambda case: case.autocast)
class Autocast(Effect):
    """Forwards, and some backwards, under `torch.autocast` to bfloat16."""

    def around_forward(self) -> AbstractContextManager[object]:
        """Return the autocast context of the rank's device."""
        return torch.autocast(self.setup.rank_device.device.type, torch.bfloat16)

    def run_backward(self, backward: Callable[[Tensor], None], share: Tensor) -> None:
        """Run a backward of the model under test as its forward, if the case asks for that."""
        found = self.case.get(autocast.Autocast)
        with self.around_forward() if found is not None and found.backward else nullcontext():
            backward(share)
