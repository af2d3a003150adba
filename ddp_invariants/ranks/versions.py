"""Versions of namespaces: numbers that tell, without a look at its values, if a dict has changed.

[Note: versions] CPython 3.11, for one, gives each dict a new number whenever it changes (PEP 509).
To compare the values themselves, Python counts a reference to each of them. In a process that was
just forked each such count copies a page of memory, which took a sixth of a rank's first case. So
namespaces whose number is still the same are not read. Other interpreters keep no such number; there
every namespace counts as changed, and is read.
"""

import ctypes
import gc
import types
from collections.abc import Mapping
from itertools import count
from typing import Any

_PLACE = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
"""The place of the number in a dict: after the object's head and the number of entries."""
_others = count()


class Version:
    """The version of a namespace.

    Args:
        names: The namespace of a module or class, as `vars` returns it.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        # The namespace of a class is a proxy of its dict.
        own = names if isinstance(names, dict) else gc.get_referents(names)[0]
        self._own = own  # Its number must not outlive it.
        self._kept = ctypes.c_uint64.from_address(id(own) + _PLACE) if _KEPT else None

    def number(self) -> int:
        """Return a number that is the same until the namespace changes, or another one each time."""
        return next(_others) if self._kept is None else self._kept.value


def _are_kept() -> bool:
    """Return whether this interpreter keeps versions of dicts, at the place where they are read."""

    class Space:
        """A class with a namespace."""

    module: Any = types.ModuleType("space")
    kind: Any = Space
    seen = list[int]()
    for thing, names in ((module, vars(module)), (kind, gc.get_referents(vars(kind))[0])):
        place = ctypes.c_uint64.from_address(id(names) + _PLACE)
        for value in (0, 1, 0):
            seen.append(place.value)
            names.get("attribute")
            seen.append(place.value)
            thing.attribute = value
        seen += [place.value] * 2
        del thing.attribute
        seen += [place.value] * 2
    # Each change gives another number, and nothing else does.
    return seen[::2] == seen[1::2] and len({*seen}) == len(seen) // 2


_KEPT = _are_kept()
