"""Tests of hostile implementations: each gets its verdict, and the next one is judged as usual.

Nothing escapes, and nothing breaks the suite.
"""

import contextlib
import getpass
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from survivors import LOOKS, survivors

from conftest import fault_of
from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import LoadFailure, WireError
from ddp_invariants.export import running
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.processes import wire
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.processes.stillness import PATIENT
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.session import spot_check

PATHS = [str(Path(__file__).parents[1] / folder) for folder in ("quality", "", "helpers")]
"""The folders from which a process of its own imports this module."""
HOSTILE = str(Path(__file__).parents[1] / "helpers" / "hostile.py")
CASE = TrainingCase(
    model=Model(2, (Layer("linear", 3, bias=True),)),
    world_size=2,
    steps=1,
    data=Data(samples=4, batch_size=2),
)
DEADLINE = 1.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the hosts and ranks would use for temporary files."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[Hosts]:
    """Yield hosts for this module alone, so that these tests start every process below them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        hosts = Hosts()
    with hosts:
        yield hosts


@pytest.fixture(scope="module")
def pool(hosts: Hosts) -> Iterator[Pool]:
    """Yield one pool that runs all hostile implementations, one after another."""
    with Pool(hosts.addresses) as pool:
        pool.train(CASE, Ddp())  # This makes the hosts import torch.
        pool.limit(DEADLINE)
        yield pool


def below(hosts: Hosts) -> set[int]:
    """Return the ids of all processes below the hosts."""
    return {
        process.pid
        for host in hosts.pids
        for process in psutil.Process(host).children(recursive=True)
    }


def left_behind(hosts: Hosts, pool: Pool) -> set[int]:
    """Return the processes below the hosts that are no ranks and do not end."""
    ranks = {process.pid for process in pool.processes.running.values()}
    return survivors(lambda: below(hosts) - ranks)


def held() -> tuple[int, int]:
    """Return the controller's descriptor and thread counts."""
    return psutil.Process().num_fds(), threading.active_count()


def memory() -> int:
    """Return the memory that the controller holds, in bytes."""
    return int(psutil.Process().memory_info().rss)


def seen(evidence: TrainingEvidence) -> tuple[str, str]:
    """Return the verdict on a case, and all words that belong to it.

    The verdict is the violated rules, or `unjudged` if LIVE-1 is unjudged, or `right`.
    """
    findings = judge(evidence)
    failures = {
        rule: finding.failure for rule, finding in findings.items() if finding.failure is not None
    }
    words = " ".join(f"{b.fact} {b.got} {b.perhaps} {b.notes}" for b in failures.values())
    if failures:
        return " ".join(sorted(failures)), words
    if findings["LIVE-1"].unjudged:
        return "unjudged", findings["LIVE-1"].unjudged
    assert findings["GRAD-2"].compared > 0
    return "right", " ".join(name for rank in evidence.ranks for name in rank.changed)


