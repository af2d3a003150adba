"""The growth of a long session, and the leftovers of killed sessions.

`python benchmarks/endurance.py [--cases 20000] [--kills 50] [--seed 0]`

The first part runs 20,000 cases of the reference at world sizes 1 to 3 on one pool, renewed every
500 cases as always. This part prints resident memory, descriptors and threads of the processes. The
controller and both hosts are measured after the first 1,000 cases and at the end. The first and the
last ranks are measured at their 100th case and at their last.

The second part kills 50 controllers (SIGKILL) at random moments of their lives, the start included.
One second later, this part looks for processes that are left.

The script exits with status 1 if descriptors or threads have grown, or if a process was left. It
also exits with 1 if memory has grown by more than the slack below. Run it on an idle machine:
there, one second is plenty.
"""

import argparse
import random
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import psutil

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import RENEWAL, Pool

SLACK = {"controller": 16.0, "host": 2.0, "rank": 8.0}
"""MiB by which a process may grow, because allocators are uneven.

A leak of one kB per case would show as twenty MiB after 20,000 cases. A rank lives for 500 cases.
"""
WARM = 1000
"""Number of cases after which the controller and the hosts have made their one-time allocations."""
SETTLED = 100
"""Number of cases after which a rank has made its one-time allocations."""
CASE = TrainingCase(
    model=Model(2, (Layer("linear", 3, bias=True),)), steps=2, data=Data(samples=6, batch_size=2)
)

CONTROLLER = """
import sys
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
print("started", flush=True)
with Hosts() as hosts, Pool(hosts.addresses) as pool:
    case = TrainingCase(model=Model(1, (Layer("linear"),)), world_size=3)
    pool.train(case, Ddp())
    print("ready", flush=True)
    while True:
        pool.train(case, Ddp(), fresh=len(sys.argv) > 1)
"""


@dataclass(frozen=True)
class ResourceUse:
    """The resources of a process: resident memory in MiB, descriptors and threads."""

    memory: float
    descriptors: int
    threads: int

    @classmethod
    def by(cls, pid: int) -> "ResourceUse":
        """Return the resources that a process holds now."""
        process = psutil.Process(pid)
        return cls(process.memory_info().rss / 2**20, process.num_fds(), process.num_threads())

    def grown(self, now: "ResourceUse", slack: float) -> bool:
        """Return True if the process holds more now than the slack (MiB) allows."""
        return (
            now.memory > self.memory + slack
            or now.descriptors > self.descriptors
            or now.threads > self.threads
        )

    def __str__(self) -> str:
        return f"{self.memory:8.1f} MiB {self.descriptors:4} descriptors {self.threads:4} threads"


def compare(who: str, kind: str, before: ResourceUse, now: ResourceUse) -> bool:
    """Print the resources of a process at two moments, and return True if it has grown."""
    grown = before.grown(now, SLACK[kind])
    print(f"{who:28} {before}\n{'':28} {now}{'   GROWN' if grown else ''}", flush=True)
    return grown


def run(count: int, seed: int) -> bool:
    """Run the first part, and return True if anything has grown."""
    draw, grown = random.Random(seed), False
    with Hosts() as hosts, Pool(hosts.addresses) as pool:
        everyone = {
            "controller": psutil.Process().pid,
            **{f"host {n}": pid for n, pid in enumerate(hosts.pids)},
        }
        warm: dict[str, ResourceUse] = {}
        young: dict[int, ResourceUse] = {}
        started, renewals = time.monotonic(), 0
        for number in range(1, count + 1):
            case = replace(CASE, world_size=draw.randint(1, 3))
            findings = judge(pool.train(case, Ddp()))
            wrong = [
                finding.failure for finding in findings.values() if finding.failure is not None
            ]
            if wrong:
                sys.exit(f"case {number}: {wrong}")
            ranks = {process.pid: rank for rank, process in pool.processes.running.items()}
            place = number % RENEWAL
            if place == SETTLED and len(ranks) == 3:
                young = {pid: ResourceUse.by(pid) for pid in ranks}
            if place == RENEWAL - 1:
                renewals += 1
                if set(young) != set(ranks):
                    print(f"case {number}: ranks were replaced between renewals")
                if renewals == 1 or number + RENEWAL > count:
                    grown |= (
                        sum(
                            compare(
                                f"rank {ranks[pid]}, cases to {number}",
                                "rank",
                                held,
                                ResourceUse.by(pid),
                            )
                            for pid, held in young.items()
                            if pid in ranks
                        )
                        > 0
                    )
            if number == min(WARM, count // 2):
                warm = {who: ResourceUse.by(pid) for who, pid in everyone.items()}
        took = time.monotonic() - started
        print(
            f"{count} cases in {took:.0f} s, {took / count * 1e3:.1f} ms each; {renewals} renewals"
        )
        return grown | (
            sum(
                compare(who, who.split()[0], warm[who], ResourceUse.by(pid))
                for who, pid in everyone.items()
            )
            > 0
        )


def below(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process."""
    children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return children


def left(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run one second later."""
    _, alive = psutil.wait_procs(processes, timeout=1.0)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def _fate(processes: list[psutil.Process]) -> str:
    """Return in words if the remaining processes end within ten seconds, and the machine's load.

    A killed process needs a processor to end, too, so it may only be late.
    """
    _, alive = psutil.wait_procs(processes, timeout=10.0)
    load = psutil.getloadavg()[0] / (psutil.cpu_count() or 1)
    return (
        f"{'which STAYS' if alive else 'gone within ten seconds more'}; "
        f"{load:.1f} processes ready per processor"
    )


def kill(count: int, seed: int) -> bool:
    """Run the second part, and return True if any process was left."""
    draw, survived = random.Random(seed), 0
    for number in range(count):
        # One third is killed while the hosts start, one third while cases run, and one third while
        # ranks also start and end with each case.
        way = ("starting", "running", "renewing")[number % 3]
        command = [sys.executable, "-c", CONTROLLER, *(["fresh"] if way == "renewing" else [])]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as controller:
            assert controller.stdout is not None
            controller.stdout.readline()
            if way != "starting":
                controller.stdout.readline()
            time.sleep(draw.uniform(0.0, 3.0 if way == "starting" else 0.3))
            everyone = below(controller.pid)
            controller.kill()
            alive = left(everyone)
            survived += len(alive)
            print(
                f"kill {number + 1} of {count}, {way}: {len(everyone)} processes below"
                + (f", LEFT {alive}, {_fate(alive)}" if alive else ""),
                flush=True,
            )
    print(f"{count} controllers killed, {survived} processes left one second later")
    return survived > 0


def main() -> None:
    """Run both parts, and exit with their status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    grown = options.cases > 0 and run(options.cases, options.seed)
    survived = options.kills > 0 and kill(options.kills, options.seed)
    sys.exit(int(grown or survived))


if __name__ == "__main__":
    main()
