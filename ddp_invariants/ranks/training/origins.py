"""The origin of an exception: the owner of the code that it came out of, and the instruction."""

import dis
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import numpy as np
import torch

import ddp_invariants

_HERE = Path(ddp_invariants.__file__).resolve().parent
_TRIED = tuple(f"{_HERE / name}/" for name in ("faults", "reference"))
"""The folders of this package that hold implementations."""
_LIBRARIES = tuple(
    f"{Path(package.__file__).resolve().parent}/" for package in (torch, np) if package.__file__
)
_PACKAGES = tuple(f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("purelib", "platlib"))
_LOOKUPS = ("__getattr__", "__getattribute__")
_STANDARD = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"


@cache
def _owner(filename: str) -> str:
    """Return the owner of a source file: `harness`, `library` or `implementation`.

    The library is Python itself, torch and numpy. An implementation may lie in any other package.
    """
    if filename.startswith("<"):
        return "library"
    path = str(Path(filename).resolve())
    if path.startswith(_TRIED):
        return "implementation"
    if path.startswith(f"{_HERE}/"):
        return "harness"
    if path.startswith(_LIBRARIES):
        return "library"
    standard = path.startswith(_STANDARD) and not path.startswith(_PACKAGES)
    return "library" if standard else "implementation"


def first(error: BaseException) -> BaseException:
    """Return the exception whose traceback shows the origin of an exception.

    Python makes a RuntimeError of a StopIteration in a generator, without the generator's frame.
    """
    # No argument is compared: it may be an array, or an object whose comparison raises.
    cause = error.__cause__
    return cause if type(error) is RuntimeError and isinstance(cause, StopIteration) else error


def origin(error: BaseException) -> dict[str, Any]:
    """Return the origin of an exception as plain data.

    Returns:
        `kinds` (the names of its class and of its bases), `instruction` (the name of the
        interpreter's instruction in the innermost frame), `innermost` (the owner of that frame),
        and `caller` (the owner of the innermost frame outside all libraries). A method that an
        implementation inherits from a library has that implementation for its caller.
    """
    # The origin is the code that asks for an attribute, not the method that looks it up.
    entries = [
        entry
        for entry in _entries(first(error).__traceback__)
        if entry.tb_frame.f_code.co_name not in _LOOKUPS
    ]
    frames = [entry.tb_frame for entry in entries]
    owners = [_owner(frame.f_code.co_filename) for frame in frames]
    callers = [
        "implementation" if owner == "library" and _is_inherited(frame) else owner
        for owner, frame in zip(owners, frames, strict=True)
    ]
    return {
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "instruction": _instruction(frames[-1].f_code, entries[-1].tb_lasti) if entries else "",
        "innermost": owners[-1] if owners else "",
        "caller": next((owner for owner in reversed(callers) if owner != "library"), ""),
    }


def _is_inherited(frame: FrameType) -> bool:
    """Return whether a frame of a library runs a method of an implementation's object.

    A function that only takes the object, such as `copy.deepcopy`, is none.
    """
    code = frame.f_code
    if not code.co_argcount:
        return False
    kind = type(frame.f_locals.get(code.co_varnames[0]))
    methods = (vars(base).get(code.co_name) for base in kind.__mro__)
    if not any(getattr(method, "__code__", None) is code for method in methods):
        return False
    file = getattr(sys.modules.get(str(kind.__module__)), "__file__", None)
    return isinstance(file, str) and _owner(file) == "implementation"


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the entries of a traceback, the innermost last."""
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _instruction(code: CodeType, offset: int) -> str:
    """Return the name of the instruction at an offset."""
    return dis.opname[code.co_code[offset]] if 0 <= offset < len(code.co_code) else ""
