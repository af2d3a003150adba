"""A plugin of pytest that keeps the temporary files of all tests in one folder, and removes it.

Some programs that tests start leave folders behind: Chromium, torchrun, and whatever is killed. After
a failure the folder stays, since the files may explain it.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

_FOLDER = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder; the workers of pytest-xdist inherit it."""
    if hasattr(config, "workerinput"):
        return
    config.stash[_FOLDER] = Path(tempfile.mkdtemp(prefix="ddp-invariants-tests-"))
    os.environ["TMPDIR"] = str(config.stash[_FOLDER])
    tempfile.tempdir = None  # Python would keep what it has read before.


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the folder of a session that has failed."""
    if exitstatus and _FOLDER in session.config.stash:
        del session.config.stash[_FOLDER]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder."""
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)
