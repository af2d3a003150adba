"""Adapters for configurations of torch's sharding that need a mesh of the case's ranks."""

import itertools
from typing import Any, ClassVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_module

from ddp_invariants.implementation.adapters import layers_of
from ddp_invariants.implementation.adapters.fsdp2 import FullyShard

SEEDED = {"init": "seed", "gradients": "hidden", "zero": 3, "replicas": 2}
"""Declarations of hybrid sharding: two copies of each shard, and no broadcast."""


def hybrid_mesh(context: Any) -> DeviceMesh:
    """Return a mesh of two replicas, or of one if the number of ranks is odd."""
    replicas = 1 if context.world_size % 2 else 2
    shape = (replicas, context.world_size // replicas)
    return init_device_mesh(context.device.type, shape, mesh_dim_names=("replicate", "shard"))


class Prefetched:
    """FSDP2 with a unit for each layer; each unit prefetches the next one, and the one before."""

    declares: ClassVar[dict[str, object]] = FullyShard.declares

    def wrap(self, module: nn.Module, context: Any) -> object:
        """Shard the model in place."""
        del context
        units = [fully_shard(layer) for layer in layers_of(module)]
        for before, after in itertools.pairwise(units):
            before.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([before])
        return fully_shard(module)


class Summed:
    """FSDP2 that sums gradients."""

    declares: ClassVar[dict[str, object]] = {**FullyShard.declares, "reduction": "sum"}

    def wrap(self, module: nn.Module, context: Any) -> object:
        """Shard the model in place."""
        del context
        wrapped = fully_shard(module)
        wrapped.set_gradient_divide_factor(1.0)
        return wrapped


class Hybrid1:
    """FSDP1 with HYBRID_SHARD over a mesh of two dimensions."""

    declares: ClassVar[dict[str, object]] = {**SEEDED, "partition": "flat"}

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        """Wrap the model."""
        return FullyShardedDataParallel(
            module,
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            device_mesh=hybrid_mesh(context),
            device_id=context.device,
            use_orig_params=True,
        )


class Replicated:
    """A module of replicated DTensors, whose inputs are shards of the global batch."""

    declares: ClassVar[dict[str, object]] = {"reduction": "sum"}

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        """Replicate parameters and buffers from the first rank, and distribute inputs."""

        def shards(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return tuple(DTensor.from_local(each, mesh, [Shard(0)]) for each in inputs)

        return distribute_module(
            module,
            init_device_mesh(context.device.type, (context.world_size,)),
            input_fn=shards,
            output_fn=lambda _, outputs, _mesh: outputs.to_local(),
        )
