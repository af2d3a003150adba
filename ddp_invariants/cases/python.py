"""A case as Python source, to paste into a test.

Standard library only, as all cases.
"""

import math
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from ddp_invariants.cases.shard_case import ShardCase
from ddp_invariants.cases.situated import Situated

_WIDTH = 100
_INDENT = 4


def to_python(case: Situated | ShardCase) -> str:
    """Return a module's source that makes a case and names it `case`, with all imports.

    Fields that have their defaults are left out.
    """
    homes: dict[str, set[str]] = {}
    for kind in sorted(set(_kinds(case)), key=lambda each: each.__name__):
        homes.setdefault(kind.__module__, set()).add(kind.__name__)
    imports = [f"from {home} import {', '.join(sorted(homes[home]))}" for home in sorted(homes)]
    return "\n".join([*imports, "", f"case = {expression(case, len('case = '))}"]) + "\n"


def expression(value: Any, column: int = 0, indent: int = 0) -> str:
    """Return an expression for a value of a case.

    Args:
        value: A case, a part of a case, or a plain value.
        column: The width of the text that stands before it in its line.
        indent: The indentation of that line.
    """
    flat = _flat(value)
    if len(flat) + column <= _WIDTH:
        return flat
    inner = indent + _INDENT
    if isinstance(value, tuple):
        head, tail, parts = "(", ")", [("", each) for each in value]
    elif is_dataclass(value):
        head, tail, parts = f"{type(value).__name__}(", ")", list(_arguments(value))
    else:
        return flat
    lines = [
        f"{' ' * inner}{name}{expression(part, inner + len(name) + 1, inner)},"
        for name, part in parts
    ]
    return "\n".join([head, *lines, f"{' ' * indent}{tail}"])


def _flat(value: Any) -> str:
    """Return an expression in one line."""
    if isinstance(value, tuple):
        parts = ", ".join(map(_flat, value))
        return f"({parts},)" if len(value) == 1 else f"({parts})"
    if is_dataclass(value):
        arguments = ", ".join(f"{name}{_flat(part)}" for name, part in _arguments(value))
        return f"{type(value).__name__}({arguments})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    # As a formatter quotes it.
    return f'"{value}"' if isinstance(value, str) and repr(value) == f"'{value}'" else repr(value)


def _arguments(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that make a dataclass: those that are required come without a name."""
    for field in fields(value):
        part, default = getattr(value, field.name), _default(field)
        if default is MISSING:
            yield "", part
        elif field.init and (part != default or type(part) is not type(default)):
            yield f"{field.name}=", part


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _kinds(value: Any) -> Iterator[type]:
    """Yield the classes that an expression for a value names."""
    if isinstance(value, tuple):
        for each in value:
            yield from _kinds(each)
    elif is_dataclass(value):
        yield type(value)
        for _, part in _arguments(value):
            yield from _kinds(part)
