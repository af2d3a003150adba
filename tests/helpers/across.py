"""The script of `test_cluster.py`'s job: rank 0 trains across two hosts and injects failures.

Every process of the job runs this script. Rank 0 kills and stops ranks, and cuts the link between
the hosts. The other processes serve rank 0. Rank 0 prints one line of JSON per step.
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
from ddp_invariants.processes import job as cluster
from ddp_invariants.processes.pool import Pool
from ddp_invariants.processes.remote import RemoteHost

CASE = TrainingCase(
    model=Model(2, (Layer("linear", 3, bias=True),)),
    world_size=4,
    steps=2,
    data=Data(samples=8, batch_size=2),
)


def trained(pool: Pool) -> str:
    """Return what is wrong with the case, "right", or why the case could not be run."""
    try:
        findings = judge(pool.train(CASE, Ddp()))
    except HarnessError as error:
        return f"harness: {error}"
    return (
        "; ".join(
            f"{rule}: {finding.failure.got}"
            for rule, finding in findings.items()
            if finding.failure is not None
        )
        or "right"
    )


def say(step: str, pool: Pool) -> None:
    """Run the case and print its result at this point of the script."""
    began = time.monotonic()
    result = trained(pool)
    sys.stdout.write(
        json.dumps({"step": step, "came": result, "seconds": round(time.monotonic() - began, 1)})
        + "\n"
    )
    sys.stdout.flush()


def cut(link: str, seconds: float) -> Callable[[], None]:
    """Cut this host's link, and return a function that waits until the link is up again."""
    subprocess.run(["ip", "link", "set", link, "down"], check=True)
    mend = threading.Timer(seconds, subprocess.run, [["ip", "link", "set", link, "up"]])
    mend.start()
    return mend.join


def steps(job: cluster.Job, link: str) -> None:
    """Inject each failure in turn, and run the case during and after it.

    The link of the second host is cut twice: once for less time than an answer is waited for, and
    once for longer.
    """
    joined = cluster.Cluster(job)
    try:
        with Pool(joined.addresses, deadline=3.0) as pool:
            for host in pool.processes.hosts:
                if isinstance(host, RemoteHost):
                    host.patience = 3.0
            say("whole", pool)
            os.kill(
                pool.processes.running[3].pid, signal.SIGKILL
            )  # All hosts of the test are this machine.
            say("a rank killed", pool)
            say("after a rank killed", pool)
            os.kill(pool.processes.running[2].pid, signal.SIGSTOP)
            say("a rank stopped", pool)
            say("after a rank stopped", pool)
            mended = cut(link, 0.5)
            say("a short cut", pool)
            mended()
            mended = cut(link, 8.0)
            say("a long cut", pool)
            mended()
            say("after a long cut", pool)
            server = int(sys.stdin.readline().split()[1])  # The process that serves rank 3.
            os.kill(server, signal.SIGKILL)
            say("a process killed", pool)
    finally:
        joined.end()
        joined.release(7)


if __name__ == "__main__":
    job = cluster.job()
    assert job is not None
    if job.rank:
        sys.exit(cluster.serve(job))
    steps(job, sys.argv[1])
    sys.exit(7)
