"""SGD with Nesterov momentum overwrites the gradients, in one of its implementations."""

import torch

for kernels in ({}, {"fused": True}, {"foreach": True}):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.5, momentum=0.5, nesterov=True, **kernels)
    for _ in range(2):
        parameter.grad = torch.ones(2)
        optimizer.step()
    name = next(iter(kernels), "default")
    print(f"{name}: after the step the gradient is {parameter.grad.tolist()}, expected [1.0, 1.0]")
