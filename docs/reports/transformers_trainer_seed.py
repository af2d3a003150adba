"""transformers' Trainer seeds all ranks alike, so that they draw the same dropout."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainingArguments

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)  # The program wants each rank to draw its own random numbers.
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))

for made in (False, True):
    if made:
        with tempfile.TemporaryDirectory() as folder:
            Trainer(model, TrainingArguments(folder, use_cpu=True, report_to="none"))
    masks = [torch.empty(32) for _ in range(dist.get_world_size())]
    dist.all_gather(masks, nn.functional.dropout(torch.ones(32)))
    if rank == 0:
        equal = "equal" if torch.equal(*masks) else "different"
        when = "after" if made else "before"
        print(
            f"{when} the Trainer is made, the ranks' dropout masks are {equal}, expected different"
        )
dist.destroy_process_group()
