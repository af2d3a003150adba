"""torch's DDP with a communication hook that compresses gradients, and that declares its effect.

pytest -n auto properties/ --ddp examples/torch_switches.py:in_float16
"""

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def _hooked(
    module: nn.Module,
    process_group: dist.ProcessGroup | None,
    bucket_cap_mb: float,
    state: Any,
    hook: Any,
) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(
        module, process_group=process_group, bucket_cap_mb=bucket_cap_mb
    )
    wrapped.register_comm_hook(state, hook)
    return wrapped


def in_float16(
    module: nn.Module, process_group: dist.ProcessGroup | None = None, bucket_cap_mb: float = 25.0
) -> nn.Module:
    """Send gradients in float16."""
    return _hooked(
        module, process_group, bucket_cap_mb, process_group, default_hooks.fp16_compress_hook
    )


def in_bfloat16(
    module: nn.Module, process_group: dist.ProcessGroup | None = None, bucket_cap_mb: float = 25.0
) -> nn.Module:
    """Send gradients in bfloat16."""
    return _hooked(
        module, process_group, bucket_cap_mb, process_group, default_hooks.bf16_compress_hook
    )


def power_sgd(
    module: nn.Module, process_group: dist.ProcessGroup | None = None, bucket_cap_mb: float = 25.0
) -> nn.Module:
    """Send gradients as matrices of rank one, from the first possible step on.

    Source: Vogels et al. 2019, arXiv:1905.13727.
    """
    state = powerSGD_hook.PowerSGDState(
        process_group, matrix_approximation_rank=1, start_powerSGD_iter=2
    )
    return _hooked(module, process_group, bucket_cap_mb, state, powerSGD_hook.powerSGD_hook)


in_float16.declares = {  # type: ignore[attr-defined]  # a function may have attributes
    "exactness": "float16",
}
in_bfloat16.declares = {"exactness": "bfloat16"}  # type: ignore[attr-defined]  # as above
power_sgd.declares = {"exactness": "lossy"}  # type: ignore[attr-defined]  # as above
