"""A session while it runs and when it is cut short: progress, certificates and clean-up."""

import contextlib
import hmac
import json
import os
import pty
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from certificates import ledger
from click.testing import CliRunner
from readme import ROOT, plain

from conftest import Session
from ddp_invariants.cli import main
from ddp_invariants.errors import CaseError
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.report.certificate import verifying
from ddp_invariants.report.certificate.from_session import SessionSettings
from ddp_invariants.search.ledger import Ledger
from ddp_invariants.session.monitor import Monitor
from ddp_invariants.session.outputs import OutputFiles
from ddp_invariants.session.progress import Listener, Progress, ProgressSender, signed


def _until(holds: Callable[[], object], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    return bool(holds())


def test_what_a_worker_tells_is_what_the_main_process_knows() -> None:
    """The main process knows the last ledger that each worker sent.

    The listener leaves out workers that have handed over their ledgers.
    """
    listener = Listener()
    first, second = (
        ProgressSender(listener.address, name, listener.key(name)) for name in ("gw0", "gw1")
    )
    first(ledger(8))
    first(ledger(9))  # A moment later: not sent.
    second.send(ledger(10))
    second.send(ledger(11))
    assert _until(
        lambda: (
            {name: each.cases for name, each in listener.ledgers().items()} == {"gw0": 8, "gw1": 11}
        ),
        5,
    )
    assert list(listener.ledgers(without={"gw0"})) == ["gw1"]
    listener.close()
    first.send(ledger())  # Without a listener, sending does nothing.
    first.close()
    second.close()


def test_a_worker_waits_to_hand_over_the_ledger_of_a_property() -> None:
    """A full queue costs a message in between, but not the last one of a property.

    A session that ends at its first violation has that violation from this message alone.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0ddp-invariants-test-" + secrets.token_hex(8))
        receiver.settimeout(0)
        sender = ProgressSender(receiver.getsockname()[1:].decode(), "gw0", secrets.token_hex(32))
        for _ in range(3000):  # More than any queue holds.
            sender.send(ledger(8), patience=0)
        began = time.monotonic()
        sender.send(ledger(9), patience=0)
        assert time.monotonic() - began < 0.1
        received: list[int] = []
        late = threading.Timer(0.2, lambda: received.extend(_received(receiver)))
        late.start()
        sender.send(ledger(10))
        late.join()
        received.extend(_received(receiver))
        sender.close()
    assert received[-1] == 10
    assert 9 not in received


def _received(receiver: socket.socket) -> Iterator[int]:
    """Yield the numbers of cases in the waiting messages."""
    with contextlib.suppress(BlockingIOError):
        while True:
            packed = receiver.recv(1 << 20)[32:].partition(b"\n")[2]
            yield json.loads(zlib.decompress(packed))["cases"]


def _forged(listener: Listener) -> Iterator[bytes]:
    """Yield messages that no worker signs, or that a worker signs although they are no ledger."""
    key, plain = secrets.token_bytes(32), json.dumps(ledger(1000).to_plain()).encode()
    own = bytes.fromhex(listener.key("gw8"))
    honest = signed(own, "gw8", plain)
    yield from (b"", b"", b"no ledger", b"\0" * 40, bytes(range(256)) * 800)
    yield zlib.compress(b'["gw8", {}]')
    yield zlib.compress(b"5")
    yield zlib.compress(json.dumps(["gw8", ledger(1000).to_plain()]).encode())
    yield signed(key, "gw8", plain)
    yield honest.replace(b"gw8", b"gw9", 1)
    yield signed(own, "gw9", plain)
    yield honest[:-1]
    yield bytes([honest[0] ^ 1]) + honest[1:]
    # A broken worker signs these itself.
    for text in (b"{}", b"5", b"null", b'["gw8", {}]', b'{"cases": ', b"\xff", b"[" * 90_000):
        yield signed(own, "gw8", text)
    packed = b"gw8\nnot compressed"
    yield hmac.digest(own, packed, "sha256") + packed


def test_no_process_can_break_or_forge_the_progress() -> None:
    """Messages that no worker signed, or that are no ledger, change nothing.

    Any process of the same user can send them, so an implementation in a rank can.
    """
    listener = Listener()
    sender = ProgressSender(listener.address, "gw0", listener.key("gw0"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as intruder:
        intruder.settimeout(5)
        intruder.connect("\0" + listener.address)
        for message in _forged(listener):
            intruder.send(message)

    def sent() -> bool:
        sender.send(ledger(8))  # It is lost while the listener's queue is full.
        return bool(listener.ledgers())

    assert _until(sent, 5)
    assert {name: each.cases for name, each in listener.ledgers().items()} == {"gw0": 8}
    listener.close()
    assert not listener._thread.is_alive()
    sender.close()


def test_progress_says_what_is_held_open_vacuous_and_left() -> None:
    """A rule counts as held once its property has ended.

    The remaining time is unknown until one property has ended.
    """
    known, progress = Ledger(), Progress(100)
    known.cases = 30
    known.merge(ledger())
    known.tested, known.ended = {"GRAD-2", "GRAD-3"}, {"GRAD-3"}
    known.entries["GRAD-2"].met["three ranks"] = 0
    assert progress.seconds_left(70) == float("inf")
    progress.report(["GRAD-3"], "passed")
    progress.report([], "passed")
    assert progress.other_results == 1
    assert progress.counts(known) == {
        "held": 1,
        "violated": 0,
        "inconclusive": 0,
        "not claimed": 0,
        "open": len(ALL_RULES) - 1,
    }
    assert progress.vacuous(known) == {"GRAD-2": ["three ranks"]}
    line = progress.line(known)
    assert re.match(
        rf"1/{len(ALL_RULES)} properties, 70 cases, [\d]+/s, "
        rf"1 held, {len(ALL_RULES) - 1} open, about ",
        line,
    ), line
    progress.plan({"GRAD-3", "GRAD-2"})
    assert progress.line(known).startswith("1/2 properties, 70 cases, ")
    assert progress.counts(known)["open"] == 1
    known.entries["GRAD-1"].confirmed = known.entries["GRAD-1"].seen = 1
    assert progress.counts(known)["violated"] == 1


SHOWN = (
    (ROOT / "docs" / "certificate.md")
    .read_text(encoding="utf-8")
    .split("```sh\n")[1]
    .partition("\n```")[0]
)
"""The two commands that the page on certificates shows first."""
SHARDS = ("-k", "shard2 or shard4", "--cases", "10", "--seed", "1")


def test_a_session_leaves_all_it_was_asked_for_also_under_xdist(
    session: Session, tmp_path: Path
) -> None:
    """A session under xdist writes every output that it was asked for.

    The outputs are a certificate, its page, a badge, a JUnit file with the rules' properties, and
    the summary of a CI job. The certificate of two rules alone is partial.
    """
    (tmp_path / "summary.md").write_text("said before\n")
    certify, recheck = (
        line.replace("my_package.ddp:MyDDP", "reference")
        .replace(" certificate.", f" {tmp_path}/it.")
        .split()[1:]
        for line in SHOWN.splitlines()
    )
    done = session(
        "ddp_invariants",
        *certify,
        "-n",
        "2",
        *SHARDS,
        "--badge",
        str(tmp_path / "badge.json"),
        "--junitxml",
        str(tmp_path / "junit.xml"),
        environment={**plain(), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        f"certificate: {tmp_path}/it.json, {tmp_path}/it.html (PARTIAL: not certified)"
        in done.stdout
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "badge.json",
        "it.html",
        "it.json",
        "junit.xml",
        "summary.md",
    ]
    rechecked = CliRunner().invoke(main, recheck)
    assert (rechecked.exit_code, rechecked.output.startswith("PARTIAL")) == (2, True)
    certificate = verifying.read(tmp_path / "it.json")
    assert certificate == verifying.read(tmp_path / "it.html")
    assert [row.rule for row in certificate.rules if row.verdict == "holds"] == [
        "SHARD-2",
        "SHARD-4",
    ]
    assert (
        certificate.properties.executed == certificate.properties.reported == ("SHARD-2", "SHARD-4")
    )
    assert certificate.partial[0].startswith(
        f"{len(ALL_RULES) - 2} of {len(ALL_RULES)} properties did not run to their end"
    )
    assert certificate.setting.seed == 1
    assert all(len(subject.digest) == 64 and subject.files == 1 for subject in certificate.subjects)
    assert json.loads((tmp_path / "badge.json").read_text())["message"] == "partial"
    assert (
        (tmp_path / "summary.md").read_text().startswith("said before\n## PARTIAL: not certified\n")
    )
    suite = ET.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    whole = {item.get("name"): item.get("value") for item in suite.findall("properties/property")}
    assert (whole["SHARD-2"], whole["GRAD-1"], whole["seed"]) == ("holds", "not tested", "1")
    per_test = [
        {item.get("name"): item.get("value") for item in case.findall("properties/property")}
        for case in suite.findall("testcase")
    ]
    verdicts = sorted((test["ddp-invariants rule"], test["verdict"]) for test in per_test)
    assert verdicts == [("SHARD-2", "holds"), ("SHARD-4", "holds")]


def test_what_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """An output that cannot be written is refused by its option's name before anything runs.

    Examples are a missing folder, another suffix, and a folder in the file's place.
    """
    for wanted, words in (
        (
            OutputFiles(certificate=tmp_path / "no" / "it.json"),
            f"there is no folder {tmp_path / 'no'}",
        ),
        (OutputFiles(certificate=tmp_path / "it.pdf"), "expected FILE.json or FILE.html"),
        (OutputFiles(badge=tmp_path), f"--badge {tmp_path}: it cannot be written"),
    ):
        with pytest.raises(CaseError, match=re.escape(words)):
            wanted.check()
    OutputFiles(certificate=tmp_path / "it.json", badge=tmp_path / "badge.json").check()


def test_an_interrupt_prints_what_is_known_and_leaves_a_partial_certificate(tmp_path: Path) -> None:
    """An interrupt by key prints the table, writes a partial certificate, and leaves no process.

    The session runs on a terminal with a progress display and two workers.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "properties/",
        "--cases",
        "5000",
        "--certificate",
        str(tmp_path / "it.json"),
    ]
    pid, terminal = pty.fork()
    if not pid:
        # A shell may have left the signal ignored, which a program inherits.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.chdir(ROOT)
        os.execve(sys.executable, command, {**plain(), "TERM": "xterm", "COLUMNS": "118"})
    output, below, pressed = b"", [], 0.0
    until = time.monotonic() + 90
    try:
        while time.monotonic() < until:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    output += os.read(terminal, 1 << 16)
                except OSError:  # The other side is closed.
                    break
            if not pressed and re.search(rb"/\d+ properties, [1-9][\d,]* cases, \d+/s, ", output):
                below, pressed = psutil.Process(pid).children(recursive=True), time.monotonic()
                os.write(terminal, b"\x03")
        seconds = time.monotonic() - pressed
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(terminal)
        for process in [psutil.Process(pid)] if psutil.pid_exists(pid) else []:
            process.send_signal(signal.SIGKILL)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode())
    assert status == 2, text
    # With a free core this takes a third of a second (`benchmarks/interrupting.py`). Here, other
    # tests run at the same time.
    assert seconds < 3 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert re.search(r"[\d,]+ cases judged\r\nrule +verdict", text), text
    assert "not finished" in text
    assert "Traceback" not in text
    assert ".\r\n" not in text.partition("=== data-parallel")[0]  # No dots beside the display.
    certificate = verifying.read(tmp_path / "it.json")
    assert certificate.partial[0] == "the session was interrupted"
    assert certificate.cases > 0
    assert verifying.read(tmp_path / "it.html") == certificate
    assert len(below) > 3
    assert _until(
        lambda: (
            not [
                child
                for child in below
                if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
            ]
        ),
        5,
    )


