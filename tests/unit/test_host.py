"""Tests of the end of a host and of its ranks."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ddp_invariants.processes.process import Process
from ddp_invariants.ranks import host
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


LARGE = """
from pathlib import Path
from ddp_invariants.ranks.host import use_large_pages
kept = [bytes(1000) for _ in range(20_000)]
def large():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
before = large()
use_large_pages()
print(large() - before, all(each == bytes(1000) for each in kept))
"""
"""A program with 20 MB of small objects; it prints how many KiB of them moved into large pages."""


@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 1)
    or not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="this kernel puts no memory into large pages on request",
)
def test_a_host_s_memory_is_put_into_large_pages() -> None:
    """Most of the memory moves, and nothing in it changes."""
    printed = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(printed[0]) >= 8 << 10
    assert printed[1] == "True"


def test_a_host_moves_its_memory_once_it_has_forked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that ends after a few forks does not pay for it."""
    moved: list[int] = []
    listener, other = socket.socketpair()
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda *_args, **_options: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    made = host.Host(listener)
    monkeypatch.setattr(host, "use_large_pages", lambda: moved.append(made.forks))
    monkeypatch.setattr(os, "fork", lambda: 1 << 22)
    monkeypatch.setattr(made, "_tell", lambda *_: None)
    for _ in range(3 * host._WORTHWHILE):
        made._fork(other, 0, 0, 0, 0, 0)
    assert moved == [host._WORTHWHILE]
    for each in (listener, other, made.wake, made.child_ended):
        each.close()


def test_a_process_that_ends_while_it_is_looked_at_waits_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its folder may vanish between two looks, which must not end a session."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    assert Process.native_waits(cast("Process", SimpleNamespace(pid=ended.pid))) == ""
