"""The methods that an adapter may define, and the check of an adapter's methods."""

import difflib
import inspect

from ddp_invariants.errors import LoadError
from ddp_invariants.implementation.adapter import Adapter

METHODS = {
    name: member
    for name, member in vars(Adapter).items()
    if inspect.isfunction(member) and not name.startswith("_")
}
"""The methods an adapter may define, by name."""


def check_adapter(adapter: type, option: str) -> None:
    """Compare an adapter's methods with those that are called.

    Raises:
        LoadError: A method is misspelt, or does not take the arguments it will be given. The
            message shows the correct line.
    """
    own = [
        name
        for name, member in inspect.getmembers(adapter)
        if callable(member) and not name.startswith("_")
    ]
    for name in own:
        close = (
            []
            if name in METHODS
            else difflib.get_close_matches(name, [m for m in METHODS if m not in own], 1, 0.8)
        )
        if close:
            raise LoadError(
                f"{option}: {adapter.__name__} has a method {name!r}, which is never called; "
                "did you mean\n"
                f"    {_line(close[0])}"
            )
    for name in (name for name in own if name in METHODS):
        wanted = list(inspect.signature(METHODS[name]).parameters)
        method = inspect.signature(getattr(adapter, name))
        static = isinstance(inspect.getattr_static(adapter, name), staticmethod | classmethod)
        try:
            method.bind(*wanted[1:] if static else wanted)
        except TypeError as error:
            raise LoadError(
                f"{option}: {adapter.__name__}.{name}{method} cannot be called with the "
                f"arguments that it will get ({error}); expected\n"
                f"    {_line(name)}"
            ) from error


def _line(name: str) -> str:
    return f"def {name}({', '.join(inspect.signature(METHODS[name]).parameters)}): ..."
