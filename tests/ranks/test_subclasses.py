"""Tests of tensors of a subclass that has operations of its own: their bits are noted."""

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from ddp_invariants.ranks.training.recorder import Record


def test_the_bits_of_a_collective_that_was_not_waited_for_are_noted() -> None:
    """The result of a functional collective is such a tensor, and numpy refuses it."""
    record, values = Record(), torch.tensor([1.0, -2.0])
    late: Tensor = AsyncCollectiveTensor(values)
    record.tensors("gathered", 0, [("late", late), ("plain", values)])
    assert bytes(record.blob) == values.numpy().tobytes() * 2
