"""torchtitan's SimpleFSDP trains parameters that the user has frozen."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.fill_(1.0)
model[0].weight.requires_grad_(False)
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
model = data_parallel(model, mesh, mode="replicate")
frozen, _ = model.parameters()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
print(f"requires_grad is {frozen.requires_grad}, expected False")
print(f"the weight is {frozen.to_local().item()}, expected 1.0")
dist.destroy_process_group()
