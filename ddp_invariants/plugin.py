"""The pytest plugin: options, header, the ranks of a test, and the session's verdict.

It also works under pytest-xdist. The main process starts the hosts, loads the implementation once
to describe it, and hands both to the workers. Each worker has a pool of its own. Workers return
their ledgers, and the sum decides the exit status. Under torchrun and srun only rank 0 does all
this. In the other processes pytest only serves ranks to rank 0 (`processes/job.py`).
"""

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest

# pytest's record_testsuite_property writes there, too, but no worker of xdist can use it.
from _pytest.junitxml import xml_key
from hypothesis import is_hypothesis_test

from ddp_invariants.cases.levels import LEVELS, Level
from ddp_invariants.discovery.levels import level_of, uncommon
from ddp_invariants.errors import (
    INCONCLUSIVE,
    UNUSABLE_INPUT,
    HarnessError,
    LoadFailure,
    unusable,
)
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes import job
from ddp_invariants.records.verdict import Inconclusive, NotJudged, Violation
from ddp_invariants.search.drawing import drawn_from
from ddp_invariants.search.given import Property, Ranks
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.session import ending, options, past, text
from ddp_invariants.session.announcer import Announcer, mark_violation
from ddp_invariants.session.failure_limit import FailureLimit, mark_not_counting
from ddp_invariants.session.monitor import Monitor, report_properties
from ddp_invariants.session.state import (
    ENTERED_JOB,
    STATE,
    STATUS,
    SessionState,
)
from ddp_invariants.session.statistics import Statistics

UNRECORDED = pytest.StashKey[str]()
"""The stash key of the reason why the session is not in the history; empty if it is."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a session."""
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Under a launcher, serve ranks in every process except rank 0; otherwise go on normally."""
    if (
        config.option.collectonly
        or config.option.help
        or getattr(config, "workerinput", None) is not None
    ):
        return None
    # The command that started this session has entered the job already.
    if job.led() is not None:
        return None
    config.stash[ENTERED_JOB] = True
    return job.enter()


def pytest_configure(config: pytest.Config) -> None:
    """Start the hosts and describe the implementation, or take both from the main process."""
    if config.option.collectonly or config.option.help:
        return
    ending.heed_interrupts()
    config.pluginmanager.register(_Listener(config))
    try:
        session = _begun(config)
        first = session.shared.get("first", "")  # There is none if nothing is run.
        config.pluginmanager.register(FailureLimit(config, first))
        if session.monitor is not None:
            config.pluginmanager.register(Announcer(config, session.monitor))
    except UNUSABLE_INPUT as error:
        pytest.exit(f"ddp-invariants: {error}", returncode=unusable(error))


def _begun(config: pytest.Config) -> SessionState:
    """Begin the session of this process.

    Raises:
        LoadFailure: The implementation cannot be tested.
        HarnessError: The harness failed.
    """
    options.read_numbers(config)
    if getattr(config, "workerinput", None) is None:
        options.check(config)
        ending.heed_termination()
    else:
        ending.end_with_main_process()
    session = SessionState(config)
    try:
        if not session.is_worker:
            session.begin()
    except BaseException:
        session.close()
        raise
    config.stash[STATE] = session
    return session


class _Listener:
    """A plugin that receives interrupts and test reports, which do not name their session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @property
    def _monitor(self) -> Monitor | None:
        return self.config.stash[STATE].monitor if STATE in self.config.stash else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """End quickly after an interrupt, without the user waiting.

        A session that pytest ends before all tests have run also stops its workers.
        """
        by_user = excinfo.type is KeyboardInterrupt
        if (
            by_user
            and STATE not in self.config.stash
            and getattr(self.config, "workerinput", None) is None
        ):
            sys.stderr.write(
                "ddp-invariants: interrupted before any case was judged; no file was written\n"
            )
        if self._monitor is not None:
            self._monitor.cut_short(by_user=by_user)
        if by_user:
            ending.hurry(excinfo, whole_stack=self.config.option.fulltrace)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test's report from this process or a worker; in a CI job print progress."""
        monitor = self._monitor
        if monitor is None:
            return
        monitor.report(report)
        if isinstance(report.longrepr, str):
            report.longrepr = text.WithLinks(report.longrepr)
        line = monitor.line() if _in_ci() else ""
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if line and reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)


