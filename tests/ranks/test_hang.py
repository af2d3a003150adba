"""Tests of the watch over silent ranks, with real processes that wait, sleep or loop."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes import threads
from ddp_invariants.processes.pool import DEADLINE, Pool
from ddp_invariants.records.evidence import Incident

CASE = TrainingCase(model=Model(1, (Layer("linear"),)), world_size=3)

WRAPPERS = """
import os, subprocess, sys, threading, time
import torch.distributed as dist
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

class Wrapper(Reference):
    def _launch(self, bucket):
        if dist.get_rank() == 1:
            self.delay()
        super()._launch(bucket)

class Locks(Wrapper):
    def delay(self):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

class Loops(Wrapper):
    def delay(self):
        while True:
            pass

class SleepsForEver(Wrapper):
    def delay(self):
        time.sleep(1000)

class Sleeps(Wrapper):
    def delay(self):
        time.sleep(1.5)

class WaitsForATime(Wrapper):
    def delay(self):
        threading.Event().wait(1.5)

class WaitsForASleeper(Wrapper):
    def delay(self):
        woken = threading.Event()
        threading.Timer(1.5, woken.set).start()
        woken.wait()

class WaitsForAProgram(Wrapper):
    def delay(self):
        program = subprocess.Popen(["sleep", "1.5"])
        waiter = threading.Thread(target=program.wait)
        waiter.start()
        waiter.join()

class SetsAnAlarm(Wrapper):
    def delay(self):
        import signal
        before = signal.signal(signal.SIGALRM, self.wake)
        signal.setitimer(signal.ITIMER_REAL, 1.5)
        try:
            threading.Event().wait()
        except InterruptedError:
            pass
        signal.signal(signal.SIGALRM, before)
    def wake(self, *_):
        raise InterruptedError

class Builds(Wrapper):
    def delay(self):
        burn = "import time; [0 for _ in iter(lambda: time.process_time() < 1, False)]"
        subprocess.run([sys.executable, "-c", burn], check=True)

class Compiles(Wrapper):
    def delay(self):
        until = time.process_time() + 1
        while time.process_time() < until:
            pass

class CompilesOnce(Compiles):
    once = True
    def delay(self):
        if CompilesOnce.once:
            super().delay()
        CompilesOnce.once = False

class Imports(Wrapper):
    def __init__(self, module):
        import slow
        super().__init__(module)
    def delay(self):
        pass

class WaitsForADaemon(Wrapper):
    def delay(self):
        subprocess.run(["sleep", "1000"])

class Raises(Wrapper):
    def delay(self):
        raise ValueError("on one rank")

class DiesBesideLocks(Locks):
    def _launch(self, bucket):
        if dist.get_rank() == 1:
            os._exit(3)
        self.delay()
"""


@pytest.fixture(scope="module")
def wrappers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of the implementations above."""
    path = tmp_path_factory.mktemp("hang") / "wrappers.py"
    path.write_text(WRAPPERS)
    path.with_name("slow.py").write_text("import time\ntime.sleep(0.8)\n")
    return str(path)


@pytest.fixture(scope="module")
def pool(host_addresses: list[str]) -> Iterator[Pool]:
    """Yield a pool for these tests alone, since they change its deadline."""
    with Pool(host_addresses) as pool:
        pool.limit(DEADLINE)
        yield pool


def ran(pool: Pool, name: str, *, observed: bool = True) -> tuple[Incident | None, float]:
    """Return the incident of a case in running processes, and the seconds it took."""
    if observed:
        pool.train(CASE, Ddp())
    pool.train(CASE, Ddp(name.partition(":")[0] + ":Reference"))
    started = time.monotonic()
    evidence = pool.train(CASE, Ddp(name), observed=observed)
    return evidence.incident, time.monotonic() - started


@pytest.mark.parametrize("observed", [True, False])
def test_a_rank_that_waits_for_ever_is_known_at_once(
    pool: Pool, wrappers: str, *, observed: bool
) -> None:
    """A deadlock is reported long before the deadline, on plain groups too."""
    incident, _ = ran(pool, f"{wrappers}:Locks", observed=observed)
    assert incident is not None
    assert incident.kind == "hung"
    assert incident.seconds < 2.0
    assert set(incident.ranks) == {0, 1, 2}
    assert incident.seen == "every thread waits, and none can wake another"
    failure = judge(pool.train(CASE, Ddp()))["LIVE-1"].failure
    assert failure is None


