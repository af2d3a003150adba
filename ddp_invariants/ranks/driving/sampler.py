"""The ways to ask a sampler for indices.

A sampler may be map-style, over batches, over items, or a function. Its rank is an argument, or it
reads its rank from the environment and torch.distributed.
"""

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from functools import cached_property
from inspect import Parameter
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from ddp_invariants.errors import DeclarationError, LoadError
from ddp_invariants.implementation.declarations import SamplerDeclarations, declare
from ddp_invariants.implementation.names import target_of
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.ranks.driving.calling import Calling, leading
from ddp_invariants.ranks.driving.case_values import SPELLED, CaseValue, case_value_of
from ddp_invariants.ranks.driving.ddp import Description, defaults
from ddp_invariants.ranks.driving.imports import (
    Source,
    first,
    required,
    resolve,
    signature,
    source_of,
    version,
)
from ddp_invariants.ranks.driving.values import spelled, values_of
from ddp_invariants.ranks.groups.distributed import lone_group, lone_rank
from ddp_invariants.ranks.limits import answered
from ddp_invariants.records.evidence import FOREIGN, OWN
from ddp_invariants.situations.nodes import Nodes

DATASETS = ("dataset", "data_source", "data", "samples", "indices")
BATCH_SAMPLERS = ("batch_sampler",)
INNER_SAMPLERS = ("sampler",)
ITERABLES = ("src", "source", "iterable")
SIZES = (
    "n",
    "num_samples",
    "total_samples",
    "dataset_size",
    "dataset_len",
    "length",
    "total_size",
    "num_items",
    "size",
)
TOTALS = ("total_samples", "dataset_size", "dataset_len")
"""Those of these names that mean nothing but the length of the whole dataset."""
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
    "consumed": ("consumed_samples",),
}
"""The argument names that take each value a sampler needs."""
GROUPS = ("process_group", "group", "pg", "dp_group", "data_parallel_group")
"""The argument names that take a process group in place of a rank and a world size."""
_EXAMPLE = 32
"""Samples of an example: two random orders of so many are never equal."""
_PATIENCE = 3.0
"""Seconds that the examples get; they take milliseconds."""
_APART, _OFFSET = 65537, 7
"""Sample n of scattered data is _APART * n + _OFFSET: no index and no other rank's data can be."""


def most_items(samples: int, world_size: int, batch_size: int) -> int:
    """Return the most items that are taken from a sampler.

    A sampler that never ends thus yields too many items instead of taking all memory.
    """
    return 4 * (samples + world_size * batch_size) + 1000


def is_batch(item: Any) -> bool:
    """Return whether an item that a sampler yields is a batch of indices."""
    return isinstance(item, list | tuple) or getattr(item, "ndim", 0) > 0


