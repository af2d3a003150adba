"""The module that Lightning Fabric sets up applies a function twice to each module in it."""

import torch
from lightning.fabric import Fabric
from torch import nn

fabric = Fabric(accelerator="cpu", devices=1, strategy="ddp")
fabric.launch()
layer = nn.Linear(1, 1, bias=False)
layer, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.5))
visits = []


def double(module):
    if isinstance(module, nn.Linear):
        visits.append(module)
        module.weight.data *= 2


with torch.no_grad():
    layer.module.weight.fill_(1.0)
layer.apply(double)
print(f"apply() visited the only layer {len(visits)} times, expected 1")
print(f"its weight is {layer.module.weight.item()} after it was doubled, expected 2.0")
