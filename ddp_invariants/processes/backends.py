"""The backends and devices of ranks: those that can be asked for, and those a machine can run."""

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
"""Ranks that may share one device over NCCL: the number that its guide recommends."""


@dataclass(frozen=True)
class Backend:
    """A backend and the device of its tensors.

    Attributes:
        backend: `gloo` for tensors in CPU memory. `gloo-cuda` for tensors on a device, which ranks
            may share. `nccl` with one device per rank. `nccl-shared` (experimental) with two ranks
            on each device. NCCL supports that from 2.30 on; older versions need different
            machine names for the two ranks.
        device: The device of the tensors.
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
        """The name of the backend in torch."""
        return self.backend.partition("-")[0]

    @property
    def options(self) -> str:
        """The command line option for it; empty for the default."""
        return "" if self == ON_THE_CPU else f"--backend {self.backend}"


ON_THE_CPU = Backend()
"""The default."""


def wanted(backend: BackendName, device: DeviceName | None) -> Backend:
    """Return the backend and device that two options ask for; `auto` is the device's own backend.

    Raises:
        CaseError: They contradict one another.
    """
    if backend == "auto" or (backend, device) == ("gloo", "cuda"):
        backend = "gloo" if device != "cuda" else "gloo-cuda" if backend == "gloo" else "nccl"
    if device not in (None, _DEVICE[backend]):
        raise CaseError(
            f"--backend {backend} --device {device}: {backend} needs tensors on {_DEVICE[backend]}"
        )
    return Backend(backend, _DEVICE[backend])


@dataclass(frozen=True)
class DeviceInfo:
    """The devices that a rank sees.

    Attributes:
        torch: Version of torch.
        cuda: The CUDA version that torch is built for; None without CUDA.
        nccl: True if torch is built with NCCL.
        devices: The number of devices.
        visible: The devices that the launcher makes visible; empty for all.
        node: The identity of the rank's machine.
    """

    torch: str
    cuda: str | None = None
    nccl: bool = False
    devices: int = 0
    visible: str = ""
    node: str = ""


def not_run(backend: Backend, device_infos: Sequence[DeviceInfo]) -> str:
    """Return why cases cannot run over a backend; empty if they can.

    Args:
        backend: The backend and device that were asked for.
        device_infos: Of the ranks.
    """
    return next(filter(None, (_not_run(backend, each) for each in device_infos)), "")


def _not_run(backend: Backend, device_info: DeviceInfo) -> str:
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
    """Return the most ranks a backend can run, and why; None if devices set no limit.

    Args:
        backend: The backend and device that were asked for.
        device_infos: Of the ranks of a job, in order. For one machine's own ranks only that of the first,
            which the others share.
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
    share = "a device" if each == 1 else "half a device"
    return ranks, f"{backend}: each rank needs {share}, and the devices here suffice for {ranks}"
