"""Over what ranks communicate and where their tensors are: what can be asked for, and what a machine can run of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ddp_invariants.errors import CaseError

Backend = Literal["auto", "gloo", "nccl", "gloo-cuda", "nccl-shared"]
Device = Literal["cpu", "cuda"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
DEVICES: tuple[Device, ...] = get_args(Device)
_DEVICE: dict[Backend, Device] = {
    "gloo": "cpu",
    "nccl": "cuda",
    "gloo-cuda": "cuda",
    "nccl-shared": "cuda",
}
SHARING = 2
"""Ranks that may share one device over NCCL: as many as its guide says should run."""


@dataclass(frozen=True)
class Way:
    """A backend and the device of the tensors it is given.

    Attributes:
        backend: `gloo` over processors' memory; `gloo-cuda` likewise, of tensors on a device, which
            ranks may share; `nccl`, a device a rank; `nccl-shared`, experimental: two ranks on each
            device, which NCCL supports from 2.30 on, and takes for two machines before.
        device: Where the tensors are.
    """

    backend: Backend = "gloo"
    device: Device = "cpu"

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


ON_THE_CPU = Way()
"""What is usual."""


def wanted(backend: Backend, device: Device | None) -> Way:
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
    return Way(backend, _DEVICE[backend])


@dataclass(frozen=True)
class Sight:
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


def not_run(way: Way, sight: Sight) -> str:
    """Why cases are not run that way where a rank sees so much; empty where they are."""
    if way.device == "cpu":
        return ""
    if not sight.cuda:
        return f"torch {sight.torch} is built without CUDA"
    if not sight.devices:
        return f"torch {sight.torch} sees no CUDA device"
    if way.carrier == "nccl" and not sight.nccl:
        return f"torch {sight.torch} is built without NCCL"
    return ""


def bound(way: Way, sights: Sequence[Sight]) -> tuple[int, str] | None:
    """How many ranks can run that way at most, and why; None where devices set no bound.

    Args:
        way: What was asked for.
        sights: Of the ranks of a job, in order; of one machine's own ranks that of the first, which
            the others share.
    """
    if way.carrier != "nccl":
        return None
    each = SHARING if way.backend == "nccl-shared" else 1
    if len(sights) == 1:
        ranks = each * sights[0].devices
    else:
        taken, ranks = Counter[tuple[str, str, int]](), 0
        local = Counter[tuple[str, str]]()
        for sight in sights:
            number = local[sight.node, sight.visible]
            local[sight.node, sight.visible] += 1
            device = (sight.node, sight.visible, number % max(sight.devices, 1))
            if taken[device] == each:
                break
            taken[device] += 1
            ranks += 1
    what = "a device" if each == 1 else "half a device"
    return ranks, f"{way}: {what} for each rank, and here they are for {ranks}"
