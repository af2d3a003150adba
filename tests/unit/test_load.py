"""Tests of the machine's load: when it is too much, and which reports say so."""

import os
import secrets
import socket
import time
from dataclasses import replace

import pytest
from handmade import CASE, right

from ddp_invariants.errors import HarnessError
from ddp_invariants.invariants import judge
from ddp_invariants.processes import load, process
from ddp_invariants.processes.load import CROWDED, IDLE, LATE, STOLEN, Heartbeat, Load, measure
from ddp_invariants.processes.pace import Patience
from ddp_invariants.processes.process import HostClient
from ddp_invariants.processes.watch import Watch
from ddp_invariants.records.evidence import Incident
from ddp_invariants.records.verdict import Failure
from ddp_invariants.search.messages import not_repeated, violation

BUSY = Load(CROWDED, 0.0, 0.0)
HUNG = Failure("LIVE-1", "a rank hung", "world size 2, after 100.0 s", "rank 1 gave no answer")


@pytest.mark.parametrize(
    ("measured", "is_over"),
    [
        (IDLE, False),
        (Load(CROWDED - 0.1, STOLEN - 0.01, LATE - 0.1), False),
        (BUSY, True),
        (Load(0.0, STOLEN, 0.0), True),
        (Load(0.0, 0.0, LATE), True),
    ],
)
def test_any_of_three_measures_shows_an_overload(measured: Load, *, is_over: bool) -> None:
    """Too many threads, stolen time and a late heartbeat are each an overload."""
    assert measured.is_over is is_over
    assert measured.excess.startswith("the machine is overloaded: ") is is_over


def test_a_heartbeat_measures_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads are a mean, the delay is the longest, and time stolen before does not count."""
    monkeypatch.setattr(load, "_processor_time", iter([(1000, 900), (1100, 920)]).__next__)
    monkeypatch.setattr(load, "_running", iter([2.0, 4.0]).__next__)
    heartbeat = Heartbeat()
    heartbeat.beat(0.3)
    heartbeat.beat(0.1)
    assert heartbeat.load() == Load(3.0, 0.2, 0.3)


def test_the_kernel_of_this_machine_shows_its_load() -> None:
    """This process itself does not count as load."""
    assert load._processor_time()[0] > 0
    measured = measure()
    assert 0 <= measured.running * (os.cpu_count() or 1) < 10_000
    assert 0 <= measured.stolen <= 1
    assert 0 <= measured.late < 100


def test_a_watch_that_looks_late_tells_the_overload() -> None:
    """A watch that was woken too late says so where the ranks' time ran out, and nowhere else."""
    watch = Watch({}, 1, Patience.of(0.0), looks=False)
    time.sleep(LATE + 0.15)
    assert watch.ends([])
    assert "the machine is overloaded: " in watch.overload
    watch.reason = "waits for ever"
    assert watch.overload == ""


def test_a_hang_on_an_overloaded_machine_says_so() -> None:
    """LIVE-1 names the machine as the probable cause of ranks that were silent too long."""
    incident = Incident("hung", {1: "gave no answer"}, {}, 100.0, overload=BUSY.excess)
    failure = judge(replace(right(), incident=incident))["LIVE-1"].failure
    assert failure is not None
    assert failure.overload == BUSY.excess


def test_no_overload_explains_a_death() -> None:
    """A busy machine makes ranks late, and it ends none."""
    incident = Incident("died", {1: "died"}, {}, 1.0, overload=BUSY.excess)
    died = judge(replace(right(), incident=incident))["LIVE-1"].failure
    assert died is not None
    assert died.overload == ""


def test_no_overload_explains_what_every_run_shows() -> None:
    """A failure that repeats each time is no accident; one that was seen once may be."""
    failure = replace(HUNG, overload=BUSY.excess)
    always, *once = (
        " ".join(violation(failure, "mine:Ddp", CASE, repeated=runs, repeat="again").split())
        for runs in ((3, 3), (1, 3), (1, 1))
    )
    assert "overloaded" not in always
    assert all("the machine is overloaded: 4.0 threads" in each for each in once)


@pytest.mark.parametrize(
    ("then", "now", "told", "untold"),
    [
        ("", "", "the failure depends on chance", "overloaded"),
        ("", BUSY.excess, "the machine is overloaded: 4.0 threads", "chance"),
        (BUSY.excess, "", "the machine is overloaded: 4.0 threads", "chance"),
    ],
    ids=["quiet", "busy now", "busy then"],
)
def test_a_failure_that_did_not_repeat_is_put_down_to_the_machine_and_not_to_chance(
    then: str, now: str, told: str, untold: str
) -> None:
    """An overload, when the failure was seen or when it was repeated, explains it better."""
    text = " ".join(
        not_repeated(
            replace(HUNG, overload=then),
            "mine:Ddp",
            CASE,
            runs=3,
            repeat="again",
            overload=now,
        ).split()
    )
    assert f"in 0 of 3 runs in fresh processes: {told}" in text
    assert untold not in text


def test_no_overload_explains_a_wrong_value() -> None:
    """A busy machine brings a race to light, and the advice about a race must stay."""
    wrong = Failure("GRAD-2", "the gradient is not the mean", "rank 0", "1, expected 2")
    text = not_repeated(wrong, "mine:Ddp", CASE, runs=3, repeat="again", overload=BUSY.excess)
    assert "--isolation fresh" in text
    assert "overloaded" not in text


def test_a_host_without_time_is_told_with_the_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that starts no rank in time is no mystery where the machine is overloaded."""
    monkeypatch.setattr(process, "STARTING", 0.05)
    monkeypatch.setattr(load, "measure", lambda: BUSY)
    address = f"ddp-invariants-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + address)
        listener.listen()
        host = HostClient(address)
        try:
            with pytest.raises(
                HarnessError, match=r"no rank within 0 s; the machine is overloaded"
            ):
                host.start(0)
        finally:
            host.close()
