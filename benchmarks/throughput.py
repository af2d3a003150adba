"""Cases per second of this pool beside the other ways to run the same training on real ranks, in one run.

`python benchmarks/throughput.py [--world-sizes 1,2,3,4] [--cases 100] [--ddp reference] [--json
FILE]`; needs the package `expecttest`, which PyTorch's own harnesses import. Prints milliseconds
per case and ratios; medians of rounds. Absolute numbers belong to the machine, ratios less so.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
    """The cases a property would draw for a world size, and the seconds drawing took each."""
    drawn: list[TrainingCase] = []
    scope = Scope(max_world_size=world_size, without=frozenset({"subgroup"}))

    @settings(
        max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @seed(world_size)
    @given(
        training_cases(scope, world_sizes=(world_size,), perturbed=("none",))
    )  # Delays are none of the pool's doing.
    def collect(case: TrainingCase) -> None:
        drawn.append(case)

    started = time.perf_counter()
    collect()
    return drawn, (time.perf_counter() - started) / len(drawn)


def pooled(pool: Pool, cases: list[TrainingCase], ddp: str) -> tuple[float, float]:
    """Median over rounds of the seconds per case to run with all evidence, and to judge by all rules."""
    runs, judgements = [], []
    for number in range(ROUNDS + 1):
        started = time.perf_counter()
        evidence = [pool.train(case, Ddp(ddp)) for case in cases]
        ran = time.perf_counter()
        for one in evidence:
            judge(one)
        if number:  # The first round connects.
            runs.append((ran - started) / len(cases))
            judgements.append((time.perf_counter() - ran) / len(cases))
    return statistics.median(runs), statistics.median(judgements)


def elsewhere(way: str, world_size: int, path: Path, ddp: str) -> float:
    """Median seconds per case of another way, in a process of its own."""
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


def measure(world_size: int, count: int, ddp: str, pool: Pool) -> dict[str, float]:
    """Milliseconds per case of every way for one world size."""
    cases, drawing = draw(world_size, count)
    running, judging = pooled(pool, cases, ddp)
    found = {
        "this pool, evidence included": running,
        "  and judged by all rules": running + judging,
        "  and drawn by Hypothesis": running + judging + drawing,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps(cases, default=vars))
        for way in CHILDREN:
            found[way] = elsewhere(way, world_size, path, ddp)
    return {way: seconds * 1e3 for way, seconds in found.items()}


def show(found: dict[int, dict[str, float]], write: Callable[[object], None]) -> None:
    """A table of milliseconds per case, and one of ratios to the bare loop."""
    values: dict[str, Callable[[dict[str, float], str], str]] = {
        "milliseconds per case": lambda row, way: f"{row[way]:,.1f}",
        "times the bare loop": lambda row, way: f"{row[way] / row['bare loop']:,.2f}",
        "cases per second": lambda row, way: f"{1e3 / row[way]:,.1f}",
    }
    for title, value in values.items():
        table = Table(title=title, title_justify="left")
        table.add_column("way")
        for world_size in found:
            table.add_column(f"W={world_size}", justify="right")
        for way in next(iter(found.values())):
            table.add_row(way, *(value(row, way) for row in found.values()))
        write(table)


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world-sizes", default="1,2,3,4")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--ddp", default="reference")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    with Hosts() as hosts, Pool(hosts.addresses) as pool:
        for world_size in map(int, options.world_sizes.split(",")):
            found[world_size] = measure(world_size, options.cases, options.ddp, pool)
    console = Console(width=110)
    show(found, console.print)
    if options.json:
        facts = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "ddp": options.ddp,
            "cases": options.cases,
            "milliseconds_per_case": found,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
