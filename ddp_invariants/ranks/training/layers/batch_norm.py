"""BatchNorms over channels of 2 x 2 pixels."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class BatchNorm(nn.BatchNorm2d):
    """Each channel of 2 x 2 pixels by the mean and variance of a rank's batch.

    In evaluation running statistics take their place. The class is an nn.BatchNorm2d: wrappers ask
    by type which layers keep statistics.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        running_mean: Tensor,
        running_var: Tensor,
        num_batches_tracked: Tensor,
    ) -> None:
        super().__init__(len(weight))
        self.weight = weight
        self.bias = bias  # type: ignore[assignment]  # torch declares that it is always there
        self.running_mean, self.running_var = running_mean, running_var
        self.num_batches_tracked = num_batches_tracked

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, 4 C) to (B, 4 C); updates the buffers in training."""
        images = x.to(self.weight.dtype).reshape(len(x), -1, 2, 2)
        return super().forward(images).reshape(len(x), -1)


@builder("batch_norm")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    channels = width // 4
    return BatchNorm(
        values.parameter(layer, channels),
        values.bias(layer, channels),
        values.of(layer.dtype, channels),
        values.of(layer.dtype, channels).abs(),
        values.take().abs().mul(8).long(),
    )