HUNG = r"a rank hung.*rank 0 waits in all_reduce #\d.*rank 1 (issued \d|gave no answer)"
DIED = "a rank died.*rank 1 "
LOST = r"a rank died.*rank 0 ended with its host.*\(rank 1 likewise\)"
ALTERED = r"the implementation altered the harness \("
GALLERY = [
    ("LoopsInPython", "LIVE-1", HUNG + ".*in attack"),
    ("LoopsInC", "LIVE-1", HUNG + ".*in attack"),
    ("SleepsWithTheGil", "LIVE-1", HUNG + ".*in attack"),
    ("StopsItself", "LIVE-1", HUNG),
    ("FloodsForEver", "LIVE-1", HUNG + ".*in attack.*flood flood"),
    ("DeafAndLooping", "LIVE-1", HUNG),
    ("DribblesIntoTheSocket", "LIVE-1", "rank 1 issued|rank 1 gave no answer|unreadable answer"),
    ("EndsQuietly", "LIVE-1", DIED + "ended with exit status 0"),
    ("EndsLoudly", "LIVE-1", DIED + "ended with exit status 1"),
    ("EndsAndLeavesAChild", "LIVE-1", DIED + "ended with exit status 3"),
    ("SegmentationFault", "LIVE-1", DIED + "was ended by SIGSEGV.*in attack"),
    ("Aborts", "LIVE-1", DIED + "was ended by SIGABRT.*in attack"),
    ("ClosesDescriptors", "LIVE-1", DIED),
    ("KillsItsHost", "LIVE-1", LOST),
    ("KillsItsGroup", "LIVE-1", LOST),
    ("AnswersInTheRanksPlace", "LIVE-1", "unreadable answer"),
    ("AnswersWithGarbage", "LIVE-1", "unreadable answer"),
    ("AnswersNoJson", "LIVE-1", "unreadable answer"),
    ("AnnouncesGigabytes", "LIVE-1", "unreadable answer"),
    ("ScramblesItsLastWords", "LIVE-1", DIED + "ended with exit status 4"),
    ("PrintsGarbage", "LIVE-1", DIED + "ended with exit status 4"),
    ("RecursesForEver", "LIVE-1", "RecursionError"),
    ("DestroysTheGroupEarly", "LIVE-1", "had destroyed the default process group"),
    (
        "CallsSysExit",
        "LIVE-1",
        "a rank hung while another raised.*rank 1 raised SystemExit in backward of step 0: enough",
    ),
    (
        "RaisesOnOneRank",
        "LIVE-1",
        "a rank hung while another raised.*rank 1 raised ValueError in backward.*: only here",
    ),
    ("RaisesTheUnpicklable", "unjudged", "raised Unpicklable in backward of step 0"),
    (
        "RaisesTheUnprintable",
        "unjudged",
        r"Unprintable in backward of step 0: \(its message raised SystemExit\)",
    ),
    ("RaisesHalfACharacter", "unjudged", r"half \\ud800"),
    ("AllocatesForEver", "unjudged", "allocate memory.*a rank may take 4 GiB"),
    ("LiftsTheMemoryBound", "unjudged", "allocate memory.*a rank may take 4 GiB"),
    (
        "HandsBackGigabytes",
        "unjudged",
        r"reduced 'layers\.0\.weight' of shape \(1073741824,\) makes .* larger than 64 MiB",
    ),
    (
        "ReplacesTheRecorder",
        "unjudged",
        ALTERED + r"ddp_invariants\.ranks\.training\.recorder\.Record\.tensors\)",
    ),
    ("ReplacesCode", "unjudged", ALTERED + r".*recorder\._bits\)"),
    ("ReplacesAName", "unjudged", ALTERED + r".*rounds\._seed\)"),
    ("OverridesAMethod", "unjudged", ALTERED + r".*recorder\.EvidenceError\.__str__\)"),
    (
        "DropsAModule",
        "unjudged",
        ALTERED + r"sys\.modules\.ddp_invariants\.ranks\.training\.recorder\)",
    ),
    ("BreaksTheAnswer", "unjudged", ALTERED + r".*recorder\.Record\.header\)"),
    ("ReplacesTheReading", "unjudged", ALTERED + r"Tensor\.numpy\)"),
    ("OtherCollective", "LIVE-1", ""),
    ("OtherDtype", "LIVE-1", ""),
    ("OtherShape", "LIVE-1", ""),
    ("OtherOperation", "COMM-1", ""),
    ("Floods", "right", ""),
    ("PrintsOneLongLine", "right", ""),
    ("SpeaksOnEveryChannel", "right", ""),
    ("StopsItsHost", "right", ""),
    ("ExhaustsDescriptors", "right", "the functions that find changes"),
    ("LowersItsLimits", "right", "resource limits.*priority"),
    ("SetsATimer", "right", "timers"),
    ("LeavesTheDead", "right", "child processes"),
    ("FillsTheStore", "right", ""),
    ("SlowsThreads", "right", "new sockets.*switching of threads.*numpy"),
    ("LeavesThreads", "right", "Python threads"),
    ("LeavesAFork", "right", "child processes"),
    ("LeavesAProcess", "right", "child processes"),
    ("LeavesACommand", "right", "child processes"),
    ("LeavesADaemon", "right", ""),
    ("LeavesAFamily", "right", "child processes"),
    ("ForksAndGoesOn", "right", "child processes"),
    ("LeaksDescriptors", "right", "open descriptors"),
    ("LeavesACollective", "COMM-1", ""),
    ("DestroysTheGroup", "right", ""),
    (
        "ChangesSettings",
        "right",
        "default dtype.*grad mode.*torch threads.*deterministic.*subnormal.*directory.*environment",
    ),
    ("LosesItsFolder", "right", "working directory"),
    ("ReseedsGenerators", "RNG-1", "two ranks draw the same random numbers"),
    ("PatchesDistributed", "right", "names in torch.distributed"),
    ("PatchesTime", "right", "names in time"),
    ("PatchesTheReference", "right", "names in DistributedDataParallel"),
    ("PatchesTensor", "right", "names in Tensor"),
    ("PatchesModule", "right", "names in Linear"),
    ("BreaksTheHarness", "right", "the functions that find changes"),
    ("HooksEveryModule", "right", "global hooks"),
    ("HandlesSignals", "right", "signal handlers"),
    ("LeavesItsSession", "right", "session"),
    ("Traces", "right", "tracing.*standard streams"),
]


