"""Tests of jobs of several processes: under a launcher, across two hosts, and when parts die."""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from conftest import Session, TrialMaker
from ddp_invariants.cases.case import TrainingCase, to_json
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import HarnessError
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes import job, wire
from ddp_invariants.processes.job import Cluster, Job
from ddp_invariants.processes.pool import Pool
from ddp_invariants.processes.remote import HostAddress, connect
from ddp_invariants.records.verdict import Inconclusive
from ddp_invariants.search import journal
from ddp_invariants.search.ledger import Ledger

ROOT = Path(__file__).parents[2]
CASE = TrainingCase(model=Model(1, (Layer("linear"),)), world_size=2)
ON_A, ON_B = "10.77.0.1", "10.77.0.2"


def free_port() -> int:
    """Return a port on which nobody listens now.

    It lies below those that the system gives to connections, so that none takes it meanwhile.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def torchrun(*arguments: str) -> list[str]:
    """Return the launcher's command line."""
    return [sys.executable, "-m", "torch.distributed.run", *arguments]


def graded(*arguments: str) -> list[str]:
    """Return the arguments that launch a session of GRAD-2's property."""
    return [
        "pytest",
        "-p",
        "no:cacheprovider",
        "properties/test_grad.py",
        "-k",
        "grad2",
        "--seed",
        "1",
        *arguments,
    ]


