"""PyText's wrapper."""

from bare import load

DistributedModel = load(
    "pytext.models.distributed_model", "pytext.common", "pytext.utils"
).DistributedModel
