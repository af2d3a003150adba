"""Over what ranks communicate and where their tensors are: what can be asked for, and what a machine can run of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ddp_invariants.errors import CaseError

BackendName = Literal["auto", "gloo", "nccl", "gloo-cuda", "nccl-shared"]
DeviceName = Literal["cpu", "cuda"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)
_DEVICE: dict[BackendName, DeviceName] = {
    "gloo": "cpu",
    "nccl": "cuda",
    "gloo-cuda": "cuda",
    "nccl-shared": "cuda",
}
SHARING = 2
"""Ranks that may share one device over NCCL: as many as its guide says should run."""


@dataclass(frozen=True)
class Backend:
    """A backend and the device of the tensors it is given.

    Attributes:
        backend: `gloo` over processors' memory; `gloo-cuda` likewise, of tensors on a device, which
            ranks may share; `nccl`, a device a rank; `nccl-shared`, experimental: two ranks on each
            device, which NCCL supports from 2.30 on, and takes for two machines before.
        device: Where the tensors are.
    """

    backend: BackendName = "gloo"
    device: DeviceName = "cpu"

    def __str__(self) -> str:
        if self.backend == "nccl-shared":
            return "nccl on cuda, two ranks a device (experimental)"
        return (
            self.backend
            if self.device == "cpu"
            else f"{self.backend.removesuffix('-cuda')} on {self.device}"
        )

    @property
    def carrier(self) -> str:
        """What torch calls the backend."""
        return self.backend.partition("-")[0]

    @property
    def options(self) -> str:
        """How it is asked for on a command line; empty for what is usual."""
        return "" if self == ON_THE_CPU else f"--backend {self.backend}"


ON_THE_CPU = Backend()
"""What is usual."""


def wanted(backend: BackendName, device: DeviceName | None) -> Backend:
    """What two options ask for; `auto` is what there is for a device.

    Raises:
        CaseError: They contradict one another.
    """
    if backend == "auto" or (backend, device) == ("gloo", "cuda"):
        backend = "gloo" if device != "cuda" else "gloo-cuda" if backend == "gloo" else "nccl"
    if device not in (None, _DEVICE[backend]):
        raise CaseError(
            f"--backend {backend} --device {device}: {backend} is for tensors on {_DEVICE[backend]}"
        )
    return Backend(backend, _DEVICE[backend])


@dataclass(frozen=True)
class DeviceInfo:
    """What a rank sees of devices.

    Attributes:
        torch: Version of torch.
        cuda: The CUDA it is built for; None where it is built without.
        nccl: Whether it is built with NCCL.
        devices: How many there are.
        visible: What its launcher says is visible to it; empty for all.
        node: What tells its machine from others.
    """

    torch: str
    cuda: str | None = None
    nccl: bool = False
    devices: int = 0
    visible: str = ""
    node: str = ""


def not_run(backend: Backend, device_info: DeviceInfo) -> str:
    """Why cases are not run that way where a rank sees so much; empty where they are."""
    if backend.device == "cpu":
        return ""
    if not device_info.cuda:
        return f"torch {device_info.torch} is built without CUDA"
    if not device_info.devices:
        return f"torch {device_info.torch} sees no CUDA device"
    if backend.carrier == "nccl" and not device_info.nccl:
        return f"torch {device_info.torch} is built without NCCL"
    return ""


def bound(backend: Backend, device_infos: Sequence[DeviceInfo]) -> tuple[int, str] | None:
    """How many ranks can run that way at most, and why; None where devices set no bound.

    Args:
        backend: What was asked for.
        device_infos: Of the ranks of a job, in order; of one machine's own ranks that of the first, which
            the others share.
    """
    if backend.carrier != "nccl":
        return None
    each = SHARING if backend.backend == "nccl-shared" else 1
    if len(device_infos) == 1:
        ranks = each * device_infos[0].devices
    else:
        taken, ranks = Counter[tuple[str, str, int]](), 0
        local = Counter[tuple[str, str]]()
        for device_info in device_infos:
            number = local[device_info.node, device_info.visible]
            local[device_info.node, device_info.visible] += 1
            device = (device_info.node, device_info.visible, number % max(device_info.devices, 1))
            if taken[device] == each:
                break
            taken[device] += 1
            ranks += 1
    what = "a device" if each == 1 else "half a device"
    return ranks, f"{backend}: {what} for each rank, and here they are for {ranks}"
