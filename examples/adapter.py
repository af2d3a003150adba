"""An adapter for a wrapper of an unusual shape: an oddly named call exchanges the gradients."""

from typing import Any

from naive_blocking import NaiveBlocking


class Odd(NaiveBlocking):
    """A wrapper written by somebody else.

    Its call after backward has none of the usual names, and its constructor needs the world size.
    """

    def __init__(self, module: Any, how_many: int) -> None:
        super().__init__(module)
        self.how_many = how_many

    def exchange(self) -> None:
        """Average the gradients."""
        self.sync_gradients()


class Adapter:
    """The calls that drive the wrapper; everything else is as usual."""

    def wrap(self, module: Any, context: Any) -> Any:
        """Wrap the module, with the argument that the usual names do not give."""
        return Odd(module, how_many=context.world_size)

    def after_backward(self, wrapped: Any, _optimizer: Any) -> None:
        """Exchange the gradients; called once per synchronised backward."""
        wrapped.exchange()
