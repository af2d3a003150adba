"""pytest: options, header, the trial fixture, and the session's verdict, also under pytest-xdist.

The main process starts the hosts, loads what is on trial once to describe it, and hands both to the
workers; each worker has a pool of its own. Workers hand back their ledgers; the sum decides the
exit status. Under torchrun and srun all that is rank 0's, and pytest in the other processes does
nothing but serve it ranks (cluster.py).
"""

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.junitxml import (
    xml_key,
)  # Where its own record_testsuite_property writes to, which no worker of xdist can.

from ddp_invariants import __version__
from ddp_invariants.cases.case import LARGEST_WORLD_SIZE, TrainingCase
from ddp_invariants.errors import (
    INCONCLUSIVE,
    UNUSABLE_INPUT,
    CaseError,
    HarnessError,
    LoadFailure,
    unusable,
)
from ddp_invariants.implementation.spec import OPTIONS
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes import backends, job
from ddp_invariants.records import reading
from ddp_invariants.records.verdict import Inconclusive, NotJudged, Violation
from ddp_invariants.report.terminal import capabilities, on_trial, seen_in_passing, summary
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.trial import Trial
from ddp_invariants.session import ending
from ddp_invariants.session.monitor import Monitor, told_of
from ddp_invariants.session.state import (
    _ENTERED,
    _KEY,
    _STATUS,
    MAX_WORLD_SIZE,
    PROFILES,
    Session,
    _wanted,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a trial."""
    group = parser.getgroup("ddp-invariants", "data-parallel invariants")
    for name, option in OPTIONS.items():
        group.addoption(
            name,
            metavar=option.placeholder,
            help=option.told,
            default=[] if option.repeatable else option.default,
            action="append" if option.repeatable else "store",
        )
    group.addoption(
        "--profile", default="default", choices=sorted(PROFILES), help="how many cases per property"
    )
    group.addoption(
        "--cases",
        type=int,
        default=None,
        metavar="N",
        help="cases per property, instead of the profile's",
    )
    group.addoption(
        "--max-world-size",
        type=int,
        default=None,
        metavar="W",
        help=f"largest world size drawn (default {MAX_WORLD_SIZE}; under torchrun or srun, the job's)",
    )
    group.addoption(
        "--seed",
        type=int,
        default=None,
        metavar="N",
        help="seed of the search (default: a new one, printed)",
    )
    group.addoption(
        "--isolation",
        default="pooled",
        choices=("pooled", "fresh"),
        help="keep ranks between cases, or make new processes and groups for each",
    )
    group.addoption(
        "--backend",
        default="auto",
        choices=backends.BACKENDS,
        help="what ranks communicate over; what this machine or version cannot do is reported as not run",
    )
    group.addoption(
        "--device",
        default=None,
        choices=backends.DEVICES,
        help="where tensors are (default: what the backend needs)",
    )
    group.addoption(
        "--deviations",
        default=[],
        action="append",
        metavar="FILE",
        help="deviations that are expected, beside those shipped; repeatable",
    )
    group.addoption(
        "--certificate",
        default=None,
        metavar="FILE",
        help="write FILE.json and its page FILE.html; either may be named",
    )
    group.addoption(
        "--badge",
        default=None,
        metavar="FILE",
        help="write a badge as shields.io's endpoint takes it",
    )
    group.addoption(
        "--replay",
        default=None,
        metavar="FILE",
        help="judge the case in FILE instead of drawing any",
    )


def _check(config: pytest.Config) -> None:
    """Refuse bad options before anything is started.

    Raises:
        CaseError: One of them is bad; the message names it.
    """
    option = config.option
    ours = job.led()
    if option.max_world_size is None:
        option.max_world_size = (
            MAX_WORLD_SIZE if ours is None else min(ours.job.world_size, LARGEST_WORLD_SIZE)
        )
    if ours is not None and option.max_world_size > ours.job.world_size:
        raise CaseError(
            f"--max-world-size {option.max_world_size}: the job has {ours.job.world_size} ranks"
        )
    if not 1 <= option.max_world_size <= LARGEST_WORLD_SIZE:
        raise CaseError(
            f"--max-world-size {option.max_world_size}: expected 1 to {LARGEST_WORLD_SIZE}"
        )
    backends.wanted(option.backend, option.device)
    if option.cases is not None and option.cases < 1:
        raise CaseError(f"--cases {option.cases}: expected at least 1")
    _wanted(config).check()
    if option.replay is not None and (option.certificate or option.badge):
        raise CaseError(
            "--replay judges one case: no certificate comes of it; leave out --certificate and --badge"
        )
    if option.replay is not None:
        case = reading.read(Path(option.replay))
        if isinstance(case, TrainingCase) and case.ranks_needed > option.max_world_size:
            raise CaseError(
                f"{option.replay}: the case needs {case.ranks_needed} ranks, more than --max-world-size "
                f"{option.max_world_size} allows; raise it"
            )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Under a launcher, serve ranks in every process but rank 0; there, and without one, go on as ever."""
    if (
        config.option.collectonly
        or config.option.help
        or getattr(config, "workerinput", None) is not None
    ):
        return None
    if job.led() is not None:  # By who started this session, for this and others.
        return None
    config.stash[_ENTERED] = True
    return job.enter()


def pytest_configure(config: pytest.Config) -> None:
    """Start the hosts and describe what is on trial, or take both from the main process."""
    if config.option.collectonly or config.option.help:
        return
    ending.heed_interrupts()
    config.pluginmanager.register(_Heard(config))
    try:
        if getattr(config, "workerinput", None) is None:
            _check(config)
        session = Session(config)
        try:
            if not session.is_worker:
                session.begin()
        except BaseException:
            session.close()
            raise
        config.stash[_KEY] = session
    except UNUSABLE_INPUT as error:
        pytest.exit(f"ddp-invariants: {error}", returncode=unusable(error))


class _Heard:
    """Hears of interrupts and of tests' reports, which do not say whose session they are of."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @property
    def _watch(self) -> Monitor | None:
        return self.config.stash[_KEY].monitor if _KEY in self.config.stash else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Whoever interrupts is not kept waiting; a session that ends by itself before all is run ends likewise."""
        by_user = excinfo.type is KeyboardInterrupt
        if (
            by_user
            and _KEY not in self.config.stash
            and getattr(self.config, "workerinput", None) is None
        ):
            sys.stderr.write(
                "ddp-invariants: interrupted before anything was judged; nothing is written\n"
            )
        if self._watch is not None:
            self._watch.cut_short(by_user=by_user)
        if by_user:
            ending.hurry(excinfo, whole_stack=self.config.option.fulltrace)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test reported, in this process or in a worker; in a CI job a line tells now and then how far it is."""
        monitor = self._watch
        if monitor is None:
            return
        monitor.report(report)
        line = monitor.line() if _in_ci() else ""
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if line and reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)


_FIRST = (
    "test_shard.py",
    "test_init.py",
    "test_loss.py",
    "test_grad.py",
    "test_param.py",
    "test_buf.py",
    "test_comm.py",
    "test_mem.py",
    "test_state.py",
    "test_live.py",
)
"""The quickest properties first, so that a first verdict comes within seconds; then causes before consequences."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the properties first, in that order; the same in every xdist worker."""
    items.sort(
        key=lambda item: _FIRST.index(item.path.name) if item.path.name in _FIRST else len(_FIRST)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Begin; where nothing can be run as it was asked for, run nothing and say so of every rule: neither passed nor skipped."""
    if _KEY not in session.config.stash:
        return None
    ours = session.config.stash[_KEY]
    if not ours.shared["not_run"]:
        _draw(session.config, ours.monitor)
        return None
    asked = {ending.rule_of(item.name) for item in session.items} - {""}
    for rule in asked or ALL_RULES:  # Where workers were to collect, all of them.
        ours.ledger[rule].not_run = f"{ours.backend}: {ours.shared['not_run']}"
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: hand a starting worker what the main process has found out."""
    if _KEY in node.config.stash:
        ours = node.config.stash[_KEY]
        node.workerinput["ddp_invariants"] = ours.shared
        # execnet says in public only what the other side answers, which may take its time.
        process = getattr(getattr(node.gateway, "_io", None), "popen", None)
        if ours.monitor is not None and process is not None:
            ours.monitor.workers[node.gateway.id] = process.pid


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """xdist: take in the ledger of a worker that ends; one that crashed has none, and xdist reports its test."""
    del error
    output = getattr(node, "workeroutput", {})
    if "ddp_invariants" in output:
        node.config.stash[_KEY].monitor.take(
            node.gateway.id, Ledger.from_plain(output["ddp_invariants"])
        )


def _draw(config: pytest.Config, monitor: Monitor | None) -> None:
    """Begin to draw, where a person looks on: on a terminal, unless more or less than usual was asked for."""
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
    """Whether this is a CI job, by what pytest goes by."""
    return bool(os.environ.get("CI") or os.environ.get("BUILD_NUMBER"))


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(config: pytest.Config) -> Generator[None, Any, Any]:
    """No letter per test where the progress is drawn instead; failures are told at the end, as ever."""
    status = yield
    monitor = config.stash[_KEY].monitor if _KEY in config.stash else None
    return (status[0], "", "") if monitor is not None and monitor.screen is not None else status


def pytest_sessionstart() -> None:
    """By now pytest has a hook of its own for what Python ignores."""
    ending.heed_interrupts()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close this process's pool; in the main process, write what is wanted, and let findings fail that no test reported."""
    session.config.stash[_STATUS] = int(exitstatus)
    if _KEY not in session.config.stash:
        return
    ours = session.config.stash[_KEY]
    ours.close()
    if ours.is_worker:
        session.config.workeroutput["ddp_invariants"] = ours.ledger.to_plain()  # type: ignore[attr-defined]  # set by xdist
    elif ours.shared["not_run"]:
        session.exitstatus = INCONCLUSIVE
    elif ours.monitor is not None:
        ours.ledger = ours.monitor.finish(ours.discovery)
        junit = session.config.stash.get(xml_key, None)
        if junit is not None:
            for name, value in ours.properties():
                junit.add_global_property(name, value)
        ours.keep_sightings()
        if not ours.monitor.interrupted:
            session.exitstatus = ending.judged(
                exitstatus, ours.ledger, others_failed=ours.monitor.others_failed
            )
    session.config.stash[_STATUS] = int(session.exitstatus)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the hosts also when no session came about, and let a job's other processes go, with this one's exit status."""
    if _KEY in config.stash:
        config.stash[_KEY].close()
        if not config.stash[_KEY].is_worker:
            config.stash[_KEY].close_journal(config.stash.get(_STATUS, INCONCLUSIVE))
    if _ENTERED in config.stash:
        job.leave(config.stash.get(_STATUS, INCONCLUSIVE))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Who is on trial, by what."""
    if _KEY not in config.stash:
        return []
    ours, option = config.stash[_KEY], config.option
    shared, why = ours.shared, ours.shared["not_run"]
    lines = [] if why else on_trial(ours.discovery, verbose=option.verbose > 0)
    cases = option.cases or PROFILES[option.profile]
    how = (
        f"replay {option.replay}"
        if option.replay
        else f"profile {option.profile}, {cases} cases per property"
    )
    lines.append(
        f"ddp-invariants {__version__}, torch {shared['torch']}, backend {ours.backend}, seed {shared['seed']}, {how}, "
        f"world sizes to {option.max_world_size}, isolation {option.isolation}"
    )
    if why:
        lines.append(f"not run: {why}")
    if job.led() is not None:
        lines.append(str(job.led()))
    if ours.journal is not None and ours.journal.known:
        lines.append(
            f"started anew: {ours.journal.known:,} cases were judged before, and are not run again"
        )
    return lines


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One row per rule that was judged."""
    if _KEY in config.stash and (
        config.stash[_KEY].ledger.cases or config.stash[_KEY].shared["not_run"]
    ):
        terminalreporter.section("data-parallel invariants")
        ledger = config.stash[_KEY].ledger
        # Under xdist the main process imports no property, and knows no rule of anybody's own.
        order = list(dict.fromkeys([*ALL_RULES, *sorted(ledger.entries)]))
        terminalreporter.write_line(summary(ledger, order))
        if config.stash[_KEY].shared["not_run"]:
            return
        terminalreporter.write_line(capabilities(config.stash[_KEY].discovery))
        told = seen_in_passing(config.stash[_KEY].sighted)
        if told:
            terminalreporter.write_line(told)
    monitor = config.stash[_KEY].monitor if _KEY in config.stash else None
    for line in monitor.lines if monitor is not None else ():
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Show a verdict as itself: the stack behind it is the suite's own and says nothing about the accused."""
    ours = item.config.stash.get(_KEY, None)
    if call.when == "call" and ours is not None and ours.trial is not None:
        asked, ours.trial.asked = ours.trial.asked, []
        item.user_properties += [
            told for rule in asked for told in told_of(ours.trial.ledger, rule)
        ]
        if ours.progress is not None and asked:
            ours.progress.tell(ours.trial.ledger)
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, NotJudged):
        report.outcome, report.longrepr = "skipped", (__file__, 0, f"Skipped: {call.excinfo.value}")
    if call.excinfo is not None and isinstance(
        call.excinfo.value, Violation | Inconclusive | HarnessError | LoadFailure
    ):
        report.longrepr = str(call.excinfo.value)
    return report


@pytest.fixture(scope="session")
def trial(request: pytest.FixtureRequest) -> Trial:
    """The trial of this process."""
    session: Session = request.config.stash[_KEY]
    return session.start_trial()


@pytest.fixture(scope="session")
def host_addresses(request: pytest.FixtureRequest) -> list[str]:
    """Where pools of a test's own connect to."""
    addresses: list[str] = request.config.stash[_KEY].shared["addresses"]
    return addresses
