"""pytest: options, header, the trial fixture, and the session's verdict, also under pytest-xdist.

The main process starts the hosts, loads what is on trial once to describe it, and hands both to the workers; each
worker has a pool of its own. Workers hand back their ledgers; the sum decides the exit status.
"""

import os
import secrets
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_invariants import __version__, casefile, discovery
from ddp_invariants.case import LARGEST_WORLD_SIZE, CaseError, TrainingCase
from ddp_invariants.declarations import DeclarationError
from ddp_invariants.deviations import DeviationError
from ddp_invariants.implementation import OPTIONS, Ddp, NamingError, Sampler, named, options
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.ledger import Ledger
from ddp_invariants.ranks.hosts import HarnessError, Hosts
from ddp_invariants.ranks.pool import LoadFailure, Pool
from ddp_invariants.report import capabilities, on_trial, seen_in_passing, summary
from ddp_invariants.scope import OnTrial
from ddp_invariants.trial import Options, Trial
from ddp_invariants.verdict import Inconclusive, NotJudged, Violation

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
    group.addoption("--replay", default=None, metavar="FILE", help="judge the case in FILE instead of drawing any")


class Session:
    """What this process holds for the session: the main process the hosts, whoever runs tests a trial."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ledger = Ledger()
        self.hosts: Hosts | None = None
        self.trial: Trial | None = None
        worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.is_worker = worker_input is not None
        if worker_input is not None:
            self.shared: dict[str, Any] = worker_input["ddp_invariants"]
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

    @property
    def options(self) -> Options:
        """How the trial is held, from the command line."""
        option, root = self.config.option, self.config.rootpath
        names = [options(*self.on_trial)] if options(*self.on_trial) else []
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
        return self.trial

    def close(self) -> None:
        """End whatever this process started."""
        if self.trial is not None:
            self.trial.pool.close()
            self.ledger.merge(self.trial.ledger)
            self.trial = None
        if self.hosts is not None:
            self.hosts.close()
            self.hosts = None


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
        config.stash[_KEY] = Session(config)
    except (LoadFailure, CaseError, HarnessError, NamingError, DeclarationError, DeviationError) as error:
        pytest.exit(f"ddp-invariants: {error}", returncode=2)


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
        node.config.stash[_KEY].ledger.merge(Ledger.from_plain(output["ddp_invariants"]))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close this process's pool; in the main process, let findings no test reported fail the session."""
    if _KEY not in session.config.stash:
        return
    ours = session.config.stash[_KEY]
    ours.close()
    if ours.is_worker:
        session.config.workeroutput["ddp_invariants"] = ours.ledger.to_plain()  # type: ignore[attr-defined]  # set by xdist
    elif exitstatus == pytest.ExitCode.OK and any(entry.seen for entry in ours.ledger.entries.values()):
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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show a verdict as itself: the stack behind it is the suite's own and says nothing about the accused."""
    outcome: Any = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, NotJudged):
        report = outcome.get_result()
        report.outcome, report.longrepr = "skipped", (__file__, 0, f"Skipped: {call.excinfo.value}")
    if call.excinfo is not None and isinstance(call.excinfo.value, Violation | Inconclusive | HarnessError | LoadFailure):
        outcome.get_result().longrepr = str(call.excinfo.value)


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
