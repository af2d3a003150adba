"""The known wrappers that a wrapped model is built on, by their classes."""

import sys
from functools import cache
from typing import Any

from torch import nn

from ddp_invariants.implementation.names import SHORT_NAMES


@cache
def _class_of(target: str) -> type | None:
    """Return the class that a target names, if its module is imported."""
    module, _, name = target.partition(":")
    named = getattr(sys.modules.get(module), name, None)
    return named if isinstance(named, type) else None


def known_within(wrapped: Any, own: str) -> list[str]:
    """Return the short names of the known wrappers that a wrapped model is or contains.

    Args:
        wrapped: The wrapped model.
        own: The short name of the implementation under test, which is left out.
    """
    held = [wrapped, *getattr(wrapped, "__dict__", {}).values()]
    modules = [part for each in held if isinstance(each, nn.Module) for part in each.modules()]
    return [
        name
        for name, target in SHORT_NAMES["ddp"].items()
        if name != own
        and any(
            known is not None and isinstance(part, known)
            for part in modules
            for known in [_class_of(target)]
        )
    ]
