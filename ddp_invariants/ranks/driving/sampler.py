"""How a sampler is asked: map-style, over batches, over items, or a function; its rank given, or read from its surroundings."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, SequentialSampler

from ddp_invariants.errors import DeclarationError, LoadError
from ddp_invariants.implementation.declarations import SamplerDeclarations, declare
from ddp_invariants.implementation.names import target_of
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.ranks.driving.ddp import Description, defaults
from ddp_invariants.ranks.driving.imports import (
    Source,
    first,
    required,
    resolve,
    signature,
    source_of,
    spelled,
    values_of,
    version,
)
from ddp_invariants.ranks.groups.distributed import lone_rank
from ddp_invariants.records.evidence import FOREIGN, OWN

DATASETS = ("dataset", "data_source", "data", "samples", "indices")
BATCH_SAMPLERS = ("batch_sampler",)
INNER_SAMPLERS = ("sampler",)
ITERABLES = ("src", "source", "iterable")
SIZES = ("n", "num_samples", "dataset_size", "dataset_len", "length", "total_size", "num_items")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "world_size": (
        "num_replicas",
        "world_size",
        "num_processes",
        "data_parallel_size",
        "dp_size",
        "num_shards",
        "n_ranks",
    ),
    "rank": ("rank", "process_index", "data_parallel_rank", "dp_rank", "shard_id", "local_rank"),
    "shuffle": ("shuffle", "shuffled"),
    "seed": ("seed", "random_seed"),
    "drop_last": ("drop_last",),
    "batch_size": ("batch_size", "micro_batch_size", "per_rank_batch_size"),
    "epoch": ("epoch",),
}
"""What a sampler is told, by the names of the arguments that take it."""
_APART, _OFFSET = 65537, 7
"""Sample n of data that are scattered is the number _APART * n + _OFFSET, which no index and no other rank's data can be."""


