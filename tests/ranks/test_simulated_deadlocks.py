"""Simulated ranks that wait for each other: the case ends at once and names what they wait for."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes import threads
from ddp_invariants.processes.exchange import SIMULATOR
from ddp_invariants.processes.pool import Pool

STUCK = str(Path(__file__).parents[1] / "helpers" / "stuck.py")
CASE = TrainingCase(
    model=Model(2, (Layer("linear", 3), Layer("linear", 2))),
    world_size=3,
    data=Data(samples=6, batch_size=2),
)


@pytest.fixture(scope="module")
def pool(host_addresses: list[str]) -> Iterator[Pool]:
    """Yield a pool of ranks for these tests."""
    with Pool(host_addresses) as pool:
        yield pool


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Missing", "allreduce"),
        ("OtherKind", "allreduce"),
        ("OtherShape", "allreduce"),
        ("OtherDtype", "allreduce"),
        ("OtherRoot", "broadcast"),
        ("OtherGroup", "allreduce"),
        ("OtherOrder", "allreduce"),
    ],
)
def test_ranks_that_wait_for_each_other_are_hung_at_once(pool: Pool, name: str, words: str) -> None:
    """The incident says of every stuck rank what it waits for, where, and its last calls."""
    ddp = Ddp(f"{STUCK}:{name}")
    pool.describe(ddp)
    began = time.monotonic()
    evidence = pool.simulate(CASE, ddp)
    assert time.monotonic() - began < pool.deadline / 2
    assert evidence is not None
    incident = evidence.incident
    assert incident is not None
    assert incident.kind == "hung"
    assert words in incident.ranks[0]
    for rank in incident.ranks:
        assert "finish_gradient_synchronization" in incident.stacks[rank]
        assert incident.calls[rank].calls
    assert any(findings.failure for findings in judge(evidence).values())
    # The next case is run as if nothing had happened.
    after = pool.simulate(CASE, Ddp("reference"))
    assert after is not None
    assert after.incident is None
    assert not any(findings.failure for findings in judge(after).values())


def test_communication_from_a_thread_is_refused(pool: Pool) -> None:
    """Such an implementation is not simulated, and the pool says why."""
    ddp = Ddp(f"{STUCK}:FromAThread")
    assert pool.simulate(CASE, ddp) is None
    assert pool.not_simulated[ddp] == "it communicates from threads of its own"


def test_a_case_that_no_simulation_shows_leaves_others_simulated(pool: Pool) -> None:
    """The result of gloo for elements that share memory is its own: such a case is real, others not."""
    ddp, single = Ddp(f"{STUCK}:SendsAnExpandedTensor"), Model(2, (Layer("linear", 2, bias=False),))
    assert pool.simulate(CASE, ddp) is None
    assert ddp not in pool.not_simulated
    assert pool.simulate(replace(CASE, model=single), ddp) is not None


def test_ranks_that_queue_for_a_processor_are_not_late(pool: Pool) -> None:
    """A starved machine ends no case: the ranks get a small part of one processor's time."""
    pool.describe(Ddp("reference"))
    assert pool.simulate(CASE, Ddp("reference")) is not None
    pid, processor = pool.processes.running[SIMULATOR].pid, min(os.sched_getaffinity(0))
    for thread in threads.look(pid) or ():
        os.sched_setaffinity(thread, {processor})
        os.setpriority(os.PRIO_PROCESS, thread, 19)
    patient = pool.deadline
    pool.limit(0.5)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        os.sched_setaffinity(other.pid, {processor})
        began = time.monotonic()
        try:
            evidence = pool.simulate(replace(CASE, steps=4), Ddp("reference"))
        finally:
            other.kill()
            pool.limit(patient)
            pool.anew()
    assert time.monotonic() - began > 3 * 0.5
    assert evidence is not None
    assert evidence.incident is None


@pytest.mark.parametrize("name", ["Loops", "Sleeps"])
def test_a_rank_that_never_ends_is_ended_by_the_deadline(pool: Pool, name: str) -> None:
    """All ranks are hung, and their process is ended."""
    ddp, patient = Ddp(f"{STUCK}:{name}"), pool.deadline
    pool.limit(1.0)
    try:
        evidence = pool.simulate(CASE, ddp)
    finally:
        pool.limit(patient)
    assert evidence is not None
    assert evidence.incident is not None
    assert evidence.incident.kind == "hung"
    assert "different" in evidence.incident.stacks[1]
    assert pool.simulate(CASE, Ddp("reference")) is not None
