"""pytest: options, header, the trial fixture, and the session's verdict, also under pytest-xdist.

The main process starts the hosts, loads what is on trial once to describe it, and hands both to the workers; each
worker has a pool of its own. Workers hand back their ledgers; the sum decides the exit status.
"""

import os
import secrets
import shlex
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.junitxml import xml_key  # Where its own record_testsuite_property writes to, which no worker of xdist can.

from ddp_invariants import __version__, casefile, discovery
from ddp_invariants.case import LARGEST_WORLD_SIZE, CaseError, TrainingCase
from ddp_invariants.declarations import DeclarationError
from ddp_invariants.deviations import DeviationError
from ddp_invariants.implementation import OPTIONS, Ddp, NamingError, Sampler, named
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.ledger import Ledger
from ddp_invariants.live import Teller
from ddp_invariants.outputs import Wanted
from ddp_invariants.ranks.hosts import HarnessError, Hosts
from ddp_invariants.ranks.pool import LoadFailure, Pool
from ddp_invariants.report import capabilities, on_trial, seen_in_passing, summary
from ddp_invariants.scope import OnTrial
from ddp_invariants.trial import Options, Trial
from ddp_invariants.verdict import Inconclusive, NotJudged, Violation
from ddp_invariants.watch import Held, Watch, told_of

PROFILES = {"quick": 30, "default": 100, "thorough": 1000}
"""Cases per property."""

