"""Over what ranks communicate and where their tensors are: what can be asked for, and what of it is run."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ddp_invariants.limits import CaseError

Backend = Literal["auto", "gloo", "nccl", "gloo-cuda"]
Device = Literal["cpu", "cuda"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
DEVICES: tuple[Device, ...] = get_args(Device)
_DEVICE: dict[Backend, Device] = {"gloo": "cpu", "nccl": "cuda", "gloo-cuda": "cuda"}


@dataclass(frozen=True)
class Way:
    """A backend and the device of the tensors it is given."""

    backend: Backend = "gloo"
    device: Device = "cpu"

    def __str__(self) -> str:
        return self.backend if self.device == "cpu" else f"{self.backend.removesuffix('-cuda')} on {self.device}"


def wanted(backend: Backend, device: Device | None) -> Way:
    """What two options ask for; `auto` is what there is for a device.

    Raises:
        CaseError: They contradict one another.
    """
    if backend == "auto" or (backend, device) == ("gloo", "cuda"):
        backend = "gloo" if device != "cuda" else "gloo-cuda" if backend == "gloo" else "nccl"
    if device not in (None, _DEVICE[backend]):
        raise CaseError(f"--backend {backend} --device {device}: {backend} is for tensors on {_DEVICE[backend]}")
    return Way(backend, _DEVICE[backend])


def not_run(way: Way, seen: dict[str, Any]) -> str:
    """Why cases are not run that way; empty where they are.

    Args:
        way: What was asked for.
        seen: What a rank sees: torch's version `torch`, the `cuda` it is built for, how many `devices`.
    """
    if way.device == "cpu":
        return ""
    if not seen["cuda"]:
        return f"torch {seen['torch']} is built without CUDA"
    if not seen["devices"]:
        return f"torch {seen['torch']} sees no CUDA device"
    return f"{seen['devices']} CUDA devices are there, and this version has no code for them: it runs gloo on the CPU alone"
