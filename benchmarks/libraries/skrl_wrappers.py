"""skrl's functions for a model of several ranks, as an agent of skrl calls them."""

import os
from typing import Any
from unittest import mock

# A rank of several would make an NCCL group when it imports skrl. Here it has the group of the case.
with mock.patch.dict(os.environ, WORLD_SIZE="1"):
    import skrl  # type: ignore[import-not-found]
    from skrl.models.torch import Model  # type: ignore[import-not-found]


class Shared:
    """A model whose start is broadcast, and whose gradients are averaged after each backward."""

    def wrap(self, module: Any, context: Any) -> object:
        """Broadcast the model, as an agent does before it learns."""
        skrl.config.torch._world_size = context.world_size
        Model.broadcast_parameters(module)
        return module

    def after_backward(self, wrapped: Any, optimizer: Any) -> None:
        """Average the gradients."""
        del optimizer
        Model.reduce_parameters(wrapped)
