"""ZeRO 1 and 2 skip a step with finite gradients if the square of their norm overflows float32."""

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
norm = {"compute_grad_norm": False}
for stage, options in ((0, {}), (1, {}), (1, norm), (2, {}), (2, norm), (3, {})):
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=2.0**-70),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 0.0,  # It clips to 1 by default.
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 1024, **options},
        },
    )
    engine.backward(engine(torch.full((1, 1), 2.0**70)).sum())  # The gradient is 2.0**70.
    engine.step()
    with deepspeed.zero.GatheredParameters(module.weight, enabled=stage == 3):
        weight = module.weight.item()
    print(f"stage {stage} {options}: weight {weight}, steps skipped {engine.skipped_steps}")
dist.destroy_process_group()
