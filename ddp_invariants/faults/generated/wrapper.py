"""The composed wrapper: the reference with another host, and with a fault in one of its seams."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults.generated.choices import OPERATORS
from ddp_invariants.faults.generated.collectives import SUMMED
from ddp_invariants.faults.generated.placing import STARTED, flatten
from ddp_invariants.faults.generated.triggers import ACTS, History, Occasion
from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

_CAPS = {"each": 0.0, "capped": 256 / 2**20, "whole": float(1 << 20)}
"""By layout: the bucket cap in MiB."""
_living: defaultdict[int, "WeakSet[Composed]"] = defaultdict(WeakSet)
"""By rank: its wrappers, since the ranks of a simulation share this module."""


class Composed(Reference):
    """A wrapper composed of choices (`choices`).

    Args:
        module: The replica.
        process_group: The ranks to average over; None is the default group.
        layout: The gradients that travel together.
        moment: When a bucket is sent.
        collective: How a bucket is summed.
        division: How a sum becomes a mean.
        packing: The order in which parameters fill buckets.
        waits: The order in which buckets are awaited.
        start: How the first rank's parameters and buffers reach the other ranks.
        memory: Where the values of parameters lie.
        gradients: How means become gradients.
        operator: The fault; empty for none.
        trigger: The occasions on which the fault acts.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        layout: str = "capped",
        moment: str = "ready",
        collective: str = "all_reduce",
        division: str = "after",
        packing: str = "backward",
        waits: str = "forwards",
        start: str = "together",
        memory: str = "kept",
        gradients: str = "copied",
        operator: str = "",
        trigger: str = "always",
    ) -> None:
        self._moment, self._collective, self._division = moment, collective, division
        self._packing, self._waits = packing, waits
        self._start, self._gradients = start, gradients
        self._operator, self._trigger = operator, trigger
        self._seam = OPERATORS[operator].seam if operator else ""
        self._planned = False
        self._before: dict[tuple[int, ...], dict[str, Tensor]] = {}
        living = _living[dist.get_rank()]
        self._history = History(accompanied=bool(living))
        if memory == "flattened":
            flatten(module.parameters())
        super().__init__(module, process_group, bucket_cap_mb=_CAPS[layout])
        for wrapper in living:
            wrapper._history = replace(wrapper._history, accompanied=True)
        living.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_before": {}}

    # The host.

    def _trainable(self) -> list[nn.Parameter]:
        trainable = super()._trainable()
        return trainable if self._packing == "backward" else trainable[::-1]

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        if self._moment == "ready":
            super()._gradient_ready(parameter)

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None:
            bucket.flat = self._packed(bucket)
            if self._division == "before":
                self._divide(bucket)
            bucket.work = SUMMED[self._collective](_real(bucket.flat), self.group)

    def _divide(self, bucket: Bucket) -> None:
        """Divide the gradients of a bucket, but not its flags."""
        assert bucket.flat is not None
        gradients = _real(bucket.flat[: -len(bucket.parameters)])
        divisor = self.world_size
        if self._operator in _DIVISORS and self._acts_on("receive", bucket):
            divisor = _DIVISORS[self._operator](divisor)
        if self._division == "multiplied":
            gradients.mul_(1 / divisor)
        else:
            gradients.div_(divisor)

    def _send_and_wait(self) -> None:
        for bucket in self._buckets:
            self._launch(bucket)
        for bucket in self._buckets if self._waits == "forwards" else self._buckets[::-1]:
            self._wait(bucket)
        self._reducing = False

    def _flat(self, bucket: Bucket) -> Tensor:
        """Return the gradients of a bucket and their flags."""
        return super()._packed(bucket)

    def _unpack(self, bucket: Bucket) -> None:
        """Hand the means back."""
        if self._gradients != "copied":
            self._replace(bucket)
            return
        size, self.world_size = self.world_size, 1  # The means are divided already.
        try:
            super()._write_back(bucket)
        finally:
            self.world_size = size

    def _replace(self, bucket: Bucket) -> None:
        """Make the means, or views of them, the gradients."""
        for parameter, mean in self._means(bucket):
            parameter.grad = mean if self._gradients == "viewed" else mean.clone()

    def _means(self, bucket: Bucket) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield each parameter that some rank used, and a view of its mean."""
        assert bucket.flat is not None
        sizes = [parameter.numel() for parameter in bucket.parameters]
        *means, flags = bucket.flat.split([*sizes, len(sizes)])
        for parameter, mean, flag in zip(bucket.parameters, means, flags.tolist(), strict=True):
            if flag:
                yield parameter, mean.view_as(parameter)

    # The occasions.

    def _plan(self) -> None:
        if self._planned:
            self._history = replace(self._history, replanned=True)
        self._planned = True
        super()._plan()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        history = self._history
        self._history = replace(
            history,
            evaluated=history.evaluated or not self.training,
            accumulated=history.accumulated or self._no_sync_depth > 0,
            raised=history.raised or self._reducing,
        )
        return super().forward(*args, **kwargs)

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._reducing:
            self._history = replace(self._history, reductions=self._history.reductions + 1)
        super()._backward_begins(gradient)

    def _act(
        self, seam: str, tensors: Iterable[Tensor], named: Iterable[tuple[str, Tensor]], number: int
    ) -> bool:
        """Return whether the fault acts on these tensors in a seam of this name."""
        if seam != self._seam:
            return False
        tensors = tuple(tensors)
        names = {id(tensor): name for name, tensor in named}
        return ACTS[self._trigger](
            Occasion(
                dist.get_rank(self.group),
                self.world_size,
                tuple(names.get(id(tensor), "") for tensor in tensors),
                tensors,
                max(number, 0),
                len(self._buckets) if number >= 0 else 0,
                self._history,
            )
        )

    def _acts_on(self, seam: str, bucket: Bucket) -> bool:
        number = next(number for number, each in enumerate(self._buckets) if each is bucket)
        return self._act(seam, bucket.parameters, self.module.named_parameters(), number)

    def _previous(self, bucket: Bucket, seam: str, now: Tensor) -> Tensor:
        """Return what this bucket held in the reduction before, and keep what it holds now."""
        held = self._before.setdefault(tuple(map(id, bucket.parameters)), {})
        before = held.get(seam, now)
        held[seam] = now.clone()
        return before if before.shape == now.shape else now

    # The seams.

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        starting = not self._planned
        seam = "start" if starting else "buffers"
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        kept = [
            (tensor, tensor.detach().clone())
            for tensor in tensors
            if isinstance(tensor, nn.Parameter) == starting and self._act(seam, [tensor], named, -1)
        ]
        if self._start == "together":
            super()._broadcast_state(tensors)
        else:
            STARTED[self._start](tensors, self.group)
        with torch.no_grad():
            for tensor, own in kept:
                tensor.copy_(own)

    def _packed(self, bucket: Bucket) -> Tensor:
        flat = self._flat(bucket)
        gradients = flat[: -len(bucket.parameters)]
        before = self._previous(bucket, "sent", gradients)
        if self._acts_on("send", bucket) and gradients.numel():
            _SENT[self._operator](gradients, before)
        return flat

    def _wait(self, bucket: Bucket) -> None:
        if not self._acts_on("wait", bucket):
            super()._wait(bucket)

    def _write_back(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        acts = self._acts_on("receive", bucket)
        if not acts or self._operator == "late":
            before = self._previous(bucket, "received", bucket.flat)
            if acts:
                bucket.flat = before.clone()
        if acts and self._operator == "keep":
            return
        if acts and self._operator == "half":
            # A parameter whose flag is 0 keeps its gradient.
            bucket.flat[-max(len(bucket.parameters) // 2, 1) :] = 0
        if self._division != "before":
            self._divide(bucket)
        self._unpack(bucket)


# The effects of the faults.

_SENT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "halve": lambda flat, _: flat.div_(2),
    "round": lambda flat, _: flat.copy_(_rounded(flat)),
    "zero": lambda flat, _: flat.zero_(),
    "stale": lambda flat, before: flat.copy_(before),
    "leak": lambda flat, before: flat.add_(before) if before is not flat else flat,
    "truncate": lambda flat, _: flat[-1:].zero_(),
    "shift": lambda flat, _: flat.copy_(flat.roll(1)),
    "reverse": lambda flat, _: flat.copy_(flat.flip(0)),
    "seed": lambda _flat, _before: torch.manual_seed(0),
}
"""By operator: how it alters the gradients that are sent, given those sent before."""
_DIVISORS: dict[str, Callable[[int], int]] = {
    "sum": lambda _: 1,
    "fewer": lambda size: max(size - 1, 1),
    "twice": lambda size: size * size,
}
"""By operator: its divisor, given the number of ranks."""


def _real(flat: Tensor) -> Tensor:
    """Return a view of the numbers, complex ones as their parts.

    gloo scatters no complex numbers, and torch 2.6 rounds when it divides them.
    """
    return (torch.view_as_real(flat) if flat.is_complex() else flat).view(-1)


def _rounded(flat: Tensor) -> Tensor:
    """Return the values of bfloat16 nearest to some numbers."""
    if flat.is_complex():
        return torch.complex(_rounded(flat.real), _rounded(flat.imag)).to(flat.dtype)
    return flat.to(torch.bfloat16).to(flat.dtype)
