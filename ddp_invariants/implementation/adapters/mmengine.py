"""mmengine's wrapper for models of several parts, as `--ddp mmengine_separate`."""

import importlib
from typing import Any

from torch import nn

from ddp_invariants.implementation.adapters import preload

preload("mmengine.model")


class Pair(nn.Module):
    """A model of two parts, as of a generator and a discriminator; the case trains the first one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = module, nn.Linear(1, 1)

    def forward(self, *inputs: Any, **named: Any) -> object:
        """Run the first part."""
        outputs: object = self.generator(*inputs, **named)
        return outputs


class Separate:
    """A model of two parts, each with a wrapper of its own.

    Args:
        arguments: Arguments of `MMSeparateDistributedDataParallel`.
    """

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the parts, and let calls of the wrapper reach the model, which its steps do alone."""
        del context
        library: Any = importlib.import_module("mmengine.model")
        wrapper: Any = library.MMSeparateDistributedDataParallel(Pair(module), **self.arguments)
        wrapper.forward = wrapper.module.forward
        return wrapper