_KEY = pytest.StashKey["Session"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a trial."""
    group = parser.getgroup("ddp-invariants", "data-parallel invariants")
    for name, option in OPTIONS.items():
        group.addoption(name, metavar=option.placeholder, help=option.told, default=[] if option.repeatable else option.default,
                        action="append" if option.repeatable else "store")
    group.addoption("--profile", default="default", choices=sorted(PROFILES), help="how many cases per property")
    group.addoption("--cases", type=int, default=None, metavar="N", help="cases per property, instead of the profile's")
    group.addoption("--max-world-size", type=int, default=4, metavar="W", help="largest world size drawn (default 4)")
    group.addoption("--seed", type=int, default=None, metavar="N", help="seed of the search (default: a new one, printed)")
    group.addoption("--isolation", default="pooled", choices=("pooled", "fresh"),
                    help="keep ranks between cases, or make new processes and groups for each")
    group.addoption("--deviations", default=[], action="append", metavar="FILE",
                    help="deviations that are expected, beside those shipped; repeatable")
    group.addoption("--certificate", default=None, metavar="FILE",
                    help="write FILE.json and its page FILE.html; either may be named")
    group.addoption("--badge", default=None, metavar="FILE", help="write a badge as shields.io's endpoint takes it")
    group.addoption("--replay", default=None, metavar="FILE", help="judge the case in FILE instead of drawing any")


class Session:
    """What this process holds for the session: the main process the hosts, whoever runs tests a trial."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ledger = Ledger()
        self.hosts: Hosts | None = None
        self.trial: Trial | None = None
        self.watch: Watch | None = None
        self.teller: Teller | None = None
        worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.is_worker = worker_input is not None
        if worker_input is not None:
            self.shared: dict[str, Any] = worker_input["ddp_invariants"]
            self.teller = Teller(self.shared["listener"], worker_input["workerid"])
            return
        option = config.option
        given = option.seed
        self.shared = {"seed": secrets.randbelow(2**31) if given is None else given, "seed_given": given is not None}
        ddp, sampler = named(vars(option))
        self.hosts = Hosts()
        self.shared["addresses"] = self.hosts.addresses
        with Pool(self.hosts.addresses) as pool:
            found = discovery.discover(pool, ddp, sampler, option.max_world_size, [Path(one) for one in option.deviations])
        if found.claims_refused():
            raise LoadFailure(f"{ddp}: {found.claims_refused()[0]}")
        if found.stale():
            raise LoadFailure(f"{ddp}: {found.stale()[0]}")
        self.shared["discovery"] = discovery.to_plain(found)
        words = shlex.join(["pytest", *map(str, config.invocation_params.args)])
        held = Held(words, self.shared["seed"], option.cases or PROFILES[option.profile], option.max_world_size,
                    option.isolation)
        self.watch = Watch(held, _wanted(config), lambda: self.trial.ledger if self.trial is not None else None)
        self.shared["listener"] = self.watch.listener.address

    @property
    def options(self) -> Options:
        """How the trial is held, from the command line."""
        option, root = self.config.option, self.config.rootpath
        names = [one.options() for one in self.on_trial if one.options()]
        names += [f"--declare {shlex.quote(option.declare)}"] if option.declare else []
        return Options(
            cases=option.cases or PROFILES[option.profile], seed=self.shared["seed"], isolation=option.isolation,
            replay=None if option.replay is None else casefile.read(Path(option.replay)), store=Path(".ddp-invariants"),
            database=None if self.shared["seed_given"] else root / ".hypothesis" / "ddp-invariants",
            command=" ".join([f"pytest {shlex.quote(self._properties())}", *names]))

    def _properties(self) -> str:
        """Where the properties are, seen from where pytest was started."""
        return os.path.relpath(self.config.rootpath / "properties", self.config.invocation_params.dir) + "/"

    @property
    def on_trial(self) -> tuple[Ddp, Sampler]:
        """What the options name."""
        return named(vars(self.config.option))

    @property
    def discovery(self) -> discovery.Discovery:
        """What was found out about it before any property ran."""
        return discovery.from_plain(self.shared["discovery"])

    def start_trial(self) -> Trial:
        """This process's trial, started by the first test that asks for one."""
        if self.trial is None:
            scope = self.discovery.scope(self.config.option.max_world_size)
            self.trial = Trial(Pool(self.shared["addresses"]), OnTrial(*self.on_trial, scope), self.options)
            if self.teller is not None:
                self.trial.listen = self.teller
        return self.trial

    def properties(self) -> Iterator[tuple[str, str]]:
        """What a JUnit file says of the whole session."""
        found, shared = self.discovery, self.shared
        for side, described in (("ddp", found.ddp), ("sampler", found.sampler)):
            yield side, f"{described['name']} = {described['target']} ({described['version']})"
        yield from (("ddp-invariants", __version__), ("torch", found.torch), ("seed", str(shared["seed"])),
                    ("cases judged", str(self.ledger.cases)))
        yield from ((rule, self.ledger.said(rule)) for rule in ALL_RULES)

    def close(self) -> None:
        """End whatever this process started."""
        if self.trial is not None:
            self.trial.pool.close()
            self.ledger.merge(self.trial.ledger)
            if self.watch is not None:
                self.watch.take("", self.trial.ledger)
            self.trial = None
        if self.hosts is not None:
            self.hosts.close()
            self.hosts = None


def _wanted(config: pytest.Config) -> Wanted:
    """The files the session is to write."""
    certificate, badge = config.option.certificate, config.option.badge
    return Wanted(Path(certificate) if certificate else None, Path(badge) if badge else None)


def _check(config: pytest.Config) -> None:
    """Refuse bad options before anything is started.

    Raises:
        CaseError: One of them is bad; the message names it.
    """
    option = config.option
    if not 1 <= option.max_world_size <= LARGEST_WORLD_SIZE:
        raise CaseError(f"--max-world-size {option.max_world_size}: expected 1 to {LARGEST_WORLD_SIZE}")
    if option.cases is not None and option.cases < 1:
        raise CaseError(f"--cases {option.cases}: expected at least 1")
    _wanted(config).check()
    if option.replay is not None and (option.certificate or option.badge):
        raise CaseError("--replay judges one case: no certificate comes of it; leave out --certificate and --badge")
    if option.replay is not None:
        case = casefile.read(Path(option.replay))
        if isinstance(case, TrainingCase) and case.ranks_needed > option.max_world_size:
            raise CaseError(f"{option.replay}: the case needs {case.ranks_needed} ranks, more than --max-world-size "
                            f"{option.max_world_size} allows; raise it")


def pytest_configure(config: pytest.Config) -> None:
    """Start the hosts and describe what is on trial, or take both from the main process."""
    if config.option.collectonly or config.option.help:
        return
    try:
        if getattr(config, "workerinput", None) is None:
            _check(config)
        config.stash[_KEY] = session = Session(config)
        if session.watch is not None:
            config.pluginmanager.register(_Reports(config, session.watch))
    except (LoadFailure, CaseError, HarnessError, NamingError, DeclarationError, DeviationError) as error:
        pytest.exit(f"ddp-invariants: {error}", returncode=2)


class _Reports:
    """Takes in tests' reports, which do not say whose session they are of."""

    def __init__(self, config: pytest.Config, watch: Watch) -> None:
        self.config, self.watch = config, watch

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Whoever interrupts is not kept waiting."""
        self.watch.interrupt()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test reported, in this process or in a worker; in a CI job a line tells now and then how far it is."""
        self.watch.report(report)
        line = self.watch.line() if _in_ci() else ""
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if line and reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)


