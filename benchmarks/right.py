"""The false accusations of composed right implementations, gathered over many runs: `docs/right.md`.

    ddp-invariants faults --right 1000 --seed 1 --control-cases 300000 --shard 3/20 --json > part.json
    python benchmarks/right.py part.json --commit 1234abcd
    python benchmarks/right.py

A file holds one measurement or one part of one, as `faults --json` prints it. Its sums become a line
of `benchmarks/right.jsonl`, and the page is written from all lines; without files, from those that are
there. A part that has a line already is refused, unless an implementation was accused in it: once
the suite is mended, that part is run again, and its last run counts.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from detection import measurement
from pages import templates

from ddp_invariants.errors import MergeError
from ddp_invariants.proof.tables import Table, read
from ddp_invariants.search.split import WHOLE, Split

GATHERED = Path(__file__).with_suffix(".jsonl")
PAGE = Path(__file__).parent.parent / "docs" / "right.md"


@dataclass(frozen=True)
class Run:
    """The sums of one run.

    Attributes:
        date: The day on which it began, in UTC.
        commit: The commit of this suite that it tried.
        torch: The version of torch.
        command: The command.
        population: A digest of all searches of the measurement, those of other parts included.
        shard: The part, as "3/20"; empty if it is the whole measurement.
        implementations: The implementations that were judged.
        cases: The cases that they were judged on.
        simulated: The runs in the simulation.
        real: The runs over the real backend, and those of samplers.
        accused: The names of accused implementations, each with the rule.
    """

    date: str
    commit: str
    torch: str
    command: str
    population: str
    shard: str
    implementations: int
    cases: int
    simulated: int
    real: int
    accused: tuple[str, ...]


def run_of(table: Table, commit: str) -> Run:
    """Return the sums of a table.

    Raises:
        MergeError: The table is none of right implementations, or is not complete.
    """
    made = measurement(table)
    if made.kind != "right":
        raise MergeError("no measurement of faults --right")
    if len(table.searches) < table.planned or made.totals.unjudged:
        raise MergeError(
            f"{made.totals.controls} of {table.planned} implementations were judged; continue with "
            "--resume"
        )
    return Run(
        table.date,
        commit,
        table.torch,
        made.command,
        table.population,
        table.shard,
        made.totals.controls,
        made.totals.control_cases,
        made.totals.control_simulated,
        made.totals.control_real,
        tuple(f"{each.planted.name}: {each.rule}" for each in made.accused),
    )


def gathered(known: Sequence[Run], new: Iterable[Run]) -> list[Run]:
    """Return all runs.

    Raises:
        MergeError: A part of a measurement has searches that are there already.
    """
    runs = list(known)
    for run in new:
        for old in runs:
            if old.population != run.population or (old.command == run.command and old.accused):
                continue
            if _meet(old.shard, run.shard):
                raise MergeError(f"gathered already by: {old.command}")
        runs.append(run)
    return runs


def counting(runs: Iterable[Run]) -> list[Run]:
    """Return the last run of each command."""
    return list({run.command: run for run in runs}.values())


def _meet(one: str, other: str) -> bool:
    """Return whether two parts of a measurement, such as 3/10 and 1/4, may have a search in common.

    Part 3/10 has the third of every ten searches. An empty text is the whole measurement.
    """
    first, second = (Split.read(shard) if shard else WHOLE for shard in (one, other))
    return (first.number - second.number) % math.gcd(first.count, second.count) == 0


@click.command()
@click.argument(
    "files",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE...",
)
@click.option("--commit", default="", help="the commit of this suite that was measured")
def main(files: tuple[Path, ...], commit: str) -> None:
    """Add measurements, and write the page."""
    if files and not commit:
        raise click.UsageError("--commit is needed: it says what was measured")
    lines = GATHERED.read_text(encoding="utf-8").splitlines() if GATHERED.exists() else []
    known = [
        Run(**{**plain, "accused": tuple(plain["accused"])}) for plain in map(json.loads, lines)
    ]
    try:
        runs = gathered(known, [run_of(read(file), commit) for file in files])
    except MergeError as error:
        raise click.BadParameter(str(error)) from error
    GATHERED.write_text("".join(f"{json.dumps(asdict(run))}\n" for run in runs), encoding="utf-8")
    page = templates().get_template("right.md.j2").render(runs=runs, counting=counting(runs))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
