"""The methods an adapter may define: those in which an implementation differs from the usual calls.

An adapter is a plain class; it subclasses nothing. Name it like any implementation (`--ddp
path/to/file.py:MyAdapter`). The suite recognises it by its method `wrap` or `train_step`. Every
rank makes a new instance, without arguments, for every case. For each method that it does not
define, the suite makes the usual call that `Adapter` documents. Its declarations stand in its class
attribute `declares` (see declarations.py).

    class Explicit:
        declares = {"init": "seed"}

        def wrap(self, module, context):
            return MyDDP(module, world_size=context.world_size)

        def after_backward(self, wrapped, optimizer):
            wrapped.exchange_gradients()
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Context:
    """The facts of a case that an adapter is given.

    Attributes:
        rank: The rank in the group that trains.
        world_size: The size of that group.
        group: The process group to train in. None for the default group, and always None if the
            adapter does not name `subgroup` in its `supports`.
        bucket_cap: The bucket capacity in bytes. None if the case keeps the implementation's
            default, and always None if the adapter does not name `bucket_cap` in its `supports`.
        seed: The case's seed. Each rank seeds the global generators with this seed plus its rank in
            the default group.
        lr: The learning rate.
        optimizer_class: The case's optimizer, `torch.optim.SGD`, `torch.optim.Adam` or
            `torch.optim.AdamW`.
        optimizer_arguments: Its keyword arguments, the learning rate among them, which is a tensor in
            a few cases.
        device: The `torch.device` of the replica and its batches. It is the current device of this
            process.
        groups: A function that puts parameters into groups with options of their own, or leaves out
            parameters that the program adds to the optimizer later; None for one group of all.
        own_buffers: True if each rank must keep its own buffers (`broadcast_buffers=False`). Always
            False if the adapter does not name `own_buffers` in its `supports`.
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
    groups: Any = None
    own_buffers: bool = False

    def optimizer(self, parameters: Iterable[Any]) -> Any:
        """Make the case's optimizer over some parameters."""
        return self.optimizer_class(self.grouped(parameters), **self.optimizer_arguments)

    def grouped(self, parameters: Iterable[Any]) -> Iterable[Any]:
        """Return parameters as an optimizer takes them: in the case's groups, if there are any.

        Parameters that the program adds to the optimizer later are left out.
        """
        return parameters if self.groups is None else self.groups(parameters)


class Adapter(Protocol):
    """All methods that an adapter may define, each with the usual call made if it is missing.

    `wrapped` is the return value of `wrap`, and `optimizer` is the return value of `make_optimizer`. An exception
    from any method is evidence. If every rank raises it, it is a refusal. If only some ranks raise
    it, it is a violation.
    """

    def setup(self, context: Context) -> object:
        """Prepare the implementation's runtime, before anything else of a case.

        Usual: the `--setup` calls.
        """

    def wrap(self, module: Any, context: Context) -> object:
        """Make a replica data-parallel.

        Return the object to be called, or a tuple (object, optimizer), or None if the module was
        changed in place.

        Usual: call the named implementation with the module first. Pass the other arguments that it
        requires, if they have the usual names.
        """

    def make_optimizer(self, wrapped: Any, context: Context) -> object:
        """Return the optimizer.

        Usual: the optimizer that `wrap` returned, else the optimizer that `--opt` names, else
        `context.optimizer` over the parameters.
        """

    def before_batch(self, wrapped: Any, optimizer: Any) -> object:
        """Act at the start of every step.

        Usual: call a method such as `reset` or `on_train_batch_start`, if the wrapper has one.
        """

    def zero_grad(
        self,
        wrapped: Any,
        optimizer: Any,
        set_to_none: bool,  # noqa: FBT001 - torch's name for it
    ) -> object:
        """Clear the gradients.

        Usual: `optimizer.zero_grad(set_to_none=set_to_none)`.
        """

    def accumulate(self, wrapped: Any) -> AbstractContextManager[object]:
        """Return a context for all backwards of a step except the last.

        Usual: `wrapped.no_sync()`, or no context.
        """

    def join(self, wrapped: Any, optimizer: Any) -> AbstractContextManager[object]:
        """Return a context for all steps of a case whose ranks have different numbers of batches.

        Usual: `wrapped.join()`.
        """

    def forward(self, wrapped: Any, inputs: Any) -> Any:
        """Return the model's outputs.

        Usual: `wrapped(inputs)`.
        """

    def backward(self, wrapped: Any, optimizer: Any, loss: Any) -> object:
        """Run backward.

        Usual: `loss.backward()`.
        """

    def after_backward(self, wrapped: Any, optimizer: Any) -> object:
        """Synchronise the gradients that backward did not synchronise.

        Usual: call a method such as `sync_gradients`, if the wrapper has one, and then `--after`.
        """

    def recover(self, wrapped: Any) -> object:
        """Recover from an exception in a forward or backward, which all ranks have caught.

        Usual: call `reset_iter_state`, if the wrapper has it, as torch's `fully_shard` documents.
        """

    def gradients(self, wrapped: Any) -> Mapping[str, Any]:
        """Return the synchronised gradients by parameter name, None for a parameter without one.

        Usual: `.grad`, else `.main_grad`.
        """

    def clip(self, wrapped: Any, optimizer: Any, norm: float) -> object:
        """Scale the synchronised gradients down to a norm.

        Usual: `wrapped.clip_grad_norm_`, else `torch.nn.utils.clip_grad_norm_`.
        """

    def step(self, wrapped: Any, optimizer: Any) -> object:
        """Update the parameters.

        Usual: `optimizer.step()`.
        """

    def step_with_closure(
        self, wrapped: Any, optimizer: Any, closure: Callable[[], object]
    ) -> object:
        """Update the parameters with gradients that a closure computes, and return its loss.

        An adapter that defines `step` but not this method takes no closures.

        Usual: `optimizer.step(closure)`.
        """

    def train_step(
        self, parameters: Mapping[str, Any], inputs: Any, targets: Any, context: Context
    ) -> object:
        """Do one whole step instead of all of the above.

        This is for an implementation without a module wrapper. `setup` and `wrap`, if defined, are
        called before the first step. Parameters can be made equal there.

        Args:
            parameters: This rank's parameters by name, in the order of the model. Update them in
                place.
            inputs: This rank's batch, shape (B, in), in the dtype of the first layer.
            targets: Shape (B, out), float64.
            context: The case.

        Returns:
            The loss on this rank's batch before the update: the mean of squared errors over samples
            and outputs.
        """

    def teardown(self, context: Context) -> object:
        """Undo `setup`, after everything else of a case.

        Usual: nothing.
        """
