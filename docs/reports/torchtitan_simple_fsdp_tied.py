"""torchtitan's SimpleFSDP makes two parameters of one that two modules share."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
for wrapped in (False, True):
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].weight = model[0].weight
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    if wrapped:
        model = data_parallel(model, mesh, mode="replicate")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25, eps=0.0)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    weights = [getattr(p, "to_local", lambda p=p: p)().item() for p in model.parameters()]
    print(f"wrapped {wrapped}: after one step the parameters are {weights}, expected [0.75]")
dist.destroy_process_group()
