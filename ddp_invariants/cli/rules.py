"""What is judged: rules."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.errors import USAGE, UnknownRuleError


def _ids(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Rules to complete to."""
    # Imported here: only completion needs it.
    from ddp_invariants.invariants import ALL_RULES

    return [
        CompletionItem(one.id, help=one.requirement)
        for one in ALL_RULES.values()
        if one.id.startswith(incomplete.upper())
    ]


@click.command(short_help="List the rules, or explain one.")
@click.argument("rule", metavar="[ID]", required=False, shell_complete=_ids)
@with_json
@click.pass_context
def rules(context: click.Context, /, rule: str | None, **options: Any) -> None:
    """List the rules; with an ID explain one: its source, how it is judged, what it needs, which planted faults it catches."""
    # Imported here: it reads the catalogue of faults.
    from ddp_invariants.invariants import ALL_RULES
    from ddp_invariants.report import machine, rulebook

    try:
        found = [rulebook.explained(one) for one in ([rule] if rule else ALL_RULES)]
    except UnknownRuleError as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(USAGE)
    if options["as_json"]:
        print_json(found[0] if rule else found)
    else:
        click.echo(machine.explained(found[0]) if rule else machine.rules(found))
