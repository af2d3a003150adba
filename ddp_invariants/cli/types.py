"""The base of the command line's own types of options."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click import ParamType
else:

    class ParamType(click.ParamType):
        """A type of an option: click's own is generic from click 8.4 on only."""

        def __class_getitem__(cls, _: Any) -> type:
            return cls


__all__ = ["ParamType"]
