"""The command line: `ddp-invariants`, or `python -m ddp_invariants`."""

import datetime as dt
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ddp_invariants import casefile, discovery, report
from ddp_invariants import record as records
from ddp_invariants.case import LARGEST_WORLD_SIZE, CaseError
from ddp_invariants.declarations import DeclarationError
from ddp_invariants.deviations import DeviationError
from ddp_invariants.implementation import OPTIONS, Ddp, NamingError, Sampler, named
from ddp_invariants.implementation import options as on_trial
from ddp_invariants.ranks.hosts import HarnessError, Hosts
from ddp_invariants.ranks.pool import LoadFailure, Pool

UNUSABLE = 2
"""Exit status where nothing could be judged, as pytest's for an interrupted session."""

INTERRUPTED = 130
"""Exit status after an interrupt, as a shell gives it."""

UNUSABLE_INPUT = (DeviationError, LoadFailure, HarnessError, NamingError, DeclarationError, CaseError, OSError)
"""What ends a command with one sentence."""


def naming(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say what is on trial."""
    for name, option in reversed(OPTIONS.items()):
        default: Any = () if option.repeatable else option.default
        command = click.option(name, metavar=option.placeholder, help=option.told, default=default, show_default=bool(default),
                               multiple=option.repeatable)(command)
    return command


@click.group()
@click.version_option(package_name="ddp-invariants")
def main() -> None:
    """Find out whether data-parallel training is right."""


@main.command(short_help="Probe what an implementation takes.")
@naming
@click.option("--max-world-size", type=click.IntRange(1, LARGEST_WORLD_SIZE), default=4, show_default=True,
              help="most ranks a probe may need")
@click.option("--deviations", type=click.Path(dir_okay=False, path_type=Path), multiple=True, metavar="FILE",
              help="deviations that are expected, beside those shipped")
@click.option("--pin", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="write the declarations found to this TOML file, for --declare")
@click.pass_context
def discover(context: click.Context, /, max_world_size: int, deviations: tuple[Path, ...], pin: Path | None,
             **options: Any) -> None:
    """Probe what an implementation takes: each capability right, refused, silently wrong or not offered."""
    try:
        ddp, sampler = named(options)
        with Hosts() as hosts, Pool(hosts.addresses) as pool:
            found = discovery.discover(pool, ddp, sampler, max_world_size, deviations)
        if pin is not None:
            pin.write_text(report.declarations(*found.pinned()), encoding="utf-8")
    except UNUSABLE_INPUT as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(UNUSABLE)
    click.echo("\n".join([*report.on_trial(found, verbose=True), report.capabilities(found), *found.stale()]))
    if pin is not None:
        click.echo(report.pinned(found, pin))


@main.command(short_help="Run a stored violation again.")
@click.argument("violation", metavar="ID")
@naming
@click.pass_context
def replay(context: click.Context, /, violation: str, **options: Any) -> None:
    """Run a stored violation again: FIXED (exit status 0), STILL VIOLATED (1) or INCONCLUSIVE (2).

    ID is what a report calls it (.ddp-invariants/ID.json), or the path of a file with a violation or a bare case. It is
    run on what was on trial when it was stored, as far as the options name nothing else.
    """
    # Imported here: it imports Hypothesis, which the other commands do without.
    from ddp_invariants.replay import replay as replayed

    try:
        stored, ddp, sampler = _found(context, violation, options)
        case, rule = (stored.case, stored.breach.rule) if isinstance(stored, records.StoredViolation) else (stored, "")
        with Hosts() as hosts, Pool(hosts.addresses) as pool:
            found = replayed(pool, case, ddp, sampler, rule)
    except UNUSABLE_INPUT as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(UNUSABLE)
    click.echo(report.replayed(found, shlex.join(["ddp-invariants", "replay", violation, *_given(context, options)])))
    context.exit(found.outcome.value)


_FIELDS = {"ddp": "name", "ddp_arg": "arguments", "opt": "optimizer", "opt_arg": "optimizer_arguments", "declare": "declares",
           "sampler": "name", "sampler_arg": "arguments"}
"""The field an option fills, where it is called otherwise."""


def _parameter(option: str) -> str:
    """What click calls an option's value."""
    return option.removeprefix("--").replace("-", "_")


def _is_given(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(_parameter(option)) is not ParameterSource.DEFAULT


def _given(context: click.Context, options: dict[str, Any]) -> list[str]:
    """The options that were given, as words of a command line."""
    values = {option: options[_parameter(option)] for option in OPTIONS if _is_given(context, option)}
    return [word for option, value in values.items() for one in ([value] if isinstance(value, str) else value)
            for word in (option, one)]


def _found(context: click.Context, name: str, options: dict[str, Any]) -> tuple[Any, Ddp, Sampler]:
    """What is stored, and what it is to be run on: what it was found with, as far as no option says otherwise.

    Raises:
        CaseError: There is no such file, or it holds neither a violation nor a case.
        NamingError: An option cannot be read.
        DeclarationError: A declaration file cannot.
    """
    stored = casefile.read_any(records.find(name))
    ddp, sampler = named(options)
    if not isinstance(stored, records.StoredViolation):
        return stored, ddp, sampler
    given = {_parameter(option) for option in OPTIONS if _is_given(context, option)}
    of_a_sampler = {option for option in given if option.startswith("sampler")}
    return (stored, _merged(stored.ddp, ddp, given - of_a_sampler, "ddp"),
            _merged(stored.sampler, sampler, of_a_sampler | (given & {"declare"}), "sampler"))


Named = TypeVar("Named", Ddp, Sampler)


def _merged(stored: Named, named: Named, given: set[str], name: str) -> Named:
    """What was stored with the options given in its place; a new name leaves nothing of it."""
    if name in given:
        return named
    changed = {_FIELDS.get(option, option) for option in given}
    changes: dict[str, Any] = {one.name: getattr(named, one.name) for one in fields(named) if one.name in changed}
    return replace(stored, **changes)


@main.command(short_help="Write a stored violation as a script of plain torch.")
@click.argument("violation", metavar="ID")
@click.option("--unchecked", is_flag=True, help="print the script without having seen it fail")
@click.pass_context
def export(context: click.Context, /, violation: str, *, unchecked: bool) -> None:
    """Write a stored violation as a script of plain torch: ddp-invariants export ID > repro.py.

    The script needs neither this package nor pytest. It is run once before it is printed, and not printed where it does not
    show the violation. It loads what the file names, as --ddp does.
    """
    # Imported here: the other commands do without.
    from ddp_invariants import export as exporting

    try:
        stored = casefile.read_any(records.find(violation))
        if not isinstance(stored, records.StoredViolation):
            raise CaseError(f"{violation} holds a bare case, which nothing is said to violate; replay it first")
        with Hosts() as hosts, Pool(hosts.addresses) as pool:
            text = exporting.script(pool, stored)
        unseen = "" if unchecked else exporting.not_shown(text, stored)
    except (*UNUSABLE_INPUT, exporting.ExportError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(UNUSABLE)
    if unseen:
        click.echo(f"ddp-invariants: {report.not_exported(stored, unseen)}", err=True)
        context.exit(UNUSABLE)
    click.echo(text, nl=False)


def _gating(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which cases are drawn for a gate."""
    for name, kind, default, told in (
            ("--max-world-size", click.IntRange(1, LARGEST_WORLD_SIZE), 4, "largest world size drawn"),
            ("--seed", int, 0, "of the search"), ("--cases", click.IntRange(1), 300, "cases to draw")):
        command = click.option(name, type=kind, default=default, show_default=True, help=told)(command)
    return command


@main.command(short_help="Compare two interpreters: the gate of an upgrade.")
@click.option("--old", default="", metavar="PYTHON", help="the interpreter that is in use")
@click.option("--baseline", type=click.Path(dir_okay=False, path_type=Path), default=None, metavar="FILE",
              help="what it answered, as record wrote it, where it is not at hand")
@click.option("--new", default=sys.executable, metavar="PYTHON", show_default="this one",
              help="the one to change to; ranks need torch and numpy there, no more")
@naming
@_gating
@click.option("--accept", type=click.Path(dir_okay=False, path_type=Path), default=None, metavar="FILE",
              help="changes that are read and accepted")
@click.option("--scripts", type=click.Path(file_okay=False, path_type=Path), default=None, metavar="FOLDER",
              help="write each difference as a script of plain torch that prints its interpreter's answer")
@click.option("--json", "as_json", is_flag=True, help="print what was found as JSON instead of a table")
@click.pass_context
def compare(context: click.Context, /, old: str, baseline: Path | None, new: str, cases: int, seed: int, max_world_size: int,
            accept: Path | None, scripts: Path | None, *, as_json: bool, **options: Any) -> None:
    """Run the same cases under two interpreters, and shrink every sort of difference to its smallest case.

    With --baseline the cases are those in the file, and of each sort of difference its smallest case among them is told.

    Exit status 0 where nothing changed but roundings within their bounds, 1 where something did that is not accepted, 2 where
    that cannot be said.
    """
    # Imported here: they import Hypothesis, which the other commands do without.
    from ddp_invariants import gate, question
    from ddp_invariants.baseline import BaselineError, read

    if bool(old) == (baseline is not None):
        raise click.UsageError("either --old or --baseline is needed, and not both")
    try:
        allowed = gate.accepted(accept, dt.datetime.now(dt.UTC).date()) if accept is not None else ()
        ddp, sampler = named(options)
        if scripts is not None:  # Before anything takes its time: it may not be possible.
            scripts.mkdir(parents=True, exist_ok=True)
        here = gate.side(new)
        if baseline is not None:
            head, answers = read(baseline)
            given = on_trial(ddp, sampler)
            if head.options != given:
                names = [one or "the reference" for one in (head.options, given)]
                raise BaselineError(f"{baseline}: it is of {names[0]}, and {names[1]} is on trial")
            there = head.environment
            with Hosts(new) as after, Pool(after.addresses) as second:
                outcome = gate.against(head, answers, second, ddp, sampler, here, max_world_size=max_world_size,
                                       allowed=allowed)
                if scripts is not None:
                    outcome = question.write(scripts, outcome, second, ddp, sampler, [new])
        else:
            there = gate.side(old)
            with Hosts(old) as before, Hosts(new) as after, Pool(before.addresses) as first, Pool(after.addresses) as second:
                outcome = gate.Gate(first, second, ddp, sampler, max_world_size).run(cases, seed, allowed)
                if scripts is not None:
                    outcome = question.write(scripts, outcome, first, ddp, sampler, [old, new])
    except (*UNUSABLE_INPUT, BaselineError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(UNUSABLE)
    sides = there, here
    click.echo(report.compared_json(sides, outcome) if as_json else report.compared(sides, outcome))
    context.exit(outcome.status)


@main.command(short_help="Record what an interpreter answers, for compare --baseline.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE",
              help="the file to write, gzip whatever its name")
@click.option("--python", default=sys.executable, metavar="PYTHON", show_default="this one", help="the interpreter")
@naming
@_gating
@click.pass_context
def record(context: click.Context, /, out: Path, python: str, cases: int, seed: int, max_world_size: int,
           **options: Any) -> None:
    """Record what an interpreter answers to a corpus of cases: everything its ranks saw, in one file."""
    # Imported here, as above.
    from ddp_invariants import gate
    from ddp_invariants.baseline import write

    try:
        ddp, sampler = named(options)
        here = gate.side(python)
        with Hosts(python) as hosts, Pool(hosts.addresses) as pool:
            head, answers = gate.record(pool, ddp, sampler, here, cases=cases, number=seed, max_world_size=max_world_size)
            write(out, head, answers)
    except UNUSABLE_INPUT as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(UNUSABLE)
    click.echo(f"{out}: {head.cases} cases of {head.options or 'the reference'}, under {here}")


@main.command(short_help="Measure the judge on planted faults and controls.")
@click.option("--only", metavar="NAME", multiple=True, help="a fault, a control, a module of them or a rule; may be repeated")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="searches for each fault")
@click.option("--control-cases", type=click.IntRange(0), default=2000, show_default=True, help="cases of all controls together")
@click.option("--workers", type=click.IntRange(1), default=os.cpu_count() or 1, show_default="one per core",
              help="processes that search")
@click.option("--json", "as_json", is_flag=True, help="print all that was found as JSON instead of tables")
@click.pass_context
def faults(context: click.Context, /, only: tuple[str, ...], seeds: int, control_cases: int, workers: int, *,
           as_json: bool) -> None:
    """Measure the judge: search for every planted fault, by all rules at once, and judge controls, which none may accuse.

    Exit status 0 where all faults are caught, none with a wrong cause, and no control is accused; else 1. An interrupt prints
    what was found until then.
    """
    # Imported here: they import Hypothesis and rich, which the other commands do without.
    from rich.console import Console
    from rich.progress import Progress

    from ddp_invariants import measure
    from ddp_invariants.catalogue import CatalogueError, chosen
    from ddp_invariants.detection import Detection, totals

    found: list[Detection] = []
    screen = Console(stderr=True)
    try:
        jobs = measure.jobs(chosen(only), seeds, control_cases)
        with Hosts() as hosts, Progress(console=screen, disable=not screen.is_terminal) as progress:
            for one in progress.track(measure.measure(hosts.addresses, jobs, workers), len(jobs), description="searching"):
                found.append(one)
                if not screen.is_terminal:
                    click.echo(f"{len(found)}/{len(jobs)} {report.searched(one)}", err=True)
    except (*UNUSABLE_INPUT, CatalogueError) as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(UNUSABLE)
    except KeyboardInterrupt:
        click.echo(f"ddp-invariants: interrupted after {len(found)} of {len(jobs)} searches", err=True)
    click.echo(report.detections_json(found) if as_json else report.detections(found))
    total = totals(found)
    if len(found) < len(jobs):
        context.exit(INTERRUPTED)
    context.exit(int(total.caught < total.searches or total.wrong > 0 or total.accused > 0))