def srun(rank: int, size: int, host: str, port: int) -> dict[str, str]:
    """Return the environment that srun sets for a process."""
    return {
        **os.environ,
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NUM_TASKS": str(size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


@contextmanager
def started(
    commands: Sequence[tuple[Sequence[str], dict[str, str]]],
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start processes with their environments, and kill them and their descendants at the end."""
    running = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Background processes of a shell ignore SIGINT, and so would these processes.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        for command, environment in commands
    ]
    try:
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                for below in psutil.Process(process.pid).children(recursive=True):
                    below.kill()
                process.kill()
            process.communicate()


def below(processes: Sequence["subprocess.Popen[str]"]) -> list[psutil.Process]:
    """Return all processes that the given processes started."""
    return [
        child
        for process in processes
        for child in psutil.Process(process.pid).children(recursive=True)
    ]


def gone(processes: Sequence[psutil.Process]) -> bool:
    """Return True if all processes have ended or end within ten seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not any(
            process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            for process in processes
        ):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[tuple[list[str], list[str], str]]:
    """Yield command prefixes that run a command on either host, and the first host's link."""
    name = f"ddp{os.getpid()}"
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("simulated hosts are network namespaces: they need root and iproute2")

    def ip(*arguments: str) -> int:
        return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode

    try:
        if (
            ip("netns", "add", f"{name}A")
            or ip("netns", "add", f"{name}B")
            or ip(
                "link",
                "add",
                f"{name}a",
                "netns",
                f"{name}A",
                "type",
                "veth",
                "peer",
                "name",
                f"{name}b",
                "netns",
                f"{name}B",
            )
        ):
            pytest.skip(
                "simulated hosts are network namespaces joined by a veth pair: "
                "this system allows none"
            )
        for host, address in (("A", ON_A), ("B", ON_B)):
            device = f"{name}{host.lower()}"
            for command in (
                ["addr", "add", f"{address}/24", "dev", device],
                ["link", "set", "lo", "up"],
                ["link", "set", device, "up"],
            ):
                assert ip("-n", f"{name}{host}", *command) == 0
        yield ["ip", "netns", "exec", f"{name}A"], ["ip", "netns", "exec", f"{name}B"], f"{name}a"
    finally:
        ip("netns", "del", f"{name}A")
        ip("netns", "del", f"{name}B")


def test_certify_takes_its_place_in_a_job_once_for_all_names() -> None:
    """Under torchrun, rank 0 judges one implementation after another on the job's ranks.

    Every process ends with status 0.
    """
    command = torchrun(
        "--standalone",
        "--nproc-per-node=3",
        "-m",
        "ddp_invariants",
        "certify",
        "reference",
        "sampler:torch",
        "-k",
        "grad4 or shard1",
        "--cases",
        "20",
        "--seed",
        "1",
    )
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("3 ranks under torchrun: 0, 1, 2 on ") == 2
    assert done.stdout.count("side by side") == 1


def test_torchrun_on_one_host_certifies_with_the_job_s_ranks() -> None:
    """Only rank 0 reports, and its workers share the job's ranks.

    The job limits the world sizes, and every process ends with status 0.
    """
    command = torchrun(
        "--standalone", "--nproc-per-node=4", "-m", *graded("--cases", "10", "-n", "2")
    )
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("test session starts") == 1
    assert "world sizes to 4" in done.stdout
    assert "4 ranks under torchrun: 0, 1, 2, 3 on " in done.stdout
    assert re.search(r"^GRAD-2 +holds", done.stdout, re.MULTILINE)


def test_a_fault_is_found_and_shrunk_across_two_hosts(
    two_hosts: tuple[list[str], list[str], str],
) -> None:
    """A fault that passes on each host alone is found across hosts and shrunk to three ranks.

    The fault passes on two ranks, and each host has two. Both launchers report failure.
    """
    on_a, on_b, _ = two_hosts
    fault = "ddp_invariants/faults/bucketed.py:DividesByTwo"
    commands = [
        (
            [
                *where,
                *torchrun(
                    "--nnodes=2",
                    "--nproc-per-node=2",
                    f"--node-rank={node}",
                    f"--master-addr={ON_A}",
                    "--master-port=29511",
                    "-m",
                    *graded("--cases", "20", "--ddp", fault),
                ),
            ],
            dict(os.environ),
        )
        for node, where in enumerate((on_a, on_b))
    ]
    with started(commands) as (first, second):
        report, _ = first.communicate(timeout=200)
        elsewhere, _ = second.communicate(timeout=60)
    assert (
        f"4 ranks under torchrun: 0, 1 on {socket.gethostname()} ({ON_A}); "
        f"2, 3 on {socket.gethostname()} ({ON_B})" in report
    )
    assert f"GRAD-2 violated by {fault}" in report
    assert "rank 0 of 3" in report
    assert "in 3 of 3 runs in fresh processes" in report
    assert (first.returncode, second.returncode) == (1, 1)
    assert "test session starts" not in elsewhere


def test_ranks_links_and_processes_that_die_are_told_and_outlived(
    two_hosts: tuple[list[str], list[str], str],
) -> None:
    """A rank that is killed or stopped gives a verdict; a link or process that fails gives none.

    The message names the link or process that failed.
    """
    *wheres, link = two_hosts
    commands = [
        (
            [*wheres[rank // 2], sys.executable, "tests/helpers/across.py", link],
            {**srun(rank, 4, ON_A, 29512), "SLURM_NODEID": str(rank // 2)},
        )
        for rank in range(4)
    ]
    with started(commands) as running:
        output, _ = running[0].communicate(f"rank {running[3].pid}\n", timeout=200)
        statuses = [process.wait(90) for process in running]
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    came = {line["step"]: line["came"] for line in lines}
    on_b = f"{socket.gethostname()} ({ON_B})"
    assert came.pop("a rank killed").startswith("LIVE-1: ")
    assert came.pop("a rank stopped").startswith("LIVE-1: ")
    assert came.pop("a long cut").startswith(
        f"harness: rank 2 on {on_b} gives no answer (timed out)"
    )
    assert came.pop("a process killed").startswith(f"harness: rank 3 on {on_b} ")
    assert came == dict.fromkeys(
        ["whole", "after a rank killed", "after a rank stopped", "a short cut", "after a long cut"],
        "right",
    ), output
    assert statuses == [7, 7, 7, -signal.SIGKILL], output


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGINT, (2, 2)), (signal.SIGKILL, (-signal.SIGKILL, 2))]
)
def test_rank_0_releases_the_others_however_it_ends(
    number: signal.Signals, ends: tuple[int, int]
) -> None:
    """Rank 0 releases the other processes, whether it is interrupted or killed.

    SIGTERM acts as an interrupt does. No process is left, and none reports success.
    """
    port = free_port()
    commands = [
        ([sys.executable, "-m", *graded("--cases", "5000")], srun(rank, 2, "127.0.0.1", port))
        for rank in (0, 1)
    ]
    with started(commands) as running:
        assert running[0].stdout is not None
        for line in running[0].stdout:
            if line.startswith("collected"):
                break
        processes = below(running)
        assert len(processes) >= 2
        output = ""
        # A signal during the start of Hypothesis may be lost there: a user presses the keys again.
        for _ in range(4):
            time.sleep(1)
            running[0].send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                output, _ = running[0].communicate(timeout=25)
                break
        assert (running[0].wait(90), running[1].wait(90)) == ends
        assert ("no tests ran" in output or "KeyboardInterrupt" in output) == (
            number != signal.SIGKILL
        )
        assert gone(processes)


def test_a_process_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not come is named after a while, with the processes that did come."""
    monkeypatch.setattr(job, "COMING", 1.0)
    with pytest.raises(
        HarnessError,
        match=r"rank 1 of 2 did not come within 1 s; these came: rank 0 on .* \(127\.0\.0\.1\)",
    ):
        Cluster(Job("srun", 0, 2, "127.0.0.1", free_port()))
    with pytest.raises(HarnessError, match=r"cannot reach the job's store at 127\.0\.0\.1:\d+: "):
        Cluster(Job("srun", 1, 2, "127.0.0.1", free_port()))


@pytest.fixture(scope="module")
def job_of_two() -> Iterator[Cluster]:
    """Yield a job of two processes, in which this process is rank 0."""
    port = free_port()
    serve = "import sys; from ddp_invariants.processes import job; sys.exit(job.enter())"
    with started([([sys.executable, "-c", serve], srun(1, 2, "127.0.0.1", port))]) as (second,):
        joined = Cluster(Job("srun", 0, 2, "127.0.0.1", port))
        yield joined
        joined.end()
        sessions, joined._sessions = joined._sessions, []
        for session in sessions:
            wire.send(session, {"status": 3})
            session.close()
        assert second.wait(10) == 3


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        b"",
        b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
        b"\x00\x00\x00\x0f\x00\x00\x00\x00",
    ],
)
def test_who_has_not_the_token_is_turned_away(job_of_two: Cluster, greeting: bytes) -> None:
    """A connection without the token is closed, and ranks are served as before."""
    host_address = HostAddress.from_text(job_of_two.addresses[1])
    with socket.create_connection((host_address.address, host_address.port), 5) as intruder:
        intruder.sendall(greeting)
        intruder.shutdown(socket.SHUT_WR)
        intruder.settimeout(5)
        assert not _heard(intruder)
    with Pool(job_of_two.addresses) as pool:
        assert pool.train(CASE, Ddp()).incident is None


def _heard(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1)
    except ConnectionResetError:
        return b""


def test_another_token_is_no_token(job_of_two: Cluster) -> None:
    """A process of another job that uses the wrong port gets an error that says so."""
    host_address = HostAddress.from_text(job_of_two.addresses[1])
    with pytest.raises(HarnessError, match="refused the connection"):
        connect(HostAddress(**{**vars(host_address), "token": "0" * 32}), "host")


def test_a_job_that_is_started_anew_runs_no_case_again(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """A job that is started again with the same seed runs only the cases that were not judged.

    The same seed draws the same cases, and all of them count.
    """
    folder = tmp_path / "job"

    def attempt(number: int) -> tuple[Ledger, int]:
        assert journal.begin(folder, number, 5 + number) == 5
        trial = make_trial(cases=12, seed=5, scope=Scope(2))
        trial.options = replace(trial.options, journal=journal.Journal(folder, "main"))
        before = trial.pool.processes.requests
        with suppress(Inconclusive):  # Two ranks do not meet every condition.
            trial.certify("GRAD-4")
        return trial.ledger, trial.pool.processes.requests - before

    first, asked = attempt(0)
    assert first.cases >= 12
    assert asked >= first.cases
    lines = (folder / "main.jsonl").read_text().splitlines()
    (folder / "main.jsonl").write_text("\n".join([*lines[:-3], lines[-3][: len(lines[-3]) // 2]]))
    again, asked = attempt(1)
    plain, known = again.to_plain(), first.to_plain()
    for ledger in (plain, known):
        for entry in ledger["entries"].values():
            del entry["milliseconds"]
    # A case that is not run again gives no example.
    assert plain.pop("examples").keys() <= known.pop("examples").keys()
    assert plain == known
    assert 0 < asked <= 3 * 3 + 4  # Three cases, plus connecting and loading.
    assert journal.begin(tmp_path / "elsewhere", 1, 6) == 6


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        (["--backend", "nccl"], "nccl on cuda"),
        (["--backend", "gloo", "--device", "cuda", "-n", "1"], "gloo on cuda"),
    ],
)
@pytest.mark.skipif(
    not version("torch").endswith("+cpu"),
    reason="this torch is built for CUDA: what is said there differs",
)
def test_what_cannot_be_run_here_is_not_run_and_certifies_nothing(
    session: Session, options: list[str], backend: str
) -> None:
    """A backend that cannot run here is reported with the reason in the header and the table.

    Nothing passes, nothing is skipped, and the session is inconclusive.
    """
    done = session("pytest", "properties/", "-p", "no:cacheprovider", *options)
    why = f"torch {version('torch')} is built without CUDA"
    assert done.returncode == 2
    assert f"backend {backend}" in done.stdout
    assert f"not run: {why}" in done.stdout
    rows = re.findall(
        rf"^[A-Z]+-\d+ +not run +0 +0 +{backend}: {re.escape(why)}$", done.stdout, re.MULTILINE
    )
    assert len(rows) == len(ALL_RULES)
    assert not re.search(r"\d+ (passed|skipped)", done.stdout)


@pytest.mark.parametrize(
    ("needed", "status", "line"),
    [(2, 0, "FIXED: "), (3, 1, "not run: this command needs 3 ranks; the job has 2")],
)
def test_a_case_is_replayed_by_a_job(tmp_path: Path, needed: int, status: int, line: str) -> None:
    """A job replays a case on its processes, if they suffice.

    Only rank 0 reads the file. All processes end when rank 0 ends.
    """
    path = tmp_path / "case.json"
    path.write_text(to_json(replace(CASE, world_size=needed)))
    command = torchrun("--nproc-per-node=2", "-m", "ddp_invariants", "replay", str(path))
    done = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stderr
    assert (done.stdout + done.stderr).count(line) == 1


TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_RUN_ID": "j",
}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),
        (BATCH, None),
        ({**BATCH, "SLURM_NTASKS": "1"}, None),
        ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, None),
        (TORCHRUN, Job("torchrun", 1, 4, "a", 1, 2, 3, "j")),
        ({**BATCH, "MASTER_ADDR": "a", "MASTER_PORT": "1"}, Job("srun", 0, 4, "a", 1)),
        ({**TORCHRUN, "RANK": "4"}, "RANK is 4, expected less than WORLD_SIZE, which is 4"),
        ({**TORCHRUN, "WORLD_SIZE": "many"}, "WORLD_SIZE is 'many', expected a number"),
        (
            {**BATCH, "SLURM_STEP_NUM_TASKS": "4"},
            "set MASTER_ADDR to the first node's name and MASTER_PORT to a free port",
        ),
    ],
)
def test_the_launcher_s_variables_are_read(
    environment: dict[str, str], expected: Job | str | None
) -> None:
    """The launcher's variables describe the job, and wrong variables get one sentence.

    A single process is no job, and neither is a batch script.
    """
    if isinstance(expected, str):
        with pytest.raises(HarnessError, match=expected):
            job.job(environment)
    else:
        assert job.job(environment) == expected
