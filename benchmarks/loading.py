"""The time that driving an implementation adds to a case. `python benchmarks/loading.py`."""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from ddp_invariants.cases import numbers
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.situations.capability import BASE


def median_seconds(work: Callable[[], object], times: int) -> float:
    """Return the median seconds over some calls, after a few calls to warm up."""
    seconds = []
    for number in range(times + 20):
        started = time.perf_counter()
        work()
        if number >= 20:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def main() -> None:
    """Measure loading and driving, and print their times."""
    replica = Replica(BASE.model, numbers.parameters(BASE, 0, BASE.model.numbers))
    context = Context(0, 2, None, None, 0, 0.1, torch.optim.SGD, {"lr": 0.1}, torch.device("cpu"))
    unwrapped = Driver(Ddp("none"))
    driving = median_seconds(lambda: unwrapped.start(context, replica).begin(), 2000)
    optimizer = median_seconds(lambda: context.optimizer(list(replica.parameters())), 2000)
    with Hosts() as hosts, Pool(hosts.addresses) as pool:
        started = time.perf_counter()
        pool.describe(Ddp())
        loading = time.perf_counter() - started
        case = median_seconds(lambda: pool.train(BASE, Ddp()), 100)
    added = driving - optimizer
    sys.stdout.write(
        f"loading once per process: {loading:.2f} s, the hosts' start included\n"
        f"a case of two steps on two ranks: {1e3 * case:.2f} ms, "
        f"of which driving {1e6 * added:.0f} us "
        f"({100 * added / case:.2f} %)\n"
    )


if __name__ == "__main__":
    main()
