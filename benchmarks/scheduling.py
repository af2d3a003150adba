"""The effect of the ranks' scheduling policy on one small all-reduce.

`python benchmarks/scheduling.py` compares the default policy with SCHED_BATCH; see [Note: batch
scheduling] in ddp_invariants/ranks/host.py.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from ways import in_forked_ranks

from ddp_invariants.ranks.host import prefer_batch_scheduling

REPETITIONS, ROUNDS = 300, 5


def microseconds(world_size: int, *, batch: bool) -> tuple[float, float]:
    """Return the median and the 90th percentile of an all-reduce of ten floats."""

    def all_reduces(_: int) -> list[float]:
        tensor, seconds = torch.ones(10), []
        for _ in range(REPETITIONS):
            started = time.perf_counter()
            dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - started)
        return sorted(seconds)

    seconds = in_forked_ranks(world_size, all_reduces, prefer_batch_scheduling if batch else None)
    return statistics.median(seconds) * 1e6, seconds[int(0.9 * len(seconds))] * 1e6


def main() -> None:
    """Alternate the two policies, and print the medians of the rounds."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if not hasattr(os, "SCHED_BATCH"):
        sys.exit("this system has no SCHED_BATCH")
    print(f"{'W':>2} {'default us':>11} {'(p90)':>8} {'batch us':>10} {'(p90)':>8} {'ratio':>7}")
    for world_size in (2, 3, 4):
        rounds = [
            (*microseconds(world_size, batch=False), *microseconds(world_size, batch=True))
            for _ in range(ROUNDS)
        ]
        default, default_90, batch, batch_90 = (
            statistics.median(column) for column in zip(*rounds, strict=True)
        )
        print(
            f"{world_size:>2} {default:>11.0f} {default_90:>8.0f} "
            f"{batch:>10.0f} {batch_90:>8.0f} {default / batch:>7.1f}"
        )


if __name__ == "__main__":
    main()
