"""Composed wrappers of other kinds, which differ from the reference in how the loop calls them."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ddp_invariants.faults.generated.wrapper import Composed
from ddp_invariants.reference.ddp import Bucket


class Called(Composed):
    """A composed wrapper whose reduction ends in a call of the loop, after the backward."""

    def _finish(self) -> None:
        """Do nothing; the loop's call finishes the reduction."""

    def finish_gradient_synchronization(self) -> None:
        """Send the remaining buckets, wait for all results, and write the means back."""
        if self._reducing:
            super()._finish()


class Main(Called):
    """A composed wrapper that keeps gradients in `.main_grad`, in float32 or a wider format."""

    # The loop clears the main gradients before each step.
    declares: ClassVar[dict[str, Any]] = {"unsupported": ("never_zeroed",)}

    def _plan(self) -> None:
        super()._plan()
        kept = {id(parameter) for parameter in self._trainable()}
        for parameter in self.module.parameters():
            if id(parameter) not in kept:
                parameter.__dict__.pop("main_grad", None)
            elif not hasattr(parameter, "main_grad"):
                parameter.main_grad = torch.zeros_like(  # type: ignore[attr-defined]  # as Megatron does
                    parameter,
                    dtype=torch.promote_types(parameter.dtype, torch.float32),
                    requires_grad=False,
                )

    def zero_grad_buffer(self) -> None:
        """Clear the main gradients."""
        for parameter in self.module.parameters():
            if hasattr(parameter, "main_grad"):
                parameter.main_grad.zero_()

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        _main(parameter).add_(parameter.grad.detach().to_dense())
        parameter.grad = None
        super()._gradient_ready(parameter)

    def _flat(self, bucket: Bucket) -> Tensor:
        gradients = [_main(parameter).reshape(-1) for parameter in bucket.parameters]
        return torch.cat([*gradients, gradients[0].new_ones(len(gradients))])

    def _unpack(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        sizes = [parameter.numel() for parameter in bucket.parameters]
        *means, flags = bucket.flat.split([*sizes, len(sizes)])
        for parameter, mean, flag in zip(bucket.parameters, means, flags.tolist(), strict=True):
            if flag:
                _main(parameter).copy_(mean.view_as(parameter))


def _main(parameter: nn.Parameter) -> Tensor:
    main: Tensor = parameter.main_grad  # type: ignore[attr-defined]  # made by the plan
    return main
