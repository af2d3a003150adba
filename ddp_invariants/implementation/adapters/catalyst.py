"""Catalyst's `DistributedDataParallelEngine`, as `--ddp catalyst`."""

import importlib
from typing import Any

from ddp_invariants.implementation.adapters import preload

preload("accelerate", "catalyst.engines.torch")


class Catalyst:
    """A model and an optimizer that the engine has prepared, on the CPU over gloo."""

    def wrap(self, module: Any, context: Any) -> object:
        """Set the engine up, and prepare the model and its optimizer."""
        accelerate: Any = importlib.import_module("accelerate")
        # It keeps the first process group, and a rank has a new one in each case.
        accelerate.state.AcceleratorState._reset_state(True)  # noqa: FBT003 - the only form
        engines: Any = importlib.import_module("catalyst.engines.torch")
        self.engine = engines.DistributedDataParallelEngine(
            cpu=True, process_group_kwargs={"backend": "gloo"}
        )
        self.engine.setup(context.rank, context.world_size)
        model = self.engine.prepare_model(module)
        return model, self.engine.prepare_optimizer(context.optimizer(model.parameters()))

    def backward(self, wrapped: Any, optimizer: Any, loss: Any) -> object:
        """Run backward by the engine."""
        del wrapped, optimizer
        ended: object = self.engine.backward(loss)
        return ended

    def accumulate(self, wrapped: Any) -> Any:
        """Return the engine's context without synchronisation."""
        return self.engine.no_sync(wrapped)