@pytest.mark.parametrize(
    ("name", "verdict", "words"), GALLERY, ids=[name for name, _, _ in GALLERY]
)
def test_a_hostile_implementation_gets_its_verdict_and_leaves_nothing(
    hosts: Hosts, pool: Pool, folder: Path, name: str, verdict: str, words: str
) -> None:
    """A hostile implementation gets the right verdict and leaves nothing behind.

    The pool then judges the next implementation as usual.
    """
    pool.train(CASE, Ddp())
    before, memory_before, started = held(), memory(), time.monotonic()
    got, text = seen(pool.train(CASE, Ddp(f"{HOSTILE}:{name}")))
    # An implementation that loops is ended when it has used the processor for so long. A host that
    # was killed is started anew.
    limit = PATIENT * DEADLINE + (60.0 if words == LOST else 3.0)
    assert time.monotonic() - started < limit
    assert verdict in got.split(), text
    assert re.search(words, text, re.DOTALL), text
    assert "Extension modules:" not in text  # Python lists them below the stacks of a crash.
    assert seen(pool.train(CASE, Ddp())) == ("right", "")
    assert left_behind(hosts, pool) == set()
    assert held() == before
    assert memory() - memory_before < 50_000_000
    assert {path.name for path in folder.iterdir()} <= {
        f"torchinductor_{getpass.getuser()}"
    }  # torch makes this folder


