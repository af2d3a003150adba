"""The line that tells a violation as soon as it is confirmed; the whole report is at the end."""

from typing import Any

import pytest

from ddp_invariants.records.verdict import Violation
from ddp_invariants.search import confirm, messages
from ddp_invariants.search.trial import Trial
from ddp_invariants.session import text
from ddp_invariants.session.monitor import Monitor


class Announcer:
    """A plugin of the main process that prints a line for each new violation.

    A property often breaks a rule in the same way as another property, with another smallest case.
    Such a violation is in the report alone.

    Args:
        config: Of the main process.
        monitor: The main process's account of the session, which may be drawing on the terminal.
    """

    def __init__(self, config: pytest.Config, monitor: Monitor) -> None:
        self._config, self._monitor = config, monitor
        self._told = set[tuple[str, str]]()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the violation of a report, after the letter that pytest prints for the test."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        rule, fact, line = vars(report).get("violation", ("", "", ""))
        if not rule or (rule, fact) in self._told or reporter is None:
            return
        self._told.add((rule, fact))
        if self._monitor.screen is not None:
            self._monitor.screen.write(line)
            return
        reporter.ensure_newline()
        # Under xdist the reporter does not know that letters are on the line.
        if self._config.get_terminal_writer().width_of_current_line:
            reporter.write_line("")
        reporter.write_line(text.linked(line, terminal=reporter.isatty))
        # Output into a pipe is buffered, and the line would arrive at the end.
        reporter.flush()


def mark_violation(report: pytest.TestReport, violation: Violation, trial: Trial) -> None:
    """Give a report the line about its violation; xdist hands it over to the main process.

    A violation that was not confirmed, such as one that a user's own test raises, gets no line.
    """
    rule, fact = violation.failure.rule, violation.failure.fact
    path = confirm.path_of(trial, violation.case, rule)
    if str(path) in trial.ledger.stored:
        vars(report)["violation"] = [rule, fact, messages.found(violation, path)]
