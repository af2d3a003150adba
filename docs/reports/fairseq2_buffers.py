"""fairseq2's to_ddp broadcasts no buffer that a state_dict leaves out."""

import sys
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

# The packages stay empty, because their __init__ needs fairseq2n, which has a build for each torch.
(folder,) = find_spec("fairseq2").submodule_search_locations
for name in ("fairseq2", "fairseq2.nn"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [folder + name.removeprefix("fairseq2").replace(".", "/")]
from fairseq2.gang import FakeGang, Gangs, ProcessGroupGang  # noqa: E402 - after the packages
from fairseq2.nn.ddp import to_ddp  # noqa: E402

dist.init_process_group("gloo")
rank = dist.get_rank()
device = torch.device("cpu")
every, alone = ProcessGroupGang(dist.group.WORLD, device), FakeGang(device)
gangs = Gangs(root=every, dp=every, rdp=every, sdp=alone, tp=alone, pp=alone)
model = nn.Linear(1, 1, bias=False)
nn.init.constant_(model.weight, float(rank))
model.register_buffer("saved", torch.full((1,), float(rank)))
model.register_buffer("unsaved", torch.full((1,), float(rank)), persistent=False)
to_ddp(model, gangs)
for name, tensor in (*model.named_parameters(), *model.named_buffers()):
    print(f"rank {rank}: {name} {tensor.item()}, expected 0.0 as on rank 0")
dist.destroy_process_group()
