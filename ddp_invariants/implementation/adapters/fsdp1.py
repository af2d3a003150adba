"""torch's `FullyShardedDataParallel` (FSDP1), as `--ddp fsdp1`."""

import importlib
from typing import Any, ClassVar

from ddp_invariants.implementation.adapters import layers_of


class FullyShardedDataParallel:
    """A model whose parameters FSDP1 joins to flat tensors and shards; it broadcasts nothing.

    Args:
        layers: True to wrap each item of a `ModuleList`, too.
        **options: Other arguments of FSDP1. `use_orig_params` is true by default here.
    """

    declares: ClassVar[dict[str, object]] = {
        "init": "seed",
        "gradients": "hidden",
        "zero": 3,
        "partition": "flat",
    }

    def __init__(self, *, layers: bool = False, **options: Any) -> None:
        self._layers, self._options = layers, options

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model."""
        library: Any = importlib.import_module("torch.distributed.fsdp")
        policies: Any = importlib.import_module("torch.distributed.fsdp.wrap")
        options = {"use_orig_params": True, "device_id": context.device, **self._options}
        if self._layers:
            units = {*layers_of(module)}
            options["auto_wrap_policy"] = policies.CustomPolicy(units.__contains__)
        wrapped: object = library.FullyShardedDataParallel(module, **options)
        return wrapped
