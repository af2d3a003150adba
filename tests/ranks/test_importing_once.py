"""Tests of the module that the hosts of a session import for all its ranks."""

from pathlib import Path

import pytest

from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool

LIBRARY = """
import os
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel as DDP
with Path(__file__).with_name("imports").open("a") as file:
    print(os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), file=file)
"""
ALIKE = {
    "nothing else": "",
    "a variable of the environment": "os.environ['THEIRS'] = '1'",
    "a process that has ended": "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
}
OWN = {
    "a question for the rank": "os.environ.get('RANK')",
    "a question whether there is a rank": "'LOCAL_RANK' in os.environ",
    "a thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a process": "os.posix_spawn('/bin/sleep', ['sleep', '60'], {})",
    "a name of torch": "import torch; torch.zeros = torch.ones",
    "an exception": "assert 'RANK' in os.environ",
}


def imports(folder: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> list[list[str]]:
    """Load a library in two ranks, end them, and load it again; return a row for each import."""
    (folder / "library.py").write_text(LIBRARY + statement, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with Hosts(hash_seeds=("1",), module="library") as hosts, Pool(hosts.addresses) as pool:
        for _ in range(2):
            pool._load(Ddp("library:DDP"), [0, 1])
            pool.anew()
    return [line.split() for line in (folder / "imports").read_text().splitlines()]


@pytest.mark.parametrize("statement", ALIKE.values(), ids=ALIKE)
def test_a_host_imports_a_module_once_for_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """New ranks have the module at once, whose import saw no device."""
    assert [devices for _, *devices in imports(tmp_path, monkeypatch, statement)] == [[]]


@pytest.mark.parametrize("statement", OWN.values(), ids=OWN)
def test_a_rank_imports_a_module_itself_that_has_something_of_each_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """The host that tried the import starts anew without it, and then each of four ranks does it."""
    host, *ranks = (pid for pid, *_ in imports(tmp_path, monkeypatch, statement))
    assert len({host, *ranks}) == 1 + len(ranks) == 5
