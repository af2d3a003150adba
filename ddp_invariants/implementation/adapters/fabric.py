"""Lightning Fabric with its strategy `ddp`, as `--ddp fabric`."""

import importlib
from typing import Any, ClassVar

from ddp_invariants.implementation.adapters import preload

preload("lightning.fabric", "lightning.fabric.plugins.environments")


class Fabric:
    """A model and an optimizer that Fabric has set up, in the process group of the rank.

    Args:
        arguments: Arguments of Fabric's `DDPStrategy`, as from `--ddp-arg`.
    """

    # The environment of torchrun, which Fabric is given here, reads its variables.
    declares: ClassVar[dict[str, object]] = {"unsupported": ("no_environment",)}

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def wrap(self, module: Any, context: Any) -> object:
        """Set up the model and its optimizer."""
        library: Any = importlib.import_module("lightning.fabric")
        strategies: Any = importlib.import_module("lightning.fabric.strategies")
        environments: Any = importlib.import_module("lightning.fabric.plugins.environments")
        self.fabric = library.Fabric(
            accelerator="cpu",
            devices=context.world_size,
            strategy=strategies.DDPStrategy(**self.arguments),
            plugins=[environments.TorchElasticEnvironment()],
        )
        self.fabric.launch()
        made: object = self.fabric.setup(module, context.optimizer(module.parameters()))
        return made

    def backward(self, wrapped: Any, optimizer: Any, loss: Any) -> object:
        """Run backward by Fabric."""
        del wrapped, optimizer
        ended: object = self.fabric.backward(loss)
        return ended

    def accumulate(self, wrapped: Any) -> Any:
        """Return Fabric's context without synchronisation."""
        return self.fabric.no_backward_sync(wrapped)
