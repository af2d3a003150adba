"""The commands compare and record: the gate of an upgrade."""

import datetime as dt
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddp_invariants.cli.options import NewFile, Whole, naming
from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import UNUSABLE_INPUT, LoadFailure, unusable
from ddp_invariants.implementation.spec import Ddp, Sampler, defaulting, named
from ddp_invariants.implementation.spec import options as naming_options
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.report import machine, upgrade
from ddp_invariants.session import option_texts, option_values

if TYPE_CHECKING:
    from ddp_invariants.upgrades.accepted import Accepted
    from ddp_invariants.upgrades.baseline import Answer, Environment, Head
    from ddp_invariants.upgrades.outcome import Gated
    from ddp_invariants.upgrades.progress import Event


def _gating(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that decide which cases are drawn for a gate."""
    for name, kind, default, description in (
        ("--max-world-size", Whole(option_values.WORLD_SIZE), 4, option_texts.MAX_WORLD_SIZE),
        ("--seed", Whole(option_values.SEED), 0, option_texts.SEED),
        ("--cases", Whole(option_values.COUNT), 300, "number of cases to draw"),
    ):
        command = click.option(
            name,
            type=kind,
            default=default,
            metavar="W" if name == "--max-world-size" else "N",
            help=defaulting(description, default),
        )(command)
    return command


def _read_baseline(path: Path, given: str) -> "tuple[Head, list[Answer]]":
    """Return a baseline.

    Args:
        path: The file that `record` wrote.
        given: The options that name the implementation under test.

    Raises:
        BaselineError: The file is no baseline, or one of another implementation.
    """
    # Imported here, as below.
    from ddp_invariants.errors import BaselineError
    from ddp_invariants.upgrades.baseline import read

    head, answers = read(path)
    if head.options != given:
        recorded, named_now = (options or "the reference" for options in (head.options, given))
        raise BaselineError(
            f"{path}: it was recorded for {recorded}, but {named_now} is under test"
        )
    return head, answers


@dataclass(frozen=True)
class _Comparison:
    """A comparison of a new side with an old one.

    Attributes:
        ddp: The DDP.
        sampler: The sampler.
        new: The interpreter to change to.
        max_world_size: Largest W.
        allowed: The accepted changes.
        scripts: The folder for a script of each difference; None for no scripts.
    """

    ddp: Ddp
    sampler: Sampler
    new: str
    max_world_size: int
    allowed: "Sequence[Accepted]"
    scripts: Path | None

    def with_baseline(self, baseline: Path) -> "tuple[Environment, Environment, Gated]":
        """Compare with a recorded side; return both sides and the result."""
        from ddp_invariants.upgrades import question, recorded
        from ddp_invariants.upgrades.interpreter import side

        head, answered = _read_baseline(baseline, naming_options(self.ddp, self.sampler))
        here = side(self.new)
        with Hosts(self.new) as hosts, Pool(hosts.addresses) as pool:
            outcome = recorded.against(
                head,
                answered,
                pool,
                self.ddp,
                self.sampler,
                here,
                max_world_size=self.max_world_size,
                allowed=self.allowed,
            )
            if self.scripts is not None:
                outcome = question.write(
                    self.scripts, outcome, pool, self.ddp, self.sampler, [self.new]
                )
        return head.environment, here, outcome

    def with_interpreter(
        self, old: str, cases: int, seed: int
    ) -> "tuple[Environment, Environment, Gated]":
        """Compare with another interpreter on drawn cases; return both sides and the result."""
        from ddp_invariants.upgrades import gate, question
        from ddp_invariants.upgrades.interpreter import side
        from ddp_invariants.upgrades.sides import Sides

        there, here = side(old), side(self.new)
        with (
            Hosts(old) as before,
            Hosts(self.new) as after,
            Pool(before.addresses) as first,
            Pool(after.addresses) as second,
        ):
            for pool, python in ((first, old), (second, self.new)):
                _require_loading(pool, python, self.ddp, self.sampler)
            sides = Sides(first, second, self.ddp, self.sampler, self.max_world_size)
            with _shown(cases) as listen:
                outcome = gate.Gate(sides, listen).run(cases, seed, self.allowed)
            if self.scripts is not None and not outcome.interrupted:
                outcome = question.write(
                    self.scripts, outcome, first, self.ddp, self.sampler, [old, self.new]
                )
        return there, here, outcome


def _require_loading(pool: Pool, python: str, ddp: Ddp, sampler: Sampler) -> None:
    """Load both names under an interpreter before anything is probed, which takes minutes.

    Raises:
        LoadFailure: One of them does not load.
    """
    for implementation in (ddp, sampler):
        try:
            pool.describe(implementation)
        except LoadFailure as error:
            raise LoadFailure(f"under {python}: {error}") from None


@contextmanager
def _shown(cases: int) -> "Iterator[Callable[[Event], None]]":
    """Show the events of a comparison on standard error.

    Args:
        cases: The number of cases to draw.

    Yields:
        A function that takes an event. A terminal gets a bar, too.
    """
    # Imported here: only a comparison shows progress.
    from rich.console import Console
    from rich.progress import Progress

    from ddp_invariants.upgrades.progress import Ran, Tried

    screen = Console(stderr=True, highlight=False, markup=False)
    with Progress(console=screen, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("comparing", total=cases)

        def listen(event: "Event") -> None:
            if isinstance(event, Ran):
                progress.update(bar, completed=event.cases, description="comparing")
            elif isinstance(event, Tried):
                progress.update(bar, description=f"shrinking, {event.runs} of {event.of} runs")
            elif line := upgrade.event(event):
                screen.print(line, soft_wrap=True)

        yield listen


@click.command(
    short_help="Compare training under two Python environments, before an upgrade.",
    epilog=exit_statuses(
        "nothing changed beyond allowed rounding errors",
        "a change that --accept does not list",
        "inconclusive",
    ),
)
@click.option(
    "--old",
    default="",
    metavar="PYTHON",
    help="path of the Python interpreter that is in use; this or --baseline is needed",
)
@click.option(
    "--baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="file that the command record wrote; it stands for the old interpreter",
)
@click.option(
    "--new",
    default=sys.executable,
    metavar="PYTHON",
    help=defaulting(
        "path of the Python interpreter to change to; it needs torch, numpy and the implementation under test",
        "the one that runs this command",
    ),
)
@naming
@_gating
@click.option(
    "--accept",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help=defaulting(
        "TOML file of changes that you accept; see docs/upgrade.md", "every change counts"
    ),
)
@click.option(
    "--scripts",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help=defaulting(
        "folder for scripts of plain torch, one per difference; a script prints the result of the "
        "interpreter that runs it",
        "none is written",
    ),
)
@with_json
@click.pass_context
def compare(
    context: click.Context,
    /,
    old: str,
    baseline: Path | None,
    new: str,
    cases: int,
    seed: int,
    max_world_size: int,
    accept: Path | None,
    scripts: Path | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare training under two Python environments, before an upgrade of torch or of your code.

    The command runs the same cases under both interpreters, and reports each kind of difference once,
    with the smallest case that shows it. With --baseline the cases are those in the file. Each
    difference is printed on standard error as soon as it shows. An interrupt prints all results so
    far.
    """
    # Imported here: they import Hypothesis, which the other commands do not need.
    from ddp_invariants.errors import BaselineError
    from ddp_invariants.session.ending import heed_termination
    from ddp_invariants.session.outputs import summarise
    from ddp_invariants.upgrades.accepted import accepted_changes

    if bool(old) == (baseline is not None):
        raise click.UsageError("give either --old or --baseline")
    try:
        allowed = (
            accepted_changes(accept, dt.datetime.now(dt.UTC).date()) if accept is not None else ()
        )
        ddp, sampler = named(options)
        if scripts is not None:  # Done first, before the long run, because it may fail.
            scripts.mkdir(parents=True, exist_ok=True)
        heed_termination()
        asked = _Comparison(ddp, sampler, new, max_world_size, allowed, scripts)
        there, here, outcome = (
            asked.with_baseline(baseline)
            if baseline is not None
            else asked.with_interpreter(old, cases, seed)
        )
    except (*UNUSABLE_INPUT, BaselineError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    sides = there, here
    report = upgrade.comparison(sides, outcome)
    if as_json:
        print_json(machine.comparison(sides, outcome))
    else:
        click.echo(report)
    if unwritten := summarise(f"### Upgrade\n\n```text\n{report}\n```\n"):
        click.echo(f"ddp-invariants: {unwritten}", err=True)
    context.exit(outcome.status)


@click.command(
    short_help="Record results under this environment, for compare --baseline.",
    epilog=exit_statuses("the file is written", "", "inconclusive: the suite itself failed"),
)
@click.option(
    "--out",
    type=NewFile(),
    required=True,
    metavar="FILE",
    help="file to write, in gzip format whatever its name",
)
@click.option(
    "--python",
    default=sys.executable,
    metavar="PYTHON",
    help=defaulting("path of the Python interpreter to record", "the one that runs this command"),
)
@naming
@_gating
@with_json
@click.pass_context
def record(
    context: click.Context,
    /,
    out: Path,
    python: str,
    cases: int,
    seed: int,
    max_world_size: int,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Record the results of training under one Python interpreter, for compare --baseline.

    The file holds all tensors, losses and errors of a set of drawn cases. It stands for this
    environment after an upgrade, when the environment itself is gone.
    """
    # Imported here, as above.
    from ddp_invariants.upgrades import recorded
    from ddp_invariants.upgrades.baseline import write
    from ddp_invariants.upgrades.interpreter import side

    try:
        ddp, sampler = named(options)
        here = side(python)
        with Hosts(python) as hosts, Pool(hosts.addresses) as pool:
            head, answered = recorded.record(
                pool, ddp, sampler, here, cases=cases, number=seed, max_world_size=max_world_size
            )
            write(out, head, answered)
    except UNUSABLE_INPUT as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    if as_json:
        print_json(machine.recording(out, head))
    else:
        click.echo(f"{out}: {head.cases} cases of {head.options or 'the reference'}, under {here}")
