"""Buckets of float32 main gradients, which are reduced while backward runs.

Gradients accumulate in float32 and are handed back in the parameter's dtype.

Idea: Buckets and overlap are from Li et al. 2020, section 3.2.3, arXiv:2006.15704. The fp32
`main_grad` is from large-model trainers (Shoeybi et al. 2019, arXiv:1909.08053). There, bfloat16
sums over many micro-batches would lose small terms.

Claims: Gradients are the mean over the ranks when backward returns. Communication overlaps with
backward. Accumulation under `no_sync()` loses nothing to bfloat16. `reset()` before each step's
first batch clears the accumulators.

Verdict: `AsDescribed` is right only if `.grad` is set to None between steps and no parameter is
float64.
  - `tensor.to(dtype)` returns the tensor itself if the dtype is the same. So `.grad` of a float32
    parameter *is* its main gradient. If `.grad` is zeroed in place or kept, autograd adds the next
    gradient to both, and the hook adds it again: the result is twice too large.
  - Through the same alias, `reset()` zeroes a gradient that was kept on purpose.
  - The main gradient of a float64 parameter has only float32 precision.
  - A parameter without a gradient leaves its bucket waiting; backward then ends with an error.
  - A backward that raises half way, and is caught, leaves the callback marked as queued. No
    gradient is ever handed back again.
`Corrected` is right; a parameter without a gradient counts as zero. It declares its limits: the plan
does not follow parameters that are frozen, unfrozen or replaced after wrapping, and a rank whose loss
reaches no parameter sends nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable


@dataclass
class Bucket:
    """Parameters whose main gradients lie end to end and travel together.

    Attributes:
        parameters: The parameters, in the order in which their gradients are expected.
        main: All main gradients, 1-d.
        main_grads: Each parameter's part of `main`, in the parameter's shape.
        waiting: Parameters that have no gradient in this backward yet.
        work: The all-reduce in flight, if any.
    """

    parameters: list[nn.Parameter]
    main: Tensor
    main_grads: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    waiting: set[nn.Parameter] = field(default_factory=set)
    work: dist.Work | None = None

    def __post_init__(self) -> None:
        pieces = self.main.split([p.numel() for p in self.parameters])
        self.main_grads = {
            p: piece.view(p.shape) for p, piece in zip(self.parameters, pieces, strict=True)
        }
        self.waiting = set(self.parameters)


class AsDescribed(nn.Module):
    """The wrapper as small trainers publish it.

    Args:
        module: The replica.
        process_group: The ranks to average over; None is the default group.
        bucket_cap_mb: The most MiB of main gradients in a bucket, unless one parameter has more.
    """

    declares: ClassVar[dict[str, Any]] = {"unsupported": ["float64"]}

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.no_sync_depth = 0
        self.callback_queued = False
        broadcast_state(module, process_group)
        self.buckets = self._plan(bucket_cap_mb * 2**20)
        self.reset()
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        for parameter in self.bucket_of:
            parameter.register_post_accumulate_grad_hook(self._gradient_ready)

    def _main_dtype(self, parameter: Tensor) -> torch.dtype:
        del parameter
        return torch.float32

    def _plan(self, cap: float) -> list[Bucket]:
        """Fill buckets of one main dtype up to the cap in bytes.

        The order is the one in which backward is expected to reach the parameters.
        """
        groups: list[list[nn.Parameter]] = []
        filling: dict[torch.dtype, tuple[list[nn.Parameter], int]] = {}
        for parameter in reversed(list(self.module.parameters())):
            if not parameter.requires_grad:
                continue
            dtype = self._main_dtype(parameter)
            size = parameter.numel() * dtype.itemsize
            group, used = filling.get(dtype, ([], 0))
            if not group or used + size > cap:
                group, used = [], 0
                groups.append(group)
            group.append(parameter)
            filling[dtype] = (group, used + size)
        return [
            Bucket(g, torch.empty(sum(p.numel() for p in g), dtype=self._main_dtype(g[0])))
            for g in groups
        ]

    def forward(self, *inputs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backwards inside add to the local main gradients. May be nested."""
        self.no_sync_depth += 1
        try:
            yield
        finally:
            self.no_sync_depth -= 1

    def reset(self) -> None:
        """Clear the main gradients; the loop calls this before each step's first batch."""
        for bucket in self.buckets:
            bucket.main.zero_()

    def _gradient_ready(self, parameter: Any) -> None:
        """Move a gradient into the main gradient.

        Outside `no_sync`, send the gradient's bucket once it is complete.
        """
        bucket = self.bucket_of[parameter]
        if parameter.grad is None:
            raise RuntimeError("another hook took the gradient: wrap a model once")
        bucket.main_grads[parameter] += parameter.grad
        parameter.grad = None
        if self.no_sync_depth:
            return
        if not self.callback_queued:
            self.callback_queued = True
            # torch has no public way to run code at the end of a whole backward.
            Variable._execution_engine.queue_callback(self._finish)
        bucket.waiting.discard(parameter)
        self._send_complete()

    def _send_complete(self) -> None:
        """Start the all-reduce of complete buckets.

        All ranks send in index order, because the n-th collective of one rank meets the n-th of the
        others.
        """
        for bucket in self.buckets:
            if bucket.waiting:
                break
            if bucket.work is None:
                bucket.work = dist.all_reduce(bucket.main, group=self.group, async_op=True)

    def _finish(self) -> None:
        """Wait for the sums at the end of backward, and hand the means back."""
        self.callback_queued = False
        for bucket in self.buckets:
            if bucket.work is None:
                raise RuntimeError(
                    "a bucket is incomplete at the end of backward: some parameter got no gradient"
                )
            bucket.work.wait()
            bucket.main /= dist.get_world_size(self.group)
            self._hand_back(bucket)
            bucket.waiting, bucket.work = set(bucket.parameters), None

    def _hand_back(self, bucket: Bucket) -> None:
        for parameter, main_grad in bucket.main_grads.items():
            parameter.grad = main_grad.to(parameter.dtype)


