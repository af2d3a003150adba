"""The commands replay and export, for stored violations."""

import runpy
import shlex
from dataclasses import fields, replace
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.cases.python import to_python
from ddp_invariants.cli.options import limiting, placing, renaming
from ddp_invariants.cli.output import print_json, print_report, with_json
from ddp_invariants.cli.pool import joined, ranks
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import INCONCLUSIVE, UNUSABLE_INPUT, CaseError, ExportError, unusable
from ddp_invariants.implementation.spec import OPTIONS, Ddp, Sampler, defaulting, named
from ddp_invariants.processes.backends import BackendName, DeviceName
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import DEADLINE, Pool
from ddp_invariants.records import reading
from ddp_invariants.records import violation as records
from ddp_invariants.report import machine, terminal


@click.command(
    short_help="Run a stored violation again.",
    epilog=exit_statuses("FIXED", "STILL VIOLATED", "INCONCLUSIVE"),
)
@click.argument("violation", metavar="ID")
@renaming
@placing
@limiting
@click.option(
    "--rules",
    "own",
    multiple=True,
    metavar="FILE",
    help=defaulting("Python file that adds your own rules; repeatable", "only the shipped rules"),
)
@with_json
@click.pass_context
def replay(
    context: click.Context,
    /,
    violation: str,
    *,
    own: tuple[str, ...],
    backend: BackendName,
    device: DeviceName | None,
    deadline: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a stored violation again, and report FIXED, STILL VIOLATED or INCONCLUSIVE.

    ID is the violation's name in a report (.ddp-invariants/ID.json), or the path of a file with a
    violation or a bare case. The file of a violation also names the implementation; an option replaces
    that part. A bare case runs on the reference, unless an option names another implementation. Under
    torchrun or srun the processes of the job are the ranks.
    """
    # Imported here: it imports Hypothesis, which the other commands do not need.
    from ddp_invariants.invariants import ALL_RULES
    from ddp_invariants.search.replay import replay as replayed

    with joined(context):
        for file in own:
            _add_rules(file)
        stored, ddp, sampler = _stored_and_named(context, violation, options)
        case, rule = (
            (stored.case, stored.failure.rule)
            if isinstance(stored, records.StoredViolation)
            else (stored, "")
        )
        if rule and rule not in ALL_RULES:
            raise CaseError(
                f"{violation}: there is no rule {rule} here. If it is your own, name the Python file "
                "that adds it: --rules FILE"
            )
        with ranks(
            backend,
            device,
            case.ranks_needed if isinstance(case, TrainingCase) else 1,
            deadline,
        ) as pool:
            replay_result = replayed(pool, case, ddp, sampler, rule)
        added = [word for file in own for word in ("--rules", file)] + pool.backend.options.split()
        added += ["--deadline", str(deadline)] if deadline != DEADLINE else []
        repeat = shlex.join(
            ["ddp-invariants", "replay", violation, *_given(context, options), *added]
        )
        if as_json:
            print_json(machine.replay(replay_result, repeat))
        else:
            print_report(terminal.replay(replay_result, repeat))
        context.exit(replay_result.outcome.value)


def _add_rules(file: str) -> None:
    """Run a file of Python that adds rules (`rules.own`).

    Raises:
        CaseError: It cannot be run, or adds no rule; the message says why.
    """
    # Imported here, as above.
    from ddp_invariants.invariants import ALL_RULES

    before = len(ALL_RULES)
    try:
        runpy.run_path(file)
    except Exception as error:
        raise CaseError(f"--rules {file}: it raised {type(error).__name__}: {error}") from error
    if len(ALL_RULES) == before:
        raise CaseError(f"--rules {file}: it adds no rule (rules.own)")


_FIELDS = {
    "ddp": "name",
    "ddp_arg": "arguments",
    "opt": "optimizer",
    "opt_arg": "optimizer_arguments",
    "declare": "declares",
    "sampler": "name",
    "sampler_arg": "arguments",
}
"""The field that an option fills, if its name differs."""


def _parameter(option: str) -> str:
    """Return click's name for an option's value."""
    return option.removeprefix("--").replace("-", "_")


def _is_given(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(_parameter(option)) is not ParameterSource.DEFAULT


def _given(context: click.Context, options: dict[str, Any]) -> list[str]:
    """Return the options that were given, as words of a command line."""
    values = {
        option: options[_parameter(option)] for option in OPTIONS if _is_given(context, option)
    }
    return [
        word
        for option, value in values.items()
        for text in ([value] if isinstance(value, str) else value)
        for word in (option, text)
    ]


def _stored_and_named(
    context: click.Context, name: str, options: dict[str, Any]
) -> tuple[Any, Ddp, Sampler]:
    """Return the stored violation or case, and the implementation to run it on.

    This is the implementation of the stored violation, unless an option names another one.

    Raises:
        CaseError: There is no such file, or it holds neither a violation nor a case.
        NamingError: An option cannot be read.
        DeclarationError: A declaration file cannot be read.
    """
    stored = reading.read_any(records.find(name))
    ddp, sampler = named(options)
    if not isinstance(stored, records.StoredViolation):
        return stored, ddp, sampler
    given = {_parameter(option) for option in OPTIONS if _is_given(context, option)}
    of_a_sampler = {option for option in given if option.startswith("sampler")}
    return (
        stored,
        _merged(stored.ddp, ddp, given - of_a_sampler, "ddp"),
        _merged(stored.sampler, sampler, of_a_sampler | (given & {"declare"}), "sampler"),
    )


Named = TypeVar("Named", Ddp, Sampler)


def _merged(stored: Named, named: Named, given: set[str], name: str) -> Named:
    """Return the stored implementation with the given options in place of its own.

    If a name is given, nothing of the stored implementation is kept.
    """
    if name in given:
        return named
    changed = {_FIELDS.get(option, option) for option in given}
    changes: dict[str, Any] = {
        field.name: getattr(named, field.name) for field in fields(named) if field.name in changed
    }
    return replace(stored, **changes)


@click.command(
    short_help="Print a stored violation as a script or as Python.",
    epilog=exit_statuses(
        "the script is printed", "", "no script is printed: it would not show the violation"
    ),
)
@click.argument("violation", metavar="ID")
@click.option("--unchecked", is_flag=True, help="print the script without running it first")
@click.option(
    "--case",
    "case_alone",
    is_flag=True,
    help="print only the case, as Python to paste into a test; nothing is run",
)
@with_json
@click.pass_context
def export(
    context: click.Context, /, violation: str, *, unchecked: bool, case_alone: bool, as_json: bool
) -> None:
    """Print a stored violation as a script of plain torch: ddp-invariants export ID > repro.py.

    ID is the violation's name in a report (.ddp-invariants/ID.json), or the path of its file. The
    script needs neither this package nor pytest; it imports the implementation that the file names.
    The command first runs the script once, and prints it only if it shows the violation.

    With --case it prints the case as Python instead, such as TrainingCase(...).
    """
    # Imported here: the other commands do not need it.
    from ddp_invariants.export import running
    from ddp_invariants.export import script as exporting

    try:
        stored = reading.read_any(records.find(violation))
        if case_alone:
            _print_case(stored, violation, as_json=as_json)
            return
        if not isinstance(stored, records.StoredViolation):
            raise CaseError(f"{violation} holds only a case, and no violation; replay it first")
        with Hosts() as hosts, Pool(hosts.addresses) as pool:
            text = exporting.script(pool, stored)
        unseen = "" if unchecked else running.not_shown(text, stored)
    except ExportError as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(INCONCLUSIVE)
    except UNUSABLE_INPUT as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    if unseen:
        click.echo(f"ddp-invariants: {terminal.not_exported(stored, unseen)}", err=True)
        context.exit(INCONCLUSIVE)
    if as_json:
        print_json(machine.export(text, stored.failure.rule, violation))
    else:
        click.echo(text, nl=False)


def _print_case(stored: records.StoredViolation | Case, identifier: str, *, as_json: bool) -> None:
    """Print the case of a violation, or a bare case, as Python."""
    case, rule = (
        (stored.case, stored.failure.rule)
        if isinstance(stored, records.StoredViolation)
        else (stored, "")
    )
    text = to_python(case)
    if as_json:
        print_json(machine.export(text, rule, identifier))
    else:
        click.echo(text, nl=False)
