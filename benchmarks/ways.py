"""The other ways to run the same training cases on real ranks; throughput.py runs this script.

`python ways.py WAY WORLD_SIZE CASES.json DDP` runs one way per process. The script prints seconds
per case as a JSON list, one number per round or test. The training is the same everywhere: build
the replica, wrap it, make the optimizer, do the case's steps, and one more forward. There is no
twin, no evidence and no judgement.
"""

import datetime as dt
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.host import prefer_batch_scheduling
from ddp_invariants.ranks.training.model import Replica, loss_of
from ddp_invariants.ranks.training.warm_up import optimizer_plan, warm_up
from ddp_invariants.situations import from_plain

ROUNDS = 5
FEW = 5
"""Number of cases for the ways that take seconds per case."""


def train(case: TrainingCase, rank: int, driver: Driver) -> None:
    """Run the training steps of a case, and nothing else."""
    replica = Replica(case.model, numbers.parameters(case, rank, case.model.numbers))
    dataset = numbers.Dataset(case)
    kind, arguments = optimizer_plan(case)
    assert driver.call is not None
    wrapped = driver.call(
        replica,
        Context(
            rank,
            case.world_size,
            None,
            case.bucket_cap,
            case.seed,
            case.optimizer.lr,
            kind,
            arguments,
            torch.device("cpu"),
        ),
        replica,
    )
    optimizer = kind(wrapped.parameters(), **arguments)
    for number, dealt in enumerate(numbers.batches(case)):
        indices = dealt[rank]
        first, last = number % case.accumulation == 0, (number + 1) % case.accumulation == 0
        inputs = torch.from_numpy(dataset.inputs_ND[indices])
        inputs = inputs if case.model.layers[0].dtype == "float64" else inputs.float()
        if case.zero_grad != "never" and first:
            optimizer.zero_grad(set_to_none=case.zero_grad == "set_to_none")
        targets, tags = (
            torch.from_numpy(dataset.targets_ND[indices]),
            torch.from_numpy(dataset.tags_N[indices]),
        )
        with nullcontext() if last else wrapped.no_sync():
            (loss_of(case.loss, wrapped(inputs), targets, tags) / case.accumulation).backward()
        if last:
            optimizer.step()
    wrapped(inputs)


def connect(path: str, rank: int, world_size: int) -> None:
    """Use one thread, and join a default gloo group that meets at a file."""
    torch.set_num_threads(1)
    store = dist.FileStore(path, world_size)  # type: ignore[attr-defined]  # without a stub
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=dt.timedelta(seconds=60)
    )


def in_forked_ranks(
    world_size: int, work: Callable[[int], object], first: Callable[[], object] | None = None
) -> Any:
    """Return the result of rank 0's work, once all ranks have done theirs.

    The ranks are forked and connected anew. The result must be JSON-ready. Each rank calls `first`
    before it connects, because gloo's threads inherit the settings of `first`.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world_size):
            child = os.fork()
            if child == 0:
                if first is not None:
                    first()
                connect(f"{folder}/store", rank, world_size)
                answer = work(rank)
                dist.barrier()
                if rank == 0:
                    Path(f"{folder}/answer").write_text(json.dumps(answer))
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return json.loads(Path(f"{folder}/answer").read_text())


def bare(world_size: int, cases: list[TrainingCase], ddp: str) -> list[float]:
    """Return the seconds per case of persistent ranks, one number per round.

    The ranks run the cases one after the other. These times are the lower limit.
    """
    warm_up()

    def rounds(rank: int) -> list[float]:
        driver, seconds = Driver(Ddp(ddp)), []
        for _ in range(ROUNDS + 1):
            dist.barrier()
            started = time.perf_counter()
            for case in cases:
                train(case, rank, driver)
            dist.barrier()
            seconds.append((time.perf_counter() - started) / len(cases))
        return seconds[1:]

    answer: list[float] = in_forked_ranks(world_size, rounds)
    return answer


def forked(world_size: int, cases: list[TrainingCase], ddp: str) -> list[float]:
    """Return the seconds per case of ranks that are forked for each case.

    The ranks are forked from a process that has imported torch, and make a new gloo group.
    """
    warm_up()
    driver, seconds = Driver(Ddp(ddp)), []
    for case in cases[: 4 * FEW]:
        started = time.perf_counter()
        in_forked_ranks(world_size, partial(train, case, driver=driver))
        seconds.append(time.perf_counter() - started)
    return seconds


def _spawned_rank(rank: int, world_size: int, path: str, case: TrainingCase, ddp: str) -> None:
    connect(path, rank, world_size)
    train(case, rank, Driver(Ddp(ddp)))
    dist.barrier()
    os._exit(0)  # On a normal exit, gloo's threads abort some of the processes.


def spawned(world_size: int, cases: list[TrainingCase], ddp: str) -> list[float]:
    """Return the seconds per case of torch.multiprocessing.spawn, which most test suites use."""
    seconds = []
    for case in cases[:FEW]:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            spawn(_spawned_rank, (world_size, f"{folder}/store", case, ddp), nprocs=world_size)
        seconds.append(time.perf_counter() - started)
    return seconds


WAYS = {
    "bare": bare,
    "bare, default scheduling": bare,
    "fork": forked,
    "spawn": spawned,
}


def main() -> None:
    """Run the way that the command line names, and print its seconds."""
    way, world_size, path, ddp = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    if way == "bare":
        prefer_batch_scheduling()
    torch.set_num_threads(1)
    cases = [from_plain(plain) for plain in json.loads(Path(path).read_text())]
    print(json.dumps(WAYS[way](world_size, [c for c in cases if isinstance(c, TrainingCase)], ddp)))


if __name__ == "__main__":
    main()
