"""Hooks that do not keep their wrapper alive, which most styles share."""

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod


def weakly(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a hook that calls a method as long as its object exists.

    A parameter often outlives its wrapper, and a bound method would keep the wrapper alive.

    Args:
        method: A method of the wrapper that takes what the hook is given.
    """
    reference = WeakMethod(method)

    def hook(given: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(given)

    return hook
