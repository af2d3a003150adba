"""A plugin of pytest that keeps the temporary files of all tests in one folder, and removes it.

Some programs that tests start leave folders behind: Chromium, torchrun, and whatever is killed. After
a failure the folder stays for a day, since the files may explain it.
"""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

_FOLDER = pytest.StashKey[Path]()
_FAILED = pytest.StashKey[bool]()
_PREFIX = "ddp-invariants-tests-"
_KEPT = 24 * 3600.0
"""Seconds for which the folder of a session stays that failed, or was killed."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder; the workers of pytest-xdist inherit it."""
    if hasattr(config, "workerinput"):
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # Another session removes it, too.
            if time.time() - folder.stat().st_mtime > _KEPT:
                shutil.rmtree(folder)
    config.stash[_FOLDER] = Path(tempfile.mkdtemp(prefix=_PREFIX))
    os.environ["TMPDIR"] = str(config.stash[_FOLDER])
    tempfile.tempdir = None  # Python would keep what it has read before.


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note whether the session has failed."""
    session.config.stash[_FAILED] = bool(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder; after a failure only if it is empty."""
    if _FOLDER not in config.stash:
        return
    if config.stash.get(_FAILED, False):
        with contextlib.suppress(OSError):
            config.stash[_FOLDER].rmdir()
    else:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)
