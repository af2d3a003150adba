"""Which cause is named for each planted fault. `python benchmarks/diagnosis.py [--seeds N] [--only NAME]`.

Each fault of `tests/planted.py` with an expected cause is judged by the rule that must notice it, on small cases and as many
seeds as asked for. Right: the one cause named is the expected one. Unknown: none is named, or two that cannot be told apart.
Wrong: anything else.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # The faults and their table are the tests'.

from planted import SAMPLERS, WRAPPERS, Planted  # type: ignore[import-not-found]  # as above

from ddp_invariants.discovery import discover
from ddp_invariants.implementation import Ddp, Sampler
from ddp_invariants.ranks.hosts import Hosts
from ddp_invariants.ranks.pool import Pool
from ddp_invariants.strategies import cases_for
from ddp_invariants.trial import OnTrial, Options, Trial
from ddp_invariants.verdict import Inconclusive, Violation

FAULTS = Path(__file__).parent.parent / "tests" / "faults.py"


@dataclass(frozen=True)
class Named:
    """What one trial of a fault came to.

    Attributes:
        rule: The rule that caught it; empty where none did.
        cause: What was named; empty where nothing was.
        outcome: right, wrong or unknown.
    """

    rule: str
    cause: str
    outcome: str


def named(pool: Pool, fault: Planted, seed: int, store: Path) -> Named:
    """Judge a fault by the rule that must notice it, and its diagnosis by the table."""
    spec = f"{FAULTS}:{fault.name}"
    ddp, sampler = (Ddp(), Sampler(spec)) if fault.is_sampler else (Ddp(spec), Sampler())
    trial = Trial(pool, OnTrial(ddp, sampler, discover(pool, ddp, sampler, 4).scope(4)), Options(seed=seed, store=store))
    try:
        trial.certify(fault.rule, cases_for(fault.rule, trial.scope))
    except Violation as violation:
        breach = violation.breach
        if not breach.perhaps or len({cause.words for cause in breach.causes}) > 1:
            return Named(breach.rule, breach.perhaps, "unknown")
        return Named(breach.rule, breach.perhaps, "right" if fault.cause in breach.perhaps else "wrong")
    except Inconclusive as reason:
        return Named("", str(reason).splitlines()[0], "unknown")
    return Named("", "", "unknown")


@click.command()
@click.option("--seeds", default=3, show_default=True, help="Searches per fault, each with a seed of its own.")
@click.option("--only", default="", metavar="NAME", help="One fault alone.")
def main(seeds: int, only: str) -> None:
    """Judge and print."""
    table, totals = Table(box=SIMPLE, show_edge=False, pad_edge=False), Counter[str]()
    for title in ("fault", "caught by", "cause named", "right / wrong / unknown"):
        table.add_column(title, overflow="fold")
    with Hosts() as hosts, Pool(hosts.addresses) as pool, TemporaryDirectory() as folder:
        for fault in (*WRAPPERS, *SAMPLERS):
            if not fault.cause or (only and only != fault.name):
                continue
            found = [named(pool, fault, seed, Path(folder)) for seed in range(seeds)]
            counts = Counter(one.outcome for one in found)
            print(fault.name, *(one.outcome for one in found), file=sys.stderr, flush=True)
            totals += counts
            # What is not right is shown rather than what is.
            shown = min(found, key=lambda one: ("wrong", "unknown", "right").index(one.outcome))
            rules = Counter(one.rule or f"no rule ({fault.rule} must)" for one in found)
            caught = ", ".join(f"{rule}{f' in {times} of {seeds}' * (times < seeds)}" for rule, times in rules.items())
            table.add_row(fault.name, caught, escape(shown.cause) or "none",
                          " / ".join(str(counts[outcome]) for outcome in ("right", "wrong", "unknown")))
    Console(width=128).print(table)
    trials = sum(totals.values())
    share = f"{100 * totals['right'] / max(trials, 1):.0f} %"
    print(f"\n{trials} trials: {totals['right']} right ({share}), {totals['wrong']} wrong, {totals['unknown']} unknown")


if __name__ == "__main__":
    main()