_FIRST = ("test_shard.py", "test_init.py", "test_loss.py", "test_grad.py", "test_param.py", "test_buf.py", "test_comm.py",
          "test_mem.py",
          "test_state.py", "test_live.py")
"""The quickest properties first, so that a first verdict comes within seconds; then causes before consequences."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the properties first, in that order; the same in every xdist worker."""
    items.sort(key=lambda item: _FIRST.index(item.path.name) if item.path.name in _FIRST else len(_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: hand a starting worker what the main process has found out."""
    if _KEY in node.config.stash:
        node.workerinput["ddp_invariants"] = node.config.stash[_KEY].shared


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """xdist: take in the ledger of a worker that ends; one that crashed has none, and xdist reports its test."""
    del error
    output = getattr(node, "workeroutput", {})
    if "ddp_invariants" in output:
        node.config.stash[_KEY].watch.take(node.gateway.id, Ledger.from_plain(output["ddp_invariants"]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Begin to draw, where a person looks on: on a terminal, unless more or less than usual was asked for."""
    option = session.config.option
    watch = session.config.stash[_KEY].watch if _KEY in session.config.stash else None
    if watch is not None and os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb" and not _in_ci() \
            and option.verbose == 0 and option.capture != "no" and not option.usepdb:
        reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False
        watch.draw()


def _in_ci() -> bool:
    """Whether this is a CI job, by what pytest goes by."""
    return bool(os.environ.get("CI") or os.environ.get("BUILD_NUMBER"))


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(config: pytest.Config) -> Generator[None, Any, Any]:
    """No letter per test where the progress is drawn instead; failures are told at the end, as ever."""
    status = yield
    watch = config.stash[_KEY].watch if _KEY in config.stash else None
    return (status[0], "", "") if watch is not None and watch.screen is not None else status


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close this process's pool; in the main process, write what is wanted, and let findings fail that no test reported."""
    if _KEY not in session.config.stash:
        return
    ours = session.config.stash[_KEY]
    ours.close()
    if ours.is_worker:
        session.config.workeroutput["ddp_invariants"] = ours.ledger.to_plain()  # type: ignore[attr-defined]  # set by xdist
    elif ours.watch is not None:
        ours.ledger = ours.watch.finish(ours.discovery, interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
        junit = session.config.stash.get(xml_key, None)
        if junit is not None:
            for name, value in ours.properties():
                junit.add_global_property(name, value)
        if exitstatus == pytest.ExitCode.OK and any(entry.seen for entry in ours.ledger.entries.values()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the hosts also when no session came about."""
    if _KEY in config.stash:
        config.stash[_KEY].close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Who is on trial, by what."""
    if _KEY not in config.stash:
        return []
    shared, option = config.stash[_KEY].shared, config.option
    found = config.stash[_KEY].discovery
    lines = on_trial(found, verbose=config.option.verbose > 0)
    cases = option.cases or PROFILES[option.profile]
    how = f"replay {option.replay}" if option.replay else f"profile {option.profile}, {cases} cases per property"
    lines.append(f"ddp-invariants {__version__}, torch {found.torch}, backend gloo, seed {shared['seed']}, {how}, "
                 f"world sizes to {option.max_world_size}, isolation {option.isolation}")
    return lines


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One row per rule that was judged."""
    if _KEY in config.stash and config.stash[_KEY].ledger.cases:
        terminalreporter.section("data-parallel invariants")
        terminalreporter.write_line(summary(config.stash[_KEY].ledger, list(ALL_RULES)))
        terminalreporter.write_line(capabilities(config.stash[_KEY].discovery))
        told = seen_in_passing(config.stash[_KEY].ledger)
        if told:
            terminalreporter.write_line(told)
    watch = config.stash[_KEY].watch if _KEY in config.stash else None
    for line in watch.lines if watch is not None else ():
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Show a verdict as itself: the stack behind it is the suite's own and says nothing about the accused."""
    ours = item.config.stash.get(_KEY, None)
    if call.when == "call" and ours is not None and ours.trial is not None:
        asked, ours.trial.asked = ours.trial.asked, []
        item.user_properties += [told for rule in asked for told in told_of(ours.trial.ledger, rule)]
        if ours.teller is not None and asked:
            ours.teller.tell(ours.trial.ledger)
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, NotJudged):
        report.outcome, report.longrepr = "skipped", (__file__, 0, f"Skipped: {call.excinfo.value}")
    if call.excinfo is not None and isinstance(call.excinfo.value, Violation | Inconclusive | HarnessError | LoadFailure):
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
