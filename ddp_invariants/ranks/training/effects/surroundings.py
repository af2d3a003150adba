"""Unusual surroundings of a process (`situations.surroundings`)."""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.situations import surroundings

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper

_OUTER = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE"), "1"),
    **dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), "0"),
    **dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "1"),
}
"""The variables of a process that torchrun, srun or mpirun started alone."""
_LAUNCHERS = (*_OUTER, "MASTER_ADDR", "MASTER_PORT")


@effect(lambda case: case.get(surroundings.Surroundings) is not None)
class Surroundings(Effect):
    """Unusual surroundings of a process, from before wrapping to the end of the run."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        plan = self.case.get(surroundings.Surroundings)
        assert plan is not None
        self._names = set(plan.unusual)
        self._left, self._wrapping = ExitStack(), ExitStack()

    def before_wrapping(self, stepper: "Stepper") -> None:
        """Change the surroundings."""
        del stepper
        if "deterministic" in self._names:
            self._left.callback(
                torch.use_deterministic_algorithms,
                torch.are_deterministic_algorithms_enabled(),
                warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            )
            torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's
        if "anomaly" in self._names:
            # Values that are not finite may be a part of the case.
            self._left.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
        if "low default dtype" in self._names:
            default = torch.get_default_dtype()
            torch.set_default_dtype(torch.bfloat16)
            self._left.callback(torch.set_default_dtype, default)
        self._set_environment()
        if "other groups" in self._names:
            size = self.case.world_size
            for ranks in (list(range(size)), [0]):
                group = dist.new_group(ranks)
                if self.setup.rank in ranks:
                    dist.barrier(group=group)
        if "no gradients" in self._names:
            self._wrapping.enter_context(torch.no_grad())

    def begin(self, stepper: "Stepper") -> None:
        """Allow gradients again: the model is wrapped."""
        del stepper
        self._wrapping.close()

    def end(self, record: Record) -> None:
        """Restore the surroundings."""
        del record
        self._wrapping.close()
        self._left.close()

    def _set_environment(self) -> None:
        names = [name for name in _LAUNCHERS if name in os.environ]
        kept = {name: os.environ[name] for name in names}
        # A device is chosen by the local rank.
        on_device = self.setup.rank_device.on_device
        outer = {
            name: value for name, value in _OUTER.items() if not on_device or "LOCAL" not in name
        }
        if "no environment" in self._names:
            for name in names:
                del os.environ[name]
        elif "outer environment" in self._names:
            os.environ.update(outer)
        else:
            return
        self._left.callback(_restore, kept)


def _restore(kept: dict[str, str]) -> None:
    for name in _LAUNCHERS:
        os.environ.pop(name, None)
    os.environ.update(kept)