@pytest.mark.parametrize("heeded", [True, False])
def test_an_interrupt_that_python_ignores_is_made_again(*, heeded: bool) -> None:
    """An interrupt that Python ignores is raised again.

    Python ignores an interrupt in a finalizer or in a callback of the garbage collector. Without
    `heed_interrupts`, the program goes on.
    """
    lines = [
        "import os, signal, time",
        "from ddp_invariants.session.ending import heed_interrupts",
        "class Last:",
        "    def __del__(self):",
        "        os.kill(os.getpid(), signal.SIGINT)",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        *(["heed_interrupts()"] * 2 if heeded else []),
        "try:",
        "    Last()",
        "    time.sleep(0.5)",
        "except KeyboardInterrupt:",
        "    print('heard')",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={**plain(), "PYTHONPATH": str(ROOT)},
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ("heard\n" if heeded else ""), done.stderr
    assert ("Exception ignored" in done.stderr) != heeded


def test_whoever_cuts_a_session_short_ends_its_workers_but_those_that_came_back() -> None:
    """A session that is cut short kills its workers, whether or not they have sent anything.

    Workers that have handed over their ledgers are not killed.
    """
    monitor = Monitor(
        SessionSettings("pytest", 1, 10, 4, "pooled", "gloo"), OutputFiles(), lambda: None
    )
    with (
        subprocess.Popen(["sleep", "60"]) as running,
        subprocess.Popen(["sleep", "60"]) as finished,
    ):
        monitor.workers = {"gw0": running.pid, "gw1": finished.pid}
        monitor.add_ledger("gw1", Ledger())
        monitor.cut_short(by_user=False)
        assert (running.wait(10), finished.poll(), monitor.interrupted) == (
            -signal.SIGKILL,
            None,
            False,
        )
        finished.kill()
    monitor.listener.close()


def test_in_a_ci_job_a_line_tells_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a CI job, a progress line is printed at intervals: not too early, and not twice."""
    monitor = Monitor(
        SessionSettings("pytest", 1, 10, 4, "pooled", "gloo"), OutputFiles(), lambda: None
    )
    try:
        assert monitor.line() == ""
        monkeypatch.setattr("ddp_invariants.session.monitor.LINE_EVERY", 0.05)
        time.sleep(0.06)
        assert monitor.line() == ""  # No property has begun.
        begun = Ledger()
        begun.cases = 1
        monitor.add_ledger("gw0", begun)
        time.sleep(0.06)
        assert re.match(
            rf"ddp-invariants: 0/{len(ALL_RULES)} properties, 1 cases, \d+/s, {len(ALL_RULES)} open",
            monitor.line(),
        )
        assert monitor.line() == ""
    finally:
        monitor.listener.close()
