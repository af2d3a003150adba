"""The command certify: judge implementations by all properties."""

import re
import shlex
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ddp_invariants.cli.options import NewFile, Whole, Workers
from ddp_invariants.cli.output import print_json, print_report, text_aside, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import (
    CERTIFIED,
    INCONCLUSIVE,
    INTERRUPTED,
    UNWRITTEN,
    USAGE,
    VIOLATED,
)
from ddp_invariants.implementation.spec import defaulting
from ddp_invariants.session import option_values

if TYPE_CHECKING:
    from ddp_invariants.report.outcome import SessionResult

_SAMPLER = "sampler:"
"""The prefix of a sampler's name among NAMEs, as `course:` is that of a course's."""
_WORST_FIRST = (INTERRUPTED, VIOLATED, USAGE, UNWRITTEN, INCONCLUSIVE, CERTIFIED)


class _Registry:
    """A stand-in for pytest's option parser that turns the plugin's options into the command's."""

    def __init__(self) -> None:
        self.options: list[click.Option] = []

    def getgroup(self, *_: Any, **__: Any) -> "_Registry":
        return self

    def addini(self, *_: Any, **__: Any) -> None:
        """Ignore settings: the command has none."""

    def addoption(self, *names: str, **settings: Any) -> None:
        kind: Any = (
            click.Choice(settings["choices"])
            if "choices" in settings
            else Whole(option_values.OF_SESSIONS[name])
            if (name := names[0].strip("-").replace("-", "_")) in option_values.OF_SESSIONS
            else str
        )
        self.options.append(
            click.Option(
                names,
                metavar=None if "choices" in settings else settings.get("metavar"),
                help=settings.get("help"),
                multiple=settings.get("action") == "append",
                type=kind,
            )
        )


@cache
def _of_plugin() -> tuple[click.Option, ...]:
    """Return the options of pytest's plugin."""
    # Imported here: it imports pytest and Hypothesis, which the other commands do not need.
    from ddp_invariants.session import options

    registry: Any = _Registry()
    options.add(registry)
    return tuple(registry.options)


