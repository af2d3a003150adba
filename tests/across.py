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

from ddp_invariants import cluster
from ddp_invariants.case import Data, Layer, Model, TrainingCase
from ddp_invariants.implementation import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.ranks.hosts import HarnessError
from ddp_invariants.ranks.pool import Pool

CASE = TrainingCase(model=Model(2, (Layer("linear", 3, bias=True),)), world_size=4, steps=2, data=Data(samples=8, batch_size=2))


def trained(pool: Pool) -> str:
    """What came of the case: what is wrong with it, or why it could not be run."""
    try:
        found = judge(pool.train(CASE, Ddp()))
    except HarnessError as error:
        return f"harness: {error}"
    return "; ".join(f"{rule}: {one.breach.got}" for rule, one in found.items() if one.breach is not None) or "right"


def say(step: str, came: str, began: float) -> None:
    """Tell the test."""
    sys.stdout.write(json.dumps({"step": step, "came": came, "seconds": round(time.monotonic() - began, 1)}) + "\n")
    sys.stdout.flush()


def cut(link: str, seconds: float) -> Callable[[], None]:
    """Cut this host's link; what is returned waits until it is there again."""
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    mend = threading.Timer(seconds, subprocess.run, [["ip", "link", "set", link, "up"]])
    mend.start()
    return mend.join


def steps(ours: cluster.Job, link: str) -> None:
    """All that is done to the job."""
    joined = cluster.Cluster(ours)
    try:
        with Pool(joined.addresses, deadline=5.0) as pool:
            def step(name: str) -> None:
                began = time.monotonic()
                say(name, trained(pool), began)
            step("whole")
            os.kill(pool._ranks[3].pid, signal.SIGKILL)  # All hosts of the test are this machine.
            step("a rank killed")
            step("after it")
            os.kill(pool._ranks[2].pid, signal.SIGSTOP)
            step("a rank stopped")
            if link:
                mended = cut(link, 2.0)
                step("a short cut")
                mended()
                step("after a short cut")
                mended = cut(link, 25.0)
                step("a long cut")
                mended()
                step("after a long cut")
            server = next(int(line.split()[1]) for line in sys.stdin)  # Of rank 3.
            os.kill(server, signal.SIGKILL)
            step("a process killed")
    finally:
        joined.end()
        joined.release(7)


if __name__ == "__main__":
    ours = cluster.job()
    assert ours is not None
    if ours.rank:
        sys.exit(cluster.serve(ours))
    steps(ours, sys.argv[1] if len(sys.argv) > 1 else "")
    sys.exit(7)