class Corrected(AsDescribed):
    """The wrapper without the faults of `AsDescribed`.

    It hands back copies and keeps float64. It does not wait for gradients that never come. It drops
    the leftovers of a backward that raised.
    """

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ["freeze", "unfreeze", "assign", "unreached"]
    }

    def forward(self, *inputs: Any) -> Any:
        """Run the module, after dropping the leftovers of a backward that raised."""
        if self.callback_queued:
            self.reset()
        return super().forward(*inputs)

    def _main_dtype(self, parameter: Tensor) -> torch.dtype:
        return torch.promote_types(parameter.dtype, torch.float32)

    def reset(self) -> None:
        """Clear the gradients that `no_sync` accumulated and no backward synchronised.

        The loop calls this before each step's first batch.
        """
        for bucket in self.buckets:
            if self.callback_queued:
                # A backward raised: its collectives in flight would overwrite the cleared values.
                if bucket.work is not None:
                    bucket.work.wait()
                bucket.waiting, bucket.work = set(bucket.parameters), None
            # Not 0.0: a gradient of -0.0 added to 0.0 would change its sign. Added to -0.0, every
            # gradient keeps its value.
            bucket.main.fill_(-0.0)
        self.callback_queued = False

    def _finish(self) -> None:
        for bucket in self.buckets:
            bucket.waiting.clear()
        self._send_complete()
        super()._finish()

    def _hand_back(self, bucket: Bucket) -> None:
        for parameter, main_grad in bucket.main_grads.items():
            # With the parameter's strides, so that autograd adds to it without a warning.
            parameter.grad = torch.empty_like(parameter).copy_(main_grad)
        # The mean is in `.grad` now. If the loop keeps `.grad`, the next backward moves the mean
        # back here with the new gradient.
        bucket.main.fill_(-0.0)


@torch.no_grad()
def broadcast_state(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give every rank the first rank's parameters and buffers.

    The values travel through contiguous copies, because gloo ignores strides.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)
