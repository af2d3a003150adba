"""The command line: `ddp-invariants`, or `python -m ddp_invariants`."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import INCONCLUSIVE, INTERRUPTED, USAGE

_COMMANDS = {
    "certify": "certify",
    "replay": "violations",
    "export": "violations",
    "discover": "discover",
    "compare": "compare",
    "record": "compare",
    "verify": "verify",
    "merge": "merge",
    "history": "history",
    "faults": "faults",
    "mutate": "mutate",
    "rules": "rules",
    "doctor": "doctor",
    "demo": "demo",
    "init": "init",
}
"""The module of each command, imported when the command is run; in the order of the help."""


class Commands(click.Group):
    """The group of all commands, with exit statuses that tell a verdict from a usage error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names; a new user needs the first ones first."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(
            importlib.import_module(f"ddp_invariants.cli.{_COMMANDS[cmd_name]}"), cmd_name
        )
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. If nobody reads its output, click would end with 1, a verdict here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            ctx.exit(INCONCLUSIVE)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - the signature is click's
        **extra: Any,
    ) -> Any:
        """Run a command, and end with an exit status.

        A usage error ends with USAGE. click would use 2, which is a verdict here.
        """
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as mistake:
            mistake.show()
            sys.exit(USAGE)
        # Before click has read the command line, it does not turn KeyboardInterrupt into Abort.
        except (
            click.Abort,
            KeyboardInterrupt,
        ):
            click.echo("ddp-invariants: interrupted", err=True)
            sys.exit(INTERRUPTED)
        sys.exit(status)


@click.group(
    cls=Commands,
    epilog=exit_statuses(
        "certified, or success", "violated", "inconclusive", "an output could not be written"
    )
    + """

    `ddp-invariants COMMAND --help` prints the options and exit statuses of one command.

    Completion of commands and options in bash (likewise in zsh and fish):

    \b
    eval "$(_DDP_INVARIANTS_COMPLETE=bash_source ddp-invariants)"
    """,
)
@click.version_option(package_name="ddp-invariants")
def main() -> None:
    """Test whether data-parallel training is correct: your DDP wrapper, sampler or optimizer."""
