"""A pytest session of the packaged properties, from any folder.

It uses no settings, plugins or conftests of that folder.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ddp_invariants.errors import CERTIFIED, INCONCLUSIVE, INTERRUPTED, UNWRITTEN, USAGE, VIOLATED
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
    UNWRITTEN: UNWRITTEN,
}
"""Exit statuses by pytest's own, which the plugin has refined; all others are inconclusive."""


class _ConfigKeeper:
    """A plugin of the session: it passes on the user's command, and keeps the configuration.

    Args:
        typed: The command as the user typed it.
    """

    def __init__(self, typed: str) -> None:
        self._typed = typed
        self.config: pytest.Config | None = None
        self.interrupted = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Store the command before the session begins, since it reads it."""
        config.stash[state.COMMAND] = "ddp-invariants certify"
        config.stash[state.TYPED] = self._typed
        self.config = config

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Distinguish an interrupt from a session that refuses its options."""
        self.interrupted = excinfo.type is KeyboardInterrupt


def run_session(words: Sequence[str], typed: str, *, of_sampler: bool = False) -> SessionResult:
    """Judge the named implementation by the packaged properties.

    The properties run in this process and in the workers that it starts.

    Args:
        words: Options of pytest and of its plugin.
        typed: The command as the user typed it, for the certificate and the history.
        of_sampler: Judge only the sampler.
    """
    keeper = _ConfigKeeper(typed)
    properties = PROPERTIES / "test_shard.py" if of_sampler else PROPERTIES
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
    # pytest keeps its temporary folders for the three runs after a run, for people who look at them.
    with (
        _without_pytest_variables(),
        TemporaryDirectory(prefix="ddp-invariants-", ignore_cleanup_errors=True) as folder,
    ):
        settings.append(f"--basetemp={folder}/pytest")
        status = pytest.main([*settings, str(properties), *words], plugins=[keeper])
    results = state.results_of(keeper.config) if keeper.config is not None else None
    ledger, discovery = results or (None, None)
    return SessionResult(
        _status(status, began=results is not None, interrupted=keeper.interrupted),
        ledger,
        discovery,
        of_sampler,
    )


def _status(status: int, *, began: bool, interrupted: bool) -> int:
    """Return the exit status of a session, from pytest's."""
    if interrupted:
        return INTERRUPTED
    return _STATUSES.get(status, INCONCLUSIVE) if began or status != VIOLATED else INCONCLUSIVE


@contextmanager
def _without_pytest_variables() -> Iterator[None]:
    """Remove from the environment what would be added to every pytest session.

    This applies in this process and in workers.
    """
    removed = {
        name: os.environ.pop(name)
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
        if name in os.environ
    }
    removed |= {
        name: os.environ[name] for name in ("PYTEST_DISABLE_PLUGIN_AUTOLOAD",) if name in os.environ
    }
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update(removed)
