"""Fixtures of the suite's own tests."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import limits
import pytest
import temporary
from hypothesis import settings
from probed import Discover, remembering
from xdist.scheduler import (  # type: ignore[import-untyped]  # it has no marker of types
    LoadScopeScheduling,
)

from ddp_invariants import faults
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.faults.generated.choices import PARTS, Composition
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import DEADLINE, Pool
from ddp_invariants.proof.catalogue import all_entries
from ddp_invariants.search.trial import Options, Trial

ROOT = Path(__file__).parents[1]
HELPERS = ROOT / "tests" / "helpers"
# The time of an example depends on the machine: with two workers on two busy cores, an example of
# one millisecond has taken 350.
settings.register_profile(
    "unhurried", settings.get_profile(settings.get_current_profile_name()), deadline=None
)
settings.load_profile("unhurried")

WHOLE = (
    "tests/quality/test_hostile.py",
    "tests/ranks/test_cluster.py",
    "tests/ranks/test_pool.py",
    "tests/ranks/test_simulated_collectives.py",
    "tests/snapshots/test_package.py",
    "tests/snapshots/test_page.py",
    "tests/snapshots/test_permissions.py",
    "tests/snapshots/test_site.py",
)
"""Files whose tests share hosts, a wheel, a site or a browser: two workers would make each of them twice."""


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]  # the same
    """A scheduler that gives a whole file of `WHOLE` to one worker, and other tests one by one.

    The whole files come first, so that no worker is alone with one of them at the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in WHOLE else nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Limit the time of each test, and keep temporary files together."""
    config.pluginmanager.register(temporary)
    config.pluginmanager.register(limits)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return three workers for two cores.

    The tests wait for a fifth of the time: for a deadline, a signal or the end of a process.
    """
    del config
    return max(2, 3 * len(os.sched_getaffinity(0)) // 2)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler | None:
    """Return this suite's scheduler, unless the user names another one."""
    return Scheduler(config, log) if config.getvalue("dist") == "load" else None


MODULES = ("starts", "bucketed", "timing", "strided", "buffers")
"""The modules with planted faults of the reference."""


def composed(choices: str) -> Ddp:
    """Return a right wrapper that is composed of choices, one name each."""
    composition = Composition("ddp", tuple(choices.split()))
    return Ddp(PARTS["ddp"].target, composition.host_arguments)


def fault_of(name: str) -> str:
    """Return the file name of a planted fault of the reference, such as `path/to/timing.py:NoWait`.

    The two implementations of `unjudged.py`, which cannot be judged, are named in the same way.
    """
    if name in ("RaisesOnWrap", "TrainsACopy"):
        return str(HELPERS / "unjudged.py") + f":{name}"
    host = next(
        (entry.module for entry in all_entries() if entry.name == name and entry.module in MODULES),
        "bucketed",
    )
    return str(Path(faults.__path__[0]) / f"{host}.py:{name}")


@pytest.fixture(scope="session")
def pool(host_addresses: list[str]) -> Iterator[Pool]:
    """Yield a pool of ranks for the tests of this worker."""
    with Pool(host_addresses) as pool:
        pool.limit(DEADLINE)
        yield pool


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the workers of this run store the results of probing."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "probed"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def discovered(host_addresses: list[str], probed: Path) -> Discover:
    """Return `discover`, which reuses what another test has probed before."""
    return remembering(probed, host_addresses)


Run = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Yield a function that runs a script and returns its exit status and output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    with subprocess.Popen(
        [sys.executable, str(HELPERS / "scripts.py")],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:

        def run_one(text: str) -> tuple[int, str]:
            path = tmp_path_factory.mktemp("script") / "repro.py"
            path.write_text(text)
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(f"{path}\n")
            server.stdin.flush()
            status, output = json.loads(server.stdout.readline())
            return status, output

        yield run_one
        assert server.stdin is not None
        server.stdin.close()


Session = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def serving(
    probed: Path, addresses: Sequence[str], before: Sequence[str] = ()
) -> Iterator[Session]:
    """Start a server of sessions, and yield a function that runs a module as `python -m` does.

    Args:
        probed: The folder with the results of probing.
        addresses: The hosts of the sessions (see sessions.py); empty for hosts of the server's own.
        before: A program that starts the server, with its arguments.
    """
    command = [*before, sys.executable, str(HELPERS / "sessions.py"), str(probed), *addresses]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def run(
            module: str,
            *arguments: str,
            at: Path = ROOT,
            environment: dict[str, str] | None = None,
            seconds: int = 180,
        ) -> subprocess.CompletedProcess[str]:
            request = {
                "module": module,
                "arguments": arguments,
                "folder": str(at),
                "seconds": seconds,
                "environment": {
                    **(os.environ if environment is None else environment),
                    "PYTHONPATH": str(ROOT),
                },
            }
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            return subprocess.CompletedProcess(
                [module, *arguments], *json.loads(answers.readline())
            )

        yield run
        requests.close()


@pytest.fixture(scope="session")
def session(host_addresses: list[str], probed: Path) -> Iterator[Session]:
    """Yield a function that runs a module with arguments as `python -m` does, only faster.

    The module runs on the hosts of this worker (see sessions.py). Do not use this fixture for a
    module that starts hosts, ends by a signal, or needs more on its import path.
    """
    with serving(probed, host_addresses) as run:
        yield run


TrialMaker = Callable[..., Trial]


@pytest.fixture
def make_trial(pool: Pool, discovered: Discover, tmp_path: Path) -> Iterator[TrialMaker]:
    """Yield a maker of trials of other implementations than the session's.

    Each test stores violations in a folder of its own; seeds are fixed.
    """
    deadline = pool.deadline

    def make(
        ddp: str | Ddp = "reference",
        sampler: str | Sampler = "reference",
        *,
        cases: int = 100,
        seed: int = 0,
        scope: Scope | None = None,
    ) -> Trial:
        named = (
            (Ddp(ddp) if isinstance(ddp, str) else ddp),
            (Sampler(sampler) if isinstance(sampler, str) else sampler),
        )
        scope = scope or discovered(pool, *named, 4).scope(4)
        return Trial(
            pool, UnderTest(*named, scope), Options(cases=cases, seed=seed, store=tmp_path)
        )

    yield make
    pool.deadline = deadline
