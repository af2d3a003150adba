"""Megatron Core's `DistributedDataParallel`, as `--ddp megatron`, and its distributed optimizer.

The latter is `--ddp megatron_distributed_optimizer`.
"""

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import distributed, nn
from torch.overrides import TorchFunctionMode

from ddp_invariants.implementation.adapters import preload

# It compiles functions of its layers, which patches torch's optimizers. No case uses them.
with mock.patch("torch.compile", lambda function, **_: function):
    preload("megatron.core.distributed", "megatron.core.optimizer.distrib_optimizer")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes of parameters that `DistributedOptimizer` takes."""
NOT_OFFERED = ("sgd", "momentum", "nesterov", "retained", "state")
"""Programs that `DistributedOptimizer` does not take.

It asserts that the optimizer is Adam or AdamW. A second reduce-scatter in a step would reduce a
rank's own part again. Its `state_dict` leaves the state of the parameters out, which
`save_parameter_state` writes to a file.
"""


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
        library: Any = importlib.import_module("megatron.core.distributed")
        settings: Any = importlib.import_module("megatron.core.transformer.transformer_config")
        grouping: Any = importlib.import_module("megatron.core.process_groups_config")
        groups = grouping.ProcessGroupCollection()
        groups.dp = groups.dp_cp = distributed.group.WORLD
        groups.tp = groups.pp = groups.ep = groups.expt_dp = Alone()
        options = dict(self.options)
        if context.bucket_cap is not None:
            # In elements; each dtype has buckets of its own.
            trained = [each for each in module.parameters() if each.requires_grad]
            sizes = [parameter.element_size() for parameter in trained]
            options["bucket_size"] = max(1, context.bucket_cap // max(sizes, default=1))
        with _buffers_on(context.device):
            wrapped: object = library.DistributedDataParallel(
                settings.TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1),
                library.DistributedDataParallelConfig(**options),
                module,
                pg_collection=groups,
            )
        return wrapped


class DistributedOptimizer(Megatron):
    """A model and Megatron's `DistributedOptimizer`, which shards the state of Adam.

    The gradients are reduced by a reduce-scatter, so that each rank holds a part of each bucket.

    Args:
        options: Options of Megatron's `DistributedDataParallelConfig`.
    """

    declares: ClassVar[dict[str, object]] = {
        **Megatron.declares,
        "optimizer": "own",
        "main": "float32",
        "unsupported": ("never_zeroed", *NOT_OFFERED),
    }

    def __init__(self, **options: object) -> None:
        super().__init__(**{"use_distributed_optimizer": True, **options})

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model, and make its optimizer.

        Raises:
            NotImplementedError: The optimizer refuses the dtype of a parameter. It would do so on
                those ranks alone that own a part of the parameter.
        """
        wrapped: Any = super().wrap(module, context)
        library: Any = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
        settings: Any = importlib.import_module("megatron.core.optimizer.optimizer_config")
        # Before the optimizer copies them to float32, as Megatron's training loop does.
        wrapped.broadcast_params()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for parameter in trained:
            if parameter.dtype not in DTYPES:
                raise NotImplementedError(f"the distributed optimizer takes no {parameter.dtype}")
        with AsIfOnCuda(context.device):
            optimizer = library.DistributedOptimizer(
                context.optimizer(trained),
                settings.OptimizerConfig(clip_grad=0.0, use_distributed_optimizer=True),
                grad_scaler=None,
                init_state_fn=None,
                model_chunks=[wrapped],
                per_model_buffers={0: wrapped.buffers},
                data_parallel_group=distributed.group.WORLD,
                data_parallel_group_gloo=None,
                data_parallel_group_idx=0,
                distributed_optimizer_instance_id=0,
            )
        return wrapped, optimizer

    def gradients(self, wrapped: Any) -> Mapping[str, Any]:
        """Return the gradients, each gathered from the ranks' parts of its bucket.

        A parameter that was frozen when it was wrapped is in no bucket.
        """
        gathered: dict[Any, Any] = {}
        for buffer in wrapped.buffers:
            for bucket in buffer.buckets:
                whole = torch.empty_like(bucket.grad_data)
                own = bucket.grad_data.chunk(distributed.get_world_size())[distributed.get_rank()]
                distributed.all_gather(list(whole.chunk(distributed.get_world_size())), own)
                for parameter in bucket.params_list:
                    start, end, _ = buffer.param_index_map[parameter]
                    part = whole[start - bucket.offset : end - bucket.offset]
                    gathered[parameter] = part.view(parameter.shape)
        named: list[tuple[str, nn.Parameter]] = list(wrapped.module.named_parameters())
        return {name: gathered.get(parameter, parameter.grad) for name, parameter in named}


class AsIfOnCuda(TorchFunctionMode):
    """A mode in which a device passes for CUDA, which Megatron's optimizers ask for by name.

    They make two flags on the device `cuda`, and refuse a parameter whose `type()` is not
    `torch.cuda.FloatTensor` (optimizer/optimizer.py and optimizer/distrib_optimizer.py).

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, with the device in place of `cuda`."""
        del types
        named = dict(kwargs or {})
        if named.get("device") == "cuda":
            named["device"] = self.device
        result = function(*args, **named)
        asks_for_type = function is torch.Tensor.type and len(args) == 1 and not named
        if asks_for_type and self.device.type != "cuda":
            return result.replace("torch.", "torch.cuda.")
        return result


def _buffers_on(device: Any) -> AbstractContextManager[object]:
    """Return a context in which Megatron's buffers lie on a device.

    It allocates them on torch's current CUDA device, which a machine without CUDA lacks.
    """
    if device.type == "cuda":
        return nullcontext()
    return mock.patch("torch.cuda.current_device", return_value=device)
