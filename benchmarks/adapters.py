"""Test the shipped adapters against the installed libraries, each in an environment of its own.

    python benchmarks/adapters.py [NAME]...

Each environment is made anew in a temporary folder, over the packages of this interpreter. For each
adapter the script prints the library's version, the exit status of `discover`, the number of
capabilities that are right, and those that are wrong.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environments import installed

from ddp_invariants.implementation.names import ADAPTERS


def discovered(python: Path, name: str, folder: Path) -> tuple[int, dict[str, list[str]]]:
    """Return the exit status of `discover` on an adapter, and the capabilities by standing."""
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [python, "-m", "ddp_invariants", "discover", "--ddp", name, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    standings: dict[str, list[str]] = {}
    for probe in json.loads(done.stdout)["capabilities"] if done.stdout else ():
        standings.setdefault(probe["standing"], []).append(probe["capability"])
    return done.returncode, standings


def main() -> None:
    """Test the named adapters; all if none is named."""
    for name in sys.argv[1:] or ADAPTERS["ddp"]:
        with tempfile.TemporaryDirectory() as folder:
            python = installed(Path(folder) / "env", name)
            began = time.monotonic()
            status, standings = discovered(python, name, Path(folder))
            wrong = standings.get("wrong", []) + standings.get("crashes", [])
            sys.stdout.write(
                f"{name}: exit {status}, {len(standings.get('right', []))} right, "
                f"wrong: {', '.join(wrong) or 'none'}, {time.monotonic() - began:.0f} s\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
