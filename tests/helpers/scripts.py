"""A server that runs exported scripts in processes forked from one that has imported torch.

`python scripts.py` reads one path per line and answers each with one line of JSON: exit status and
output. Importing torch takes ten times as long as the work of a script.
"""

import json
import os
import runpy
import sys
import tempfile
from typing import NoReturn

import torch._dynamo
import torch.distributed
import torch.utils.data  # noqa: F401 - what scripts import


def _become(path: str, output: int) -> NoReturn:
    """Run a script as a process of its own would, and exit with its status."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [path]
    status = 1
    try:
        runpy.run_path(path, run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:  # noqa: BLE001 - a script may end in any way
        # Tests look at the last line of the output.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - script's output
    finally:
        sys.stdout.flush()
        os._exit(status)


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if pid == 0:
                _become(line.strip(), output.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            text = output.read().decode(errors="replace")
        sys.stdout.write(json.dumps([status, text]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
