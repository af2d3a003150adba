"""torch's `fully_shard` (FSDP2), as `--ddp fsdp2`, and over replicas of shards as `--ddp hsdp`."""

import importlib
from typing import Any, ClassVar

from ddp_invariants.implementation.adapters import layers_of


class FullyShard:
    """A model whose parameters FSDP2 shards by rows; it broadcasts nothing.

    Args:
        layers: True to shard each item of a `ModuleList` by itself, before the rest.
        **options: Other arguments of `fully_shard`.
    """

    declares: ClassVar[dict[str, object]] = {
        "init": "seed",
        "gradients": "hidden",
        "zero": 3,
        "partition": "rows",
    }

    def __init__(self, *, layers: bool = False, **options: Any) -> None:
        self._layers, self._options = layers, options

    def wrap(self, module: Any, context: Any) -> object:
        """Shard the model in place."""
        del context
        library: Any = importlib.import_module("torch.distributed.fsdp")
        for layer in layers_of(module) if self._layers else ():
            library.fully_shard(layer, **self._options)
        wrapped: object = library.fully_shard(module, **self._options)
        return wrapped


class HybridShard:
    """A model that FSDP2 shards in each of two replicas, or in one if the number of ranks is odd."""

    declares: ClassVar[dict[str, object]] = {**FullyShard.declares, "replicas": 2}

    def wrap(self, module: Any, context: Any) -> object:
        """Shard the model in place over a mesh of two dimensions."""
        library: Any = importlib.import_module("torch.distributed.fsdp")
        meshes: Any = importlib.import_module("torch.distributed.device_mesh")
        replicas = 1 if context.world_size % 2 else 2
        mesh = meshes.init_device_mesh(
            context.device.type,
            (replicas, context.world_size // replicas),
            mesh_dim_names=("replicate", "shard"),
        )
        wrapped: object = library.fully_shard(module, mesh=mesh)
        return wrapped
