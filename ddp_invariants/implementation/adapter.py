"""What an adapter may bring: a plain class with the methods in which an implementation differs from the usual.

Nobody subclasses anything. An adapter is named like any implementation (`--ddp
path/to/file.py:MyAdapter`) and recognised by having `wrap` or `train_step`. It is made anew,
without arguments, for every case, in every rank. What it does not bring is done as `Adapter`
documents. Declarations stand in its class attribute `declares` (see declarations.py).

    class Explicit:
        declares = {"init": "seed"}

        def wrap(self, module, context):
            return MyDDP(module, world_size=context.world_size)

        def after_backward(self, wrapped, optimizer):
            wrapped.exchange_gradients()
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Context:
    """What an adapter is told of a case.

    Attributes:
        rank: In the group that trains.
        world_size: Of that group.
        group: The process group to train in; None for the default group, always where the adapter
            does not claim `subgroup` in its `supports`.
        bucket_cap: Bytes; None where the case leaves the implementation's default, likewise without
            a claim of `bucket_cap`.
        seed: The case's; the global generators are seeded with it plus the rank in the default
            group.
        lr: The learning rate.
        optimizer_class: The case's optimizer, `torch.optim.SGD`, `torch.optim.Adam` or
            `torch.optim.AdamW`.
        optimizer_arguments: Its keyword arguments, the learning rate among them.
        device: Where the replica and its batches are: a `torch.device`, the current one of this
            process.
    """

    rank: int
    world_size: int
    group: Any
    bucket_cap: int | None
    seed: int
    lr: float
    optimizer_class: Any
    optimizer_arguments: Mapping[str, Any]
    device: Any

    def optimizer(self, parameters: Iterable[Any]) -> Any:
        """The case's optimizer over some parameters."""
        return self.optimizer_class(parameters, **self.optimizer_arguments)


class Adapter(Protocol):
    """All methods an adapter may have, with what is done where it has none.

    `wrapped` is what `wrap` returned, `optimizer` what `make_optimizer` did. Whatever a method
    raises is evidence: raised on every rank it is a refusal, on some a violation.
    """

    def setup(self, context: Context) -> object:
        """Prepare the implementation's runtime, before anything else of a case. Usual: the `--setup` calls."""

    def wrap(self, module: Any, context: Context) -> object:
        """Make a replica data-parallel: return what is to be called, or (that, optimizer), or None when done in place.

        Usual: what was named is called with the module first and what else it asks for by the usual
            names.
        """

    def make_optimizer(self, wrapped: Any, context: Context) -> object:
        """Return the optimizer. Usual: the one `wrap` returned, `--opt`, or `context.optimizer` over the parameters."""

    def before_batch(self, wrapped: Any, optimizer: Any) -> object:
        """Called at the start of every step. Usual: a method such as `reset` or `on_train_batch_start`, if there is one."""

    def zero_grad(self, wrapped: Any, optimizer: Any, set_to_none: bool) -> object:  # noqa: FBT001 - torch's name for it
        """Clear the gradients. Usual: `optimizer.zero_grad(set_to_none=set_to_none)`."""

    def accumulate(self, wrapped: Any) -> AbstractContextManager[object]:
        """Enter what all backwards of a step but the last run under. Usual: `wrapped.no_sync()`, or nothing."""

    def join(self, wrapped: Any, optimizer: Any) -> AbstractContextManager[object]:
        """Enter what all steps run under where ranks have different numbers of batches. Usual: `wrapped.join()`."""

    def forward(self, wrapped: Any, inputs: Any) -> Any:
        """Return the model's outputs. Usual: `wrapped(inputs)`."""

    def backward(self, wrapped: Any, optimizer: Any, loss: Any) -> object:
        """Run backward. Usual: `loss.backward()`."""

    def after_backward(self, wrapped: Any, optimizer: Any) -> object:
        """Synchronise what backward did not. Usual: a method such as `sync_gradients`, if there is one, and `--after`."""

    def gradients(self, wrapped: Any) -> Mapping[str, Any]:
        """Return the synchronised gradients by parameter name, None where there is none. Usual: `.grad`, else `.main_grad`."""

    def clip(self, wrapped: Any, optimizer: Any, norm: float) -> object:
        """Scale the synchronised gradients down to a norm. Usual: `wrapped.clip_grad_norm_`, or `torch.nn.utils`' own."""

    def step(self, wrapped: Any, optimizer: Any) -> object:
        """Update the parameters. Usual: `optimizer.step()`."""

    def train_step(
        self, parameters: Mapping[str, Any], inputs: Any, targets: Any, context: Context
    ) -> object:
        """Do one whole step instead of all of the above, for an implementation without a module wrapper.

        `setup` and `wrap`, if there, are called before the first one, which is when parameters can
        be made equal.

        Args:
            parameters: This rank's, by name, in the order of the model; to be updated in place.
            inputs: This rank's batch, shape (B, in), in the dtype of the first layer.
            targets: Shape (B, out), float64.
            context: The case.

        Returns:
            The loss on this rank's batch before the update: the mean of squared errors over samples
            and outputs.
        """

    def teardown(self, context: Context) -> object:
        """Undo `setup`, after everything else of a case. Usual: nothing."""
