"""DeepSpeed's engine with ZeRO stage 0, 1, 2 or 3, as `--ddp deepspeed0` to `--ddp deepspeed3`."""

import importlib
import logging
from typing import Any, ClassVar

from ddp_invariants.implementation.adapters import preload

preload("deepspeed", "deepspeed.utils.groups")

ELEMENT = 4
"""Bytes of one element (float32): DeepSpeed gives the capacity of a bucket in elements."""
BUCKET = 1 << 20
"""Elements of a bucket that no case limits: DeepSpeed allocates it whole, 2 GB by default."""
NEVER = ("never_zeroed",)
"""The engine's `step` clears the gradients, so a program cannot leave them in place."""


class Stage0:
    """An engine that reduces whole gradients, without ZeRO.

    Args:
        options: Options of DeepSpeed's `zero_optimization`, beside the stage.
    """

    stage: ClassVar[int] = 0
    declares: ClassVar[dict[str, object]] = {"unsupported": NEVER}

    def __init__(self, **options: object) -> None:
        self.options = options

    def wrap(self, module: Any, context: Any) -> object:
        """Make an engine for the model and its optimizer."""
        library: Any = importlib.import_module("deepspeed")
        groups: Any = importlib.import_module("deepspeed.utils.groups")
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        # The operation is for inference, and DeepSpeed would compile it.
        library.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        groups._WORLD_GROUP = (
            None  # It keeps the first group, and a rank has a new one in each case.
        )
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
        # Stage 1 gives float64 parameters gradients in float32, and stage 0 refuses float64.
        "unsupported": (*NEVER, "float64"),
    }


class Stage2(Sharded):
    """An engine that shards gradients, too, and is told which backward is the last of a step."""

    stage = 2
    declares: ClassVar[dict[str, object]] = {**Stage1.declares, "accumulation": "none"}


class Stage3(Sharded):
    """An engine that shards parameters, too. Small ones are sharded only if no threshold keeps them."""

    stage = 3
    declares: ClassVar[dict[str, object]] = {**Stage2.declares, "zero": 3}

    def __init__(self, **options: object) -> None:
        super().__init__(**{"stage3_param_persistence_threshold": 0, **options})
