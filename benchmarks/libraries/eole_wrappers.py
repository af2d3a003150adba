"""eole's averaging of gradients, as its trainer calls it."""

from typing import Any, ClassVar

from bare import load


class Synchronized:
    """A model whose gradients are averaged after each backward; each rank loads the same model."""

    declares: ClassVar[dict[str, object]] = {"init": "seed"}

    def wrap(self, module: Any, context: Any) -> object:
        """Keep the number of ranks."""
        self.ranks = context.world_size
        return module

    def after_backward(self, wrapped: Any, optimizer: Any) -> None:
        """Average the gradients that there are, as the trainer's `synchronize` does."""
        del optimizer
        library = load("eole.utils.distributed")
        gradients = [
            each.grad.data
            for each in wrapped.parameters()
            if each.requires_grad and each.grad is not None
        ]
        if gradients and self.ranks > 1:
            library.all_reduce_and_rescale_tensors(gradients, float(self.ranks))
