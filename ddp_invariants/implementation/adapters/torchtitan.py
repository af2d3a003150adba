"""torchtitan's SimpleFSDP over a mesh of the ranks, as `--ddp simple_fsdp`."""

import importlib
from typing import Any, ClassVar

from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ddp_invariants.implementation.adapters import preload

preload("torchtitan.experiments.graph_trainer.simple_fsdp")


class SimpleFSDP:
    """A model whose parameters are DTensors that each use gathers; gradients are summed.

    Args:
        mode: The mode of `data_parallel`: `fully_shard`, `hybrid_shard` or `replicate`.
    """

    declares: ClassVar[dict[str, object]] = {
        "init": "seed",
        "gradients": "hidden",
        "zero": 3,
        "partition": "rows",
        "reduction": "sum",
    }

    def __init__(self, mode: str = "fully_shard") -> None:
        self._mode = mode

    def wrap(self, module: nn.Module, context: Any) -> object:
        """Distribute the parameters from the first rank."""
        library: Any = importlib.import_module("torchtitan.experiments.graph_trainer.simple_fsdp")
        world_size = context.world_size
        shape: tuple[int, ...] = (world_size,)
        names: tuple[str, ...] = ("ranks",)
        if self._mode == "hybrid_shard":
            replicas = 1 if world_size % 2 else 2
            shape, names = (replicas, world_size // replicas), ("replicate", "shard")
        mesh = init_device_mesh(context.device.type, shape, mesh_dim_names=names)
        made: object = library.data_parallel(module, mesh, mode=self._mode)
        return made
