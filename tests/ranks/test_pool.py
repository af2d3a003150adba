"""Tests of the processes: whatever happens, nothing is left behind, hangs or leaks."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from conftest import fault_of
from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.errors import HarnessError, LoadFailure
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.processes.hosts import HASH_SEEDS
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import ShardEvidence

CASE = TrainingCase(
    model=Model(2, (Layer("linear", 3, bias=True),)),
    world_size=3,
    steps=2,
    data=Data(samples=6, batch_size=2),
)

CONTROLLER = """
import sys, time
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
if __name__ == "__main__":
    hosts = Hosts()
    pool = Pool(hosts.addresses)
    case = TrainingCase(model=Model(1, (Layer("linear"),)), world_size=3)
    pool.train(case, Ddp())
    print("ready", flush=True)
    while True:
        pool.train(case, Ddp())
"""


@pytest.fixture(scope="module")
def pool(host_addresses: list[str]) -> Iterator[Pool]:
    """Yield a pool for these tests alone.

    The session's pool renews its ranks every few hundred cases, and some of these tests would
    notice.
    """
    with Pool(host_addresses) as pool:
        yield pool


def descriptors() -> list[str]:
    """Return this process's open descriptors."""
    return sorted(str(path) for path in Path("/proc/self/fd").iterdir())


def descendants(pid: int) -> list[psutil.Process]:
    """Return all processes below a process."""
    below: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return below


def still_running(processes: list[psutil.Process], within: float) -> list[psutil.Process]:
    """Return the processes that still run after a while.

    A process that has ended and waits for its new parent does not count.
    """
    until = time.monotonic() + within
    alive = processes
    while alive and time.monotonic() < until:
        alive = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.01)
    return alive


