"""The number of failures after which a session ends: pytest's `--maxfail`, and `-x` for one."""

from typing import Any

import pytest

from ddp_invariants.session.ending import rule_of


class FailureLimit:
    """A plugin that takes over `--maxfail`, and counts only violations that decide the exit status.

    pytest would end the session at the first inconclusive rule, although the next rule may be
    violated, and at a violation of a level that `--level` leaves out.

    Args:
        config: Of the main process or of a worker; its own limit is removed.
        first: The rule whose property comes first; empty to leave the order as it is.
    """

    def __init__(self, config: pytest.Config, first: str = "") -> None:
        self._config, self._first, self._reason = config, first, ""
        self._session: Any = None
        self._most: int = config.option.maxfail
        self._failures = 0
        config.option.maxfail = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: Any) -> None:
        """Keep the session, which a report does not name."""
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the property first whose rule is known to be broken; the others stay in order."""
        if self._first:
            items.sort(key=lambda item: rule_of(item.name) != self._first)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a failure, and end the session after the last one allowed."""
        if not report.failed or does_not_count(report):
            return
        self._failures += 1
        if not self._most or self._failures < self._most or self._session is None:
            return
        self._reason = f"stopping after {self._failures} failure{'s' if self._failures > 1 else ''}"
        (self._distributor or self._session).shouldstop = self._reason

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Under xdist end the session now: xdist would let each worker run what it has been given.

        Raises:
            Session.Interrupted: The limit is reached.
        """
        if self._reason and self._distributor is not None and self._session is not None:
            raise self._session.Interrupted(self._reason)

    @property
    def _distributor(self) -> Any:
        """The plugin of xdist that distributes the tests: its main process runs none. Or None."""
        return self._config.pluginmanager.get_plugin("dsession")


def mark_not_counting(report: pytest.TestReport) -> None:
    """Mark the report of a failure after which a session goes on; xdist hands the mark over."""
    vars(report)["not_counting"] = True


def does_not_count(report: pytest.TestReport) -> bool:
    """Return whether a report is that of a failure after which a session goes on."""
    return bool(vars(report).get("not_counting", False))
