"""SpeechBrain's Brain ignores the process group that there is if the launcher's variables are missing."""

import os
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
for launched in (True, False):
    if not launched:  # As in a process that multiprocessing has started.
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            del os.environ[name]
    layer = nn.Linear(1, 1, bias=False)
    brain = speechbrain.Brain(
        {"model": layer},
        opt_class=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        run_opts={"device": "cpu", "distributed_backend": "gloo"},
    )
    brain.on_fit_start()
    brain.modules["model"](torch.full((1, 1), float(rank + 1))).sum().backward()
    print(
        f"rank {rank}, {launched=}: gradient {layer.weight.grad.item()}, expected 1.5 or an error"
    )
dist.destroy_process_group()
