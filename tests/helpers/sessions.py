"""A server that runs sessions in processes forked from one that has imported their modules.

`python sessions.py FOLDER ADDRESS...` reads one request per line, in JSON: `module`, `arguments`,
`folder`, `environment`, `seconds`. The server answers each request with an exit status, output and
errors. The hosts at the addresses fork the sessions' ranks; without an address the server starts
hosts. Starting two hosts, importing a
session's modules, and probing take seconds of a processor. These seconds are most of the time of a
test. Results of probing are therefore stored in the folder (see probed.py).
"""

import json
import os
import runpy
import signal
import sys
import tempfile
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import pytest
from probed import remembering

from ddp_invariants.discovery import probe
from ddp_invariants.processes.hosts import HASH_SEEDS, Hosts


def lend(addresses: list[str]) -> None:
    """Make every `Hosts` object reuse the running hosts instead of starting hosts.

    Hosts under another interpreter are started as usual.
    """
    start = Hosts.__init__

    def borrowed(
        self: Hosts, python: str = "", *, hash_seeds: tuple[str, ...] = HASH_SEEDS, **options: Any
    ) -> None:
        start(self, python, hash_seeds=hash_seeds if python else (), **options)
        self.addresses += [] if python else addresses[: len(hash_seeds)]

    Hosts.__init__ = borrowed  # type: ignore[method-assign]  # in this process, which is a test's


def become(request: dict[str, Any], output: int, errors: int) -> NoReturn:
    """Run a module as a process of its own would, and exit with its status."""
    signal.alarm(request["seconds"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["folder"]
    sys.argv = [request["module"], *request["arguments"]]
    status = 1
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
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
    """Answer requests until the input ends."""
    with ExitStack() as stack:
        serve(sys.argv[2:] or stack.enter_context(Hosts()).addresses)


def serve(addresses: list[str]) -> None:
    """Answer requests with sessions on these hosts."""
    lend(addresses)
    probe.discover = remembering(
        Path(sys.argv[1]), addresses
    )  # Replace the attribute before other modules import it by name.
    with redirect_stdout(
        StringIO()
    ):  # Import everything through pytest: otherwise, pytest would warn.
        pytest.main(["-p", "no:cacheprovider", "--collect-only", "-q", "properties"])
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            pid = os.fork()
            if pid == 0:
                become(json.loads(line), output.fileno(), errors.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        sys.stdout.write(json.dumps([status, *texts]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
