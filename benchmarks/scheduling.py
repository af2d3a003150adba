"""What the ranks' scheduling policy is worth: one small all-reduce under the default one and under SCHED_BATCH.

`python benchmarks/scheduling.py`; see [Note: batch scheduling] in ddp_invariants/ranks/host.py.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ways import connect

from ddp_invariants.ranks.host import prefer_batch_scheduling

REPETITIONS, ROUNDS = 300, 5


def microseconds(world_size: int, *, batch: bool) -> tuple[float, float]:
    """Median and 90th percentile of an all-reduce of ten floats."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world_size):
            child = os.fork()
            if child == 0:
                if batch:
                    prefer_batch_scheduling()
                connect(f"{folder}/store", rank, world_size)
                tensor, seconds = torch.ones(10), []
                for _ in range(REPETITIONS):
                    started = time.perf_counter()
                    dist.all_reduce(tensor)
                    seconds.append(time.perf_counter() - started)
                dist.barrier()
                if rank == 0:
                    Path(f"{folder}/answer").write_text(json.dumps(sorted(seconds)))
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        seconds = json.loads(Path(f"{folder}/answer").read_text())
    return statistics.median(seconds) * 1e6, seconds[int(0.9 * len(seconds))] * 1e6


def main() -> None:
    """Alternate the two policies and print medians of rounds."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if not hasattr(os, "SCHED_BATCH"):
        sys.exit("this system has no SCHED_BATCH")
    print(f"{'W':>2} {'default us':>11} {'(p90)':>8} {'batch us':>10} {'(p90)':>8} {'ratio':>7}")
    for world_size in (2, 3, 4):
        rounds = [(*microseconds(world_size, batch=False), *microseconds(world_size, batch=True)) for _ in range(ROUNDS)]
        default, default_90, batch, batch_90 = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{world_size:>2} {default:>11.0f} {default_90:>8.0f} {batch:>10.0f} {batch_90:>8.0f} {default / batch:>7.1f}")


if __name__ == "__main__":
    main()
