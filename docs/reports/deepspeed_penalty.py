"""ZeRO raises an `IndexError` if the loss has a gradient penalty."""

import os

import torch
import torch.distributed as dist
from torch import nn

os.environ["DS_ACCELERATOR"] = "cpu"  # Otherwise it warns that it found no other.
import deepspeed

# It would compile a probe of each operation, and none is needed.
deepspeed.ops.__compatible_ops__ = {}
deepspeed.utils.logger.setLevel("ERROR")
dist.init_process_group("gloo")
for stage in (0, 1, 2):
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.25),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 0.0,  # It clips to 1 by default.
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 1024},
        },
    )
    inputs = torch.ones(1, 1, requires_grad=True)
    outputs = engine(inputs).sum()
    try:
        (slope,) = torch.autograd.grad(outputs, inputs, create_graph=True)
        engine.backward(outputs + slope.square().sum())
        engine.step()
    except (IndexError, RuntimeError) as error:
        print(f"stage {stage}: {type(error).__name__}: {str(error).partition('.')[0]}")
    else:
        print(f"stage {stage}: weight {module.weight.item()}, expected {1 - 0.25 * 3}")
dist.destroy_process_group()
