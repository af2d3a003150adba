"""Where a rank's tensors are, and over what it sends them: the one module that knows of devices.

The host never initialises CUDA, which a fork does not survive; a rank does, once, when it first
connects.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

_SETTINGS = {
    # The harness ends what hangs, with its stacks; torch's own watchdog would end the process
    # without them.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    # All connections are made at the start: what is made in a case looks like what the case has
    # left behind.
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
"""For ranks that share a device: both must fit on it, and what connects them is this machine's loopback."""
_CYCLES = 10_000_000
"""Some milliseconds of any device's clock."""
_MULTI_RANK = (2, 30)
"""The first NCCL that lets ranks share a device by a switch of its own."""


@dataclass(frozen=True)
class Place:
    """A rank's device and what carries its collectives.

    Attributes:
        carrier: What torch calls the backend.
        device: Where its tensors are.
    """

    carrier: str = "gloo"
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it cannot be changed

    @property
    def on_device(self) -> bool:
        """Whether that is no processor's memory: work on it is queued, and done later."""
        return self.device.type != "cpu"

    def enter(self) -> None:
        """Make the device this thread's own."""
        if self.on_device:
            torch.cuda.set_device(self.device)

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor of the processor's, here: as data loaders hand it over, from pinned memory while the program goes on."""
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.on_device else tensor

    def finish(self) -> None:
        """Wait until nothing is queued any more."""
        if self.on_device:
            torch.cuda.synchronize(self.device)

    def moment(self) -> Any:
        """What has been queued on this thread's stream by now; None where nothing is queued."""
        return torch.cuda.current_stream(self.device).record_event() if self.on_device else None

    def wait_for(self, moment: Any) -> None:
        """Have this thread's stream wait until what had been queued at a moment is done."""
        if moment is not None:
            torch.cuda.current_stream(self.device).wait_event(moment)

    def keep_busy(self, seconds: float) -> None:
        """Queue a kernel that does nothing for so long on this thread's stream; nothing where nothing is queued."""
        if self.on_device:
            torch.cuda._sleep(int(seconds * _cycles_per_second(self.device)))

    @contextmanager
    def slowed(self, seconds: float, *, waited_for: bool) -> Iterator[None]:
        """Queue what is sent within on a stream of its own, behind so many seconds of nothing.

        What was queued before comes first, as it does without this. Who waits for what is sent
        waits for all of it; who does not finds it undone.

        Args:
            seconds: How long nothing is done.
            waited_for: Whether it is done, as far as the caller's stream can tell, when the call
                returns.
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
    """How many cycles the device's clock makes, measured: what `torch.cuda._sleep` counts."""
    with torch.cuda.device(device):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        for event in events:  # The first sleep brings the clock up to speed.
            torch.cuda._sleep(_CYCLES)
            event.record()
        events[-1].synchronize()
        # The shortest: another rank may have had the device in between.
        milliseconds = min(float(start.elapsed_time(end)) for start, end in pairwise(events))
        return _CYCLES / (milliseconds / 1000)


def taken(backend: str, local: int) -> Place:
    """The place of a rank, made its own: to be asked for once in a process, before anything is on a device.

    Args:
        backend: A `backends.Backend`'s.
        local: Which of this machine's ranks it is.
    """
    if backend == "gloo":
        # Adam asks any device there is whether it captures a graph, and initialises it, at
        # gigabytes a rank.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return Place()
    os.environ.update(_SETTINGS)
    count = torch.cuda.device_count()
    if backend == "nccl-shared":
        os.environ.update(_SHARED)
        if torch.cuda.nccl.version() >= _MULTI_RANK:
            os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        else:
            # It refuses two ranks of one machine on a device; which machine it is on it is told by
            # this.
            os.environ["NCCL_HOSTID"] = f"{os.uname().nodename}-{local // count}"
    # A context takes gigabytes of addresses, which are none of the implementation's doing.
    resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
    place = Place(backend.partition("-")[0], torch.device("cuda", local % count))
    place.enter()
    # The bounds hold for sums in any order of products in the numbers' own format: not for TF32,
    # nor for transforms.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.enabled = False
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    _use(place)
    return place


def _use(place: Place) -> None:
    """Have everything that starts threads, opens files or makes handles at first use do so now, and not in a case."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        first = place.put(torch.ones(4, 4, dtype=dtype)).requires_grad_()
        nn.functional.linear(first, first, first[0]).abs().sum().backward()
    for priority in (0, -1):
        with torch.cuda.stream(torch.cuda.Stream(place.device, priority=priority)):
            place.keep_busy(0.0)
    place.finish()