def test_ranks_that_wait_for_one_that_raised_are_known_at_once(pool: Pool, wrappers: str) -> None:
    """Ranks whose peer has raised, and waits for the next request, can never run again."""
    incident, _ = ran(pool, f"{wrappers}:Raises")
    assert incident is not None
    assert set(incident.ranks) == {0, 2}
    assert incident.seconds < 1.9
    assert incident.seen


def test_ranks_that_wait_beside_one_that_died_are_known_at_once(pool: Pool, wrappers: str) -> None:
    """A rank that has died wakes nobody, and need not be looked at."""
    incident, _ = ran(pool, f"{wrappers}:DiesBesideLocks")
    assert incident is not None
    assert incident.kind == "died"
    assert incident.ranks[1] == "ended with exit status 3"
    assert {*incident.ranks} == {0, 1, 2}
    assert incident.seconds < 1.9
    assert incident.seen == "every thread waits, and none can wake another"


@pytest.mark.parametrize(
    "name", ["Sleeps", "WaitsForATime", "WaitsForASleeper", "WaitsForAProgram", "SetsAnAlarm"]
)
def test_ranks_that_go_on_by_themselves_do_not_hang(pool: Pool, wrappers: str, name: str) -> None:
    """A sleep, a wait with a timeout, a timer, a program and an alarm all end, so the ranks do."""
    incident, seconds = ran(pool, f"{wrappers}:{name}")
    assert incident is None
    assert seconds > 1.4


@pytest.mark.parametrize(
    ("name", "least", "most"), [("Loops", 0.9, 20.0), ("SleepsForEver", 0.0, 0.5)]
)
def test_a_rank_that_loops_or_sleeps_meets_the_deadline(
    pool: Pool, wrappers: str, monkeypatch: pytest.MonkeyPatch, name: str, least: float, most: float
) -> None:
    """Code that loops or sleeps for ever ends at the deadline, and the report tells them apart."""
    monkeypatch.setattr(pool, "deadline", 1.0)
    incident, _ = ran(pool, f"{wrappers}:{name}")
    assert incident is not None
    assert incident.seconds > 0.9
    words = incident.seen.removeprefix("the busiest thread ran for ").removesuffix(" s")
    assert least <= float(words) <= most


@pytest.mark.parametrize("name", ["Builds", "CompilesOnce", "Imports"])
def test_a_rank_that_builds_compiles_or_imports_is_busy(
    host_addresses: list[str], wrappers: str, name: str
) -> None:
    """Work that takes more than the deadline is no hang, nor is it in later new processes."""
    ddp = Ddp(f"{wrappers}:{name}")
    with Pool(host_addresses, deadline=0.4) as pool:
        assert pool.train(CASE, ddp).incident is None
        assert pool.train(CASE, ddp, fresh=True).incident is None


def test_a_program_of_a_rank_is_waited_for_in_every_case(
    pool: Pool, wrappers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that starts in a later case is waited for, too; a loop of a rank is not."""
    monkeypatch.setattr(pool, "deadline", 0.4)
    assert pool.train(CASE, Ddp(f"{wrappers}:Builds")).incident is None
    incident = pool.train(CASE, Ddp(f"{wrappers}:Compiles")).incident
    assert incident is not None
    assert incident.seen.startswith("the busiest thread ran for ")


def test_a_program_that_is_killed_with_its_rank_is_named(
    pool: Pool, wrappers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that waits for an idle program hangs, and the report names the program."""
    monkeypatch.setattr(pool, "deadline", 0.3)
    incident, _ = ran(pool, f"{wrappers}:WaitsForADaemon")
    assert incident is not None
    assert "programs that ranks started have not ended: sleep (waited 0.0 s" in incident.seen


def test_an_overloaded_machine_accuses_nobody(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right implementation does not hang under a deadline that a busy machine exceeds."""
    monkeypatch.setattr(pool, "deadline", 0.5)
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        incidents = [pool.train(CASE, Ddp()).incident for _ in range(20)]
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert incidents == [None] * 20


def test_a_process_that_is_gone_or_hidden_is_told_apart() -> None:
    """A look at an ended process is empty, and it never runs again."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert threads.look(ended.pid) == {}
    assert threads.waits_for_ever(ended.pid, time.monotonic(), answered=False)
