"""Whether this machine can judge: doctor."""

import click

from ddp_invariants.cli.machine import print_json, with_json


@click.command(short_help="Find out whether this machine can judge, and what to do if not.")
@with_json
@click.pass_context
def doctor(context: click.Context, /, *, as_json: bool) -> None:
    """Look at Python, torch, its backends and GPUs, fork, loopback, limits and memory, and train two ranks.

    Exit status 0 where this machine can judge (warnings say what makes it slow), 1 where something
    keeps it from that.
    """
    # Imported here: they import numpy, which the help does without.
    from ddp_invariants import answers
    from ddp_invariants.doctor import diagnose, examine

    checks = diagnose(examine())
    if as_json:
        print_json(checks)
    else:
        click.echo(answers.diagnosed(checks))
    context.exit(int(any(check.standing == "problem" for check in checks)))
