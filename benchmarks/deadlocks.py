"""Seconds until the verdict on implementations whose ranks wait for each other for ever.

    python benchmarks/deadlocks.py [--seed 0] [--cases 300] [NAME...]

For each planted fault that is a hang or a mismatch of collectives (LIVE-1 or COMM-1), a search
draws cases until one fails. The table says how long it then took to find the smallest case and to confirm
it in new processes. It also says how long that first case takes until its verdict when it is run
once more. Run the script on a quiet machine.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from ddp_invariants.discovery import probe
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.search.places import SIMULATED_WORLD_SIZE
from ddp_invariants.search.trial import Options, Trial

RULES = {"LIVE-1", "COMM-1"}
"""The rules of the faults: ranks that wait for ever, and collectives that do not match."""


@dataclass(frozen=True)
class Timed:
    """The times of one search.

    Attributes:
        name: The fault.
        rule: The rule of the smallest case; "none" if nothing was found.
        verdict: Seconds of one more run of the first failing case, its verdict included.
        smallest: Seconds from the first failure until the smallest case was confirmed.
    """

    name: str
    rule: str
    verdict: float = 0.0
    smallest: float = 0.0


def timed(pool: Pool, entry: CatalogueEntry, seed: int, cases: int, store: Path) -> Timed:
    """Search for a failure of a fault, and take the times."""
    ddp, sampler = entry.under_test
    scope = probe.discover(pool, *entry.probed, SIMULATED_WORLD_SIZE).scope(SIMULATED_WORLD_SIZE)
    trial = Trial(pool, UnderTest(ddp, sampler, scope), Options(seed=seed, store=store))
    rules = [
        rule.id
        for rule in ALL_RULES.values()
        if not rule.is_about_samplers and rule.applies != "observed"
    ]
    began = time.monotonic()
    survey = trial.survey(rules, cases)
    whole = time.monotonic() - began
    if survey.sighting is None or survey.violation is None:
        return Timed(entry.name, "none")
    began = time.monotonic()
    trial.findings(survey.sighting.case)
    verdict = time.monotonic() - began
    return Timed(
        entry.name, survey.violation.failure.rule, verdict, whole - survey.sighting.seconds
    )


def main() -> None:
    """Time the searches for all such faults, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=300)
    arguments = parser.parse_args()
    entries = [
        entry
        for entry in all_entries()
        if entry.is_fault and not entry.is_sampler and not entry.needs_device
        if entry.name in arguments.names
        or (not arguments.names and RULES.intersection(entry.rules))
    ]
    unknown = {*arguments.names} - {entry.name for entry in entries}
    if unknown:
        parser.error(f"no such fault of a wrapper: {', '.join(sorted(unknown))}")
    screen, table = Console(), Table("fault", "rule", "verdict (s)", "smallest case (s)")
    rows: list[Timed] = []
    with (
        tempfile.TemporaryDirectory() as store,
        Hosts() as hosts,
        Pool(hosts.addresses) as pool,
    ):
        for entry in track(entries, "searching", console=Console(stderr=True)):
            row = timed(pool, entry, arguments.seed, arguments.cases, Path(store))
            table.add_row(row.name, row.rule, f"{row.verdict:.2f}", f"{row.smallest:.1f}")
            rows += [row] if row.rule != "none" else []
    screen.print(table)
    if not rows:
        sys.exit("no search found a failure")
    for title, seconds in (
        ("verdict", [row.verdict for row in rows]),
        ("smallest case", [row.smallest for row in rows]),
    ):
        screen.print(
            f"{title}: median {statistics.median(seconds):.2f} s, largest {max(seconds):.2f} s, "
            f"{len(seconds)} faults"
        )


if __name__ == "__main__":
    main()
