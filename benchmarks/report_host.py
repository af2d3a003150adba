"""A process that imports torch once, and forks the ranks of each report's script.

    python benchmarks/report_host.py FOLDER SCRIPT RANKS [SCRIPT RANKS]...

The ranks find each other by the variables of torchrun. Rank R of a script NAME.py writes to
FOLDER/NAME.R. A rank that still runs after `SECONDS` is killed.
"""

import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch._dynamo
import torch.distributed.algorithms.ddp_comm_hooks
import torch.distributed.fsdp
import torch.distributed.optim  # noqa: F401 - all are what the scripts import, or torch for them
from torch._C._distributed_c10d import TCPStore

SECONDS = 60
"""The time that a script may take, in seconds."""


def run_rank(script: Path, rank: int, ranks: int, port: int, folder: Path) -> None:
    """Run a script in this process as one rank, and end the process."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    with (folder / f"{script.stem}.{rank}").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # At a script's end `runpy` clears its names. Freeing a wrapper whose backward failed hangs.
    names = {"__name__": "__main__", "__file__": str(script)}
    try:
        exec(compile(script.read_text(encoding="utf-8"), script, "exec"), names)
    finally:
        sys.stdout.flush()
        os._exit(0)  # On a normal exit, gloo's threads abort some of the processes.


def run_script(script: Path, ranks: int, folder: Path) -> None:
    """Run a script on some ranks, and wait until all have ended.

    The store is here, as torchrun has it in its agent: a rank that ends early must not take it away.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    left = set()
    for rank in range(ranks):
        process = os.fork()
        if not process:
            run_rank(script, rank, ranks, store.port, folder)
        left.add(process)
    deadline = time.monotonic() + SECONDS
    while left and time.monotonic() < deadline:
        left = {process for process in left if os.waitpid(process, os.WNOHANG)[0] == 0}
        time.sleep(0.02)
    for process in left:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


if __name__ == "__main__":
    _, FOLDER, *REST = sys.argv
    gc.freeze()  # A collection would write to, and so copy, the pages that ranks share.
    for SCRIPT, RANKS in zip(REST[::2], REST[1::2], strict=True):
        run_script(Path(SCRIPT), int(RANKS), Path(FOLDER))
