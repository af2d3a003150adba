"""The command verify: recheck a certificate."""

from pathlib import Path

import click

from ddp_invariants.cli.output import print_json, print_report, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import (
    INCONCLUSIVE,
    USAGE,
    CertificateError,
    NoCertificateFileError,
)
from ddp_invariants.report import machine
from ddp_invariants.report.certificate.text import headline, verification
from ddp_invariants.report.certificate.verifying import read, status


@click.command(
    short_help="Check a certificate for changes and contradictions.",
    epilog=exit_statuses(
        "whole and certified", "whole and violated", "inconclusive, partial or refused"
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@with_json
@click.pass_context
def verify(context: click.Context, /, file: Path, *, as_json: bool) -> None:
    """Check a certificate for changes and contradictions.

    FILE is a certificate's JSON or its page. The command checks its form, its digest and its numbers,
    and that no planned property is missing. It refuses a file that was changed. A digest is no
    signature: it does not prove who wrote the file.
    """
    try:
        certificate = read(file)
    except NoCertificateFileError as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(USAGE)
    except CertificateError as error:
        if as_json:
            print_json({"valid": False, "reason": str(error)})
        else:
            click.echo(f"REFUSED: {error}")
        context.exit(INCONCLUSIVE)
    if as_json:
        print_json(machine.verification(certificate, headline(certificate)))
    else:
        print_report(verification(certificate))
    context.exit(status(certificate))
