"""The command mutate: measure the judge on mutants of real code."""

import re
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ddp_invariants.cli.options import Whole
from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.cli.searching import say_interrupted, search, with_resume, with_workers
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.cli.types import ParamType
from ddp_invariants.errors import INCONCLUSIVE, INTERRUPTED, UNUSABLE_INPUT, unusable
from ddp_invariants.implementation.spec import defaulting
from ddp_invariants.processes.backends import ON_THE_CPU
from ddp_invariants.session import option_values

if TYPE_CHECKING:
    from ddp_invariants.proof.detection import Detection
    from ddp_invariants.proof.measure import FaultSearch
    from ddp_invariants.proof.mutants.judging import Judged
    from ddp_invariants.proof.results import Results

CASES = 300
"""Largest number of cases in a search for a mutant's failure."""
MOST_SAMPLES = 5000
"""The length of the longest dataset. A sampler that makes lists takes minutes to shrink a million."""


class Lines(ParamType[tuple[int, int]]):
    """The type of an option that takes the first and the last line of a part of a file."""

    name = "lines"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return both lines; one number is a part of one line."""
        parts = re.fullmatch(r"([1-9]\d*)(?:-([1-9]\d*))?", value)
        if parts is None or int(parts[2] or parts[1]) < int(parts[1]):
            self.fail(f"{value}: expected lines such as 80-120", param, ctx)
        return int(parts[1]), int(parts[2] or parts[1])


class Operator(ParamType[str]):
    """The type of an option that takes the name of an operator."""

    name = "operator"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        # Imported here: the help needs no operators.
        from ddp_invariants.proof.mutants.operators import OPERATORS

        return click.Choice([*OPERATORS]).convert(value, param, ctx)


@click.command(
    short_help="Test this suite on mutants of an implementation's source.",
    epilog=exit_statuses(
        "every mutant was killed or refused, or is explained",
        "a mutant survived, or was never executed",
        "the unaltered copy was accused, or the suite itself failed",
    ),
)
@click.argument("target")
@click.option("--whole", is_flag=True, help="alter the whole module, not the class alone")
@click.option(
    "--only",
    type=Operator(),
    metavar="OPERATOR",
    multiple=True,
    help=defaulting("kind of change; repeatable", "all kinds"),
)
@click.option(
    "--lines",
    type=Lines(),
    metavar="A-B",
    help=defaulting("lines of the file to alter", "all lines"),
)
@click.option(
    "--sample",
    type=Whole(option_values.COUNT),
    metavar="N",
    help=defaulting("number of mutants to draw at random", "all mutants"),
)
@click.option(
    "--seed",
    type=Whole(option_values.COUNT_OR_NONE),
    default=0,
    metavar="S",
    help=defaulting("number that decides which mutants are drawn", 0),
)
@click.option(
    "--cases",
    type=Whole(option_values.COUNT),
    default=CASES,
    metavar="N",
    help=defaulting("largest number of cases for each mutant", CASES),
)
@with_workers
@with_resume
@with_json
@click.pass_context
def mutate(
    context: click.Context,
    /,
    target: str,
    only: tuple[str, ...],
    lines: tuple[int, int] | None,
    sample: int | None,
    seed: int,
    cases: int,
    workers: int,
    resume: Path | None,
    *,
    whole: bool,
    as_json: bool,
) -> None:
    """Test this suite on mutants of an implementation's source.

    TARGET is a DDP wrapper as --ddp takes it, sampler:NAME for a sampler, or opt:NAME for an
    optimizer. A mutant is a copy of its source with one small change, such as a dropped statement
    or < for <=. The rules must notice each mutant. The installed files stay as they are.
    """
    # Imported here: they import Hypothesis, which the other commands do not need.
    from ddp_invariants.errors import ResultsError
    from ddp_invariants.proof.measure import FaultSearch
    from ddp_invariants.proof.mutants import judging, overlay
    from ddp_invariants.proof.results import Results
    from ddp_invariants.report import mutants as report

    results: list[judging.Judged] = []
    try:
        of = judging.target(target)
        original = overlay.locate(of.part, of.name)
        altered = judging.chosen(
            original, whole=whole, operators=only, lines=lines, sample=sample or 0, seed=seed
        )
        with TemporaryDirectory() as folder:
            entries = judging.entries(of, original, altered, Path(folder))
            searches = [
                FaultSearch(entry, seed, cases, MOST_SAMPLES, shrinks=False) for entry in entries
            ]
            options = {"mutants of": str(of), "cases": cases}
            kept = None if resume is None else Results(resume, options, [original.file])
            detections, interrupted = _by_name(searches[:1], workers, kept)
            unaltered = detections.get(entries[0].name)
            if unaltered is not None and _holds(unaltered):
                reached = [judging.is_reached(mutant, unaltered) for mutant in altered]
                if not interrupted:
                    detections, _ = _by_name([*compress(searches[1:], reached)], workers, kept)
                for mutant, is_reached in zip(altered, reached, strict=True):
                    found = detections.get(mutant.name) if is_reached else unaltered
                    if found is not None:
                        results.append(judging.judged(of, mutant, found, unaltered))
    except (*UNUSABLE_INPUT, ResultsError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    if as_json:
        print_json(report.document(results, str(of), str(original.file)))
    else:
        click.echo(report.table(results, str(original.file)))
    context.exit(_status(results, len(altered), unaltered))


def _by_name(
    searches: "list[FaultSearch]", workers: int, results: "Results | None"
) -> "tuple[dict[str, Detection], bool]":
    """Run the searches; return their results by name, and whether an interrupt ended them early."""
    done: list[Detection] = []
    interrupted = False
    try:
        search(searches, workers, ON_THE_CPU, done, results)
    except KeyboardInterrupt:
        say_interrupted(searches, done)
        interrupted = True
    return {detection.planted.name: detection for detection in done}, interrupted


def _holds(unaltered: "Detection") -> bool:
    """Return whether no rule failed on the unaltered copy, and the copy could be judged."""
    return not (unaltered.is_caught or unaltered.reason)


def _status(results: "list[Judged]", mutants: int, unaltered: "Detection | None") -> int:
    """Return the exit status.

    Args:
        results: The results.
        mutants: The number of mutants.
        unaltered: The result for the unaltered copy.
    """
    from ddp_invariants.report.mutants import NOTICED

    if unaltered is not None and not _holds(unaltered):
        words = f"{unaltered.rule} {unaltered.reason}".strip()
        click.echo(f"ddp-invariants: the unaltered copy does not hold: {words}", err=True)
        return INCONCLUSIVE
    if unaltered is None or len(results) < mutants:
        return INTERRUPTED
    if any(each.result == "failed" for each in results):
        return INCONCLUSIVE
    loaded = [each for each in results if each.result != "not loaded"]
    return int(any(each.result not in NOTICED for each in loaded))
