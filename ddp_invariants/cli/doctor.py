"""The command doctor: find out whether this machine can run the suite."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.cli.statuses import exit_statuses

if TYPE_CHECKING:
    from ddp_invariants.session.doctor import Check


@click.command(
    short_help="Check whether this machine can run the suite, with advice if not.",
    epilog=exit_statuses(
        "this machine can run the suite (warnings say why it is slow)", "a problem prevents that"
    ),
)
@with_json
@click.pass_context
def doctor(context: click.Context, /, *, as_json: bool) -> None:
    """Check whether this machine can run the suite, with advice if not.

    The command looks at Python, torch, backends, GPUs, fork, loopback, limits and memory, and trains
    two ranks.
    """
    # Imported here: they import numpy, which the help does not need.
    from ddp_invariants.session.doctor import diagnose
    from ddp_invariants.session.facts import examine

    checks = diagnose(examine())
    if as_json:
        print_json(checks)
    else:
        click.echo(text(checks))
    context.exit(int(any(check.standing == "problem" for check in checks)))


def text(checks: "Sequence[Check]") -> str:
    """List the checks, a line each with advice below it, and a summary at the end."""
    wide = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.standing:<8} {check.name:<{wide}} {check.result}")
        lines += [
            f"{'':<9}{'':<{wide}} {line}" for line in textwrap.wrap(check.advice, 118 - wide - 10)
        ]
    problems = sum(check.standing == "problem" for check in checks)
    warnings = sum(check.standing == "warning" for check in checks)
    summary = (
        f"{problems} problem{'s' if problems > 1 else ''}: this machine cannot run the suite"
        if problems
        else "this machine can run the suite"
    )
    return "\n".join([*lines, f"{summary}; {warnings} warning{'' if warnings == 1 else 's'}"])
