"""Scripts of collectives, run over gloo by forked processes and by simulated ranks.

Run it as `python worlds.py SIZE OUT MODULE`. The module's `SCRIPTS` are run by SIZE ranks in both
worlds, and the outcomes are pickled into the file OUT.
"""

import datetime as dt
import importlib
import os
import pickle
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.distributed import CaseGroups
from ddp_invariants.ranks.groups.observed import Connections, Timing
from ddp_invariants.ranks.groups.works import Log
from ddp_invariants.ranks.simulation import World
from ddp_invariants.records.trace import LastWords

_c10d: Any = torch._C._distributed_c10d
TIMEOUT = dt.timedelta(seconds=15)


class Notes:
    """The outcomes of one rank's script.

    Args:
        rank: The rank.
        size: The number of ranks.

    Attributes:
        outcomes: The bits of each named result, or the type and the message of what it raised.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.outcomes: dict[str, Any] = {}

    def __call__(self, name: str, call: Callable[[], Any]) -> Any:
        """Record the result of a call, or its exception; return the result."""
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - the exception is the outcome
            lines = str(error).splitlines() or [""]
            self.outcomes[name] = ("raised", type(error).__name__, lines[0])
            return None
        self.outcomes[name] = ("returned", bits(result))
        return result


Script = Callable[[Notes], None]


def bits(value: Any) -> Any:
    """Return a value with each tensor's dtype, shape and bits in place of the tensor."""
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        whole = value.coalesce()
        return ("sparse", tuple(value.shape), bits(whole.indices()), bits(whole.values()))
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().reshape(-1).view(torch.uint8)
        return (str(value.dtype), tuple(value.shape), bytes(plain.tolist()))
    if isinstance(value, list | tuple):
        return [bits(entry) for entry in value]
    if isinstance(value, dict):
        return {name: bits(entry) for name, entry in value.items()}
    if isinstance(value, str | bytes | int | float | bool | None):
        return value
    return type(value).__name__


def run_script(
    script: Script, rank: int, connections: Connections, log: Log, name: str
) -> dict[str, Any]:
    """Run a script as one rank, with observed groups."""
    size, notes = connections.world_size, Notes(rank, connections.world_size)
    torch.manual_seed(rank)
    members = list(range(size))
    groups = CaseGroups(connections, None, members, name, log, Timing(), plain=False)
    notes("the script", lambda: script(notes))
    groups.end()
    notes("quiescent", groups.close)
    return notes.outcomes


class ScriptWorld(World):
    """Simulated ranks that run a script in place of a training."""

    def __init__(self, script: Script, size: int) -> None:
        case = TrainingCase(
            model=Model(2, (Layer("linear", 2),)), world_size=size, data=Data(size * 2, 2)
        )
        super().__init__(case, cast("Any", None), 1)
        self._script = script
        self.outcomes: list[Any] = [None] * size

    def _train(self, rank: int) -> None:
        torch.set_num_threads(1)
        connections = self._connections("everyone", rank, self._case.world_size)
        self.outcomes[rank] = run_script(
            self._script, rank, connections, Log(LastWords.alone(), 1), "s"
        )


def simulated(script: Script, size: int) -> list[Any]:
    """Return the outcomes of a script's simulated ranks."""
    world = ScriptWorld(script, size)
    outcome = world.run(20.0)
    if outcome.failed is not None:
        raise outcome.failed
    if outcome.refused or outcome.stuck:
        return [("refused", outcome.refused), ("stuck", outcome.stuck, outcome.stacks)]
    return world.outcomes


def _gloo_rank(script: Script, rank: int, size: int, folder: Path) -> None:
    signal.alarm(40)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(LOCAL_WORLD_SIZE=str(size))
    store = _c10d.FileStore(str(folder / "store"), size)
    connections = Connections(store, rank, size, TIMEOUT, RankDevice(), "gloo")
    outcomes = run_script(script, rank, connections, Log(LastWords.alone(), 1), "s")
    (folder / f"rank {rank}").write_bytes(pickle.dumps(outcomes))
    # A rank that ended now would end the connections that another rank still makes.
    store.set(f"over {rank}", "")
    store.wait([f"over {peer}" for peer in range(size)], TIMEOUT)


def _forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - shown to the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def over_gloo(script: Script, size: int) -> list[Any]:
    """Return the outcomes of a script's ranks over gloo; the exit status of a rank that died."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pids = [
            _forked(lambda rank=rank: _gloo_rank(script, rank, size, folder))  # type: ignore[misc]
            for rank in range(size)
        ]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        return [
            status or pickle.loads((folder / f"rank {rank}").read_bytes())  # noqa: S301 - its own
            for rank, status in enumerate(statuses)
        ]


def apart(run: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
    """Return the result of a function that runs in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "result"
        status = os.waitpid(_forked(lambda: path.write_bytes(pickle.dumps(run(*arguments)))), 0)[1]
        result: list[Any] = [("died", status)] if status else pickle.loads(path.read_bytes())  # noqa: S301 - its own
        return result


def main(size: int, out: Path, module: str, *names: str) -> None:
    """Run the scripts of a module in both worlds, and store the outcomes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    scripts: dict[str, Script] = importlib.import_module(module).SCRIPTS
    scripts = {name: scripts[name] for name in names or scripts}
    outcomes = {
        name: {"gloo": over_gloo(script, size), "simulated": apart(simulated, script, size)}
        for name, script in scripts.items()
    }
    out.write_bytes(pickle.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
