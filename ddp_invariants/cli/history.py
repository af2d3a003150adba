"""The command history: list the sessions that this folder has seen."""

from pathlib import Path

import click

from ddp_invariants.cli.options import Whole
from ddp_invariants.cli.output import print_json, print_report, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import UNWRITTEN
from ddp_invariants.implementation.spec import defaulting
from ddp_invariants.session.option_values import COUNT

_LAST = 20


@click.command(
    short_help="List earlier sessions, and what changed.",
    epilog=exit_statuses("the sessions are listed", unwritten="the page could not be written"),
)
@click.option(
    "--last",
    type=Whole(COUNT),
    default=_LAST,
    metavar="N",
    help=defaulting("number of sessions", str(_LAST)),
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=defaulting(
        "write a page with the sessions and the verdict of each rule over time", "none is written"
    ),
)
@with_json
@click.pass_context
def history(context: click.Context, /, *, last: int, html: Path | None, as_json: bool) -> None:
    """List the sessions that were run in this folder, and the verdicts that changed.

    Each session adds a line to .ddp-invariants/history.jsonl. The file stays below 1 MiB: the oldest
    sessions are removed first.
    """
    # Imported here: they import the rules.
    from ddp_invariants.records.history import FILE, read
    from ddp_invariants.report import history as report

    try:
        sessions = read()
    except OSError as error:
        raise click.UsageError(f"{FILE}: {error.strerror}") from error
    if as_json:
        print_json(sessions[-last:])
    else:
        print_report(report.text(sessions, last))
    if html is not None:
        try:
            html.write_text(report.page(sessions, last), encoding="utf-8")
        except OSError as error:
            click.echo(f"ddp-invariants: {html}: {error.strerror}", err=True)
            context.exit(UNWRITTEN)
        click.echo(f"page: {html}", err=as_json)
