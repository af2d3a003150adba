"""fairseq2's fsdp2_no_sync raises, because the method that it calls has another name in torch."""

import sys
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

# The packages stay empty, because their __init__ needs fairseq2n, which has a build for each torch.
(folder,) = find_spec("fairseq2").submodule_search_locations
for name in ("fairseq2", "fairseq2.nn", "fairseq2.nn.fsdp"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [folder + name.removeprefix("fairseq2").replace(".", "/")]
from fairseq2.gang import FakeGang, Gangs, ProcessGroupGang  # noqa: E402 - after the packages
from fairseq2.nn.fsdp.fsdp2 import fsdp2_no_sync, to_fsdp2  # noqa: E402

dist.init_process_group("gloo")
rank = dist.get_rank()
device = torch.device("cpu")
every, alone = ProcessGroupGang(dist.group.WORLD, device), FakeGang(device)
gangs = Gangs(root=every, dp=every, rdp=alone, sdp=every, tp=alone, pp=alone)
model = to_fsdp2(nn.Linear(1, 1), gangs, lambda module, _: module)
try:
    with fsdp2_no_sync(model):
        model(torch.ones(1, 1)).sum().backward()
    seen = "no error"
except AttributeError as error:
    seen = f"AttributeError: {error}"
print(f"rank {rank}: {seen}, expected no error")
dist.destroy_process_group()
