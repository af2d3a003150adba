"""Tests of the host's end."""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddp_invariants.ranks.host import remove_written_modules

WRITING = "torch.distributed.nn.jit.instantiator"


def test_modules_that_torch_wrote_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.6 writes a module into a temporary folder, which a host must not leave behind."""
    folder = tempfile.TemporaryDirectory()
    (Path(folder.name) / "written.py").touch()
    monkeypatch.setitem(sys.modules, WRITING, SimpleNamespace(_TEMP_DIR=folder))
    remove_written_modules()
    assert not Path(folder.name).exists()


def test_a_torch_that_writes_no_module_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is removed if torch has no such folder, or has not been imported."""
    monkeypatch.setitem(sys.modules, WRITING, SimpleNamespace())
    remove_written_modules()
    monkeypatch.delitem(sys.modules, WRITING)
    remove_written_modules()
