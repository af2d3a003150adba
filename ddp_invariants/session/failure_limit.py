"""The number of failures after which a session ends: pytest's `--maxfail`, and `-x` for one."""

from typing import Any

import pytest


class FailureLimit:
    """A plugin that takes over `--maxfail`, and counts only violations that decide the exit status.

    pytest would end the session at the first inconclusive rule, although the next rule may be
    violated, and at a violation of a level that `--level` leaves out.

    Args:
        config: Of the main process or of a worker; its own limit is removed.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._session = config, None
        self._most: int = config.option.maxfail
        self._failures = 0
        config.option.maxfail = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: Any) -> None:
        """Keep the session, which a report does not name."""
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a failure, and end the session after the last one allowed."""
        if not report.failed or does_not_count(report):
            return
        self._failures += 1
        if not self._most or self._failures < self._most or self._session is None:
            return
        reason = f"stopping after {self._failures} failure{'s' if self._failures > 1 else ''}"
        # Under xdist the main process runs no test: its plugin distributes them.
        distributor: Any = self._config.pluginmanager.get_plugin("dsession")
        (distributor or self._session).shouldstop = reason


def mark_not_counting(report: pytest.TestReport) -> None:
    """Mark the report of a failure after which a session goes on; xdist hands the mark over."""
    vars(report)["not_counting"] = True


def does_not_count(report: pytest.TestReport) -> bool:
    """Return whether a report is that of a failure after which a session goes on."""
    return bool(vars(report).get("not_counting", False))
