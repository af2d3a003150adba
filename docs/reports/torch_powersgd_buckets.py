"""The PowerSGD hook hangs over gloo if the gradients are in several buckets."""

import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
LAYER = (64 + 8) * 4 / 2**20  # The MiB of a layer's gradients.


def train(model):
    for _ in range(64):
        model(torch.ones(1, 8)).sum().backward()


for buckets in (1, 4):
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    model = DDP(module, bucket_cap_mb=LAYER * 4 / buckets)
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    training = threading.Thread(target=train, args=(model,), daemon=True)
    training.start()
    training.join(timeout=6)
    ended = "still waiting" if training.is_alive() else "done"
    print(f"rank {rank}, {buckets=}: 64 backwards {ended}, expected done", flush=True)
os._exit(0)  # A normal exit would wait, too.
