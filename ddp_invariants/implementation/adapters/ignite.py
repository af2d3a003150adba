"""PyTorch Ignite's `auto_model`, as `--ddp ignite`."""

import importlib
from typing import Any

from ddp_invariants.implementation.adapters import preload

preload("ignite.distributed")


class Ignite:
    """A model that `auto_model` has wrapped.

    Args:
        arguments: Further arguments of `auto_model`, which it hands to torch's DDP.
    """

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model in the group that there is now."""
        del context
        distributed: Any = importlib.import_module("ignite.distributed")
        # It keeps the first process group that it meets, and a rank has a new one in each case.
        distributed.utils._model = distributed.utils._SerialModel()
        distributed.utils._need_to_sync = True
        wrapped: object = distributed.auto_model(module, sync_bn=False, **self.arguments)
        return wrapped
