"""The time that recording collectives, waits and gradients adds to a case.

`python benchmarks/recording.py` runs two pools side by side: a normal pool, and a pool whose groups
only forward calls. The pools take turns of a few cases each, and each turn gives one ratio. A busy
machine therefore disturbs both alike. The script prints the median ratio and the range of the
middle half of the ratios.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from throughput import draw

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool

TURNS, CASES = 60, 12
UNRECORDED = Ddp(f"{Path(__file__).with_name('unrecorded.py')}:Unrecorded")


def seconds(pool: Pool, ddp: Ddp, cases: Sequence[TrainingCase]) -> float:
    """Return the seconds that some cases take."""
    started = time.perf_counter()
    for case in cases:
        pool.train(case, ddp)
    return time.perf_counter() - started


def main() -> None:
    """Measure both pools in turns, and print the ratios."""
    with Hosts() as hosts:
        for world_size in (2, 3):
            cases = draw(world_size, CASES)[0]
            ratios, recorded_ms = [], []
            with Pool(hosts.addresses) as recorded, Pool(hosts.addresses) as bare:
                for turn in range(TURNS + 5):
                    # The second pool finds warmer caches, so the order alternates.
                    order = [(recorded, Ddp()), (bare, UNRECORDED)][:: 1 if turn % 2 else -1]
                    took = {pool: seconds(pool, ddp, cases) for pool, ddp in order}
                    if turn >= 5:
                        ratios.append(took[recorded] / took[bare])
                        recorded_ms.append(1e3 * took[recorded] / len(cases))
            low, middle, high = statistics.quantiles(ratios, n=4)
            sys.stdout.write(
                f"W = {world_size}: recording makes a case {middle:.3f} times as long "
                f"(middle half of {TURNS} "
                f"turns {low:.3f} to {high:.3f}); {statistics.median(recorded_ms):.1f} ms a case\n"
            )


if __name__ == "__main__":
    main()
