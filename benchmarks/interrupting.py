"""The time from an interrupt until a session ends. `python benchmarks/interrupting.py [TIMES]`.

Each session is started as a shell starts it, in a process group of its own. SIGINT goes to the
whole group, as a terminal sends it. The signal is sent while cases are judged, and also in the
first seconds, when it can interrupt any step of the start. The script measures the time until the
command has ended, and until no process that it started is left.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
COMMANDS = {
    "certify -n 2": ["ddp_invariants", "certify", "-n", "2"],
    "certify -n 0": ["ddp_invariants", "certify", "-n", "0"],
    "pytest -n 2": ["pytest", "-p", "no:cacheprovider", "-n", "2", "properties/"],
    "pytest": ["pytest", "-p", "no:cacheprovider", "properties/"],
}
JUDGING = "judging"
"""The moment at which cases are judged; any other moment is a number of seconds after the start."""
PATIENCE = 60.0


@dataclass(frozen=True)
class Ended:
    """The end of a session.

    Attributes:
        status: Its exit status.
        seconds: Seconds from the interrupt until the session had ended.
        below: Seconds from the interrupt until the last process that it started was gone.
        told: True if the session printed the results known so far.
        partial: True if a certificate says that the session was interrupted.
        output: Everything that the session printed.
    """

    status: int
    seconds: float
    below: float
    told: bool
    partial: bool
    output: str


def interrupted(command: list[str], moment: str) -> Ended:
    """Start a session, interrupt it, and return its end."""
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder) / "it.json"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = [
            sys.executable,
            "-m",
            *command,
            "--cases",
            "5000",
            "--certificate",
            str(certificate),
        ]
        with (Path(folder) / "output").open("w+", encoding="utf-8") as output:
            session = subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=output, stderr=output, process_group=0
            )
            process = psutil.Process(session.pid)
            if moment == JUDGING:
                _until_it_judges(process)
            else:
                time.sleep(float(moment))
            below = process.children(recursive=True)
            pressed = time.monotonic()
            os.killpg(session.pid, signal.SIGINT)
            status = session.wait(PATIENCE)
            seconds = time.monotonic() - pressed
            _until_gone(below)
            gone = time.monotonic() - pressed
            output.seek(0)
            text = output.read()
        partial = certificate.exists() and "the session was interrupted" in certificate.read_text(
            encoding="utf-8"
        )
    return Ended(status, seconds, gone, "cases judged" in text, partial, text)


def _until_it_judges(process: psutil.Process) -> None:
    """Wait until the session's ranks have worked for a while."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ranks = 0
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                ranks += (
                    "ddp_invariants.ranks.host" in child.cmdline()
                    and "ddp_invariants.ranks.host" in (child.parent() or child).cmdline()
                )
        if ranks >= 4:
            break
        time.sleep(0.05)
    time.sleep(2.0)


def _until_gone(processes: list[psutil.Process]) -> None:
    until = time.monotonic() + PATIENCE
    while (
        any(
            process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            for process in processes
            if psutil.pid_exists(process.pid)
        )
        and time.monotonic() < until
    ):
        time.sleep(0.005)


def main() -> None:
    """Measure all commands and moments, and print the figures."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # A background process of a shell ignores it.
    print(
        "interrupted when; seconds until it had ended, and until nothing was left (median, most); "
        "load average;\n"
        "exit status, whether it told what was known, whether it left a partial certificate\n"
    )
    for name, command in COMMANDS.items():
        for moment in (JUDGING, *(f"{tenths / 10:.1f}" for tenths in range(1, 60, 4))):
            endings = [
                interrupted(command, moment) for _ in range(times if moment == JUDGING else 1)
            ]
            ended, gone = (
                [getattr(session, which) for session in endings] for which in ("seconds", "below")
            )
            outcomes = sorted(
                {(session.status, session.told, session.partial) for session in endings}
            )
            print(
                f"{name:<13} {moment:<8} {statistics.median(ended):5.2f} {max(ended):5.2f} "
                f"{statistics.median(gone):8.2f} "
                f"{max(gone):5.2f} {os.getloadavg()[0]:8.1f}  {outcomes}",
                flush=True,
            )


if __name__ == "__main__":
    main()
