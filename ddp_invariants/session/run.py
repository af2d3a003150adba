"""The packaged properties as one session of pytest, from any folder and with none of its settings, plugins or conftests."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddp_invariants.errors import CERTIFIED, INCONCLUSIVE, INTERRUPTED, USAGE, VIOLATED
from ddp_invariants.report.outcome import SessionResult
from ddp_invariants.report.rulebook import PROPERTIES
from ddp_invariants.session import state

PACKAGE = Path(__file__).parents[1]

_STATUSES: dict[int, int] = {
    pytest.ExitCode.OK: CERTIFIED,
    VIOLATED: VIOLATED,
    pytest.ExitCode.USAGE_ERROR: USAGE,
    pytest.ExitCode.NO_TESTS_COLLECTED: USAGE,
    USAGE: USAGE,
}
"""By pytest's exit status, which the plugin has told apart already; of all others nothing follows."""


class _Clerk:
    """A plugin of the session: says how the user started it, and keeps hold of what is in it."""

    def __init__(self) -> None:
        self.config: pytest.Config | None = None
        self.interrupted = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Before the session begins, which reads it."""
        config.stash[state.COMMAND] = "ddp-invariants certify"
        self.config = config

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Tell an interrupt from a session that refuses its options."""
        self.interrupted = excinfo.type is KeyboardInterrupt


def run_session(words: Sequence[str], *, of_sampler: bool = False) -> SessionResult:
    """Judge what the options name by the packaged properties, in this process and the workers it starts.

    Args:
        words: Options of pytest and of its plugin.
        of_sampler: Judge the sampler alone.
    """
    clerk = _Clerk()
    where = PROPERTIES / "test_shard.py" if of_sampler else PROPERTIES
    settings = [
        "-c",
        str(Path(__file__).with_name("certify.ini")),
        "--rootdir",
        str(PACKAGE),
        "--noconftest",
        "--assert",
        "plain",
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist.plugin",
        "-p",
        "ddp_invariants.plugin",
    ]
    with _alone():
        status = pytest.main([*settings, str(where), *words], plugins=[clerk])
    found = state.found(clerk.config) if clerk.config is not None else None
    ledger, discovery = found or (None, None)
    return SessionResult(
        _status(status, began=found is not None, interrupted=clerk.interrupted),
        ledger,
        discovery,
        of_sampler,
    )


def _status(status: int, *, began: bool, interrupted: bool) -> int:
    """The exit status of a session that sat, from pytest's."""
    if interrupted:
        return INTERRUPTED
    return _STATUSES.get(status, INCONCLUSIVE) if began or status != VIOLATED else INCONCLUSIVE


@contextmanager
def _alone() -> Iterator[None]:
    """Without what the environment adds to every session of pytest, in this process and in workers."""
    kept = {
        name: os.environ.pop(name)
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
        if name in os.environ
    }
    kept |= {
        name: os.environ[name] for name in ("PYTEST_DISABLE_PLUGIN_AUTOLOAD",) if name in os.environ
    }
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update(kept)