def test_a_rank_that_the_kernel_ends_slowly_is_told_to_have_died(
    hosts: Hosts, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose connection is still open after its exit did not hang: its exit status is told.

    The closing of a connection goes unseen here, as on a machine that ends processes slowly.
    """
    take = wire.Incoming.take

    def blind(self: wire.Incoming, source: socket.socket) -> object:
        with contextlib.suppress(OSError, WireError):
            return take(self, source)
        return None

    pool.train(CASE, Ddp())
    monkeypatch.setattr(wire.Incoming, "take", blind)
    evidence = pool.train(CASE, Ddp(f"{HOSTILE}:EndsQuietly"))
    assert evidence.incident is not None
    assert evidence.incident.statuses == {1: 0}
    verdict, words = seen(evidence)
    assert verdict == "LIVE-1"
    assert re.search("a rank died.*rank 1 ended with exit status 0", words, re.DOTALL), words
    assert left_behind(hosts, pool) == set()


def test_a_deadlock_at_one_world_size_is_told_and_the_others_are_judged(
    hosts: Hosts, pool: Pool
) -> None:
    """An implementation that hangs only with three ranks is judged as right with two ranks."""
    name = Ddp(fault_of("HangsOnThree"))
    assert seen(pool.train(CASE, name)) == ("right", "")
    verdict, words = seen(
        pool.train(replace(CASE, world_size=3, data=Data(samples=6, batch_size=2)), name)
    )
    assert verdict == "LIVE-1"
    assert "rank 0 waits in all_reduce #" in words
    assert seen(pool.train(CASE, name)) == ("right", "")
    assert left_behind(hosts, pool) == set()


def test_a_flood_takes_no_memory(pool: Pool) -> None:
    """A flood of output takes no memory, because only its end is kept.

    This holds in the controller and in the ranks. The stacks survive the flood.
    """
    pool.train(CASE, Ddp())
    before = memory()
    evidence = pool.train(CASE, Ddp(f"{HOSTILE}:FloodsForEver"))
    assert evidence.incident is not None
    assert len(evidence.incident.stacks[1]) < 20_000
    assert memory() - before < 20 * 2**20


ALTERING = """
import ddp_invariants.reference.ddp as ddp
import torch.nn as nn
nn.Linear.__call__ = lambda self, x: 0 * nn.functional.linear(x, self.weight, self.bias)
class DDP(ddp.DistributedDataParallel):
    pass
"""
CHILD_ON_IMPORT = """
import subprocess
from ddp_invariants.reference.ddp import DistributedDataParallel as DDP
subprocess.Popen(["sleep", "1000"])
"""


@pytest.mark.parametrize(
    "source", [ALTERING, CHILD_ON_IMPORT], ids=["patches_torch", "starts_a_process"]
)
def test_what_importing_one_implementation_changes_is_not_the_next_ones_world(
    hosts: Hosts, pool: Pool, tmp_path: Path, source: str
) -> None:
    """An implementation keeps its ranks from case to case, and the next one gets other ranks."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    mine = Ddp(f"{path}:DDP")
    pool.train(CASE, mine)
    ranks = {process.pid for process in pool.processes.running.values()}
    pool.train(CASE, mine)
    assert {process.pid for process in pool.processes.running.values()} == ranks
    assert seen(pool.train(CASE, Ddp())) == ("right", "")
    assert not {process.pid for process in pool.processes.running.values()} & ranks
    assert left_behind(hosts, pool) == set()


BAD = "class Bad(BaseException):\n    def __str__(self): raise self\nraise Bad"


@pytest.mark.parametrize(
    "source", [BAD, "raise KeyboardInterrupt"], ids=["unprintable", "interrupt"]
)
def test_whatever_importing_raises_is_one_sentence(pool: Pool, tmp_path: Path, source: str) -> None:
    """Any exception during an import is reported in one sentence, never as a harness failure."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(LoadFailure, match=r"raised (Bad|KeyboardInterrupt)"):
        pool.describe(Ddp(f"{path}:DDP"))


def test_what_is_no_command_does_not_end_a_host(hosts: Hosts, pool: Pool) -> None:
    """A message that is no command neither breaks a host nor kills another pool's ranks.

    The implementation under test can reach the host's socket.
    """
    pool.train(CASE, Ddp())
    victim = pool.processes.running[0].pid
    for message in (
        b"kill",
        b"fork 1",
        b"\xff\xfe",
        b"fork one",
        b"kill 1 2",
        f"kill {victim}".encode(),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as intruder:
            intruder.connect("\0" + hosts.addresses[0])
            intruder.sendall(message)
            time.sleep(0.02)
    assert seen(pool.train(CASE, Ddp())) == ("right", "")
    assert pool.processes.running[0].pid == victim


ABANDONED = """
import sys, time
sys.path[:0] = {path!r}
from test_hostile import CASE, HOSTILE
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes import wire
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
hosts = Hosts()
pool = Pool(hosts.addresses)
pool.train(CASE, Ddp(HOSTILE + ":LeavesADaemon"))
pool.processes.ask({{0: {{"do": "describe", "ddp": Ddp({child!r}).to_plain()}}}}, 20.0)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_descendants_of_ranks_end_with_the_controller(tmp_path: Path, ending: str) -> None:
    """Descendants of ranks end when the controller is killed or closes its hosts.

    This includes processes that ranks started in sessions of their own.
    """
    path = tmp_path / "mine.py"
    path.write_text(CHILD_ON_IMPORT.replace('"1000"]', '"1000"], start_new_session=True'))
    source = ABANDONED.format(path=PATHS, child=f"{path}:DDP")
    if ending == "closed":
        source = source.replace("time.sleep(1000)", "sys.stdin.read(); hosts.close()")
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as controller:
        try:
            assert controller.stdout is not None
            assert controller.stdin is not None
            assert controller.stdout.readline() == b"ready\n"
            everyone = psutil.Process(controller.pid).children(recursive=True)
            assert "sleep" in {process.name() for process in everyone if process.is_running()}
            if ending == "killed":
                controller.kill()
            controller.stdin.close()
            controller.wait(10)
            # On a quiet machine one second is enough, and `benchmarks/endurance.py` requires it.
            assert (
                survivors(
                    lambda: {process.pid for process in everyone if process.is_running()},
                    looks=5 * LOOKS,
                )
                == set()
            )
        finally:
            controller.kill()  # Otherwise a failure would wait for it.


HANDING = """
import sys
from ddp_invariants.processes import wire
from ddp_invariants.processes.hosts import Hosts
hosts = Hosts(sys.executable, hash_seeds=("1",))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_comparison_leaves_no_folder(tmp_path: Path) -> None:
    """The folder that hands the package to another interpreter ends with a killed controller."""
    with subprocess.Popen(
        [sys.executable, "-c", HANDING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as controller:
        try:
            assert controller.stdout is not None
            assert controller.stdout.readline() == b"ready\n"
            (folder,) = tmp_path.iterdir()
            (host,) = psutil.Process(controller.pid).children()
            # The host prepares for this before it imports anything that takes time.
            until = time.monotonic() + 20
            while signal.SIGTERM not in caught(host.pid) and time.monotonic() < until:
                time.sleep(0.02)
            controller.kill()
            controller.wait(10)
            psutil.wait_procs([host], 20)
            assert not folder.exists()
        finally:
            controller.kill()


def caught(pid: int) -> set[int]:
    """Return the signals that a process handles."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    mask = int(status.partition("SigCgt:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


SAMPLERS = [
    ("SamplerCallsSysExit", "unjudged", "SystemExit"),
    ("SamplerLeavesACommand", "right", "child processes"),
    ("SamplerPatchesRandom", "right", "names in random"),
    ("SamplerPatchesTheReference", "right", "names in DistributedSampler"),
    ("SamplerAltersTheHarness", "unjudged", "AlteredHarness"),
]


@pytest.mark.parametrize(
    ("name", "verdict", "words"), SAMPLERS, ids=[name for name, _, _ in SAMPLERS]
)
def test_a_hostile_sampler_gets_its_verdict_and_leaves_nothing(
    hosts: Hosts, pool: Pool, name: str, verdict: str, words: str
) -> None:
    """A hostile sampler gets its verdict, and the next case in its processes is judged as usual."""
    case = ShardCase(world_size=2, data=Data(samples=6, batch_size=2))
    pool.shards(case, Sampler())
    evidence = pool.shards(case, Sampler(f"{HOSTILE}:{name}"))
    assert evidence.incident is None
    raised = [answer["raised"]["type"] for answer in evidence.answers if "raised" in answer]
    assert ("unjudged" if raised else "right") == verdict
    assert words in str(raised or [answer["changed"] for answer in evidence.answers])
    again = pool.shards(case, Sampler())
    assert all(finding.failure is None for finding in judge(again).values())
    assert [answer["changed"] for answer in again.answers] == [[], []]
    assert left_behind(hosts, pool) == set()


@pytest.mark.parametrize(("name", "found"), [("reference", []), ("KnowsTheSuite", ["PARAM-3"])])
def test_an_implementation_that_knows_the_suite_shows_in_plain_torch(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, name: str, found: list[str]
) -> None:
    """The script of a case prints the bits that the suite recorded, unless it is recognised."""
    ran: list[tuple[int | None, str]] = []

    def run(text: str) -> tuple[int | None, str]:
        ran.append(running.ran(text))
        return ran[-1]

    monkeypatch.setattr(spot_check, "ran", run)
    ddp = Ddp() if name == "reference" else Ddp(f"{HOSTILE}:{name}")
    monkeypatch.setattr(pool, "deadline", 10.0)
    differences = spot_check.spot_check(pool, ddp, Scope())
    assert [difference.failure.rule for difference in differences] == found
    # Nothing passes because its script fails.
    assert [status for status, _ in ran] == [0] * (2 if found else 1)
    assert "rank 1: step 1: after it layers.0.weight: float32 (4, 4) [" in ran[0][1]


def test_a_sampler_that_kills_its_host_is_suspected_and_the_host_is_started_anew(
    hosts: Hosts, pool: Pool
) -> None:
    """A sampler that kills its parent process is told by LIVE-1; the next sampler is right."""
    case = ShardCase(world_size=2, data=Data(samples=6, batch_size=2))
    before = hosts.pids
    evidence = pool.shards(case, Sampler(f"{HOSTILE}:SamplerKillsItsHost"))
    failure = judge(evidence)["LIVE-1"].failure
    assert failure is not None
    assert "ended with its host" in failure.got
    assert all(finding.failure is None for finding in judge(pool.shards(case, Sampler())).values())
    assert (before[0], True) == (hosts.pids[0], before[1] != hosts.pids[1])
    assert left_behind(hosts, pool) == set()


HURRIED = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    from ddp_invariants.discovery import probe
    from ddp_invariants.search import runner, search
    runner.HUNG_DEADLINE = probe.HUNG_PATIENCE = 0.7
    search.SHRINK_HANGS = 2
"""
RUNS = [
    ("SleepsWithTheGil", 1, {"SHARD-1": "holds", "GRAD-3": "inconclusive", "LIVE-1": "violated"}),
    ("Floods", 0, {"SHARD-1": "holds", "GRAD-3": "holds", "LIVE-1": "holds"}),
]


@pytest.mark.parametrize(("name", "status", "verdicts"), RUNS, ids=[name for name, _, _ in RUNS])
def test_a_whole_run_ends_by_itself_with_every_property_judged(
    tmp_path: Path, name: str, status: int, verdicts: dict[str, str]
) -> None:
    """A run started as a user starts it, with shorter deadlines, ends by itself.

    The hang is reported once, and the sampler is judged as well.
    """
    (tmp_path / "hurried.py").write_text(HURRIED)
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(root / "properties"),
        "-p",
        "hurried",
        "-p",
        "no:cacheprovider",
        "--ddp",
        f"{HOSTILE}:{name}",
        "--cases",
        "3",
        "--max-world-size",
        "2",
        "--seed",
        "1",
        "--deadline",
        "1",
        "-k",
        " or ".join(rule.replace("-", "").lower() for rule in verdicts),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(tmp_path)])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as run:
        output, _ = run.communicate(timeout=120)
    for rule, verdict in verdicts.items():
        assert re.search(rf"^{rule} +{verdict} ", output, re.MULTILINE), output
    assert run.returncode == status, output
