"""Buckets of float16, which not every implementation sums as such."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_invariants.faults.bucketed import _ReducesByAnother

_SUM = dist.all_reduce
"""The unpatched all-reduce: the base replaces `dist.all_reduce` for one call."""


class TakesHalvesForBfloat16(_ReducesByAnother):
    """Every dtype of two bytes is summed as bfloat16, whatever its bits mean
    (no public incident found).

    GRAD-2.
    """

    def _all_reduce(self, flat: Tensor) -> Any:
        bits = flat.view(torch.bfloat16) if flat.itemsize == 2 else flat
        return _SUM(bits, group=self.group, async_op=True)


class SumsHalvesAsFloat32(_ReducesByAnother):
    """Right: buckets of float16 are sent in float32, and rounded before the division."""

    def _all_reduce(self, flat: Tensor) -> Any:
        if flat.dtype != torch.float16:
            return _SUM(flat, group=self.group, async_op=True)
        wide = flat.float()
        work = _SUM(wide, group=self.group, async_op=True)
        work.wait()
        flat.copy_(wide)
        return work
