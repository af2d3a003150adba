"""Cases per second of the pool, beside other ways to run the same training on real ranks.

`python benchmarks/throughput.py [--world-sizes 1,2,3,4] [--cases 100] [--ddp reference] [--json
FILE]` measures all ways in one run. The script needs the package `expecttest`, which PyTorch's own
harnesses import. The script prints milliseconds per case and ratios, as medians of rounds. The
milliseconds depend on the machine; the ratios depend on it less.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from rich.console import Console
from rich.table import Table

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.strategies import training_cases

HERE = Path(__file__).parent
ROUNDS = 5
CHILDREN = {
    "bare loop": ("ways.py", "bare"),
    "bare loop, default scheduling": ("ways.py", "bare, default scheduling"),
    "fork per case": ("ways.py", "fork"),
    "MultiProcContinuousTest": ("harnesses.py", "MultiProcContinuousTest"),
    "spawn per case": ("ways.py", "spawn"),
    "MultiProcessTestCase": ("harnesses.py", "MultiProcessTestCase"),
}


def draw(world_size: int, count: int) -> tuple[list[TrainingCase], float]:
    """Return the cases a property would draw for a world size, and the seconds to draw each."""
    drawn: list[TrainingCase] = []
    scope = Scope(max_world_size=world_size, without=frozenset({"subgroup"}))

    @settings(
        max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @seed(world_size)
    @given(
        training_cases(scope, world_sizes=(world_size,), perturbed=("none",))
    )  # Without perturbations: their delays are not the pool's time.
    def collect(case: TrainingCase) -> None:
        drawn.append(case)

    started = time.perf_counter()
    collect()
    return drawn, (time.perf_counter() - started) / len(drawn)


def pooled(pool: Pool, cases: list[TrainingCase], ddp: str) -> tuple[float, float]:
    """Return the median seconds per case to run with all evidence, and to judge by all rules.

    The medians are over the rounds.
    """
    runs, judgements = [], []
    for number in range(ROUNDS + 1):
        started = time.perf_counter()
        evidence = [pool.train(case, Ddp(ddp)) for case in cases]
        ran = time.perf_counter()
        for run in evidence:
            judge(run)
        if number:  # The first round connects.
            runs.append((ran - started) / len(cases))
            judgements.append((time.perf_counter() - ran) / len(cases))
    return statistics.median(runs), statistics.median(judgements)


def _in_a_worker(
    addresses: list[str], cases: list[TrainingCase], ddp: str
) -> tuple[list[float], list[float]]:
    """Simulate and judge all cases, round by round; return the end of each part of each round."""
    running, judging = [], []
    with Pool(addresses) as pool:
        for _ in range(ROUNDS + 1):
            started = time.perf_counter()
            evidence = [pool.simulate(case, Ddp(ddp)) for case in cases]
            ran = time.perf_counter()
            for run in evidence:
                assert run is not None, pool.not_simulated
                judge(run)
            running.append(ran - started)
            judging.append(time.perf_counter() - ran)
    return running[1:], judging[1:]


def simulated(addresses: list[str], cases: list[TrainingCase], ddp: str) -> tuple[float, float]:
    """Return the median seconds per case to simulate it, and to judge it, on all cores.

    Each core has a worker, as under `pytest -n auto`; together they make so many cases more.
    """
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as workers:
        jobs = [workers.submit(_in_a_worker, addresses, cases, ddp) for _ in range(cores)]
        parts = [job.result() for job in jobs]
    runs, judgements = (
        statistics.median(seconds for part in parts for seconds in part[number])
        for number in (0, 1)
    )
    return runs / len(cases) / cores, judgements / len(cases) / cores


def elsewhere(way: str, world_size: int, path: Path, ddp: str) -> float:
    """Return the median seconds per case of another way, in a process of its own."""
    script, name = CHILDREN[way]
    environment = {
        **os.environ,
        "WAYS_WORLD_SIZE": str(world_size),
        "WAYS_CASES": str(path),
        "WAYS_DDP": ddp,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    arguments = [name, str(world_size), str(path), ddp] if script == "ways.py" else [name]
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{way}: {done.stderr[-2000:]}")
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return statistics.median(seconds)


def measure(
    world_size: int, count: int, ddp: str, pool: Pool, addresses: list[str]
) -> dict[str, float]:
    """Return the milliseconds per case of every way for one world size."""
    cases, drawing = draw(world_size, count)
    running, judging = pooled(pool, cases, ddp)
    simulating, judging_simulated = simulated(addresses, cases, ddp)
    times = {
        "simulated, evidence included": simulating,
        "  and judged by all rules ": simulating + judging_simulated,
        "this pool, evidence included": running,
        "  and judged by all rules": running + judging,
        "  and drawn by Hypothesis": running + judging + drawing,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps(cases, default=vars))
        for way in CHILDREN:
            times[way] = elsewhere(way, world_size, path, ddp)
    return {way: seconds * 1e3 for way, seconds in times.items()}


def show(times: dict[int, dict[str, float]], write: Callable[[object], None]) -> None:
    """Write tables of milliseconds per case, ratios to the bare loop, and cases per second."""
    values: dict[str, Callable[[dict[str, float], str], str]] = {
        "milliseconds per case": lambda row, way: f"{row[way]:,.1f}",
        "times the bare loop": lambda row, way: f"{row[way] / row['bare loop']:,.2f}",
        "cases per second": lambda row, way: f"{1e3 / row[way]:,.1f}",
    }
    for title, value in values.items():
        table = Table(title=title, title_justify="left")
        table.add_column("way")
        for world_size in times:
            table.add_column(f"W={world_size}", justify="right")
        for way in next(iter(times.values())):
            table.add_row(way, *(value(row, way) for row in times.values()))
        write(table)


def main() -> None:
    """Measure all ways, print the tables, and write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world-sizes", default="1,2,3,4")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--ddp", default="reference")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    times = {}
    with Hosts() as hosts, Pool(hosts.addresses) as pool:
        for world_size in map(int, options.world_sizes.split(",")):
            times[world_size] = measure(
                world_size, options.cases, options.ddp, pool, hosts.addresses
            )
    console = Console(width=110)
    show(times, console.print)
    if options.json:
        facts = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "ddp": options.ddp,
            "cases": options.cases,
            "milliseconds_per_case": times,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
