"""no_sync as a context manager: entered, nested and left, also by an exception."""

from collections.abc import Iterator
from contextlib import contextmanager

from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class Counted(_Reference):
    """Right: no_sync counts its nesting depth up and down."""


class Restored(_Reference):
    """Right: a flag, which each no_sync sets back to the value from before."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before = self._no_sync_depth
        self._no_sync_depth = 1
        try:
            yield
        finally:
            self._no_sync_depth = before


class WithoutFinally(_Reference):
    """An exception inside no_sync leaves it on for ever (no public incident found).

    GRAD-8: never reduced; or GRAD-9: never reduced.
    """

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._no_sync_depth += 1
        yield
        self._no_sync_depth -= 1


class InnerExitEnds(_Reference):
    """Leaving an inner no_sync also ends the outer one (no public incident found).

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
    """The flag to restore is saved in one place, which a nested no_sync overwrites
    (no public incident found).

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


class ExpectsExceptions(_Reference):
    """no_sync ends at its exit and at an `Exception`, but not at a `KeyboardInterrupt`, which is none
    (no public incident found).

    GRAD-8: never reduced.
    """

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._no_sync_depth += 1
        try:
            yield
        except Exception:
            self._no_sync_depth -= 1
            raise
        self._no_sync_depth -= 1


class OnlyWithoutError(_Reference):
    """The exit of no_sync restores nothing after an exception (no public incident found).

    GRAD-8: never reduced; or GRAD-9: never reduced.
    """

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
