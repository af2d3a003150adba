"""accelerate's AcceleratedOptimizer does not return the loss of a closure."""

import torch
from accelerate import Accelerator
from torch import nn

for prepared in (False, True):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    if prepared:
        layer, optimizer = Accelerator(cpu=True).prepare(layer, optimizer)

    def closure(layer=layer, optimizer=optimizer):
        optimizer.zero_grad()
        loss = layer(torch.full((1, 1), 3.0)).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    got = None if loss is None else loss.item()
    print(f"{type(optimizer).__name__}.step returned {got}, expected 3.0")
