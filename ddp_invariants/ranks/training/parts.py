"""The parts of a module, and their modes."""

from torch import nn


def present(parts: dict[str, nn.Module], module: nn.Module) -> dict[str, nn.Module]:
    """Return the parts that a module had before it was wrapped, by their names then.

    A wrapper may wrap parts in place, and so change names. Or it may replace a part, as by a
    synchronised batch norm. The replacement then stands for the part.
    """
    now = dict(module.named_modules())
    kept = set(now.values())
    return {name: part if part in kept else now.get(name, part) for name, part in parts.items()}


def modes(parts: dict[str, nn.Module]) -> list[str]:
    """Return the mode of each part of a module."""
    return [
        f"{name or 'the module'} is in {'training' if each.training else 'evaluation'}"
        for name, each in parts.items()
    ]
