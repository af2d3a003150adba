"""torch's `fully_shard` (FSDP2), as `--ddp fsdp2`."""

import importlib
from typing import Any, ClassVar


class FullyShard:
    """A model whose parameters FSDP2 shards by rows; it broadcasts nothing."""

    declares: ClassVar[dict[str, object]] = {
        "init": "seed",
        "gradients": "hidden",
        "zero": 3,
        "partition": "rows",
    }

    def wrap(self, module: Any, context: Any) -> object:
        """Shard the model in place."""
        del context
        library: Any = importlib.import_module("torch.distributed.fsdp")
        wrapped: object = library.fully_shard(module)
        return wrapped
