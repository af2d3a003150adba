"""The command line: `ddp-invariants`, or `python -m ddp_invariants`."""

import click

from ddp_invariants.cli.measuring import faults
from ddp_invariants.cli.probing import discover
from ddp_invariants.cli.upgrading import compare, record
from ddp_invariants.cli.violations import export, replay


@click.group()
@click.version_option(package_name="ddp-invariants")
def main() -> None:
    """Find out whether data-parallel training is right."""


for _command in (discover, replay, export, compare, record, faults):
    main.add_command(_command)
