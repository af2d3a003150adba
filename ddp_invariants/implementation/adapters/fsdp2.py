"""torch's `fully_shard` (FSDP2), as `--ddp fsdp2`."""

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
