"""Hugging Face accelerate, as `--ddp accelerate`."""

import importlib
import os
from typing import Any

from ddp_invariants.implementation.adapters import preload

# accelerate would set it in every case, and a rank ends after a case that changed its environment.
os.environ.setdefault("MASTER_PORT", "29500")
preload("accelerate")


def forget_the_group() -> None:
    """Let accelerate take the group of this case; it keeps the first one that it has seen."""
    state: Any = importlib.import_module("accelerate.state")
    state.AcceleratorState._reset_state(True)  # noqa: FBT003 - accelerate's


class Accelerate:
    """A model and an optimizer that an `Accelerator` on the CPU has prepared.

    Args:
        arguments: Arguments of `DistributedDataParallelKwargs`, as from `--ddp-arg`.
    """

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def wrap(self, module: Any, context: Any) -> object:
        """Prepare the model and its optimizer."""
        library: Any = importlib.import_module("accelerate")
        forget_the_group()
        handler = library.DistributedDataParallelKwargs(**self.arguments)
        self.accelerator = library.Accelerator(cpu=True, kwargs_handlers=[handler])
        prepared: object = self.accelerator.prepare(module, context.optimizer(module.parameters()))
        return prepared

    def backward(self, wrapped: Any, optimizer: Any, loss: Any) -> object:
        """Run backward by the accelerator."""
        del wrapped, optimizer
        ended: object = self.accelerator.backward(loss)
        return ended

    def accumulate(self, wrapped: Any) -> Any:
        """Return the accelerator's context without synchronisation."""
        return self.accelerator.no_sync(wrapped)
