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
from ddp_invariants.cases.case import from_plain
from ddp_invariants.discovery import probe
from ddp_invariants.discovery.scope import OnTrial
from ddp_invariants.errors import LoadFailure
from ddp_invariants.implementation.spec import Ddp, Sampler, named, options
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes import backends, job
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records import reading, violation
from ddp_invariants.records.verdict import Failure
from ddp_invariants.search import journal
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.search.trial import Options, Trial
from ddp_invariants.session.monitor import Monitor, SessionSettings
from ddp_invariants.session.outputs import Wanted
from ddp_invariants.session.progress import ProgressSender

PROFILES = {"quick": 30, "default": 100, "thorough": 1000}
"""Cases per property."""


MAX_WORLD_SIZE = 4
"""Largest world size drawn, where no launcher and no option says otherwise."""


_KEY = pytest.StashKey["Session"]()


_STATUS = pytest.StashKey[int]()


_ENTERED = pytest.StashKey[bool]()


COMMAND = pytest.StashKey[str]()
"""In a session's stash, how the user started it where that was not as pytest: a line that repeats a violation begins so."""


class Session:
    """What this process holds for the session: the main process the hosts, whoever runs tests a trial."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ledger = Ledger()
        self.hosts: Hosts | job.Cluster | None = None
        self.sighted: list[violation.StoredViolation] = []
        self.trial: Trial | None = None
        self.monitor: Monitor | None = None
        self.progress: ProgressSender | None = None
        worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.is_worker = worker_input is not None
        if worker_input is not None:
            self.shared: dict[str, Any] = worker_input["ddp_invariants"]
            config.option.max_world_size = self.shared["max_world_size"]
            if self.shared["listener"]:
                self.progress = ProgressSender(self.shared["listener"], worker_input["workerid"])
            return
        option = config.option
        given = option.seed
        self.shared = {
            "seed": secrets.randbelow(2**31) if given is None else given,
            "seed_given": given is not None,
            "command": config.stash.get(COMMAND, f"pytest {self._properties()}"),
            # The root of a session that is not pytest's own is this package's folder, which is not
            # the user's.
            "root": str(
                config.invocation_params.dir if COMMAND in config.stash else config.rootpath
            ),
            "max_world_size": option.max_world_size,
            "journal": "",
            "listener": "",
            "bounded": f"--max-world-size {option.max_world_size}",
        }

    def begin(self) -> None:
        """In the main process: start the hosts and find out what is on trial.

        Raises:
            LoadFailure: It cannot be put on trial.
            HarnessError: The harness failed.
        """
        option = self.config.option
        self._open_journal()
        ddp, sampler = named(vars(option))
        self.hosts = job.led() or Hosts()
        self.shared["addresses"] = self.hosts.addresses
        with Pool(self.hosts.addresses, backend=self.backend) as pool:
            ours = job.led()
            device_infos = pool.device_infos(1 if ours is None else ours.job.world_size)
            self.shared["torch"], self.shared["not_run"] = (
                device_infos[0].torch,
                backends.not_run(self.backend, device_infos[0]),
            )
            if self.shared["not_run"]:
                return
            most, why = backends.bound(self.backend, device_infos) or (option.max_world_size, "")
            if most < option.max_world_size:
                self.shared["max_world_size"], self.shared["bounded"] = most, why
                option.max_world_size = most
            found = probe.discover(
                pool, ddp, sampler, option.max_world_size, [Path(one) for one in option.deviations]
            )
        if found.claims_refused():
            raise LoadFailure(f"{ddp}: {found.claims_refused()[0]}")
        if found.stale():
            raise LoadFailure(f"{ddp}: {found.stale()[0]}")
        self.shared["discovery"] = probe.to_plain(found)
        given = " ".join(
            [self.shared["command"], *(one.options() for one in self.on_trial if one.options())]
        )
        invoked = shlex.join(["pytest", *map(str, self.config.invocation_params.args)])
        words = given if COMMAND in self.config.stash else invoked
        held = SessionSettings(
            words,
            self.shared["seed"],
            option.cases or PROFILES[option.profile],
            option.max_world_size,
            option.isolation,
            str(self.backend),
        )
        self.monitor = Monitor(
            held,
            _wanted(self.config),
            lambda: self.trial.ledger if self.trial is not None else None,
        )
        self.shared["listener"] = self.monitor.listener.address

    def _open_journal(self) -> None:
        """Where the launcher may start the job anew, have what is judged until then known."""
        ours = job.led()
        if ours is None or not ours.job.most_restarts:
            return
        folder = (
            violation.FOLDER
            / f"job-{hashlib.blake2b(ours.job.run.encode(), digest_size=4).hexdigest()}"
        )
        self.shared["seed"] = journal.begin(folder, ours.job.restarts, self.shared["seed"])
        self.shared["journal"] = str(folder)

    def close_journal(self, status: int) -> None:
        """Throw it away where the launcher starts nothing anew."""
        ours = job.led()
        if (
            ours is not None
            and self.shared["journal"]
            and (not status or ours.job.restarts >= ours.job.most_restarts)
        ):
            shutil.rmtree(self.shared["journal"], ignore_errors=True)

    @property
    def journal(self) -> journal.Journal | None:
        """What was judged before the launcher started the job anew."""
        process = os.environ.get("PYTEST_XDIST_WORKER", "main")
        return (
            journal.Journal(Path(self.shared["journal"]), process)
            if self.shared["journal"]
            else None
        )

    @property
    def options(self) -> Options:
        """How the trial is held, from the command line."""
        option, root = self.config.option, Path(self.shared["root"])
        names = [options(*self.on_trial)] if options(*self.on_trial) else []
        names += [f"--declare {shlex.quote(option.declare)}"] if option.declare else []
        names += [self.backend.options] if self.backend.options else []
        return Options(
            cases=option.cases or PROFILES[option.profile],
            seed=self.shared["seed"],
            isolation=option.isolation,
            replay=None if option.replay is None else reading.read(Path(option.replay)),
            store=Path(".ddp-invariants"),
            database=None if self.shared["seed_given"] else root / ".hypothesis" / "ddp-invariants",
            command=" ".join([self.shared["command"], *names]),
            journal=self.journal,
        )

    def _properties(self) -> str:
        """Where the properties are, seen from where pytest was started: the suite's, or somebody's own."""
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
    def on_trial(self) -> tuple[Ddp, Sampler]:
        """What the options name."""
        return named(vars(self.config.option))

    @property
    def backend(self) -> backends.Backend:
        """The backend and device the options ask for."""
        return backends.wanted(self.config.option.backend, self.config.option.device)

    @property
    def discovery(self) -> probe.Discovery:
        """What was found out about it before any property ran; there is none where none is run."""
        return probe.from_plain(self.shared["discovery"])

    def start_trial(self) -> Trial:
        """This process's trial, started by the first test that asks for one."""
        if self.trial is None:
            scope = replace(
                self.discovery.scope(self.config.option.max_world_size),
                bounded=self.shared["bounded"],
            )
            self.trial = Trial(
                Pool(self.shared["addresses"], backend=self.backend),
                OnTrial(*self.on_trial, scope),
                self.options,
            )
            if self.progress is not None:
                self.trial.listen = self.progress
        return self.trial

    def properties(self) -> Iterator[tuple[str, str]]:
        """What a JUnit file says of the whole session."""
        found, shared = self.discovery, self.shared
        for side, described in (("ddp", found.ddp), ("sampler", found.sampler)):
            yield side, f"{described['name']} = {described['target']} ({described['version']})"
        yield from (
            ("ddp-invariants", __version__),
            ("torch", found.torch),
            ("seed", str(shared["seed"])),
            ("cases judged", str(self.ledger.cases)),
        )
        yield from ((rule, self.ledger.said(rule)) for rule in ALL_RULES)

    def keep_sightings(self) -> None:
        """Store what was seen in passing, where no test of the session tells of a breach: it may be all that ever shows."""
        entries = self.ledger.entries.values()
        if any(entry.confirmed for entry in entries):
            return
        for entry in entries:
            if entry.seen and entry.sighted:
                case, failure = (
                    from_plain(entry.sighted["case"]),
                    Failure(**entry.sighted["failure"]),
                )
                stored = violation.of(
                    case, failure, *self.on_trial, confirmed=(0, 0), evidence=None, repeat=""
                )
                stored = replace(
                    stored,
                    repeat=f"ddp-invariants replay {stored.id} {self.backend.options}".rstrip(),
                )
                violation.write(stored, violation.FOLDER / f"{stored.id}.json")
                self.sighted.append(stored)

    def close(self) -> None:
        """End whatever this process started."""
        if self.trial is not None:
            self.trial.pool.close()
            self.ledger.merge(self.trial.ledger)
            if self.monitor is not None:
                self.monitor.take("", self.trial.ledger)
            self.trial = None
        if self.hosts is not None:
            self.hosts.close()
            self.hosts = None


def found(config: pytest.Config) -> tuple[Ledger, probe.Discovery] | None:
    """What came of a session that has ended: its ledger, and what was found out before; None where it never began."""
    return (
        (config.stash[_KEY].ledger, config.stash[_KEY].discovery) if _KEY in config.stash else None
    )


def _wanted(config: pytest.Config) -> Wanted:
    """The files the session is to write."""
    certificate, badge = config.option.certificate, config.option.badge
    return Wanted(Path(certificate) if certificate else None, Path(badge) if badge else None)
