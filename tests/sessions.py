"""Run sessions in processes forked from one that has imported what they import: `python sessions.py FOLDER ADDRESS...`.

Each line of the input is a request in JSON: `module`, `arguments`, `folder`, `environment`,
`seconds`. Each gets one back: exit status, output, errors. Their ranks are forked by the hosts at
the addresses: starting two, importing what a session imports, and probing what was probed before
(probed.py), in the folder, takes seconds of a processor, most of what a test of a session would do.
"""

import json
import os
import runpy
import signal
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import pytest
from probed import remembering

from ddp_invariants.discovery import probe
from ddp_invariants.processes.hosts import HASH_SEEDS, Hosts


def lend(addresses: list[str]) -> None:
    """Have whoever starts hosts under this interpreter get those there are."""
    start = Hosts.__init__

    def borrowed(
        self: Hosts, python: str = "", *, hash_seeds: tuple[str, ...] = HASH_SEEDS, **others: Any
    ) -> None:
        start(self, python, hash_seeds=hash_seeds if python else (), **others)
        self.addresses += [] if python else addresses[: len(hash_seeds)]

    Hosts.__init__ = borrowed  # type: ignore[method-assign]  # in this process, which is a test's


def become(asked: dict[str, Any], output: int, errors: int) -> NoReturn:
    """Run a module as a process of its own would."""
    signal.alarm(asked["seconds"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[0] = asked["folder"]
    sys.argv = [asked["module"], *asked["arguments"]]
    status = 1
    try:
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)  # noqa: T201 - as the interpreter would
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - a session may end in any way
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Answer until the input ends."""
    lend(sys.argv[2:])
    probe.discover = remembering(Path(sys.argv[1]), sys.argv[2:])  # Before it is imported by name.
    with redirect_stdout(
        StringIO()
    ):  # So that all is imported the way pytest does it, which it warns of otherwise.
        pytest.main(["-p", "no:cacheprovider", "--collect-only", "-q", "properties"])
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            pid = os.fork()
            if pid == 0:
                become(json.loads(line), output.fileno(), errors.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said = []
            for file in (output, errors):
                file.seek(0)
                said.append(file.read().decode(errors="replace"))
        sys.stdout.write(json.dumps([status, *said]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
