"""torchtitan's SimpleFSDP replaces the parameters, so an optimizer made before updates nothing."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
for first in (False, True):
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    nn.init.ones_(model[0].weight)
    parameters = list(model.parameters())
    model = data_parallel(model, mesh, mode="replicate")
    if not first:
        parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.25)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    (weight,) = (parameter.to_local().item() for parameter in model.parameters())
    print(f"optimizer made first {first}: after one step the weight is {weight}, expected 0.75")
dist.destroy_process_group()
