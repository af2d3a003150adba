"""Whether this machine can judge: doctor."""

import click


@click.command(short_help="Find out whether this machine can judge, and what to do if not.")
@click.option("--json", "as_json", is_flag=True, help="print what was found as JSON")
@click.pass_context
def doctor(context: click.Context, /, *, as_json: bool) -> None:
    """Look at Python, torch, its backends and GPUs, fork, loopback, limits and memory, and train two ranks.

    Exit status 0 where this machine can judge (warnings say what makes it slow), 1 where something keeps it from that.
    """
    # Imported here: they import numpy, which the help does without.
    from ddp_invariants import answers
    from ddp_invariants.doctor import diagnose, examine

    checks = diagnose(examine())
    click.echo(answers.as_json(checks) if as_json else answers.diagnosed(checks))
    context.exit(int(any(check.standing == "problem" for check in checks)))
