"""The run of an exported script in a new process, and the signs of the violation in its output."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ddp_invariants.invariants.live import ENDS
from ddp_invariants.records.violation import StoredViolation

CHECK_SECONDS = 90.0
"""The seconds a script has to show its violation: to import torch, and its own watchdog's 10 s."""


def not_shown(text: str, stored: StoredViolation) -> str:
    """Return why a script, run in a new process, does not show its violation; empty if it does."""
    status, output = ran(text)
    if status == 1 and any(sign in output for sign in _signs(stored)):
        return ""
    return how_it_ended(status, output)


def ran(text: str, python: str = sys.executable) -> tuple[int | None, str]:
    """Run a script in a new process of an interpreter.

    Returns:
        The exit status (None if the script ran out of time and was killed) and the output.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "repro.py"
        path.write_text(text, encoding="utf-8")
        # The package lies beside the script for an interpreter that lacks it: the reference is
        # part of the package, and may be the implementation under test.
        (path.parent / "ddp_invariants").symlink_to(Path(__file__).parents[1])
        here = {
            # torch makes this folder; here it goes with the script.
            "TORCHINDUCTOR_CACHE_DIR": str(path.parent / "compiled"),
            **{
                name: value
                for name, value in os.environ.items()
                if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
            },
        }
        # The script runs in its own session, so that a single signal ends its ranks, too.
        with subprocess.Popen(
            [python, str(path)],
            env=here,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                output, _ = running.communicate(timeout=CHECK_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                return None, ""
    return running.returncode, output


def how_it_ended(status: int | None, output: str) -> str:
    """Return a sentence about the end of a script that did not show its violation."""
    if status is None:
        return f"it did not end within {CHECK_SECONDS:.0f} s"
    last = output.strip().splitlines()[-1:] or ["nothing"]
    return f"it ended with status {status} and said {last[0][:200]!r}"


def _signs(stored: StoredViolation) -> list[str]:
    """Return the texts of which a script prints at least one when it shows its violation."""
    signs = [f"{stored.failure.rule}: "]
    if stored.failure.rule == ENDS:
        raised = stored.evidence.ranks if stored.evidence is not None else ()
        signs += ["Timeout (0:00:"] if " hung" in stored.failure.fact else []
        signs += [
            f"{rank.raised['type']}: "
            for rank in raised
            if rank.raised is not None and "type" in rank.raised
        ]
    return signs
