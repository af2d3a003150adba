"""The state of one session in one process."""

import hashlib
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_invariants import __version__
from ddp_invariants.cases.case import Case
from ddp_invariants.discovery import probe, result
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.discovery.unsettled import Unsettled, suspects, unsettled
from ddp_invariants.errors import INCONCLUSIVE, UNWRITTEN, VIOLATED, LoadFailure
from ddp_invariants.implementation.names import shipped_module
from ddp_invariants.implementation.spec import Ddp, Sampler, named, options
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes import backends, job
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import DEADLINE, Pool
from ddp_invariants.records import reading, violation
from ddp_invariants.records.folder import EXAMPLES, FOLDER
from ddp_invariants.records.verdict import Failure
from ddp_invariants.report.card import LevelAccount, card_of
from ddp_invariants.report.certificate.from_session import SessionSettings
from ddp_invariants.search import journal
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.places import SIMULATED_WORLD_SIZE
from ddp_invariants.search.split import WHOLE, Split
from ddp_invariants.search.trial import Options, Trial
from ddp_invariants.session import ending, selection
from ddp_invariants.session.monitor import Monitor
from ddp_invariants.session.options import cases_per_property, output_files
from ddp_invariants.session.progress import ProgressSender
from ddp_invariants.session.spot_check import spot_check
from ddp_invariants.situations import from_plain

STATE = pytest.StashKey["SessionState"]()
"""The stash key of the session's state."""

STATUS = pytest.StashKey[int]()
"""The stash key of the session's exit status, as known so far."""

ENTERED_JOB = pytest.StashKey[bool]()
"""The stash key that is set if the session itself entered a launcher's job."""

COMMAND = pytest.StashKey[str]()
"""The stash key of the user's command, if it was not pytest; repeat lines begin with it."""

TYPED = pytest.StashKey[str]()
"""The stash key of the same command with all its words, as a certificate shows it."""