class SamplerMaker:
    """A loaded sampler: its declarations, and how one is made for a rank.

    Raises:
        LoadError: It cannot be tested.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, option = sampler, f"--sampler {sampler.name}"
        self.make = resolve(sampler.name, "sampler")
        parameters = signature(self.make, option)
        given = values_of(sampler.arguments, parameters, option, case_value_of)
        of_case = {name: each for name, each in given.items() if isinstance(each, CaseValue)}
        self.given = {name: value for name, value in given.items() if name not in of_case}
        self.parameters, self.calling = parameters, Calling()
        self.node = 0
        self.group = first(GROUPS, parameters)
        self.source, self.source_kind = self._source(parameters, of_case, option)
        length = of_case.pop(self.source, None)
        if length is not None and length.plain != "samples":
            raise LoadError(
                f"{option}: {self.source} takes the data to shard, or SAMPLES for their number, so "
                f"it cannot take {length.text}"
            )
        self.names = _names(parameters, {*self.given}, of_case)
        # A sampler over a dataset may need its length, too. Other names may be of another number.
        totals = [name for name in required(parameters.values()) if name in TOTALS]
        totals = [name for name in totals if name not in {self.source, *self.given, *of_case}]
        self.names["samples"] = next(iter(totals), None)
        self.calculated = {
            name: each for name, each in of_case.items() if name not in self.names.values()
        }
        missing = [name for name in required(parameters.values()) if name not in self._known]
        if missing:
            raise LoadError(
                f"{option}: it requires {', '.join(missing)}, for which no value is known; "
                "give it with "
                f"--sampler-arg {missing[0]}=VALUE, where VALUE may be one of the case, such as "
                "WORLD_SIZE"
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
                f"{option}: it declares layout = 'scatter' and takes no data as "
                f"{', '.join(DATASETS)}, so it "
                "has no argument for the data to scatter"
            )
        # A sampler without these arguments, or with None, asks torch.distributed or the environment.
        fixed = any(self.given.get(name) is not None for name in ARGUMENTS["rank"])
        self.asks = self.scatters or (self.names["rank"] is None and not fixed)

    @staticmethod
    def _source(
        parameters: dict[str, Any], of_case: Mapping[str, CaseValue], option: str
    ) -> tuple[str, str]:
        """Return the parameter that takes the data to shard, and the kind of that data.

        Raises:
            LoadError: There is none.
        """
        sizes = [name for name, value in of_case.items() if value.plain == "samples"]
        for kind, names in (
            ("batches", BATCH_SAMPLERS),
            ("dataset", DATASETS),
            ("sampler", INNER_SAMPLERS),
            ("items", ITERABLES),
            ("size", (*sizes, *SIZES)),
        ):
            parameter = first(names, parameters)
            if parameter is not None:
                return parameter, "size" if parameter in sizes else kind
        if sizes:
            return sizes[0], "size"
        raise LoadError(
            f"{option}: it takes none of "
            f"{', '.join((*DATASETS, *BATCH_SAMPLERS, *ITERABLES, *SIZES))}, so it "
            "has no argument for the data to shard; if another argument takes its length, give it "
            "with --sampler-arg NAME=SAMPLES"
        )

    @property
    def _known(self) -> set[str]:
        """The names of the arguments that a call gets."""
        wired = {name for name in self.names.values() if name is not None}
        return {self.source, *wired, *self.calculated, *self.given}

    def takes(self, value: str) -> bool:
        """Return whether an argument depends on a value of the case, such as `shuffle`."""
        return self.names.get(value) is not None or any(
            value in each.names for each in self.calculated.values()
        )

    @property
    def knows_the_batch_size(self) -> bool:
        """True if an argument tells the case's batch size."""
        return self.source_kind == "batches" or self.takes("batch_size")

    def is_default(self, value: str, number: int) -> bool:
        """Return whether a number is the default of the argument that takes a value of the case."""
        name = self.names.get(value)
        default = None if name is None else self.parameters[name].default
        return isinstance(default, int) and default == number

    def describe(self) -> Description:
        """Return what the controller may draw for the sampler, and the lines it prints."""
        # A value that the user fixed is not drawn.
        lacks = [name for name in ("shuffle", "drop_last") if not self.takes(name)]
        if self.always_shuffles:
            lacks[lacks.index("shuffle")] = "in_order"
        lacks += ["given_rank"] if self.asks else []
        # Impossible for a sampler of indices: such a sampler runs in the process that has the workers.
        claimed = self.source_kind == "items" and "workers" in self.declared.supports
        lacks += [] if claimed or self._is_stream else ["workers"]
        how = {
            "batches": "over a torch BatchSampler",
            "dataset": "over a dataset",
            "sampler": "over a torch sampler",
            "items": "over an iterable",
            "size": "over a length",
        }[self.source_kind]
        lacks += [] if "elastic" in self.declared.supports else ["elastic"]
        lacks += ["set_epoch", "large_epoch"] if self.counts_epochs else []
        how = "data, in a group of all ranks," if self.scatters else how
        lines = [f"{how} as {self.source!r}"]
        if self.asks:
            lines += ["rank and world size from torch.distributed and the environment"]
        elif self.names["rank"] is not None:
            lines += [f"rank as {self.names['rank']!r}"]
        lines += [
            f"{ours.replace('_', ' ')} as {theirs!r}"
            for ours, theirs in self.names.items()
            if theirs and ours != "rank"
        ]
        lines += [f"{value.text} as {name!r}" for name, value in self.calculated.items()]
        lines += ["no set_epoch: each iteration is the next epoch"] if self.counts_epochs else []
        lines += ["always shuffled"] if self.always_shuffles else []
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
    def _is_stream(self) -> bool:
        """True for an `IterableDataset`, of which each worker of a DataLoader gets a copy."""
        return isinstance(self.make, type) and issubclass(self.make, IterableDataset)

    @property
    def made_of(self) -> Source:
        """The files of the sampler under test."""
        return source_of(self.make)

    def _source_text(self) -> dict[str, Any]:
        """Describe how a sampler is made, as source text with an exported script's names."""
        dealt = {
            "batches": "BatchSampler(SequentialSampler(range(SAMPLES)), BATCH_SIZE, DROP_LAST)",
            "sampler": "SequentialSampler(range(SAMPLES))",
            "size": "SAMPLES",
        }.get(self.source_kind, "range(SAMPLES)")
        expressions = {**SPELLED, "consumed": "0"}
        rows = [[self.source, dealt]]
        rows += [
            [argument, expressions[value]]
            for value, argument in self.names.items()
            if argument is not None
        ]
        rows += [[name, value.spelled] for name, value in self.calculated.items()]
        rows += [
            [name, spelled(text)]
            for name, text in self.sampler.arguments
            if name in self.given and name != self.source
        ]
        by_name = self.parameters.items()
        unnamed = [name for name, given in by_name if given.kind is Parameter.POSITIONAL_ONLY]
        rows.sort(key=lambda row: unnamed.index(row[0]) if row[0] in unnamed else len(unnamed))
        rows = [["" if name in unnamed else name, text] for name, text in rows]
        return {
            "rows": rows,
            "asks": self.asks,
            "remade": self.remade_each_epoch,
            "counted": self.counts_epochs,
            "batches": self.yields_batches,
            "seeded": self.takes("seed"),
        }

    def surroundings(self, rank: int, world_size: int) -> AbstractContextManager[object]:
        """Set up the rank's environment, for a sampler that reads its rank from it.

        A sampler that scatters has a real process group instead.
        """
        if self.node:
            return environment(rank, world_size, self.node)
        return _as_rank(rank, world_size) if self.asks and not self.scatters else nullcontext()

    def index(self, item: Any) -> int:
        """Return the index of a sample that was yielded; of a dict its first value.

        Scattered data that are not the first rank's give `OWN` or `FOREIGN`.
        """
        number = int(next(iter(item.values())) if isinstance(item, Mapping) else item)
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
        """Make a sampler for one rank over a dataset of some length.

        Raises whatever the implementation raises.
        """
        values = {
            "samples": samples,
            "world_size": world_size,
            "rank": rank,
            "shuffle": shuffle,
            "seed": seed,
            "drop_last": drop_last,
            "batch_size": batch_size,
            "epoch": epoch,
            "consumed": 0,
        }
        arguments = {
            argument: values[name] for name, argument in self.names.items() if argument is not None
        }
        arguments |= {name: value.of(values) for name, value in self.calculated.items()}
        dealt = self._dealt(samples, rank, batch_size, drop_last=drop_last)
        made = self.calling.call(
            self.make, {self.source: dealt, **arguments, **self.given}, self.parameters
        )
        # An iterator can be gone through once, but the same items may be needed again. It may be
        # endless. A sampler that is its own iterator begins anew.
        once = isinstance(made, Iterator) and not hasattr(made, "set_epoch")
        return list(islice(made, most_items(samples, world_size, batch_size))) if once else made

    def _dealt(self, samples: int, rank: int, batch_size: int, *, drop_last: bool) -> Any:
        # All ranks have data of that length; only the first rank's are to be scattered.
        if self.scatters:
            numbers = torch.arange(samples) * _APART + _OFFSET
            return -numbers if rank else numbers
        if self.source_kind == "batches":
            return BatchSampler(SequentialSampler(range(samples)), batch_size, drop_last)
        if self.source_kind == "sampler":
            return SequentialSampler(range(samples))
        return samples if self.source_kind == "size" else range(samples)

    def optional(self, *names: str) -> dict[str, Any]:
        """Return the defaults of those of our values that the signature lets a caller leave out.

        The keys are the sampler's argument names.
        """
        arguments = [self.names[name] for name in names]
        return {
            argument: self.parameters[argument].default
            for argument in arguments
            if argument in self.parameters
            and self.parameters[argument].default is not Parameter.empty
        }

    @property
    def place(self) -> frozenset[str]:
        """The arguments for rank and world size, if a caller may leave out both; else empty.

        Without them the sampler finds its place by itself.
        """
        optional = self.optional("rank", "world_size")
        fixed = any(default is not None for default in optional.values())
        return frozenset() if self.asks or fixed or len(optional) < 2 else frozenset(optional)

    @property
    def takes_group(self) -> bool:
        """True if a caller may pass a process group, and passes none by default."""
        group = self.group
        return (
            group is not None and group not in self.given and self.parameters[group].default is None
        )

    @property
    def by_position(self) -> bool:
        """True if the signature takes several of our values by position."""
        return len(leading(self.parameters, self._known)) > 1

    def called(self, *, asks: bool = False, node: int = 0, **calling: Any) -> "SamplerMaker":
        """Return a maker of the same sampler that gives its arguments in another way.

        Args:
            asks: True if the sampler asks for its rank and world size then.
            node: The ranks of a node, for a sampler that reads its rank from a launcher's
                environment, in a process without a group; 0 for any other sampler.
            calling: The fields of a `Calling`.
        """
        other = copy(self)
        other.calling, other.asks, other.node = Calling(**calling), asks or self.asks, node
        return other

    @property
    def remade_each_epoch(self) -> bool:
        """True if the epoch is an argument, not a call."""
        return self.takes("epoch")

    @property
    def counts_epochs(self) -> bool:
        """True if no epoch can be set, neither by `set_epoch` nor by an argument."""
        return self._facts["counts"]

    @property
    def yields_batches(self) -> bool:
        """True if the items are batches of indices."""
        return self._facts["batches"]

    @property
    def always_shuffles(self) -> bool:
        """True if no argument says that the order is shuffled, and it depends on the epoch.

        It may depend on the seed instead, if an epoch can be set.
        """
        return self._facts["shuffles"]

    @cached_property
    def _facts(self) -> dict[str, bool]:
        """What an example shows: a sampler of one rank, in a process of its own.

        If none can be made, the sampler is asked for no epoch but the first ones.
        """
        settable = self.remade_each_epoch or self.scatters or hasattr(self.make, "set_epoch")
        unknown = {"counts": not settable, "batches": False, "shuffles": False}
        # All ranks must make one that scatters.
        seen = None if self.scatters else answered(self._examined, _PATIENCE)
        return {**unknown, **(seen or {})}

    def _examined(self) -> dict[str, bool]:
        """Return the facts that examples show; those that they do not show are missing."""
        facts = dict[str, bool]()
        with suppress(Exception), self.surroundings(0, 1):
            sampler = self._example()
            facts["counts"] = not (self.remade_each_epoch or hasattr(sampler, "set_epoch"))
            facts["batches"] = is_batch(next(iter(sampler)))
            seeded = self.takes("seed") and not facts["counts"]
            places = [(0, 0), (1, 0), *([(0, 1)] if seeded else ())]
            if not self.takes("shuffle"):
                orders = [self._order_in(*place) for place in places]
                facts["shuffles"] = any(order != orders[0] for order in orders)
        return facts

    def _order_in(self, epoch: int, seed: int) -> list[str]:
        sampler = self._example(epoch, seed)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        elif not self.remade_each_epoch:
            for _ in range(epoch):
                list(islice(sampler, 2 * _EXAMPLE))
        return [str(item) for item in islice(sampler, 2 * _EXAMPLE)]

    def _example(self, epoch: int = 0, seed: int = 0) -> Any:
        given: dict[str, Any] = {
            "shuffle": False,
            "seed": seed,
            "drop_last": False,
            "batch_size": 2,
        }
        return self(_EXAMPLE, 1, 0, **given, epoch=epoch)


