"""SpeechBrain's Brain synchronises nothing any more after an exception left its no_sync."""

import sys
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

# PyPI's torchaudio does not load without CUDA. The Brain does not need it.
sys.modules["torchaudio"] = ModuleType("torchaudio")
import speechbrain  # noqa: E402 - after torchaudio

dist.init_process_group("gloo")
rank = dist.get_rank()
for failing in (False, True):
    layer = nn.Linear(1, 1, bias=False)
    brain = speechbrain.Brain(
        {"model": layer},
        opt_class=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        run_opts={"device": "cpu", "distributed_backend": "gloo"},
    )
    brain.on_fit_start()
    try:
        with brain.no_sync():
            if failing:
                raise RuntimeError("an error in the user's forward, on all ranks")
    except RuntimeError:
        brain.zero_grad(set_to_none=True)
    brain.modules["model"](torch.full((1, 1), float(rank + 1))).sum().backward()
    print(f"rank {rank}, {failing=}: gradient {layer.weight.grad.item()}, expected 1.5")
dist.destroy_process_group()
