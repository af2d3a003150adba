"""Cases per second over each backend of this machine, beside gloo on its processor.

`python benchmarks/devices.py [--cases 100] [--ddp reference]` measures all rows in one run. The
cases of each row are those a property would draw for that world size. The cases run with all
evidence and are judged by all rules. The figures are medians of rounds. A backend that cannot run
here is named with the reason.
"""

import argparse

from rich.console import Console
from rich.table import Table
from throughput import draw, pooled

from ddp_invariants.processes.backends import BackendName, bound, not_run, wanted
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool

ROWS: tuple[tuple[BackendName, int], ...] = (
    ("gloo", 1),
    ("gloo", 2),
    ("nccl", 1),
    ("nccl", 2),
    ("gloo-cuda", 1),
    ("gloo-cuda", 2),
    ("nccl-shared", 2),
)


def main() -> None:
    """Measure all backends and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--ddp", default="reference")
    options = parser.parse_args()
    table = Table("way", "W", "cases per second", "milliseconds per case", "and judged")
    with Hosts() as hosts:
        for backend, world_size in ROWS:
            resolved = wanted(backend, None)
            with Pool(hosts.addresses, backend=resolved) as pool:
                device_infos = pool.device_infos()
                why, most = not_run(resolved, device_infos), bound(resolved, device_infos)
                if not why and most is not None and most[0] < world_size:
                    why = most[1]
                if why:
                    table.add_row(str(resolved), str(world_size), f"not run: {why}")
                    continue
                running, judging = pooled(pool, draw(world_size, options.cases)[0], options.ddp)
            table.add_row(
                str(resolved),
                str(world_size),
                f"{1 / (running + judging):,.0f}",
                f"{running * 1e3:.1f}",
                f"{(running + judging) * 1e3:.1f}",
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
