"""The allowed forms of a name, checked without importing what it names.

So controller and ranks report a bad name alike. Standard library only: the rank side imports this
module under any interpreter.
"""

import difflib
import importlib.metadata
from pathlib import Path

SHORT_NAMES: dict[str, dict[str, str]] = {
    "ddp": {
        "reference": "ddp_invariants.reference.ddp:DistributedDataParallel",
        "torch": "torch.nn.parallel:DistributedDataParallel",
    },
    "sampler": {
        "reference": "ddp_invariants.reference.sampler:DistributedSampler",
        "torch": "torch.utils.data:DistributedSampler",
    },
}

ADAPTERS: dict[str, dict[str, str]] = {
    "ddp": {
        "accelerate": "ddp_invariants.implementation.adapters.accelerate:Accelerate",
        "catalyst": "ddp_invariants.implementation.adapters.catalyst:Catalyst",
        "comm_hook": "ddp_invariants.implementation.adapters.comm_hook:CommHook",
        **{
            f"deepspeed{stage}": f"ddp_invariants.implementation.adapters.deepspeed:Stage{stage}"
            for stage in range(4)
        },
        "fabric": "ddp_invariants.implementation.adapters.fabric:Fabric",
        "fsdp1": "ddp_invariants.implementation.adapters.fsdp1:FullyShardedDataParallel",
        "fsdp2": "ddp_invariants.implementation.adapters.fsdp2:FullyShard",
        "hsdp": "ddp_invariants.implementation.adapters.fsdp2:HybridShard",
        "ignite": "ddp_invariants.implementation.adapters.ignite:Ignite",
        "lightning": "ddp_invariants.implementation.adapters.lightning:Lightning",
        "megatron": "ddp_invariants.implementation.adapters.megatron:Megatron",
        "megatron_distributed_optimizer": (
            "ddp_invariants.implementation.adapters.megatron:DistributedOptimizer"
        ),
        "mmengine_separate": "ddp_invariants.implementation.adapters.mmengine:Separate",
        "post_local_sgd": "ddp_invariants.implementation.adapters.post_local_sgd:PostLocalSGD",
        "post_local_sgd_hook": "ddp_invariants.implementation.adapters.post_local_sgd:Hook",
        "simple_fsdp": "ddp_invariants.implementation.adapters.torchtitan:SimpleFSDP",
        "torchft": "ddp_invariants.implementation.adapters.torchft:Replicated",
        "transformers_trainer": "ddp_invariants.implementation.adapters.transformers:Trainer",
    },
    "sampler": {
        name: f"ddp_invariants.implementation.adapters.samplers.{target}"
        for name, target in (
            ("accelerate_seedable", "accelerate:Seedable"),
            ("accelerate_split_batches", "accelerate:split_batches"),
            ("accelerate_split_iterable", "accelerate:split_iterable"),
            ("datasets_by_examples", "datasets:by_examples"),
            ("datasets_by_shards", "datasets:by_shards"),
            ("datasets_map_style", "datasets:map_style"),
            ("ignite_over_random", "ignite:over_random"),
            ("lhotse_simple", "lhotse:Simple"),
            ("lightning_over_batches", "lightning:over_batches"),
            ("lightning_over_shuffled", "lightning:over_shuffled"),
            ("monai_weighted", "monai:Weighted"),
            ("squirrel_split", "squirrel:split"),
            ("torch_in_batches", "torch:InBatches"),
            ("torch_sharded_pipe", "torch:ShardedPipe"),
            ("torchdata_loader", "torchdata:Loader"),
            ("transformers_balanced", "transformers:balanced"),
            ("transformers_by_length", "transformers:by_length"),
            ("webdataset_pipeline", "webdataset:pipeline"),
        )
    },
}
"""The short names of the adapters that come with the suite; libraries other than torch do not."""

OPTIMIZER = "optimizer"
"""The entry of how an implementation is driven which says that wrapping was given or returned
the optimizer."""
BUILT_ON = "built on"
"""The key of a DDP's `driven` that lists the short names of the known wrappers within it."""

ENTRY_POINTS = "ddp_invariants."
"""The prefix of the entry point groups `ddp_invariants.ddp` and `ddp_invariants.sampler`.

A package ships its adapters in them.
"""


def target_of(name: str, side: str) -> str:
    """Return a name with short names and entry points resolved."""
    for shipped in (SHORT_NAMES, ADAPTERS):
        if name in shipped.get(side, {}):
            return shipped[side][name]
    if ":" not in name:
        for entry in importlib.metadata.entry_points(group=ENTRY_POINTS + side):
            if entry.name == name:
                return entry.value
    return name


def shipped_module(ddp: str, sampler: str) -> str:
    """Return the module of the first shipped adapter of two names; empty if neither has one.

    Such a module imports its library, and has no other effect.
    """
    targets = ADAPTERS["ddp"].get(ddp), ADAPTERS["sampler"].get(sampler)
    return next((target for target in targets if target), "").partition(":")[0]


def misnamed(name: str, side: str) -> str:
    """Return what is wrong with a name, as far as the name itself shows it; empty if nothing is."""
    module, colon, attribute = target_of(name, side).rpartition(":")
    if colon and module and attribute:
        missing = module.endswith(".py") and not Path(module).is_file()
        return f"--{side} {name}: there is no file {module}" if missing else ""
    shipped = [entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS + side)]
    known = [*SHORT_NAMES.get(side, {}), *ADAPTERS.get(side, {}), *shipped]
    close = difflib.get_close_matches(name, known, 1)
    expected = ", ".join([*known, "package.module:Name or path/to/file.py:Name"])
    return f"--{side} {name}: expected {expected}" + (
        f"; did you mean {close[0]}?" if close else ""
    )
