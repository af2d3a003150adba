"""The command merge: add up the results of the parts of a run that was split."""

import json
from pathlib import Path

import click

from ddp_invariants.cli.options import NewFile
from ddp_invariants.cli.output import print_json, print_report, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import (
    INCONCLUSIVE,
    UNWRITTEN,
    USAGE,
    CertificateError,
    MergeError,
    NoCertificateFileError,
)
from ddp_invariants.implementation.spec import defaulting
from ddp_invariants.report import detections as report
from ddp_invariants.report import machine, populations
from ddp_invariants.report.certificate.merging import merged
from ddp_invariants.report.certificate.text import headline, verification
from ddp_invariants.report.certificate.verifying import read, status


@click.command(
    short_help="Add up the certificates or detection tables of a run that was split.",
    epilog=exit_statuses(
        "certified, or all faults are caught and no control is accused",
        "violated, or a fault escaped or a control is accused",
        "inconclusive, partial or refused",
        "the output could not be written",
    ),
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--output",
    type=NewFile(),
    metavar="FILE",
    help=defaulting(
        "write the sum: a certificate and its page, or the JSON of a table", "none is written"
    ),
)
@with_json
@click.pass_context
def merge(
    context: click.Context, /, files: tuple[Path, ...], output: Path | None, *, as_json: bool
) -> None:
    """Add up the certificates or detection tables of a run that was split.

    The parts of a run have the same options and the same --seed, but --shard 1/N to N/N. FILE is the
    certificate that one part of a session wrote, or the JSON that one part of faults --json
    printed. All N are needed, in any order. A file that is missing, that is given twice, or that belongs to
    another run is refused.
    """
    try:
        if all(map(_is_table, files)):
            _tables(context, files, output, as_json=as_json)
        else:
            _certificates(context, files, output, as_json=as_json)
    except NoCertificateFileError as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(USAGE)
    except (MergeError, CertificateError) as error:
        click.echo(f"REFUSED: {error}", err=as_json)
        context.exit(INCONCLUSIVE)
    except OSError as error:
        click.echo(f"ddp-invariants: {error.filename}: {error.strerror}", err=True)
        context.exit(UNWRITTEN)


def _is_table(path: Path) -> bool:
    """Return whether a file is a detection table; a file that cannot be read is none."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(plain, dict) and "searches" in plain


def _certificates(
    context: click.Context, files: tuple[Path, ...], output: Path | None, *, as_json: bool
) -> None:
    """Add up certificates."""
    # Imported here: only a certificate is written this way, and it imports pytest.
    from ddp_invariants.session.outputs import write_certificate

    certificate = merged([read(path) for path in files])
    if as_json:
        print_json(machine.verification(certificate, headline(certificate)))
    else:
        print_report(verification(certificate))
    if output is not None:
        click.echo(write_certificate(output, certificate), err=as_json)
    context.exit(status(certificate))


def _tables(
    context: click.Context, files: tuple[Path, ...], output: Path | None, *, as_json: bool
) -> None:
    """Add up detection tables."""
    # Imported here, because it imports Hypothesis.
    from ddp_invariants.proof import tables

    table = tables.merged([tables.read(path) for path in files])
    plain = tables.to_plain(table)
    if as_json:
        print_json(plain)
    else:
        layout = populations if table.options["generated"] else report
        click.echo(layout.table(table.searches))
    if output is not None:
        output.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    context.exit(tables.status(table))