class SamplerMaker:
    """A sampler that is loaded: what it declares, and how one is made for a rank.

    Raises:
        LoadError: It cannot be put on trial.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, option = sampler, f"--sampler {sampler.name}"
        self.make = resolve(sampler.name, "sampler")
        parameters = signature(self.make, option)
        self.given = values_of(sampler.arguments, parameters, option)
        self.names = {ours: first(theirs, parameters) for ours, theirs in ARGUMENTS.items()}
        self.source, self.source_kind = self._source(parameters, option)
        known = {name for name in (*self.names.values(), self.source) if name}
        missing = [
            name for name in required(parameters.values()) if name not in known | set(self.given)
        ]
        if missing:
            raise LoadError(
                f"{option}: it requires {', '.join(missing)}, which nothing is known to pass for; give it with "
                f"--sampler-arg {missing[0]}=VALUE"
            )
        try:
            self.declared = declare(
                SamplerDeclarations, {**getattr(self.make, "declares", {}), **sampler.declares}
            )
        except DeclarationError as error:
            raise LoadError(f"{option}: it declares {error}") from error
        self.scatters = self.declared.layout == "scatter"
        if self.scatters and self.source_kind != "dataset":
            raise LoadError(
                f"{option}: it declares layout = 'scatter' and takes no data as {', '.join(DATASETS)}, so it "
                "cannot be told what to scatter"
            )
        # One that is told neither asks torch.distributed or the environment.
        self.asks = self.scatters or (self.names["rank"] is None and "rank" not in self.given)

    @staticmethod
    def _source(parameters: dict[str, Any], option: str) -> tuple[str, str]:
        """The parameter that takes what is dealt out, and what that is.

        Raises:
            LoadError: There is none.
        """
        for kind, names in (
            ("batches", BATCH_SAMPLERS),
            ("dataset", DATASETS),
            ("sampler", INNER_SAMPLERS),
            ("items", ITERABLES),
            ("size", SIZES),
        ):
            found = first(names, parameters)
            if found is not None:
                return found, kind
        raise LoadError(
            f"{option}: it takes none of {', '.join((*DATASETS, *BATCH_SAMPLERS, *ITERABLES, *SIZES))}, so it "
            "cannot be told what to deal out"
        )

    def describe(self) -> Description:
        """What the controller may draw for it, and what it prints."""
        lacks = [name for name in ("shuffle", "drop_last") if self.names[name] is None]
        lacks += ["given_rank"] if self.asks else []
        # No duty, and nothing that a sampler of indices could do: they are asked for in the process
        # that has the workers.
        lacks += (
            ["workers"]
            if self.source_kind != "items" or "workers" not in self.declared.supports
            else []
        )
        how = {
            "batches": "over a torch BatchSampler",
            "dataset": "over a dataset",
            "sampler": "over a torch sampler",
            "items": "over an iterable",
            "size": "over a length",
        }[self.source_kind]
        lacks += [] if "elastic" in self.declared.supports else ["elastic"]
        how = "data, in a group of all ranks," if self.scatters else how
        lines = [
            f"{how} as {self.source!r}",
            "rank and world size from torch.distributed and the environment"
            if self.asks
            else f"rank as {self.names['rank']!r}",
        ]
        lines += [
            f"{ours.replace('_', ' ')} as {theirs!r}"
            for ours, theirs in self.names.items()
            if theirs and ours != "rank"
        ]
        return Description(
            str(self.sampler),
            target_of(self.sampler.name, "sampler"),
            version(self.make),
            vars(self.declared),
            tuple(lacks),
            tuple(lines),
            self._source_text(),
            defaults(self.make),
        )

    @property
    def made_of(self) -> Source:
        """The files of what is on trial."""
        return source_of(self.make)

    def _source_text(self) -> dict[str, Any]:
        """How one is made, as source text in the names of an exported script."""
        dealt = {
            "batches": "BatchSampler(SequentialSampler(range(SAMPLES)), BATCH_SIZE, DROP_LAST)",
            "sampler": "SequentialSampler(range(SAMPLES))",
            "size": "SAMPLES",
        }.get(self.source_kind, "range(SAMPLES)")
        told = {
            "world_size": "world_size",
            "rank": "rank",
            "shuffle": "SHUFFLE",
            "seed": "SEED",
            "drop_last": "DROP_LAST",
            "batch_size": "BATCH_SIZE",
            "epoch": "epoch",
        }
        rows = [[self.source, dealt]]
        rows += [
            [theirs, told[ours]]
            for ours, theirs in self.names.items()
            if theirs is not None and theirs not in self.given
        ]
        rows += [
            [name, spelled(text)] for name, text in self.sampler.arguments if name != self.source
        ]
        return {"rows": rows, "asks": self.asks, "remade": self.remade_each_epoch}

    def surroundings(self, rank: int, world_size: int) -> AbstractContextManager[object]:
        """The rank's surroundings, for a sampler that reads its rank from them; what scatters has real ones."""
        return _as_rank(rank, world_size) if self.asks and not self.scatters else nullcontext()

    def index(self, item: Any) -> int:
        """Which sample an item is that was dealt out; `OWN` or `FOREIGN` for data that are none of the first rank's."""
        number = int(item)
        if not self.scatters:
            return number
        index, rest = divmod(abs(number) - _OFFSET, _APART)
        return FOREIGN if rest else OWN if number < 0 else index

    def __call__(
        self,
        samples: int,
        world_size: int,
        rank: int,
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        batch_size: int,
        epoch: int = 0,
    ) -> Any:
        """A sampler for one rank over a dataset of that length. Raises whatever the implementation raises."""
        ours = {
            "world_size": world_size,
            "rank": rank,
            "shuffle": shuffle,
            "seed": seed,
            "drop_last": drop_last,
            "batch_size": batch_size,
            "epoch": epoch,
        }
        arguments = {
            theirs: ours[name] for name, theirs in self.names.items() if theirs is not None
        }
        dealt = self._dealt(samples, rank, batch_size, drop_last=drop_last)
        made = self.make(**{self.source: dealt, **arguments, **self.given})
        # An iterator can be gone through once; what it yields may be asked for again.
        return list(made) if isinstance(made, Iterator) else made

    def _dealt(self, samples: int, rank: int, batch_size: int, *, drop_last: bool) -> Any:
        if (
            self.scatters
        ):  # All ranks have data of that length; what is to be scattered is the first one's.
            numbers = torch.arange(samples) * _APART + _OFFSET
            return -numbers if rank else numbers
        if self.source_kind == "batches":
            return BatchSampler(SequentialSampler(range(samples)), batch_size, drop_last)
        if self.source_kind == "sampler":
            return SequentialSampler(range(samples))
        return samples if self.source_kind == "size" else range(samples)

    @property
    def remade_each_epoch(self) -> bool:
        """Whether the epoch is an argument, not a call."""
        return self.names["epoch"] is not None


@contextmanager
def _as_rank(rank: int, world_size: int) -> Iterator[None]:
    """The environment and torch.distributed as a process of that rank finds them; no collective can be run."""
    possible = 0 <= rank < world_size
    exception_hook = (
        sys.excepthook
    )  # torch wraps it at every initialisation and never takes the wrapper off.
    with environment(rank, world_size):
        try:
            if possible:
                lone_rank(rank, world_size)
            yield
        finally:
            if possible:
                dist.destroy_process_group()
                sys.excepthook = exception_hook


@contextmanager
def environment(rank: int, world_size: int) -> Iterator[None]:
    """The variables that a launcher sets for a process of that rank, on one machine."""
    here = {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size)),
    }
    before = {name: os.environ.get(name) for name in here}
    os.environ.update(here)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
