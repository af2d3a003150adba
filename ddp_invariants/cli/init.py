"""The command init: a start in a user's repository."""

from pathlib import Path

import click

from ddp_invariants.cli.output import for_people, print_json, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import USAGE

_ADAPTER = "ddp_invariants_adapter.py"
_FILES = {_ADAPTER: "adapter.py.j2", ".github/workflows/ddp-invariants.yml": "job.yml.j2"}
"""The template of each written file."""


@click.command(
    short_help="Write an adapter to start from, and a CI job.",
    epilog=exit_statuses("a file is written"),
)
@click.argument(
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    metavar="[FOLDER]",
)
@with_json
@click.pass_context
def init(context: click.Context, /, folder: Path, *, as_json: bool) -> None:
    """Write an adapter to start from, and a GitHub CI job, into FOLDER (default: this folder).

    An adapter is a plain class that calls your DDP wrapper for the suite. The written one passes
    `certify` unchanged, and the job runs `certify` on it. Existing files are left as
    they are; if both exist, that is a usage error.
    """
    # Imported here: the other commands do not need them.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from ddp_invariants import __version__
    from ddp_invariants.report import machine

    environment = Environment(
        loader=PackageLoader("ddp_invariants.cli"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    written: list[Path] = []
    left: list[Path] = []
    print_text = for_people(as_json=as_json)
    for name, template in _FILES.items():
        path = folder / name
        text = environment.get_template(template).render(version=__version__, adapter=_ADAPTER)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            left.append(path)
            print_text(f"kept: {path} exists already")
        except OSError as error:
            click.echo(f"ddp-invariants: {path}: {error.strerror}", err=True)
        else:
            written.append(path)
            print_text(f"wrote {path}")
    if as_json:
        print_json(machine.init(written, left))
    if not written:
        context.exit(USAGE)
    print_text(
        f"\nNext: put your wrapper into {folder / _ADAPTER}, then run in that folder:\n"
        f"  ddp-invariants certify --ddp {_ADAPTER}:Adapter"
    )
