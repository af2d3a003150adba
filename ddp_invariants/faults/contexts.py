"""no_sync as a context: entered, nested, left, also by an exception."""

from collections.abc import Iterator
from contextlib import contextmanager

from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class Counted(_Reference):
    """Right: a depth that is counted up and down."""


class Restored(_Reference):
    """Right: a flag, of which each no_sync restores what it found."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        found = self._no_sync_depth
        self._no_sync_depth = 1
        try:
            yield
        finally:
            self._no_sync_depth = found


class WithoutFinally(_Reference):
    """An exception inside no_sync leaves it on for ever (no public incident found). GRAD-8: never reduced."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._no_sync_depth += 1
        yield
        self._no_sync_depth -= 1


class InnerExitEnds(_Reference):
    """Leaving an inner no_sync ends the outer one, too (no public incident found).

    GRAD-8: a backward inside no_sync communicates.
    """

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._no_sync_depth = 1
        try:
            yield
        finally:
            self._no_sync_depth = 0


class OneSavedFlag(_Reference):
    """What to restore is kept in one place, which a nested no_sync overwrites (no public incident found).

    GRAD-8: never reduced.
    """

    saved = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.saved = self._no_sync_depth
        self._no_sync_depth = 1
        try:
            yield
        finally:
            self._no_sync_depth = self.saved


class OnlyWithoutError(_Reference):
    """Its exit undoes only what ended without an exception (no public incident found). GRAD-8: never reduced."""

    def no_sync(self) -> "_Quiet":  # type: ignore[override]  # a context of its own
        return _Quiet(self)


class _Quiet:
    def __init__(self, wrapper: _Reference) -> None:
        self.wrapper = wrapper

    def __enter__(self) -> None:
        self.wrapper._no_sync_depth += 1

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.wrapper._no_sync_depth -= 1
