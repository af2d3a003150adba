"""The verdicts on planted faults and right implementations, in the simulation and over gloo.

    python benchmarks/places.py [--cases 6]

Each planted fault is judged on its recorded case (`tests/quality/caught.json`) in both places, and each
right wrapper of the catalogue on drawn cases. The script lists every difference with its reason, and ends
with 1 if a difference has none.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

import caught
from rich.console import Console
from rich.progress import track

from ddp_invariants.cases.case import TrainingCase, describe
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.invariants import judge, root_failure
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof import measure
from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.search.places import REAL_WORLD_SIZE
from ddp_invariants.search.trial import Options, Trial

REASONS = {
    "GathersWithoutWaiting": (
        "a race: simulated ranks read the slices before they arrive, and each reads something else"
    ),
    "ReducesInTwoWays": (
        "gloo takes a sum and a maximum for one collective; simulated ranks wait for each other"
    ),
    "SizeOfTheFirstGroup": (
        "its class keeps a list, which simulated ranks share and processes do not"
    ),
    "TakesWhatHasArrived": (
        "a race: only a late result shows it, and over gloo this one comes in time; results that are "
        "withheld show it there"
    ),
}
"""By name of a fault: why its recorded case shows other rules in one place than in the other."""


@dataclass(frozen=True)
class Compared:
    """One case in both places.

    Attributes:
        name: The implementation.
        case: The case.
        simulated: The rules that fail in the simulation, the root failure's first.
        real: The rules that fail over gloo, likewise.
    """

    name: str
    case: TrainingCase
    simulated: tuple[str, ...]
    real: tuple[str, ...]


def failing(trial: Trial, evidence: TrainingEvidence) -> tuple[str, ...]:
    """Return the rules that fail, the one that explains the others first."""
    findings = judge(evidence, trial.scope.declared, trial.scope.sampler)
    failures = trial.failures(findings, evidence.case)
    root = root_failure(failures)
    rules = sorted(failure.rule for failure in failures)
    return () if root is None else (root.rule, *(rule for rule in rules if rule != root.rule))


def compared(trial: Trial, planted: CatalogueEntry, case: TrainingCase) -> Compared | None:
    """Run a case in both places; None if the case runs on real ranks alone."""
    if case.kills or len(case.runs) > 1 or case.ranks_needed > REAL_WORLD_SIZE:
        return None
    ddp = trial.under_test.ddp
    # Some rules compare two runs of a case.
    simulated = trial._trained(case, planted.rule, lambda each: trial.pool.simulate(each, ddp))
    if simulated is None:
        return None
    real = trial._trained(case, planted.rule, lambda each: trial.pool.train(each, ddp))
    assert real is not None
    return Compared(planted.name, case, failing(trial, simulated), failing(trial, real))


def trial_of(pool: Pool, planted: CatalogueEntry, store: Path) -> Trial:
    """Return a trial of a fault as its test makes it, or of a right implementation that is probed."""
    if planted.is_fault:
        return caught.trial_of(pool, planted, store)
    scope = replace(measure._scope(pool, *planted.probed), max_world_size=REAL_WORLD_SIZE)
    return Trial(pool, UnderTest(*planted.under_test, scope), Options(store=store))


def cases_of(trial: Trial, planted: CatalogueEntry, count: int) -> Iterator[TrainingCase]:
    """Yield a fault's recorded case, or drawn cases for a right implementation."""
    if planted.is_fault:
        recorded = caught.recorded().get(planted.target)
        if isinstance(recorded, TrainingCase):
            yield recorded
        return
    drawn = caught._drawn("PARAM-3", trial.scope)  # The rule that reads most of the evidence.
    yield from [case for case in drawn if isinstance(case, TrainingCase)][
        :: -(-len(drawn) // count)
    ]


def main() -> None:
    """Compare, and print the totals and the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=6, help="cases of each right wrapper")
    options = parser.parse_args()
    wrappers = [
        entry
        for entry in all_entries()
        if not (entry.is_sampler or entry.needs_device) and (entry.is_fault or options.cases)
    ]
    both: dict[bool, list[Compared]] = {True: [], False: []}
    left = Counter[bool]()
    with (
        Hosts() as hosts,
        Pool(hosts.addresses) as pool,
        tempfile.TemporaryDirectory() as store,
    ):
        pool.limit(caught.DEADLINE)
        for planted in track(wrappers, console=Console(stderr=True)):
            trial = trial_of(pool, planted, Path(store))
            for case in cases_of(trial, planted, options.cases):
                result = compared(trial, planted, case)
                if result is None:
                    left[planted.is_fault] += 1
                else:
                    both[planted.is_fault].append(result)
    faults, controls = both[True], both[False]
    same = sum(each.simulated[:1] == each.real[:1] != () for each in faults)
    equal = sum(each.simulated == each.real != () for each in faults)
    print(
        f"planted faults: {len(faults)} in both places; {same} with the same root failure, {equal} with "
        f"all the same rules; {left[True]} on real ranks alone"
    )
    accused = [each for each in controls if each.simulated or each.real]
    print(
        f"right wrappers: {len({each.name for each in controls})} on {len(controls)} cases; "
        f"{len(accused)} accused; {left[False]} cases on real ranks alone"
    )
    unexplained = 0
    differing = [each for each in faults if each.simulated != each.real or not each.real]
    for each in [*differing, *accused]:
        reason = REASONS.get(each.name, "")
        unexplained += not reason
        print(
            f"  {each.name}: {', '.join(each.simulated) or 'holds'} in the simulation, "
            f"{', '.join(each.real) or 'holds'} over gloo: {reason or 'NO REASON KNOWN'} "
            f"({describe(each.case)})"
        )
    sys.exit(bool(unexplained))


if __name__ == "__main__":
    main()