@pytest.mark.parametrize(
    "delay", [0.0, 0.02, *(pytest.param(delay, marks=pytest.mark.long) for delay in (0.05, 0.2))]
)
def test_no_rank_outlives_a_controller_that_is_killed(delay: float) -> None:
    """SIGKILL to the controller, at any moment of a case, soon ends its hosts and ranks.

    On a quiet machine this takes less than a second, at each of fifty moments, and
    `benchmarks/endurance.py` requires it. Here other tests run at the same time.
    """
    with subprocess.Popen([sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"ready\n"
        below = descendants(controller.pid)
        assert len(below) == 5, below
        time.sleep(delay)
        controller.kill()
        assert still_running(below, within=5.0) == []


def test_closing_a_pool_ends_its_ranks_and_closes_its_descriptors(
    host_addresses: list[str],
) -> None:
    """A pool that is closed gives back every process and descriptor that it took."""
    before = descriptors()
    with Pool(host_addresses) as pool:
        pool.train(CASE, Ddp())
        pids = [process.pid for process in pool.processes.running.values()]
        assert len(pids) == 3
    assert not any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        for pid in pids
    )
    assert descriptors() == before


def test_a_rank_that_is_ended_twice_closes_no_descriptor_of_others(pool: Pool) -> None:
    """A pool that is closed while a thread uses it ends its ranks twice."""
    process = pool.processes.host(0).start(0)
    process.retire()
    others = [os.memfd_create("other") for _ in range(8)]  # They take over the numbers.
    process.retire()
    for descriptor in others:
        os.close(descriptor)


def test_a_rank_that_is_killed_from_outside_is_a_verdict_and_is_replaced(pool: Pool) -> None:
    """LIVE-1 names a killed rank and the signal, and the next case is judged as usual."""
    pool.train(CASE, Ddp())
    os.kill(pool.processes.running[1].pid, signal.SIGKILL)
    failure = judge(pool.train(CASE, Ddp()))["LIVE-1"].failure
    assert failure is not None
    assert "rank 1 was ended by SIGKILL" in failure.got
    findings = judge(pool.train(CASE, Ddp()))
    assert findings["LIVE-1"].failure is None
    assert findings["GRAD-2"].compared > 0


def test_a_rank_that_is_stopped_is_a_hang_with_stacks_within_the_deadline(pool: Pool) -> None:
    """A rank that SIGSTOP holds is a hang, and the other ranks' stacks show that they wait."""
    pool.train(CASE, Ddp())
    os.kill(pool.processes.running[2].pid, signal.SIGSTOP)
    before, pool.deadline = pool.deadline, 1.0
    started = time.monotonic()
    try:
        evidence = pool.train(CASE, Ddp())
    finally:
        pool.deadline = before
    assert time.monotonic() - started < 3.0
    assert evidence.incident is not None
    assert evidence.incident.kind == "hung"
    assert "ddp.py" in evidence.incident.stacks[0]
    assert judge(pool.train(CASE, Ddp()))["LIVE-1"].failure is None


def test_quiet_ranks_are_kept_and_loud_ones_replaced(pool: Pool) -> None:
    """A case that leaves its connections as they were keeps its processes; a hang does not."""
    pool.train(CASE, Ddp())
    pids = [process.pid for process in pool.processes.running.values()]
    pool.train(CASE, Ddp("torch"))
    assert [process.pid for process in pool.processes.running.values()] == pids
    pool.train(CASE, Ddp(fault_of("NoWait")))
    pool.train(CASE, Ddp())
    before, pool.deadline = pool.deadline, 1.0
    evidence = pool.train(CASE, Ddp(fault_of("HangsOnThree")))
    pool.deadline = before
    assert evidence.incident is not None
    pool.train(CASE, Ddp())
    assert not {process.pid for process in pool.processes.running.values()} & set(pids)


def test_ranks_have_different_hash_seeds_like_under_a_launcher(pool: Pool) -> None:
    """Neighbouring ranks come from hosts with different values of PYTHONHASHSEED."""
    pool.train(CASE, Ddp())
    seeds = [
        psutil.Process(pool.processes.running[rank].pid).environ()["PYTHONHASHSEED"]
        for rank in (0, 1)
    ]
    assert seeds[0] != seeds[1]


def test_the_hash_seeds_order_names_of_a_layer_otherwise() -> None:
    """A set of a weight and a bias has another order on the next rank, whichever layer it is."""
    pairs = [(f"layers.{layer}.weight", f"layers.{layer}.bias") for layer in range(6)]
    orders = [
        subprocess.run(
            [sys.executable, "-S", "-c", f"print([next(iter({{*pair}})) for pair in {pairs}])"],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in HASH_SEEDS
    ]
    first, second = map(ast.literal_eval, orders)
    assert len(first) == len(pairs)
    assert not [name for name, other in zip(first, second, strict=True) if name == other]


def test_hundreds_of_cases_leave_memory_threads_and_descriptors_as_they_were(pool: Pool) -> None:
    """Over hundreds of cases, threads and descriptors do not grow, and memory hardly grows."""
    for _ in range(50):
        pool.train(CASE, Ddp())
    ranks = [psutil.Process(process.pid) for process in pool.processes.running.values()]
    before = [(p.num_threads(), p.num_fds(), p.memory_info().rss) for p in ranks]
    for _ in range(200):
        pool.train(CASE, Ddp())
    after = [(p.num_threads(), p.num_fds(), p.memory_info().rss) for p in ranks]
    for (threads, fds, rss), (threads_then, fds_then, rss_then) in zip(before, after, strict=True):
        assert threads_then <= threads
        assert fds_then <= fds
        assert rss_then - rss < 4 * 2**20


def test_no_temporary_file_is_made(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores and outputs are anonymous, so no temporary file can be left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(Path("/tmp").iterdir())
    pool.train(CASE, Ddp(), fresh=True)
    new = {path.name for path in set(Path("/tmp").iterdir()) - before}
    assert not {name for name in new if "ddp" in name or "store" in name}
    assert list(tmp_path.iterdir()) == []


BAD_NAMES = [
    (
        "nonsense",
        "--ddp nonsense: expected reference, torch, accelerate, ",
    ),
    ("no_such_package.ddp:DDP", "there is no module 'no_such_package'"),
    ("torch.nn:DPD", "torch.nn has no 'DPD'"),
    ("no/such/file.py:DDP", "there is no file no/such/file.py"),
    ("math:pi", "it is a float, expected a class or function"),
]


@pytest.mark.parametrize(("name", "message"), BAD_NAMES)
def test_a_bad_name_gets_one_sentence(pool: Pool, name: str, message: str) -> None:
    """A bad name gets one sentence that names the mistake and the remedy."""
    with pytest.raises(LoadFailure) as raised:
        pool.describe(Ddp(name))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


IMPORTS = [
    ("raise ValueError('broken')", "raised ValueError: broken"),
    ("import no_such_dependency", "needs the module 'no_such_dependency', which is missing"),
    ("import mine.part", "mine.py hides a package of its own name, so rename the file"),
    ("raise SystemExit(3)", "raised SystemExit: 3"),
    ("import os; os._exit(7)", "ended with exit status 7"),
    ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
    ("class DDP:\n    def __init__(self): ...", "it takes no argument, expected the module"),
    ("class DDP:\n    def __init__(self, module, rank_list): ...", "it requires rank_list"),
    (
        "class DDP:\n    declares = {'init': 'magic'}\n    def __init__(self, module): ...",
        "it declares init = 'magic'",
    ),
]


@pytest.mark.parametrize(("source", "message"), IMPORTS, ids=[message for _, message in IMPORTS])
def test_a_module_that_fails_to_import_in_a_rank_gets_one_sentence(
    pool: Pool, tmp_path: Path, source: str, message: str
) -> None:
    """A module that fails during its import gets one sentence, whatever it does."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(LoadFailure) as raised:
        pool.describe(Ddp(f"{path}:DDP"))
    assert message in str(raised.value)
    assert pool.describe(Ddp())


def test_a_module_that_hangs_when_imported_gets_one_sentence(pool: Pool, tmp_path: Path) -> None:
    """A module that hangs when imported gets one sentence, after the time that loading may take.

    The pool goes on afterwards.
    """
    path = tmp_path / "mine.py"
    path.write_text("while True: pass")
    before, pool.patience_for_loading = pool.patience_for_loading, 1.0
    try:
        with pytest.raises(LoadFailure, match="gave no answer within"):
            pool.describe(Ddp(f"{path}:DDP"))
    finally:
        pool.patience_for_loading = before
    assert pool.describe(Ddp())


def test_a_sampler_is_asked_in_two_processes(pool: Pool) -> None:
    """A sampler runs in two processes, and a right sampler answers alike in both."""
    evidence = pool.shards(
        ShardCase(world_size=2, data=Data(samples=20, shuffle=True)), Sampler("torch")
    )
    assert len(evidence.answers) == 2
    assert evidence.answers[0]["shards"] == evidence.answers[1]["shards"]


def test_a_frame_that_makes_no_sense_is_a_dead_rank_never_a_crash(
    pool: Pool, tmp_path: Path
) -> None:
    """An implementation that writes to the harness's socket is a dead rank, never a crash."""
    path = tmp_path / "liar.py"
    path.write_text("""
import os, socket
from torch import nn
class DDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for fd in range(3, 64):
            try:
                s = socket.socket(fileno=os.dup(fd))
                s.send(b"\\xff" * 64)
            except OSError:
                pass
    def forward(self, x):
        return self.module(x)
""")
    evidence = pool.train(CASE, Ddp(f"{path}:DDP"))
    assert evidence.incident is not None
    assert judge(pool.train(CASE, Ddp()))["LIVE-1"].failure is None


def test_a_long_dataset_and_many_ranks_have_more_time(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that needs seconds for a million samples, or for a thousand ranks, is only slow."""
    given: list[float] = []
    ask = pool._shards

    def shards(case: ShardCase, sampler: Sampler, patience: float, *, fresh: bool) -> ShardEvidence:
        given.append(patience)
        small = replace(case, data=Data(samples=4), world_size=2)
        return ask(small, sampler, patience, fresh=fresh)

    monkeypatch.setattr(pool, "_shards", shards)
    for samples, ranks in ((4, 2), (199_998, 1), (999_971, 2), (1027, 1027)):
        pool.shards(ShardCase(ranks, Data(samples=samples)), Sampler(), patience=3.0)
    assert given == [3.0, 3.0, 30.0, 33.0]


@pytest.mark.parametrize("ends", [True, False])
def test_a_rank_that_cannot_connect_to_an_ended_rank_is_lost_with_it(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """The death is the incident. A rank that cannot connect to living ranks is a failing harness."""
    # The error of a store with no address stands for that of a group, which takes long to fail.
    monkeypatch.setattr("ddp_invariants.processes.answers._OF_CONNECTIONS", ("OSError",))
    ranks = pool.processes
    asked = {rank: {"do": "keep", "address": "no such address"} for rank in (0, 1)}
    ranks.retire()
    ranks.process(1)
    if ends:
        ranks.running[1].signal(signal.SIGKILL)
        answers = ranks.ask(asked, 20.0)
        assert answers.by_rank == {}
        assert answers.incident is not None
        assert (answers.incident.kind, [*answers.incident.ranks]) == ("died", [1])
        ranks.retire()
    else:
        with pytest.raises(HarnessError, match="no such address"):
            ranks.ask(asked, 20.0)