class _Certify(click.Command):
    """A command with all of the plugin's options, and pytest's own options behind `--`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own options, the plugin's, and --help."""
        *own, helping = super().get_params(ctx)
        return [*own, *_of_plugin(), helping]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`; the words behind it are no NAMEs."""
        own, behind = (
            (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        )
        ctx.meta["behind"], ctx.meta["typed"] = behind, tuple(args)
        return super().parse_args(ctx, own)


@click.command(
    cls=_Certify,
    short_help="Test implementations, and report every rule that is violated.",
    epilog=exit_statuses(
        "certified", "violated", "inconclusive", "no certificate, badge or proposal written"
    ),
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "-n",
    "--workers",
    type=Workers(),
    default="auto",
    metavar="N",
    help=defaulting(
        "number of processes that draw and judge cases side by side, each with its own ranks; 0: this "
        "process alone",
        "auto: one per core",
    ),
)
@click.option(
    "-k",
    "--only",
    metavar="EXPRESSION",
    help=defaulting(
        "run only the properties whose names match, as in pytest: -k 'grad2 or live'",
        "all properties",
    ),
)
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="print how the implementation is called, and the name of each property; -vv prints more",
)
@click.option(
    "-x",
    "--exitfirst",
    is_flag=True,
    help="end after the first violation; an inconclusive rule does not count",
)
@click.option(
    "--junitxml",
    type=NewFile(),
    metavar="FILE",
    help=defaulting("write a JUnit report (XML)", "none is written"),
)
@with_json
@click.pass_context
def certify(
    context: click.Context,
    /,
    names: tuple[str, ...],
    workers: int | str,
    only: str | None,
    verbose: int,
    *,
    exitfirst: bool,
    junitxml: Path | None,
    as_json: bool,
    **_: Any,
) -> None:
    """Test implementations, and report every rule that is violated.

    The command runs all properties. A property draws random cases, which are small training runs,
    and judges them by one rule. Most cases run in a simulation, the others on real processes; every
    violation is confirmed there. The command works in any folder.

    NAME is a DDP wrapper as --ddp takes it, or sampler:NAME for a sampler. Without a NAME, --ddp and
    --sampler name the implementation; without these, the command tests the reference. Several NAMEs
    are tested one after another, each with the same options, and compared.

    The command stores violations in .ddp-invariants/ of the current folder. It ignores pytest settings
    found there. Everything after "--" is passed to pytest. Under torchrun or srun the processes of
    the job are the ranks.
    """
    # Imported here: they import pytest and Hypothesis.
    from ddp_invariants.processes import job
    from ddp_invariants.report import machine

    words = _plugin_words(context, names)
    compared = context.params["certificate"] if len(set(names)) > 1 else None
    status = job.enter()
    if status is not None:  # This was one of a job's other processes.
        context.exit(status)
    # A single case is judged at once, and a job has one process that judges: a worker would not be
    # worth its start.
    by_default = context.get_parameter_source("workers") is ParameterSource.DEFAULT
    in_process = workers == 0 or (
        by_default and (context.params["replay"] or job.led() is not None)
    )
    words += [
        *([] if in_process else ["-n", str(workers)]),
        *(["-k", only] if only else []),
        *["-v"] * verbose,
        *(["-x"] if exitfirst else []),
        *([f"--junitxml={junitxml}"] if junitxml else []),
        *context.meta["behind"],
    ]
    typed = shlex.join(["ddp-invariants", "certify", *context.meta["typed"]])
    status = INCONCLUSIVE
    try:
        with text_aside() if as_json else nullcontext():
            results, compares = _judged(names, words, compared and Path(compared), typed)
        statuses = [result.status for result in results.values()]
        status = min([*statuses, *([] if compares else [UNWRITTEN])], key=_WORST_FIRST.index)
        if as_json:
            print_json(machine.certification(results, status))
    finally:
        job.leave(status)
    context.exit(status)


def _plugin_words(context: click.Context, names: tuple[str, ...]) -> list[str]:
    """Return the given options of the plugin as words of pytest's command line.

    If several implementations are compared, each has a certificate of its own, so that option is
    left out.

    Raises:
        click.UsageError: Two options contradict each other, or a file has the wrong type.
    """
    given = {
        str(option.name): option
        for option in _of_plugin()
        if context.get_parameter_source(str(option.name)) is not ParameterSource.DEFAULT
    }
    for side in ("ddp", "sampler"):
        if side in given and any(
            name.startswith(_SAMPLER) == (side == "sampler") for name in names
        ):
            raise click.UsageError(f"name the {side} by NAME or by --{side}, not by both")
    certificate = context.params["certificate"]
    if len(set(names)) > 1 and context.params["propose"] is not None:
        raise click.UsageError("--propose writes the declarations of one implementation")
    if len(set(names)) > 1 and certificate is not None:
        if Path(certificate).suffix not in (".html", ".json"):
            raise click.UsageError(f"--certificate {certificate}: expected FILE.json or FILE.html")
        given.pop("certificate", None)
    return [word for name, option in given.items() for word in _words(option, context.params[name])]


def _judged(
    names: tuple[str, ...], words: list[str], compared: Path | None, typed: str
) -> "tuple[dict[str, SessionResult], bool]":
    """Judge implementations one after another.

    Args:
        names: The implementations under test.
        words: Options of pytest and of its plugin.
        compared: The page that compares their certificates, which are written beside it; None for
            no page.
        typed: The command as the user typed it.

    Returns:
        The result of each one that was judged, and False if the page could not be written.
    """
    # Imported here, as above.
    from ddp_invariants.report import side_by_side
    from ddp_invariants.session.run import run_session

    results: dict[str, SessionResult] = {}
    for name in dict.fromkeys(names or ("",)):
        sampler = name.startswith(_SAMPLER)
        named = (
            [f"--{'sampler' if sampler else 'ddp'}={name.removeprefix(_SAMPLER)}"] if name else []
        )
        certificate = [f"--certificate={_beside(compared, name)}"] if compared is not None else []
        results[name] = run_session([*words, *certificate, *named], typed, of_sampler=sampler)
        if results[name].status == INTERRUPTED:
            break
    if len(names) > 1:
        print_report(side_by_side.text(results))
    if compared is None:
        return results, True
    judged = [_beside(compared, name) for name, result in results.items() if result.ledger]
    line, written = _compared(compared, judged)
    click.echo(line)
    return results, written


def _beside(page: Path, name: str) -> Path:
    """Return the path of the certificate of one of several implementations."""
    return page.with_name(f"{page.stem}-{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-')}.json")


def _compared(page: Path, written: list[Path]) -> tuple[str, bool]:
    """Write a page that compares certificates.

    Returns:
        A line about it, and whether it was written.
    """
    # Imported here: only a comparison needs it.
    from ddp_invariants.errors import CertificateError
    from ddp_invariants.report.certificate.page import side_by_side
    from ddp_invariants.report.certificate.verifying import read

    certificates = []
    for path in written:
        with suppress(CertificateError):  # It could not be written, as its session reported.
            certificates.append(read(path))
    if not certificates:
        missing = f"{page.with_suffix('.html')} was not written: there is no certificate"
        return f"comparison: {missing}", False
    page = page.with_suffix(".html")
    try:
        page.write_text(side_by_side(certificates), encoding="utf-8")
    except OSError as error:
        return f"comparison: {page} could not be written: {error.strerror}", False
    return f"comparison: {page}, of the {len(certificates)} certificates beside it", True


def _words(option: click.Option, value: Any) -> list[str]:
    """Return a given option as words of pytest's command line."""
    name = option.opts[0]
    return [f"{name}={single}" for single in (value if option.multiple else [value])]
