"""The command rules: list or explain the rules."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from ddp_invariants.cli.output import print_json, print_report, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import USAGE, UnknownRuleError


def _ids(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the rules that complete an incomplete id."""
    # Imported here: only completion needs it.
    from ddp_invariants.invariants import ALL_RULES

    return [
        CompletionItem(rule.id, help=rule.requirement)
        for rule in ALL_RULES.values()
        if rule.id.startswith(incomplete.upper())
    ]


@click.command(
    short_help="List the rules, or explain one.", epilog=exit_statuses("the rules are listed")
)
@click.argument("rule", metavar="[ID]", required=False, shell_complete=_ids)
@with_json
@click.pass_context
def rules(context: click.Context, /, rule: str | None, **options: Any) -> None:
    """List the rules, or explain one.

    With an ID such as GRAD-2, print the rule's source, the way it is judged, the conditions it needs,
    and the planted faults it catches.
    """
    # Imported here: it reads the catalogue of faults.
    from ddp_invariants.invariants import ALL_RULES
    from ddp_invariants.report import rulebook

    try:
        explanations = [rulebook.explain(rule_id) for rule_id in ([rule] if rule else ALL_RULES)]
    except UnknownRuleError as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(USAGE)
    if options["as_json"]:
        print_json(explanations[0] if rule else explanations)
    else:
        print_report(rulebook.text(explanations[0]) if rule else rulebook.listing(explanations))
