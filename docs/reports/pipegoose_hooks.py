"""pipegoose's DataParallel averages the gradients of other layers with each other, or leaves them alone."""

import sys
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import nn

# The package stays empty, because its __init__ imports transformers.
(folder,) = find_spec("pipegoose").submodule_search_locations
sys.modules["pipegoose.nn"] = ModuleType("pipegoose.nn")
sys.modules["pipegoose.nn"].__path__ = [f"{folder}/nn"]
from pipegoose.distributed.parallel_context import ParallelContext  # noqa: E402
from pipegoose.nn.data_parallel.data_parallel import DataParallel  # noqa: E402

context = ParallelContext.from_torch(
    tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=2
)
rank = torch.distributed.get_rank()


def gradients(uses, change):
    """Return the gradients of two layers of which a rank uses some, after a change of the wrapped model."""
    layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
    layers[0].requires_grad_(change != "unfrozen")
    DataParallel(layers, context).parallelize()
    if change == "unfrozen":
        layers[0].requires_grad_(True)
    if change == "assigned":
        layers.load_state_dict(
            {name: tensor.clone() for name, tensor in layers.state_dict().items()}, assign=True
        )
    inputs = torch.tensor([[float(rank + 1)]])
    torch.stack([(number + 1) * layers[number](inputs) for number in uses]).sum().backward()
    weights = [layer.weight.grad for layer in layers]
    return [None if each is None else each.item() for each in weights]


print(f"rank {rank}, plain: {gradients([0, 1], '')}, expected [1.5, 3.0]")
print(f"rank {rank}, unfrozen: {gradients([0, 1], 'unfrozen')}, expected [1.5, 3.0]")
print(f"rank {rank}, assigned: {gradients([0, 1], 'assigned')}, expected [1.5, 3.0]")
print(f"rank {rank}, other order: {gradients([rank, 1 - rank], '')}, expected [1.5, 3.0]")
print(f"rank {rank}, other layers: {gradients([rank], '')}, expected [0.5, 2.0]")
