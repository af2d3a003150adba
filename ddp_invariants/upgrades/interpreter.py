"""The check of an interpreter that a user names: it is Python, is new enough, and has torch and numpy."""

import json
import subprocess
import sys
from typing import Any

from ddp_invariants.errors import NamingError
from ddp_invariants.upgrades.baseline import Environment

OLDEST = (3, 11)
"""The oldest Python that ranks run under."""
ANSWERING = 20.0
"""Seconds for an interpreter to say its version, which takes milliseconds."""
IMPORTING = 120.0
"""Seconds for an interpreter to import torch."""
_VERSION = "import sys; print('\\n%d.%d.%d' % sys.version_info[:3])"
"""Prints the version; every Python since 2.0 can run it."""
_NEEDED = """
import json, platform, sys
import numpy, torch
cpu = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo") \
if line.startswith("model name")]
lines = torch.__config__.show().splitlines()
blas = [line.strip(" -") for line in lines if "Math Kernel" in line or "CPU cap" in line]
print()
print(json.dumps({"torch": torch.__version__, "numpy": numpy.__version__, \
"version": platform.python_version(),
                  "cpu": (cpu or [platform.machine()])[0], "blas": "; ".join(blas)[:400]}))
"""
"""Asks an interpreter for everything that numbers depend on. Every rank has one thread."""


def side(python: str) -> Environment:
    """Return the environment of an interpreter.

    Raises:
        NamingError: The path is no interpreter, or the interpreter is too old, or lacks torch or
            numpy.
    """
    version = _version(python)
    if version < OLDEST:
        raise NamingError(
            f"{python} is Python {'.'.join(map(str, version))}; ranks need "
            f"{'.'.join(map(str, OLDEST))} or newer"
        )
    process = _answered(python, _NEEDED, IMPORTING, "it did not import torch")
    try:
        facts: dict[str, Any] = json.loads(_last_line(process.stdout))
        return Environment(python, **facts)
    except (ValueError, TypeError):
        reason = _last_line(process.stderr) or "it printed no error"
        raise NamingError(f"{python} cannot import torch and numpy: {reason}") from None


def _version(python: str) -> tuple[int, ...]:
    """Return the version of an interpreter.

    Raises:
        NamingError: It is no interpreter.
    """
    process = _answered(python, _VERSION, ANSWERING, "it gave no answer")
    parts = _last_line(process.stdout).split(".")
    if process.returncode or len(parts) != len(sys.version_info[:3]):
        # Its own words may repeat the question, which would say nothing to the user.
        raise NamingError(f"{python} is no Python interpreter")
    try:
        return tuple(map(int, parts))
    except ValueError:
        raise NamingError(f"{python} is no Python interpreter") from None


def _answered(
    python: str, source: str, seconds: float, late: str
) -> subprocess.CompletedProcess[str]:
    """Run source in an interpreter.

    Raises:
        NamingError: It cannot be run, or does not end in time.
    """
    try:
        # `-I` isolates the interpreter; otherwise it would import modules from this folder.
        return subprocess.run(
            [python, "-I", "-c", source],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NamingError(f"{python} cannot be run as a Python interpreter: {reason}") from None
    except subprocess.TimeoutExpired:
        raise NamingError(
            f"{python} cannot be used as a Python interpreter: {late} within {seconds:.0f} s"
        ) from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
