"""Megatron Core's `DistributedDataParallel`, as `--ddp megatron`."""

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar
from unittest import mock

from ddp_invariants.implementation.adapters import preload

preload("megatron.core.distributed")

ELEMENT = 4
"""Bytes of one element (float32): Megatron gives the capacity of a bucket in elements."""


class Alone:
    """A group of one rank, which stands for those that are not data-parallel. Nothing is sent in it."""

    def rank(self) -> int:
        """Return the rank in the group."""
        return 0

    def size(self) -> int:
        """Return the number of ranks."""
        return 1


class Megatron:
    """A model whose gradients Megatron keeps in contiguous buffers.

    Args:
        options: Options of Megatron's `DistributedDataParallelConfig`.
    """

    declares: ClassVar[dict[str, object]] = {
        "supports": ("bucket_cap",),
        # `zero_grad_buffer` must run before every step, and it clears all gradients.
        "unsupported": ("never_zeroed",),
    }

    def __init__(self, **options: object) -> None:
        self.options = options

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model, in groups of which only the data-parallel one has several ranks."""
        distributed: Any = importlib.import_module("torch.distributed")
        library: Any = importlib.import_module("megatron.core.distributed")
        settings: Any = importlib.import_module("megatron.core.transformer.transformer_config")
        grouping: Any = importlib.import_module("megatron.core.process_groups_config")
        groups = grouping.ProcessGroupCollection()
        groups.dp = groups.dp_cp = distributed.group.WORLD
        groups.tp = groups.pp = groups.ep = groups.expt_dp = Alone()
        options = dict(self.options)
        if context.bucket_cap is not None:
            options["bucket_size"] = max(1, context.bucket_cap // ELEMENT)
        with _buffers_on(context.device):
            wrapped: object = library.DistributedDataParallel(
                settings.TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1),
                library.DistributedDataParallelConfig(**options),
                module,
                pg_collection=groups,
            )
        return wrapped


def _buffers_on(device: Any) -> AbstractContextManager[object]:
    """Return a context in which Megatron's buffers lie on a device.

    It allocates them on torch's current CUDA device, which a machine without CUDA lacks.
    """
    if device.type == "cuda":
        return nullcontext()
    return mock.patch("torch.cuda.current_device", return_value=device)
