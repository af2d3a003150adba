"""DeepSpeed's engine with ZeRO stage 0, 1, 2 or 3, as `--ddp deepspeed0` to `--ddp deepspeed3`."""

import importlib
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar
from unittest import mock

from ddp_invariants.implementation.adapters import preload

preload("deepspeed", "deepspeed.utils.groups")
# ZeRO imports this optimizer and compiles its functions, which takes a second in every rank, and
# patches torch's optimizers. No case uses it.
with mock.patch("torch.compile", lambda function, **_: function):
    preload("deepspeed.runtime.zero.muon.original_muon")

ELEMENT = 4
"""Bytes of one element (float32): DeepSpeed gives the capacity of a bucket in elements."""
BUCKET = 1 << 20
"""Elements of a bucket that no case limits: DeepSpeed allocates it whole, 2 GB by default."""
DTYPES = ("float64", "bfloat16", "float16", "complex", "mixed")
"""Parameters that are not float32.

ZeRO joins all parameters of a group into one tensor. The configuration, and not the model, gives its
dtype (`get_data_types` in runtime/engine.py): float32 if neither `fp16` nor `bf16` is enabled.
"""
SAME_JOB = ("unused", "unreached", "crossed")
"""Ranks that use different layers, or use them in different orders.

A maintainer says that ZeRO assumes the same job in the same order on all ranks
(https://github.com/deepspeedai/DeepSpeed/issues/2343). Otherwise it hangs, or mixes gradients.
"""
BY_OWNER = ("bucketing",)
"""ZeRO sends the part of a bucket that each rank owns by itself (`average_tensor`).

So a step has more reductions than buckets.
"""
NOT_OFFERED = ("never_zeroed", "scalar", "empty", "strided", "channels_last", "no_sync_nested")
"""Programs that the engine does not take.

Its `step` clears the gradients, so none are left in place. It views each parameter as bytes
to broadcast it, so torch raises for one whose last stride is not 1. In channels_last order that is the
number of channels. Its `no_sync` refuses to be nested.
"""

UPDATES_COPIES = ("weights_written",)
"""ZeRO updates partitions that are copies of the parameters, and copies them back.

A program that changes a parameter must call `safe_set_full_fp32_param`
(https://deepspeed.readthedocs.io/en/stable/zero3.html#modifying-partitioned-states).
"""
LACKING = (*NOT_OFFERED, *BY_OWNER, *DTYPES, *SAME_JOB, *UPDATES_COPIES)
"""Everything that ZeRO lacks in each stage."""


class Stage0:
    """An engine that reduces whole gradients, without ZeRO.

    Args:
        options: Options of DeepSpeed's `zero_optimization`, beside the stage.
    """

    stage: ClassVar[int] = 0
    declares: ClassVar[dict[str, object]] = {"unsupported": NOT_OFFERED}

    def __init__(self, **options: object) -> None:
        self.options = options

    def wrap(self, module: Any, context: Any) -> object:
        """Make an engine for the model and its optimizer."""
        distributed: Any = importlib.import_module("torch.distributed")
        library: Any = importlib.import_module("deepspeed")
        groups: Any = importlib.import_module("deepspeed.utils.groups")
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        # It fills this table by compiling a probe of each operation, in every rank. None is needed.
        library.ops.__compatible_ops__ = {}
        # It clones the first group and keeps it, but a rank has a new group in each case.
        groups._WORLD_GROUP = distributed.group.WORLD
        options = {"stage": self.stage, "reduce_bucket_size": BUCKET, **self.options}
        if self.stage and context.bucket_cap is not None:
            options["reduce_bucket_size"] = max(1, context.bucket_cap // ELEMENT)
        self.engine, optimizer, *_ = library.initialize(
            model=module,
            optimizer=context.optimizer(module.parameters()),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_clipping": 0.0,  # It clips to 1 by default.
                "zero_allow_untested_optimizer": True,
                "zero_optimization": options,
            },
            dist_init_required=False,
        )
        return self.engine, optimizer

    def after_backward(self, wrapped: Any, optimizer: Any) -> None:
        """Do nothing: the engine has called its `allreduce_gradients` in `backward`."""

    def teardown(self, context: Any) -> None:
        """Remove the engine's hooks."""
        del context
        self.engine.destroy()


class Sharded(Stage0):
    """An engine with a stage of ZeRO, which shows whole gradients on request."""

    def gradients(self, wrapped: Any) -> dict[str, Any]:
        """Return the gradients, each gathered from its shards."""
        utils: Any = importlib.import_module("deepspeed.utils")
        return {
            name: utils.safe_get_full_grad(parameter)
            for name, parameter in wrapped.module.named_parameters()
        }


class Stage1(Sharded):
    """An engine that shards the optimizer's state."""

    stage = 1
    declares: ClassVar[dict[str, object]] = {
        "optimizer": "own",
        "supports": ("bucket_cap",),
        "unsupported": LACKING,
    }


class Stage2(Sharded):
    """An engine that shards gradients, too, and is told which backward is the last of a step."""

    stage = 2
    declares: ClassVar[dict[str, object]] = {
        **Stage1.declares,
        "accumulation": "none",
        # `overlap_comm` is false by default, except in stage 3 (runtime/zero/config.py).
        "unsupported": (*LACKING, "overlap"),
    }

    def accumulate(self, wrapped: Any) -> AbstractContextManager[object]:
        """Return no context: the engine's `no_sync` refuses to run in this stage."""
        del wrapped
        return nullcontext()


class Stage3(Stage2):
    """An engine that shards parameters, too. Small ones are sharded only if no threshold keeps them."""

    stage = 3
    declares: ClassVar[dict[str, object]] = {
        **Stage2.declares,
        "zero": 3,
        # The optimizer's `load_state_dict` takes a list of the states of all ranks, as the engine's
        # `load_checkpoint` reads them. A deep copy of a sharded parameter is an empty tensor that
        # the engine does not know.
        "unsupported": (*LACKING, "state", "module_copies"),
    }

    def __init__(self, **options: object) -> None:
        super().__init__(**{"stage3_param_persistence_threshold": 0, **options})
