"""A rank's device and backend: the one module that knows of devices.

The host never initialises CUDA, because CUDA does not survive a fork. A rank initialises it once,
when it first connects.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

_SETTINGS = {
    # The harness ends a hang and prints the stacks. torch's own watchdog would end the process
    # without them.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # Connect everything at the start. A connection made during a case would look like a leak of the
    # case.
    "NCCL_RUNTIME_CONNECT": "0",
    # cuBLAS gives the same bits in every run only with a workspace of its own for each stream.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
_SHARED = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
}
"""Settings for ranks that share a device: all must fit on it, and connect over the loopback."""
_CYCLES = 10_000_000
"""Some milliseconds of any device's clock."""
_MULTI_RANK = (2, 30)
"""The first NCCL version that lets ranks share a device by a switch of its own."""


@dataclass(frozen=True)
class RankDevice:
    """A rank's device and backend.

    Attributes:
        carrier: torch's name of the backend.
        device: The device of the rank's tensors.
    """

    carrier: str = "gloo"
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it cannot be changed

    @property
    def on_device(self) -> bool:
        """True if the device queues its work for later, unlike a CPU."""
        return self.device.type != "cpu"

    def enter(self) -> None:
        """Make the device this thread's current one."""
        if self.on_device:
            torch.cuda.set_device(self.device)

    def put(self, tensor: Tensor) -> Tensor:
        """Copy a CPU tensor to the device like a data loader: from pinned memory and unawaited."""
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.on_device else tensor

    def finish(self) -> None:
        """Wait until the device's queues are empty."""
        if self.on_device:
            torch.cuda.synchronize(self.device)

    def moment(self) -> Any:
        """Record the work queued on this thread's stream so far; None on a CPU."""
        return torch.cuda.current_stream(self.device).record_event() if self.on_device else None

    def wait_for(self, moment: Any) -> None:
        """Make this thread's stream wait for the work that had been queued at a moment."""
        if moment is not None:
            torch.cuda.current_stream(self.device).wait_event(moment)

    def keep(self, tensor: Tensor) -> None:
        """Keep a tensor's memory until this thread's stream has done the work queued so far.

        Otherwise the memory of a tensor that was made on another stream could be reused before.
        """
        if self.on_device:
            tensor.record_stream(torch.cuda.current_stream(self.device))

    def keep_busy(self, seconds: float) -> None:
        """Queue a kernel that does nothing for some seconds on this thread's stream.

        It has no effect on a CPU.
        """
        if self.on_device:
            torch.cuda._sleep(int(seconds * _cycles_per_second(self.device)))

    @contextmanager
    def slowed(self, seconds: float, *, waited_for: bool) -> Iterator[None]:
        """Queue the sends of this context on a stream of their own, after some idle seconds.

        Work queued before still comes first. A caller that waits for a sent result waits for all of
        it. A caller that does not wait finds the result unfinished.

        Args:
            seconds: Length of the idle time.
            waited_for: True if the send is done, as far as the caller's stream can tell, when the
                call returns.
        """
        if not self.on_device:
            yield
            return
        before, aside = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        aside.wait_stream(before)
        with torch.cuda.stream(aside):
            self.keep_busy(seconds)
            yield
        if waited_for:
            before.wait_stream(aside)


@cache
def _cycles_per_second(device: torch.device) -> float:
    """Measure the cycles per second of the device's clock, which `torch.cuda._sleep` counts."""
    with torch.cuda.device(device):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        for event in events:  # The first sleep brings the clock up to speed.
            torch.cuda._sleep(_CYCLES)
            event.record()
        events[-1].synchronize()
        # The shortest: another rank may have had the device in between.
        milliseconds = min(float(start.elapsed_time(end)) for start, end in pairwise(events))
        return _CYCLES / (milliseconds / 1000)


def take_device(backend: str, local: int) -> RankDevice:
    """Take the device of a rank and make it the process's own.

    Call this once in a process, before anything is on a device.

    Args:
        backend: A `backends.Backend`'s.
        local: The rank's number among this machine's ranks.
    """
    if backend == "gloo":
        # Adam asks any visible device whether it captures a graph. That initialises the device and
        # costs gigabytes a rank.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return RankDevice()
    os.environ.update(_SETTINGS)
    count = torch.cuda.device_count()
    if backend == "nccl-shared":
        os.environ.update(_SHARED)
        if torch.cuda.nccl.version() >= _MULTI_RANK:
            os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        else:
            # An older NCCL refuses two ranks of one machine on a device. It takes the machine's
            # name from this variable.
            os.environ["NCCL_HOSTID"] = f"{os.uname().nodename}-{local // count}"
    rank_device = RankDevice(backend.partition("-")[0], torch.device("cuda", local % count))
    rank_device.enter()
    # The bounds hold for sums in any order of products in the numbers' own format. They do not hold
    # for TF32 or for transforms.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.enabled = False
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    _use(rank_device)
    return rank_device


def _use(rank_device: RankDevice) -> None:
    """Use the device once, so that no case pays for the first use.

    The first use starts threads, opens files and makes handles. A case would seem to leak them.
    """
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        first = rank_device.put(torch.ones(4, 4, dtype=dtype)).requires_grad_()
        nn.functional.linear(first, first, first[0]).abs().sum().backward()
    for priority in (0, -1):
        with torch.cuda.stream(torch.cuda.Stream(rank_device.device, priority=priority)):
            rank_device.keep_busy(0.0)
    rank_device.finish()