class SessionState:
    """This process's state of the session.

    The main process holds the hosts. Every process that runs tests holds a trial.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ledger = Ledger()
        self.hosts: Hosts | job.Cluster | None = None
        self.passing_failures: list[violation.StoredViolation] = []
        self.stored_probes: dict[str, str] = {}
        self.trial: Trial | None = None
        self.monitor: Monitor | None = None
        self.progress: ProgressSender | None = None
        self.differences: tuple[Unsettled, ...] = ()
        worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.is_worker = worker_input is not None
        if worker_input is not None:
            self.shared: dict[str, Any] = worker_input["ddp_invariants"]
            config.option.max_world_size = self.shared["max_world_size"]
            if self.shared["listener"]:
                self.progress = ProgressSender(
                    self.shared["listener"], worker_input["workerid"], self.shared["key"]
                )
            return
        option = config.option
        given = option.seed
        self.shared = {
            "seed": secrets.randbelow(2**31) if given is None else given,
            "seed_given": given is not None,
            "command": config.stash.get(COMMAND, f"pytest {self._properties()}"),
            "max_world_size": option.max_world_size,
            "journal": "",
            "listener": "",
            "bounded": f"--max-world-size {option.max_world_size}",
        }

    def begin(self) -> None:
        """In the main process, start the hosts and discover the implementation's capabilities.

        Raises:
            LoadFailure: It cannot be tested.
            HarnessError: The harness failed.
        """
        option = self.config.option
        self._open_journal()
        ddp, sampler = named(vars(option))
        on_cpu = self.backend.device == "cpu"
        module = shipped_module(ddp.name, sampler.name) if on_cpu else ""
        self.hosts = job.led() or Hosts(module=module)
        self.shared["addresses"] = self.hosts.addresses
        with Pool(self.hosts.addresses, self.deadline, self.backend) as pool:
            led = job.led()
            device_infos = pool.device_infos(1 if led is None else led.job.world_size)
            self.shared["torch"], self.shared["not_run"] = (
                device_infos[0].torch,
                backends.not_run(self.backend, device_infos),
            )
            if self.shared["not_run"]:
                return
            most, reason = backends.bound(self.backend, device_infos) or (option.max_world_size, "")
            if most < option.max_world_size:
                self.shared["max_world_size"], self.shared["bounded"] = most, reason
                option.max_world_size = most
            # A stored case may be of either side.
            sides = probe.SIDES if option.replay else selection.sides(self.config)
            discovered = probe.discover(
                pool,
                ddp,
                sampler,
                option.max_world_size,
                [Path(item) for item in option.deviations],
                sides=sides,
            )
        if not (discovered.not_simulated or self._real_only or option.world_size_given):
            option.max_world_size = max(option.max_world_size, SIMULATED_WORLD_SIZE)
            self.shared["max_world_size"] = option.max_world_size
        if discovered.claims_refused():
            raise LoadFailure(f"{ddp}: {discovered.claims_refused()[0]}")
        if discovered.stale():
            raise LoadFailure(f"{ddp}: {discovered.stale()[0]}")
        self.shared["discovery"] = result.to_plain(discovered)
        self.shared["first"] = discovered.broken if option.maxfail else ""
        self.monitor = Monitor(
            self._settings(),
            output_files(self.config),
            lambda: self.trial.ledger if self.trial is not None else None,
        )
        self.shared["listener"] = self.monitor.listener.address

    def _settings(self) -> SessionSettings:
        """Return the settings of the session, as a certificate shows them."""
        option = self.config.option
        invoked = shlex.join(["pytest", *map(str, self.config.invocation_params.args)])
        return SessionSettings(
            self.config.stash.get(TYPED, invoked),
            self.shared["seed"],
            cases_per_property(option),
            option.max_world_size,
            option.isolation,
            str(self.backend),
            "" if self.split.is_whole else str(self.split),
        )

    def _open_journal(self) -> None:
        """Open a journal of judged cases if the launcher may restart the job."""
        led = job.led()
        if led is None or not led.job.most_restarts:
            return
        folder = FOLDER / f"job-{hashlib.blake2b(led.job.run.encode(), digest_size=4).hexdigest()}"
        self.shared["seed"] = journal.begin(folder, led.job.restarts, self.shared["seed"])
        self.shared["journal"] = str(folder)

    def close_journal(self, status: int) -> None:
        """Delete the journal if the launcher will not restart the job."""
        led = job.led()
        if (
            led is not None
            and self.shared["journal"]
            and (not status or led.job.restarts >= led.job.most_restarts)
        ):
            shutil.rmtree(self.shared["journal"], ignore_errors=True)

    @property
    def journal(self) -> journal.Journal | None:
        """The cases judged before the launcher restarted the job."""
        process = os.environ.get("PYTEST_XDIST_WORKER", "main")
        return (
            journal.Journal(Path(self.shared["journal"]), process)
            if self.shared["journal"]
            else None
        )

    @property
    def options(self) -> Options:
        """The trial's options, from the command line."""
        option = self.config.option
        names = [options(*self.under_test)] if options(*self.under_test) else []
        names += [f"--declare {shlex.quote(option.declare)}"] if option.declare else []
        names += [self.backend.options] if self.backend.options else []
        names += [f"--deadline {option.deadline}"] if option.deadline else []
        return Options(
            cases=self.split.cases(cases_per_property(option)),
            seed=self.shared["seed"],
            split=self.split,
            isolation=option.isolation,
            replay=None if option.replay is None else reading.read(Path(option.replay)),
            store=FOLDER,
            database=None if self.shared["seed_given"] else EXAMPLES / "cases",
            command=" ".join([self.shared["command"], *names]),
            journal=self.journal,
            broken=self.discovery.broken,
            suspects=suspects(self.discovery, option.max_world_size),
        )

    def _properties(self) -> str:
        """Return the path of the properties from the folder in which pytest was started.

        They are the suite's properties, or the user's own.
        """
        packaged, here = self.config.rootpath / "properties", self.config.invocation_params.dir
        own = [
            arg
            for arg in self.config.args
            if packaged not in (path := here / arg.split("::")[0], *path.parents)
        ]
        if own and self.config.args_source is pytest.Config.ArgsSource.ARGS:
            return shlex.join(own)
        return shlex.quote(os.path.relpath(packaged, here) + "/")

    @property
    def under_test(self) -> tuple[Ddp, Sampler]:
        """The named DDP and sampler."""
        return named(vars(self.config.option))

    @property
    def split(self) -> Split:
        """The part of the session that the options ask for."""
        return self.config.option.shard or WHOLE

    @property
    def backend(self) -> backends.Backend:
        """The backend and device the options ask for."""
        return backends.wanted(self.config.option.backend, self.config.option.device)

    @property
    def deadline(self) -> float:
        """Seconds that a case may idle."""
        return float(self.config.option.deadline or DEADLINE)

    @property
    def discovery(self) -> result.Discovery:
        """The capabilities discovered before any property ran; missing if nothing is run."""
        return result.from_plain(self.shared["discovery"])

    @property
    def _real_only(self) -> str:
        """The option or the launcher that wants all cases on real ranks; empty for none."""
        if self.config.option.backend != "auto":
            return f"--backend {self.backend.backend}"
        if self.config.option.isolation == "fresh":
            return "--isolation fresh"
        return "" if job.led() is None else "a launcher started the ranks"

    def start_trial(self) -> Trial:
        """Return this process's trial, started by the first test that asks for one."""
        if self.trial is None:
            scope = replace(
                self.discovery.scope(self.config.option.max_world_size),
                bounded=self.shared["bounded"],
            )
            if self._real_only:
                scope = replace(scope, not_simulated=self._real_only)
            self.trial = Trial(
                Pool(self.shared["addresses"], self.deadline, self.backend),
                UnderTest(*self.under_test, scope),
                self.options,
            )
            if self.progress is not None:
                self.trial.listen = self.progress
        return self.trial

    def junit_properties(self) -> Iterator[tuple[str, str]]:
        """Yield a JUnit file's properties of the whole session."""
        discovered, shared = self.discovery, self.shared
        for side, described in (("ddp", discovered.ddp), ("sampler", discovered.sampler)):
            yield side, f"{described['name']} = {described['target']} ({described['version']})"
        yield from (
            ("ddp-invariants", __version__),
            ("torch", discovered.torch),
            ("seed", str(shared["seed"])),
            ("cases judged", str(self.ledger.cases)),
        )
        yield from ((rule, self.ledger.verdict_of(rule)) for rule in ALL_RULES)

    @property
    def card(self) -> tuple[LevelAccount, ...]:
        """The result of each level, once the session has ended."""
        return card_of(self.ledger, self.discovery)

    def compare_with_plain_torch(self) -> None:
        """Run a case without the suite, too, if a complete session is to write a certificate."""
        monitor = self.monitor
        if (
            monitor is None
            or not monitor.files.certificate
            or not set(ALL_RULES) <= monitor.progress.reported.keys()
            or self.hosts is None
            or job.led() is not None
            or self.backend != backends.ON_THE_CPU
        ):
            return
        scope = self.discovery.scope(self.config.option.max_world_size)
        with Pool(self.hosts.addresses, self.deadline) as pool:
            self.differences = spot_check(pool, self.under_test[0], scope)

    def finish(self, status: int) -> int:
        """End the monitor, write the wanted files, and return the session's exit status.

        The status also covers failures that no test reported.

        Args:
            status: The exit status of pytest.
        """
        if self.shared["not_run"]:
            return INCONCLUSIVE
        if self.monitor is None:
            return status
        option = self.config.option
        # A replay is about its case alone.
        of_probes: list[Unsettled] = (
            [] if option.replay else [*unsettled(self.discovery, option.max_world_size)]
        )
        failures = () if option.replay else (*of_probes, *self.differences)
        self.ledger = self.monitor.finish(self.discovery, failures)
        self.stored_probes = {
            each.capability: self._store(each.case, each.failure).id for each in of_probes
        }
        self.store_passing_failures()
        if self.monitor.interrupted:
            return status
        ended = ending.exit_status(
            status,
            self.ledger,
            () if option.replay else self.card,
            option.level,
            self.monitor.failed_properties,
            other_test_failed=self.monitor.other_test_failed,
        )
        return UNWRITTEN if self.monitor.unwritten and ended != VIOLATED else ended

    def store_passing_failures(self) -> None:
        """Store the first failure of each rule that failed and of which no violation is reported.

        It may be all that is ever seen of it. A replay is about its rule alone.
        """
        if self.config.option.replay and any(
            entry.confirmed for entry in self.ledger.entries.values()
        ):
            return
        for entry in self.ledger.entries.values():
            if entry.seen and entry.first_failure and not entry.confirmed:
                case, failure = (
                    from_plain(entry.first_failure["case"]),
                    Failure(**entry.first_failure["failure"]),
                )
                self.passing_failures.append(self._store(case, failure))

    def _store(self, case: Case, failure: Failure) -> violation.StoredViolation:
        """Store a failure that was seen and not confirmed; a confirmed one is kept."""
        stored = violation.of(
            case, failure, *self.under_test, confirmed=(0, 0), evidence=None, repeat=""
        )
        repeat = f"ddp-invariants replay {stored.id} {self.backend.options}".rstrip()
        stored = replace(stored, repeat=repeat)
        path = FOLDER / f"{stored.id}.json"
        if not violation.is_stored(path):
            violation.try_to_write(stored, path)
        return stored

    def close(self) -> None:
        """End everything this process started."""
        if self.trial is not None:
            self.trial.pool.close()
            self.ledger.merge(self.trial.ledger)
            if self.monitor is not None:
                self.monitor.add_ledger("", self.trial.ledger)
            self.trial = None
        if self.hosts is not None:
            self.hosts.close()
            self.hosts = None


def results_of(config: pytest.Config) -> tuple[Ledger, result.Discovery] | None:
    """Return the ledger and the discovery of a session that has ended; None if it never began."""
    return (
        (config.stash[STATE].ledger, config.stash[STATE].discovery)
        if STATE in config.stash
        else None
    )
