"""The process of the command line: its streams, and its exit status."""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click

from ddp_invariants.cli import main
from ddp_invariants.errors import INCONCLUSIVE, USAGE, unusable
from ddp_invariants.records.folder import EXAMPLES

_STREAMS = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))


def run() -> NoReturn:
    """Run the command line, and end with a documented exit status."""
    _open_streams()
    status = _status(_main)
    sys.exit(_status(_flush) or status)


def _main() -> None:
    try:
        here = Path.cwd()
    except FileNotFoundError:
        _print("ddp-invariants: the current folder does not exist any more")
        sys.exit(USAGE)
    # Hypothesis would make a folder of its own beside ours.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(here / EXAMPLES))
    main(prog_name="ddp-invariants")


def _status(act: Callable[[], None]) -> int:
    """Return the exit status of an act; 0 if the act ends as a function does.

    Python ends with 1 after an error. Here, 1 means that something was judged and is violated.
    """
    try:
        act()
    except SystemExit as ended:
        return _status_of(ended.code)
    except BrokenPipeError:  # Nobody reads the output; a message would disturb.
        return INCONCLUSIVE
    except OSError as error:
        _print(f"ddp-invariants: {error}")
        return unusable(error)
    except Exception:  # noqa: BLE001 - an error of any kind must not look like a verdict
        _print(traceback.format_exc())
        _print("ddp-invariants: the suite itself failed; please report the lines above")
        return INCONCLUSIVE
    return 0


def _status_of(code: object) -> int:
    """Return the exit status of an end with a code, and print a code that is a text."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    _print(str(code))
    return INCONCLUSIVE


def _print(text: str) -> None:
    """Print a text on stderr, if stderr can be written to."""
    with suppress(OSError):
        click.echo(text, err=True)


def _open_streams() -> None:
    """Open the standard streams that the caller closed.

    Otherwise, the next file that is opened would take the place of a closed stream, and what is
    printed would go there.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)  # noqa: FBT003 - the signature is Python's
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115 - a number


def _flush() -> None:
    """Write what was printed; what cannot be written is discarded.

    Otherwise, Python would try again at its end, and fail.

    Raises:
        OSError: It cannot be written.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise
