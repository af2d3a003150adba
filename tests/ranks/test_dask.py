"""Tests of searches on a Dask cluster: nothing is lost or counted twice, and nothing is left."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from ddp_invariants.cli.faults import faults
from ddp_invariants.errors import USAGE
from ddp_invariants.proof import cluster

HELPER = Path(__file__).parents[1] / "helpers" / "dask_cluster.py"
FAULTS = ("NeverDivides", "NoBroadcast")
SEEDS = 4


class RunningCluster:
    """A cluster of two workers.

    Attributes:
        address: The address of its scheduler.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = psutil.Process(process.pid)
        self.address = process.stdout.readline().strip()

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes."""
        return self._below("spawn_main")

    def hosts(self) -> list[psutil.Process]:
        """Return the hosts and the ranks of all workers."""
        return self._below("ddp_invariants.ranks.host")

    def _below(self, word: str) -> list[psutil.Process]:
        """Return the processes below the cluster's whose command has a word."""
        found = []
        for each in self._process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # It ends at this moment.
                found += [each] if word in " ".join(each.cmdline()) else []
        return found


@pytest.fixture
def running() -> Iterator[RunningCluster]:
    """Run a cluster, and end it."""
    process = subprocess.Popen(
        [sys.executable, HELPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    with process:
        yield RunningCluster(process)
        process.stdin.close()


def test_a_killed_workers_searches_are_made_again_and_counted_once(
    running: RunningCluster, tmp_path: Path
) -> None:
    """The other worker makes them, each search has one result, and the cluster is left empty."""
    command = [sys.executable, "-m", "ddp_invariants", "faults", "--json"]
    command += [word for fault in FAULTS for word in ("--only", fault)]
    command += ["--seeds", str(SEEDS), "--control-cases", "0", "--on", running.address]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as made:
        assert made.stderr is not None
        assert made.stderr.readline().startswith(f"1/{SEEDS * len(FAULTS)} ")
        running.workers()[0].kill()
        output, errors = made.communicate(timeout=300)
    assert made.returncode == 0, errors
    found = Counter(
        (each["planted"]["name"], each["seed"]) for each in json.loads(output)["searches"]
    )
    assert found == Counter((fault, seed) for fault in FAULTS for seed in range(SEEDS))
    # Its nanny has started another worker, which takes seconds on a busy machine.
    until = time.monotonic() + 60
    while (running.hosts() or len(running.workers()) != 2) and time.monotonic() < until:
        time.sleep(0.2)
    assert (running.hosts(), len(running.workers())) == ([], 2)


def test_what_cannot_be_asked_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without a scheduler, or a missing library, ends the command with a sentence."""
    command = ["--only", "NeverDivides", "--control-cases", "0", "--on"]
    monkeypatch.setattr(cluster, "CONNECTING", 1)
    ended = CliRunner().invoke(faults, [*command, "tcp://127.0.0.1:9"])
    assert ended.exit_code == USAGE
    assert "ddp-invariants: no Dask scheduler answers at tcp://127.0.0.1:9" in ended.output
    monkeypatch.setitem(sys.modules, "distributed", None)
    ended = CliRunner().invoke(faults, [*command, "tcp://127.0.0.1:9"])
    assert ended.exit_code == USAGE
    assert ended.output.strip() == f"ddp-invariants: {cluster.NEEDED}"
