"""The command init: a start in a user's repository."""

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

import click

from ddp_invariants.cli.output import for_people, print_json, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import USAGE

_ADAPTER = "ddp_invariants_adapter.py"
_ACCEPTED = "accepted.toml"
_WORKFLOW = ".github/workflows/torch-upgrade.yml"
_FILES = {_ADAPTER: "adapter.py.j2", ".github/workflows/ddp-invariants.yml": "job.yml.j2"}
"""The template of each written file."""
_UPGRADE_FILES = {_WORKFLOW: "upgrade.yml.j2", _ACCEPTED: "accepted.toml.j2"}
"""The template of each file for upgrades."""


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
@click.option(
    "--upgrade",
    is_flag=True,
    help="write a CI job that compares the installed torch with its nightly build every week, and a "
    "file of accepted changes, instead",
)
@with_json
@click.pass_context
def init(context: click.Context, /, folder: Path, *, upgrade: bool, as_json: bool) -> None:
    """Write an adapter to start from, and a GitHub CI job, into FOLDER (default: this folder).

    An adapter is a plain class that calls your DDP wrapper for the suite. The written adapter passes
    `certify` unchanged, and the job runs `certify` on it. With --upgrade the job runs `compare` on
    torch's own wrapper. Existing files are left as they are; if both exist, that is a usage error.
    """
    # Imported here: the other commands do not need it.
    from ddp_invariants.report import machine

    written: list[Path] = []
    left: list[Path] = []
    print_text = for_people(as_json=as_json)
    for name, text in texts(_UPGRADE_FILES if upgrade else _FILES, _installed_torch()).items():
        path = folder / name
        try:
            if path.exists():
                left.append(path)
                print_text(f"kept: {path} exists already")
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            click.echo(f"ddp-invariants: {path}: {error.strerror}", err=True)
        else:
            written.append(path)
            print_text(f"wrote {path}")
    if as_json:
        print_json(machine.init(written, left))
    if not written:
        context.exit(USAGE)
    print_text(_next_steps(folder, upgrade=upgrade))


def _next_steps(folder: Path, *, upgrade: bool) -> str:
    if upgrade:
        return (
            f"\nNext: set UNDER_TEST and REQUIREMENTS in {folder / _WORKFLOW}, commit both files, and "
            f"run the workflow.\nPut changes that you accept into {folder / _ACCEPTED}."
        )
    return (
        f"\nNext: put your wrapper into {folder / _ADAPTER}, then run in that folder:\n"
        f"  ddp-invariants certify --ddp {_ADAPTER}:Adapter"
    )


def texts(files: Mapping[str, str], torch: str) -> dict[str, str]:
    """Return the text of each file.

    Args:
        files: The template of each file.
        torch: The version of torch in use.
    """
    # Imported here: the other commands do not need them.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from ddp_invariants import __version__

    environment = Environment(
        loader=PackageLoader("ddp_invariants.cli"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    values = {
        "version": __version__,
        "torch": torch,
        "adapter": _ADAPTER,
        "accepted": _ACCEPTED,
        "workflow": _WORKFLOW,
    }
    return {name: environment.get_template(file).render(values) for name, file in files.items()}


def example(torch: str) -> str:
    """Return the workflow for upgrades, which is `examples/upgrade.yml`.

    Args:
        torch: The version of torch in use.
    """
    return texts(_UPGRADE_FILES, torch)[_WORKFLOW]


def _installed_torch() -> str:
    """Return the version of torch here, without the name of its build."""
    return importlib.metadata.version("torch").partition("+")[0]