def _names(
    parameters: Mapping[str, Parameter], fixed: Collection[str], of_case: Mapping[str, CaseValue]
) -> dict[str, str | None]:
    """Return the argument that takes each value a sampler needs; None for a value without one.

    Args:
        parameters: The sampler's parameters.
        fixed: The arguments to which a user gave a value for all cases.
        of_case: The arguments to which a user gave a value of the case.
    """
    usual = {ours: first(theirs, parameters) for ours, theirs in ARGUMENTS.items()}
    names = {
        ours: None if name in fixed or name in of_case else name for ours, name in usual.items()
    }
    for name, value in of_case.items():
        if value.plain in names and names[value.plain] is None:
            names[value.plain] = name
    return names


@contextmanager
def _as_rank(rank: int, world_size: int) -> Iterator[None]:
    """Show the environment and torch.distributed of a process of that rank, without collectives."""
    possible = 0 <= rank < world_size
    # torch wraps it at every initialisation and never takes the wrapper off.
    exception_hook = sys.excepthook
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
def every_second(rank: int, world_size: int) -> Iterator[Any]:
    """Show a process of a world twice as large, and yield the group of every second process.

    Args:
        rank: The process's rank in the group.
        world_size: The size of the group.
    """
    with _as_rank(2 * rank, 2 * world_size):
        yield lone_group(rank, range(0, 2 * world_size, 2))


def second_of_two(rank: int, world_size: int) -> AbstractContextManager[None]:
    """Show the second of two processes that share a rank, in a world twice as large.

    Args:
        rank: The rank that both share.
        world_size: The number of such pairs.
    """
    return _as_rank(2 * rank + 1, 2 * world_size)


@contextmanager
def environment(rank: int, world_size: int, node: int = 0) -> Iterator[None]:
    """Set the variables that a launcher sets for a process of that rank.

    Args:
        rank: The rank.
        world_size: The world size.
        node: The ranks of a node; 0 for one machine.
    """
    here = {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size)),
        **(Nodes(node).variables(rank, world_size) if node else {}),
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
