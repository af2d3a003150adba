"""ZeRO never updates a parameter that was frozen at `deepspeed.initialize` and is unfrozen later."""

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


def value(parameter):
    """Return the whole parameter's only element, which stage 3 shards."""
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.item()


for stage in (0, 1, 2, 3):
    layer = nn.Linear(1, 1, bias=False)
    module = nn.Sequential(layer, nn.Linear(1, 1, bias=False))
    nn.init.ones_(layer.weight)
    nn.init.ones_(module[1].weight)
    layer.weight.requires_grad_(False)
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
    layer.weight.requires_grad_(True)
    engine.backward(engine(torch.ones(1, 1)).sum())
    engine.step()
    print(f"stage {stage}: weight {value(layer.weight)}, expected 0.75")
dist.destroy_process_group()
