"""An adapter for a wrapper that fits no usual shape: gradients are exchanged by a call with an odd name."""

from typing import Any

from naive_blocking import NaiveBlocking


class Odd(NaiveBlocking):
    """Somebody's wrapper: its call after backward is none of the usual names, and it wants to be told the world size."""

    def __init__(self, module: Any, how_many: int) -> None:
        super().__init__(module)
        self.how_many = how_many

    def exchange(self) -> None:
        """Average the gradients."""
        self.sync_gradients()


class Adapter:
    """How it is driven; all else is as usual."""

    def wrap(self, module: Any, context: Any) -> Any:
        """Called with what the usual names do not give."""
        return Odd(module, how_many=context.world_size)

    def after_backward(self, wrapped: Any, _optimizer: Any) -> None:
        """Called once per synchronised backward."""
        wrapped.exchange()
