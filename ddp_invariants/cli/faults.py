"""The command faults: measure the judge."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddp_invariants.cli.options import FileOrFolder, Part, Whole, placing
from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.cli.pool import ranks
from ddp_invariants.cli.searching import say_interrupted, search, with_resume, with_workers
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import UNUSABLE_INPUT, unusable
from ddp_invariants.implementation.spec import defaulting
from ddp_invariants.processes.backends import BackendName, DeviceName, wanted
from ddp_invariants.report import detections as report
from ddp_invariants.report import populations
from ddp_invariants.search.places import REAL_WORLD_SIZE
from ddp_invariants.search.split import WHOLE, Split
from ddp_invariants.session import option_values

if TYPE_CHECKING:
    from ddp_invariants.proof.catalogue import Catalogue
    from ddp_invariants.proof.results import Results


@click.command(
    short_help="Test this suite itself on wrong and right implementations.",
    epilog=exit_statuses(
        "every fault was caught, with no wrong cause, and no control accused",
        "otherwise",
        "nothing was run",
    ),
)
@click.option(
    "--catalogue",
    type=FileOrFolder(),
    metavar="PATH",
    help=defaulting(
        "a file or folder with wrong and right implementations whose docstrings name the rule",
        "the catalogue of this package",
    ),
)
@click.option(
    "--only",
    metavar="NAME",
    multiple=True,
    help=defaulting(
        "name of a fault, a control, a module of faults, or the rule that a fault violates; repeatable",
        "all faults and controls",
    ),
)
@click.option(
    "--generated",
    type=Whole(option_values.COUNT),
    metavar="N",
    help=defaulting(
        "number of composed faults to search for. Plain torch shows first that each is wrong. The "
        "right wrappers and samplers, composed in the same way, are controls",
        "the catalogue instead",
    ),
)
@click.option(
    "--right",
    type=Whole(option_values.COUNT),
    metavar="N",
    help=defaulting(
        "number of composed right implementations to judge as controls; no fault is searched for",
        "the catalogue instead",
    ),
)
@click.option(
    "--seed",
    type=Whole(option_values.COUNT_OR_NONE),
    default=0,
    metavar="S",
    help=defaulting("number that decides which implementations are composed", 0),
)
@click.option(
    "--seeds",
    type=Whole(option_values.COUNT),
    default=1,
    metavar="N",
    help=defaulting("number of searches for each fault, each with another seed", 1),
)
@click.option(
    "--cases",
    type=Whole(option_values.COUNT),
    metavar="N",
    help=defaulting(
        "largest number of cases in a search for a fault", "100 per rule; 300 with --generated"
    ),
)
@click.option(
    "--control-cases",
    type=Whole(option_values.COUNT_OR_NONE),
    default=2000,
    metavar="N",
    help=defaulting("number of cases for all controls together", 2000),
)
@click.option(
    "--real-cases",
    type=Whole(option_values.COUNT_OR_NONE),
    metavar="N",
    help=defaulting(
        "largest number of cases of wrappers that run over gloo instead of the simulation, for all "
        "controls together; further cases that cannot be simulated are left out",
        "no limit",
    ),
)
@with_workers
@click.option(
    "--shard",
    type=Part(),
    default=WHOLE,
    metavar="I/N",
    help=defaulting(
        "make the I-th of N parts of the searches; merge adds up the outputs of --json",
        "all searches",
    ),
)
@with_resume
@click.option(
    "--on",
    metavar="ADDRESS",
    default="",
    help=defaulting(
        "address of the scheduler of a Dask cluster, whose workers make the searches",
        "processes of this machine, see --workers",
    ),
)
@placing
@with_json
@click.pass_context
def faults(
    context: click.Context,
    /,
    catalogue: Path | None,
    only: tuple[str, ...],
    generated: int | None,
    right: int | None,
    seed: int,
    seeds: int,
    cases: int | None,
    control_cases: int,
    real_cases: int | None,
    workers: int,
    *,
    shard: Split,
    resume: Path | None,
    on: str,
    backend: BackendName,
    device: DeviceName | None,
    as_json: bool,
) -> None:
    """Test this suite itself on wrong and right implementations that come with it, or on your own.

    The wrong implementations are planted faults, which the suite must catch. The right
    implementations are controls, which it must never accuse. All rules search for each fault at
    once. Some faults exist only on a GPU; without a GPU --backend they are listed as not run.
    --catalogue takes implementations of your own, whose docstrings say "Right: what it is." or "What
    is wrong (where). RULE: cause." --generated composes faults that nobody wrote down, and --right
    composes right implementations. --backend gloo simulates no case. An interrupt prints the
    results so far.
    """
    # Imported here: they import Hypothesis, which the other commands do not need.
    from ddp_invariants.errors import CatalogueError, ResultsError
    from ddp_invariants.proof import measure, tables
    from ddp_invariants.proof.catalogue import Catalogue, read
    from ddp_invariants.proof.detection import Detection
    from ddp_invariants.proof.generated import CASES
    from ddp_invariants.proof.results import Results

    detections: list[Detection] = []
    jobs: Sequence[measure.FaultSearch] = []
    table = tables.planned((), (), {}, "")
    beyond: list[str] = []
    known = Catalogue(())
    try:
        options = _settled(context.params)
        _require_one({"--generated": generated, "--right": right, "--catalogue": catalogue})
        _require_one(
            {"--real-cases": real_cases, "--backend": None if backend == "auto" else backend}
        )
        own = None if catalogue is None else read(catalogue)
        sources = {Path(entry.file) for entry in own.select(only)} if own else ()
        results = None if resume is None else Results(resume, options, sources)
        known = own or _shipped(generated, right, seed, results)
        entries, resolved = known.select(only), wanted(backend, device)
        beyond = [] if resolved.device != "cpu" else [e.name for e in entries if e.needs_device]
        every = measure.searches(
            [e for e in entries if e.name not in beyond],
            seeds,
            control_cases,
            cases or (0 if generated is None else CASES),
            "" if backend == "auto" else f"--backend {backend}",
            seed,
            real_cases,
        )
        jobs = shard.deal(every)
        table = tables.planned(
            every,
            jobs,
            options,
            "" if shard.is_whole else str(shard),
        )
        for sentence in known.unread:
            click.echo(f"not read: {sentence}", err=True)
        if resolved.device != "cpu":
            with ranks(backend, device, REAL_WORLD_SIZE):
                pass  # Only to check that they can be had.
        search(jobs, workers, resolved, detections, results, on)
    except (*UNUSABLE_INPUT, CatalogueError, ResultsError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    except KeyboardInterrupt:
        say_interrupted(jobs, detections)
    table = replace(
        table, searches=tuple(detections), unread=tuple(known.unread), beyond=tuple(beyond)
    )
    if as_json:
        print_json(tables.to_plain(table))
    else:
        is_composed = generated is not None or right is not None
        click.echo((populations if is_composed else report).table(detections))
    if beyond:
        click.echo(_not_run(beyond), err=True)
    context.exit(tables.status(table))


def _require_one(sources: Mapping[str, Any]) -> None:
    """Require at most one of options that exclude each other.

    Raises:
        click.UsageError: There are several.
    """
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other")


def _shipped(
    generated: int | None, right: int | None, seed: int, results: "Results | None"
) -> "Catalogue":
    """Return the implementations of this package that the options name.

    Raises:
        HarnessError: The witness of composed faults failed.
    """
    # Imported here, as above.
    from ddp_invariants.proof import generated as composed
    from ddp_invariants.proof.catalogue import Catalogue, all_entries

    if generated is not None:
        witness = composed.witnessed
        if results is not None:
            witness = partial(results.witnessed, witness=witness)
        faults = composed.population(generated, seed, witness)
        return Catalogue((*faults, *composed.right(seed)))
    if right is not None:
        return Catalogue(tuple(composed.right(seed, right)))
    return Catalogue(all_entries())


def _settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that decide which searches are made, and how."""
    numbers = ("generated", "right", "seed", "seeds", "cases", "control_cases")
    real_cases = options["real_cases"]
    return {
        **{name: options[name] for name in numbers},
        # Tables and results from before this option existed have none.
        **({} if real_cases is None else {"real_cases": real_cases}),
        "catalogue": options["catalogue"] and options["catalogue"].name,
        "only": sorted(options["only"]),
        "backend": f"{options['backend']} {options['device'] or ''}".strip(),
    }


def _not_run(beyond: "list[str]") -> str:
    """Return in words that faults were not run, by their names."""
    return (
        f"not run: {', '.join(beyond)}: these faults show only on a device, and the tensors are on "
        "the CPU"
    )
