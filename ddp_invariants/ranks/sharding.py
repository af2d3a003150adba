"""One process asks a sampler for the shards of all ranks: no process group is needed for that."""

import itertools
import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ddp_invariants.case import ShardCase
from ddp_invariants.ranks.loading import SamplerMaker
from ddp_invariants.ranks.training import told


def _impossible(world_size: int) -> dict[str, tuple[int, int]]:
    """Arguments no sampler can serve: situation to (world size, rank)."""
    return {"rank below 0": (world_size, -1), "rank equal to world size": (world_size, world_size), "world size 0": (0, 0),
            "world size below 0": (-1, 0)}


def shards(case: ShardCase, make: SamplerMaker, *, disturb: int) -> dict[str, Any]:
    """Every rank's indices of every epoch, asked for as a training run would.

    Args:
        case: The case.
        make: The sampler on trial.
        disturb: Seed of the global random generators, which the ranks' turns share, so that each finds them in
            another state. Two processes asked with different ones must answer alike (SHARD-4).

    Returns:
        `lengths[rank]`, `shards[epoch number][rank]`, `again[rank]` (the last epoch iterated once more),
        `touched` (global generators that iterating advanced), `batches[rank]`, or `raised`; and `refused`, the type of
        the exception per impossible situation, None when none was raised.
    """
    refused = {situation: _refusal(case, make, world_size, rank)
               for situation, (world_size, rank) in _impossible(case.world_size).items()}
    return {**_dealt(case, make, disturb), "refused": refused}


def _dealt(case: ShardCase, make: SamplerMaker, disturb: int) -> dict[str, Any]:
    phase = "construction"
    try:
        _disturb(disturb)
        samplers = [_make(case, make, case.world_size, rank) for rank in range(case.world_size)]
        phase = "iteration"
        before = _global_generators()
        dealt = []
        for epoch in case.epochs:
            for sampler in samplers:
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
            dealt.append([_indices(case, sampler) for sampler in samplers])
        for sampler in samplers:
            next(iter(sampler), None)  # An iteration left half way must not show in the next one.
        again = [_indices(case, sampler) for sampler in samplers]
        after = _global_generators()
        answer: dict[str, Any] = {
            "lengths": [len(sampler) if hasattr(sampler, "__len__") else None for sampler in samplers],
            "shards": dealt, "again": again,
            "touched": [name for name in before if before[name] != after[name]],
            "batches": None,
        }
        if case.loader:
            phase = "DataLoader"
            answer["batches"] = [_count_batches(case, sampler) for sampler in samplers]
    except Exception as error:  # noqa: BLE001 - the implementation on trial may raise anything; it is evidence
        return {"raised": told(error, phase, 0)}
    return answer


def _refusal(case: ShardCase, make: SamplerMaker, world_size: int, rank: int) -> str | None:
    try:
        _make(case, make, world_size, rank)
    except Exception as error:  # noqa: BLE001 - which exception it is, is the evidence
        return type(error).__name__
    return None


def _make(case: ShardCase, make: SamplerMaker, world_size: int, rank: int) -> Any:
    data = case.data
    return make(data.samples, world_size, rank, shuffle=data.shuffle, seed=data.seed, drop_last=data.drop_last)


def _indices(case: ShardCase, sampler: Any) -> list[int]:
    # Bounded: a sampler that never ends is seen to yield too many instead of taking all memory.
    bound = 4 * (case.data.samples + case.world_size) + 1000
    return [int(index) for index in itertools.islice(sampler, bound)]


def _count_batches(case: ShardCase, sampler: Any) -> int:
    dataset = range(case.data.samples)
    loader: DataLoader[int] = DataLoader(dataset, batch_size=case.data.batch_size, sampler=sampler)  # type: ignore[arg-type]  # a range is a map-style dataset
    return sum(1 for _ in loader)


def _disturb(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is what implementations fall for
    torch.manual_seed(seed)


def _global_generators() -> dict[str, Any]:
    return {"random": random.getstate(), "numpy": np.random.get_state()[1].tobytes(),  # type: ignore[index]  # noqa: NPY002 - as above
            "torch": torch.get_rng_state().numpy().tobytes()}
