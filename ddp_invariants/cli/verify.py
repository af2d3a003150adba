"""The command verify: recheck a certificate."""

from pathlib import Path

import click

from ddp_invariants.cli.output import print_json, with_json
from ddp_invariants.errors import CertificateError
from ddp_invariants.report import machine
from ddp_invariants.report.certificate.text import headline, verification
from ddp_invariants.report.certificate.verifying import read, status


@click.command(short_help="Recheck a certificate.")
@click.argument("file", type=click.Path(path_type=Path))
@with_json
@click.pass_context
def verify(context: click.Context, /, file: Path, *, as_json: bool) -> None:
    """Recheck a certificate, JSON or page.

    Its form, its digest and its arithmetic are checked, and that nothing planned is missing.

    Exit status 0 if it is whole and certifies, 1 if it is whole and reports a violation, 2 if it is
    inconclusive, partial, or refused. A digest is no signature: it shows that the file was changed,
    not who wrote it.
    """
    try:
        certificate = read(file)
    except CertificateError as error:
        if as_json:
            print_json({"valid": False, "reason": str(error)})
        else:
            click.echo(f"REFUSED: {error}")
        context.exit(2)
    if as_json:
        print_json(machine.verification(certificate, headline(certificate)))
    else:
        click.echo(verification(certificate))
    context.exit(status(certificate))
