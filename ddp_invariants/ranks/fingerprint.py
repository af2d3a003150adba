"""The harness's own code in a rank, compared with what it was before any implementation came.

[Note: fingerprint] A rank runs the implementation under test beside the code that records it, and
keeps that code for the next implementation. So after each request the rank compares its modules,
classes and code objects with those of the host, from which it was forked. An implementation that
has replaced one of them makes its own evidence worthless. The comparison is by identity and takes
about a tenth of a millisecond. It finds mistakes, such as a patched base class. It does not find an
implementation that hides what it does.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from operator import attrgetter, itemgetter
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from ddp_invariants.ranks.versions import Version

_WATCHED = tuple(f"ddp_invariants.{part}" for part in ("ranks", "records", "processes", "cases"))
"""The packages that make evidence. The reference is no part of them: it may be under test."""
_READING: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.Tensor, ("numpy", "view", "detach", "to_dense", "clone", "numel", "element_size")),
    (nn.Module, ("named_parameters", "named_buffers")),
)
"""The methods with which evidence is read from tensors and modules."""
_code = attrgetter("__code__")


class _Space(NamedTuple):
    """The functions, classes and modules of a namespace.

    Attributes:
        name: The namespace's name.
        names: The namespace.
        objects: These objects by their names.
        read: A function that returns these objects of the namespace, in a fixed order.
        version: The namespace's version.
    """

    name: str
    names: Mapping[str, Any]
    objects: Mapping[str, Any]
    read: Callable[[Any], tuple[Any, ...]]
    version: Version


class Fingerprint:
    """The harness's modules, classes and functions at the time when the object was made."""

    def __init__(self) -> None:
        modules = {name: module for name, module in sys.modules.items() if _is_watched(name)}
        spaces = {name: vars(module) for name, module in modules.items()}
        classes = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _classes(spaces)}
        self._classes = [_space(name, vars(kind)) for name, kind in classes.items()]
        self._spaces = [
            _Space("sys.modules", sys.modules, modules, _reader(modules), Version(sys.modules)),
            *(_space(name, names) for name, names in spaces.items()),
            *self._classes,
        ]
        self._versions = self._numbers()
        self._sizes = self._class_sizes()
        self._functions = [*_functions([space.names for space in self._spaces[1:]])]
        self._codes = [*map(_code, self._functions)]
        self.accept_reading()

    def accept_reading(self) -> None:
        """Take torch's methods as they are now: a package may patch torch when it is imported."""
        self._reading = _reading()

    def altered(self) -> list[str]:
        """Return the names of everything that has been replaced."""
        numbers = self._numbers()
        if (
            (numbers == self._versions or self._are_same(numbers))
            and [*map(_code, self._functions)] == self._codes
            and _reading() == self._reading
        ):
            self._versions = numbers
            return []
        # Python itself adds names to a class, such as `__annotations__`.
        self._sizes = self._class_sizes()
        return sorted(set(self._differences()))

    def _numbers(self) -> list[int]:
        return [space.version.number() for space in self._spaces]

    def _are_same(self, numbers: list[int]) -> bool:
        """Return whether the namespaces that have changed hold the same objects ([Note: versions])."""
        try:
            return self._class_sizes() == self._sizes and all(
                space.read(space.names) == space.read(space.objects)
                for space, number, before in zip(self._spaces, numbers, self._versions, strict=True)
                if number != before
            )
        except KeyError:
            return False

    def _class_sizes(self) -> list[int]:
        return [len(space.names) for space in self._classes]

    def _differences(self) -> Iterator[str]:
        for space in self._spaces:
            for name, value in space.objects.items():
                if space.names.get(name) is not value:
                    yield f"{space.name}.{name}"
        # A name that is added to a class may replace an inherited one.
        for space in self._classes:
            for name, value in space.names.items():
                if name not in space.objects and _is_code(value):
                    yield f"{space.name}.{name}"
        for function, code in zip(self._functions, self._codes, strict=True):
            if function.__code__ is not code:
                yield f"{function.__module__}.{function.__qualname__}"
        yield from (
            name for name, method in _reading().items() if self._reading[name] is not method
        )


@cache
def of_this_process() -> Fingerprint:
    """Return the fingerprint of a host, or of a rank that was forked from one.

    The host takes it once, before there are any ranks.
    """
    return Fingerprint()


def _is_watched(name: str) -> bool:
    return name.startswith(_WATCHED)


def _space(name: str, names: Mapping[str, Any]) -> _Space:
    objects = {key: value for key, value in names.items() if _is_code(value)}
    return _Space(name, names, objects, _reader(objects), Version(names))


def _reader(keys: Collection[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of some keys; it raises KeyError if one is gone."""
    # With a single key an itemgetter would return no tuple.
    return itemgetter(*keys, *keys) if len(keys) == 1 else itemgetter(*keys) if keys else _nothing


def _nothing(_: Any) -> tuple[Any, ...]:
    return ()


def _is_code(value: object) -> bool:
    return callable(value) or isinstance(value, (ModuleType, property, classmethod, staticmethod))


def _classes(spaces: Mapping[str, Mapping[str, Any]]) -> Iterator[type]:
    """Yield the harness's classes in some namespaces, each once."""
    seen = set()
    for names in spaces.values():
        for value in names.values():
            if isinstance(value, type) and _is_watched(value.__module__) and value not in seen:
                seen.add(value)
                yield value


def _functions(spaces: list[Mapping[str, Any]]) -> Iterator[FunctionType]:
    """Yield the harness's functions in some namespaces, each once; also below decorators."""
    seen = set()
    for names in spaces:
        for value in names.values():
            for function in _below(value):
                if _is_watched(function.__module__ or "") and function not in seen:
                    seen.add(function)
                    yield function


def _below(value: Any) -> Iterator[FunctionType]:
    parts = [value.fget, value.fset] if isinstance(value, property) else [value]
    for part in parts:
        function = getattr(part, "__func__", part)
        while function is not None:
            if isinstance(function, FunctionType):
                yield function
            function = getattr(function, "__wrapped__", None)


def _reading() -> dict[str, Any]:
    return {
        f"{kind.__name__}.{name}": vars(kind).get(name)
        for kind, names in _READING
        for name in names
    }
