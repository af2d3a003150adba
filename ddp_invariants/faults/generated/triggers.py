"""The triggers of composed faults: each tells from an occasion whether the fault acts."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class History:
    """The events that a wrapper has seen so far.

    Attributes:
        reductions: The number of reductions that have begun, the current one included.
        evaluated: True after a forward in evaluation mode.
        accumulated: True after a forward in no_sync.
        raised: True after a backward that raised.
        replanned: True after the set of trainable parameters changed.
        accompanied: True while another wrapper of the rank lives.
    """

    reductions: int = 0
    evaluated: bool = False
    accumulated: bool = False
    raised: bool = False
    replanned: bool = False
    accompanied: bool = False


@dataclass(frozen=True)
class Occasion:
    """One bucket of one reduction, or one tensor that is broadcast.

    Attributes:
        rank: The rank's number in the group.
        world_size: The size of the group.
        names: The names of the tensors.
        tensors: The tensors: a bucket's parameters, or the tensor that is broadcast.
        number: The number of the bucket, from 0.
        buckets: The number of buckets; 0 if this is no reduction.
        history: The events that the wrapper has seen.
    """

    rank: int
    world_size: int
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    number: int
    buckets: int
    history: History

    @property
    def elements(self) -> int:
        """Return the number of elements of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the tensors."""
        return self.tensors[0].dtype


def _layer(name: str) -> int:
    """Return the first number in a parameter's name; -1 if there is none."""
    number = re.search(r"\d+", name)
    return int(number[0]) if number else -1


ACTS: dict[str, Callable[[Occasion], bool]] = {
    "always": lambda _: True,
    "65 elements": lambda on: on.elements >= 65,
    "odd elements": lambda on: on.elements % 2 == 1,
    "one element": lambda on: on.elements == 1,
    "third bucket": lambda on: on.number >= 2,
    "last bucket": lambda on: on.buckets > 1 and on.number == on.buckets - 1,
    "second reduction": lambda on: on.history.reductions >= 2,
    "fifth reduction": lambda on: on.history.reductions >= 5,
    "every third": lambda on: on.history.reductions % 3 == 0 and on.history.reductions > 0,
    "last rank": lambda on: on.world_size > 1 and on.rank == on.world_size - 1,
    "rank two": lambda on: on.rank >= 2,
    "three ranks": lambda on: on.world_size >= 3,
    "odd ranks": lambda on: on.world_size > 1 and on.world_size % 2 == 1,
    "five ranks": lambda on: on.world_size >= 5,
    "float64": lambda on: on.dtype == torch.float64,
    "16 bits": lambda on: on.dtype in (torch.bfloat16, torch.float16),
    "complex": lambda on: on.dtype.is_complex,
    "strided": lambda on: any(not tensor.is_contiguous() for tensor in on.tensors),
    "bias": lambda on: any(name.endswith("bias") for name in on.names),
    "tenth layer": lambda on: any(_layer(name) >= 10 for name in on.names),
    "unused": lambda on: any(tensor.grad is None for tensor in on.tensors),
    "after evaluation": lambda on: on.history.evaluated,
    "after no_sync": lambda on: on.history.accumulated,
    "after an error": lambda on: on.history.raised,
    "second wrapper": lambda on: on.history.accompanied,
    "after freezing": lambda on: on.history.replanned,
}
"""By name of `choices.TRIGGERS`: whether a fault acts on an occasion."""


@dataclass(frozen=True)
class Iteration:
    """One iteration of a sampler, or one question for its length.

    Attributes:
        samples: The length of the dataset.
        world_size: The number of ranks.
        rank: The rank's number.
        epoch: The epoch.
        seed: The seed.
        shuffle: True if indices are shuffled.
        drop_last: True if the rest is dropped.
        number: The number of iterations before.
        again: True if this epoch was iterated before.
    """

    samples: int
    world_size: int
    rank: int
    epoch: int
    seed: int
    shuffle: bool
    drop_last: bool
    number: int
    again: bool


SAMPLER_ACTS: dict[str, Callable[[Iteration], bool]] = {
    "always": lambda _: True,
    "100 samples": lambda on: on.samples >= 100,
    "3000 samples": lambda on: on.samples >= 3000,
    "odd samples": lambda on: on.samples % 2 == 1,
    "uneven": lambda on: on.samples % on.world_size != 0,
    "few samples": lambda on: on.samples < on.world_size,
    "last rank": lambda on: on.world_size > 1 and on.rank == on.world_size - 1,
    "rank two": lambda on: on.rank >= 2,
    "five ranks": lambda on: on.world_size >= 5,
    "no power of two": lambda on: on.world_size & (on.world_size - 1) != 0,
    "second epoch": lambda on: on.epoch >= 1,
    "third epoch": lambda on: on.epoch == 3,
    "later iteration": lambda on: on.number > 0,
    "same epoch": lambda on: on.again,
    "large seed": lambda on: on.seed >= 100,
    "shuffled": lambda on: on.shuffle,
    "in order": lambda on: not on.shuffle,
    "dropping": lambda on: on.drop_last,
}
"""By name of `choices.SAMPLER_TRIGGERS`: whether a fault acts in an iteration."""
