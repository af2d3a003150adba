"""A job's rank 0 for `test_cluster.py`: trains across two hosts, of whose ranks one is killed, whose link is cut, and so on.

Every process of the job runs this; those but rank 0 serve it. Prints one line of JSON a step.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.errors import HarnessError
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes import job
from ddp_invariants.processes.pool import Pool
from ddp_invariants.processes.remote import RemoteHost

CASE = TrainingCase(
    model=Model(2, (Layer("linear", 3, bias=True),)),
    world_size=4,
    steps=2,
    data=Data(samples=8, batch_size=2),
)


def trained(pool: Pool) -> str:
    """What came of the case: what is wrong with it, or why it could not be run."""
    try:
        found = judge(pool.train(CASE, Ddp()))
    except HarnessError as error:
        return f"harness: {error}"
    return (
        "; ".join(
            f"{rule}: {one.failure.got}" for rule, one in found.items() if one.failure is not None
        )
        or "right"
    )


def say(step: str, pool: Pool) -> None:
    """Tell the test what came of the case at this point."""
    began = time.monotonic()
    came = trained(pool)
    sys.stdout.write(
        json.dumps({"step": step, "came": came, "seconds": round(time.monotonic() - began, 1)})
        + "\n"
    )
    sys.stdout.flush()


def cut(link: str, seconds: float) -> Callable[[], None]:
    """Cut this host's link; what is returned waits until it is there again."""
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    mend = threading.Timer(seconds, subprocess.run, [["ip", "link", "set", link, "up"]])
    mend.start()
    return mend.join


def steps(ours: job.Job, link: str) -> None:
    """All that is done to the job; the second host's link is cut longer than its answers are waited for, or not so long."""
    joined = job.Cluster(ours)
    try:
        with Pool(joined.addresses, deadline=3.0) as pool:
            for host in pool._hosts:
                if isinstance(host, RemoteHost):
                    host.patience = 3.0
            say("whole", pool)
            os.kill(pool._ranks[3].pid, signal.SIGKILL)  # All hosts of the test are this machine.
            say("a rank killed", pool)
            say("after a rank killed", pool)
            os.kill(pool._ranks[2].pid, signal.SIGSTOP)
            say("a rank stopped", pool)
            say("after a rank stopped", pool)
            mended = cut(link, 0.5)
            say("a short cut", pool)
            mended()
            mended = cut(link, 8.0)
            say("a long cut", pool)
            mended()
            say("after a long cut", pool)
            server = int(sys.stdin.readline().split()[1])  # Of rank 3.
            os.kill(server, signal.SIGKILL)
            say("a process killed", pool)
    finally:
        joined.end()
        joined.release(7)


if __name__ == "__main__":
    ours = job.job()
    assert ours is not None
    if ours.rank:
        sys.exit(job.serve(ours))
    steps(ours, sys.argv[1])
    sys.exit(7)