_FIRST = (
    "test_shard.py",
    "test_init.py",
    "test_live.py",
    "test_state.py",
    "test_buf.py",
    "test_rng.py",
    "test_grad.py",
    "test_param.py",
    "test_comm.py",
    "test_mem.py",
    "test_loss.py",
)
"""The quickest properties first, for a first verdict within seconds. Then the longest, so that at
the end no worker runs a long one while the others have nothing left; then causes before effects."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the properties first, in that order; it is the same in every xdist worker."""
    items.sort(
        key=lambda item: _FIRST.index(item.path.name) if item.path.name in _FIRST else len(_FIRST)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Begin to run, or run nothing if the backend or device is not available.

    In the latter case every rule is reported as not run: neither passed nor skipped.
    """
    if STATE not in session.config.stash:
        return None
    state = session.config.stash[STATE]
    if not state.shared["not_run"]:
        _start_screen(session.config, state.monitor)
        return None
    rule_ids = {ending.rule_of(item.name) for item in session.items} - {""}
    for rule in rule_ids or ALL_RULES:  # If workers were to collect the tests, all rules.
        state.ledger[rule].not_run = f"{state.backend}: {state.shared['not_run']}"
    return True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the selected properties; under xdist the workers collect them."""
    _plan(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Plan the properties that a worker has selected; all workers select the same."""
    _plan(node.config, ids)


def _plan(config: pytest.Config, tests: list[str]) -> None:
    monitor = config.stash[STATE].monitor if STATE in config.stash else None
    if monitor is not None:
        monitor.progress.plan({ending.rule_of(test) for test in tests} - {""})


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Under xdist, hand the main process's discoveries to a starting worker."""
    if STATE in node.config.stash:
        state = node.config.stash[STATE]
        shared = state.shared
        if state.monitor is not None:
            shared = {**shared, "key": state.monitor.listener.key(node.gateway.id)}
        node.workerinput["ddp_invariants"] = shared
        # execnet's public interface only asks the other side, which may answer late.
        process = getattr(getattr(node.gateway, "_io", None), "popen", None)
        if state.monitor is not None and process is not None:
            state.monitor.workers[node.gateway.id] = process.pid


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Under xdist, take the ledger of a worker that ends.

    A crashed worker has none, and xdist reports its test.
    """
    del error
    output = getattr(node, "workeroutput", {})
    if "ddp_invariants" in output:
        node.config.stash[STATE].monitor.add_ledger(
            node.gateway.id, Ledger.from_plain(output["ddp_invariants"])
        )


def _start_screen(config: pytest.Config, monitor: Monitor | None) -> None:
    """Begin to draw if a person is looking on: on a terminal, with pytest's default verbosity."""
    option = config.option
    if (
        monitor is not None
        and os.isatty(1)
        and os.environ.get("TERM", "dumb") != "dumb"
        and not _in_ci()
        and option.verbose == 0
        and option.capture != "no"
        and not option.usepdb
    ):
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False
        monitor.draw()


def _in_ci() -> bool:
    """Return whether this is a CI job, by the variables that pytest uses."""
    return bool(os.environ.get("CI") or os.environ.get("BUILD_NUMBER"))


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(config: pytest.Config) -> Generator[None, Any, Any]:
    """Print no letter per test if the progress is drawn instead.

    Failures are reported at the end, as usual.
    """
    status = yield
    monitor = config.stash[STATE].monitor if STATE in config.stash else None
    return (status[0], "", "") if monitor is not None and monitor.screen is not None else status


def pytest_sessionstart() -> None:
    """Wrap pytest's own hook for ignored exceptions, which exists by now."""
    ending.heed_interrupts()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close this process's pool, write the wanted files, and set the exit status.

    The main process writes the files.
    """
    session.config.stash[STATUS] = int(exitstatus)
    if STATE not in session.config.stash:
        return
    state = session.config.stash[STATE]
    state.compare_with_plain_torch()
    state.close()
    if state.is_worker:
        session.config.workeroutput[  # type: ignore[attr-defined]  # set by xdist
            "ddp_invariants"
        ] = state.ledger.to_plain()
    else:
        session.exitstatus = state.finish(exitstatus)
        session.config.stash[UNRECORDED] = past.record(state)
        junit = session.config.stash.get(xml_key, None)
        if junit is not None and state.monitor is not None:
            for name, value in state.junit_properties():
                junit.add_global_property(name, value)
    session.config.stash[STATUS] = int(session.exitstatus)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the hosts even if no session began, and release a job's other processes.

    They end with this process's exit status.
    """
    if STATE in config.stash:
        config.stash[STATE].close()
        if not config.stash[STATE].is_worker:
            config.stash[STATE].close_journal(config.stash.get(STATUS, INCONCLUSIVE))
    if ENTERED_JOB in config.stash:
        job.leave(config.stash.get(STATUS, INCONCLUSIVE))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the header lines: the implementation under test and the session's settings."""
    return text.header(config.stash[STATE]) if STATE in config.stash else []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the verdicts, the capabilities, and the paths of the files that were written."""
    if STATE not in config.stash:
        return
    state = config.stash[STATE]
    paragraphs = text.summary(state)
    if paragraphs:
        terminalreporter.section("data-parallel invariants")
    written = state.monitor.lines if state.monitor is not None else ()
    for line in filter(
        None, (*paragraphs, *written, config.stash.get(UNRECORDED, ""), text.last(state))
    ):
        terminalreporter.write_line(text.linked(line, terminal=terminalreporter.isatty))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Show a verdict without a stack: the stack is the suite's and does not explain it."""
    state = item.config.stash.get(STATE, None)
    if call.when == "call" and state is not None and state.trial is not None:
        rule_ids, state.trial.asked = state.trial.asked, []
        item.user_properties += [
            entry for rule in rule_ids for entry in report_properties(state.trial.ledger, rule)
        ]
        if state.progress is not None and rule_ids:
            state.progress.send(state.trial.ledger)
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, NotJudged):
        report.outcome, report.longrepr = "skipped", (__file__, 0, f"Skipped: {call.excinfo.value}")
    if call.excinfo is not None and isinstance(
        call.excinfo.value, Violation | Inconclusive | HarnessError | LoadFailure
    ):
        report.longrepr = str(call.excinfo.value)
        if isinstance(call.excinfo.value, Violation) and state is not None and state.trial:
            mark_violation(report, call.excinfo.value, state.trial)
        if isinstance(call.excinfo.value, Inconclusive) or (
            isinstance(call.excinfo.value, Violation)
            and _is_beyond(call.excinfo.value, item.config.option.level)
        ):
            mark_not_counting(report)
    return report


def _is_beyond(violation: Violation, most: Level) -> bool:
    """Return whether a violation is less ordinary than the levels that decide the exit status."""
    levels = uncommon(violation.case).values()
    return LEVELS.index(level_of(violation.failure.rule, levels)) > LEVELS.index(most)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Search with a property: a test with `@given` and `ranks` that is named after a rule."""
    ranks, rule = pyfuncitem.funcargs.get("ranks"), ending.rule_of(pyfuncitem.name)
    if not (rule and isinstance(ranks, Ranks) and is_hypothesis_test(pyfuncitem.obj)):
        return None
    __tracebackhide__ = True
    fixtures = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    shown = Statistics(pyfuncitem)
    try:
        ranks.trial.certify(rule, test=Property(pyfuncitem.obj, fixtures, shown.add))
    finally:
        shown.show(ranks.trial.stages)
    return True


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Generator[Ranks, None, None]:
    """Give a test the ranks of this process, and have `cases_of` draw for the session.

    HypoFuzz has pytest collect the tests only, and then runs them itself. So the session begins
    with the first test that asks for ranks, and its processes end with this process.
    """
    config = request.config
    session = config.stash[STATE] if STATE in config.stash else _begun(config)
    trial = session.start_trial()
    with drawn_from(trial.source):
        yield Ranks(trial)


@pytest.fixture(scope="session")
def host_addresses(request: pytest.FixtureRequest) -> list[str]:
    """Return the addresses for pools that a test makes itself."""
    addresses: list[str] = request.config.stash[STATE].shared["addresses"]
    return addresses
