"""A distributed data-parallel wrapper, small enough to be read in one go.

The constructor gives every rank the parameters and buffers of the group's first rank, and plans
buckets. A forward in training broadcasts the buffers again. During backward, a hook per parameter
counts gradients, and each full bucket starts one asynchronous all-reduce. At the end of backward,
the wrapper sends the remaining buckets, waits for every result and writes the means back.

Behind its gradients, a bucket carries one flag per parameter. The sum of a flag says how many ranks
had that gradient. A parameter that no rank used therefore keeps `grad is None`. A parameter that
some ranks used gets the mean, in which the other ranks count as zero. No second collective is
needed.

Source: Li et al. 2020, "PyTorch Distributed", section 3.2, arXiv:2006.15704.
"""

import hashlib
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable


@dataclass
class Bucket:
    """Parameters of one dtype and device whose gradients travel together.

    Attributes:
        parameters: The parameters, in the order in which their gradients are expected.
        waiting: Parameters that have no gradient in this backward yet.
        flat: The tensor to send: all gradients, then one flag per parameter. None until launched.
        work: The collective in flight. None until launched.
    """

    parameters: list[nn.Parameter]
    waiting: set[nn.Parameter] = field(default_factory=set)
    flat: Tensor | None = None
    work: dist.Work | None = None


class DistributedDataParallel(nn.Module):
    """A wrapper that trains replicas on different batches like one module on the whole batch.

    Args:
        module: The replica. Parameters may differ between ranks; those of the group's rank 0 win.
        process_group: The ranks to average over; None is the default group.
        bucket_cap_mb: The most MiB of gradients in one all-reduce, unless one parameter is larger.
        broadcast_buffers: True if each training forward starts from the first rank's buffers.

    Raises:
        ValueError: The module has nothing to train.
        RuntimeError: The ranks' modules differ in names, shapes, dtypes or requires_grad. Every
            rank raises.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__()
        self.module = module
        self.group = process_group
        self.world_size = dist.get_world_size(process_group)
        self.bucket_cap = int(bucket_cap_mb * 2**20)
        self.broadcast_buffers = broadcast_buffers
        self._no_sync_depth = 0
        self._reducing = False
        self._buckets: list[Bucket] = []
        self._hooks: list[Any] = []
        self._leaf_hooks: list[Any] = []
        if not self._trainable():
            raise ValueError(
                "the module has no parameter that requires a gradient: "
                "there is nothing to synchronise"
            )
        self._check_replicas_match()
        self._broadcast_state([*self.module.parameters(), *self.module.buffers()])
        self._plan()

    # The start: the same values on all ranks.

    def _check_replicas_match(self) -> None:
        """Raise on all ranks if the replicas differ in structure.

        Collectives over such replicas would hang or mix values.
        """
        tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
        structure = repr([(name, tuple(t.shape), t.dtype, t.requires_grad) for name, t in tensors])
        digest = int.from_bytes(hashlib.blake2b(structure.encode(), digest_size=4).digest(), "big")
        # On the module's device, because the backend may not support any other.
        extremes = torch.tensor([digest, -digest], device=tensors[0][1].device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self.group)
        if extremes[0] != -extremes[1]:
            raise RuntimeError(
                "the ranks' modules differ in a parameter's or buffer's name, shape, dtype or "
                "requires_grad"
            )

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        """Copy the first rank's values into the given tensors, by one broadcast of their bytes.

        With bytes, one collective serves all dtypes. The copies are contiguous, because on gloo a
        broadcast of a strided tensor writes to the wrong elements (pytorch#192920).
        """
        state = [t.detach() for t in tensors]
        if not state:
            return
        # Clone even a tensor that calls itself contiguous: a tensor of one element with an odd
        # stride does so, but cannot be viewed as bytes.
        pieces = [
            t.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for t in state
        ]
        flat = torch.cat(pieces)
        dist.broadcast(flat, group_src=0, group=self.group)
        with torch.no_grad():
            for tensor, piece in zip(state, flat.split([p.numel() for p in pieces]), strict=True):
                # A copy, because a slice of bytes may not be aligned for the wider dtype.
                tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))

    # The plan: which gradients travel together.

    def _trainable(self) -> list[nn.Parameter]:
        """Return the parameters that get gradients, each tied parameter once.

        Their order is the one in which backward is expected to reach them.
        """
        return [p for p in reversed(list(self.module.parameters())) if p.requires_grad]

    def _plan(self) -> None:
        """Fill buckets greedily up to the cap, and hook every parameter.

        There is one open bucket per dtype and device.
        """
        trainable = self._trainable()
        self._buckets = []
        filling: dict[tuple[torch.dtype, torch.device], tuple[Bucket, int]] = {}
        for parameter in trainable:
            kind, size = (
                (parameter.dtype, parameter.device),
                parameter.numel() * parameter.element_size(),
            )
            bucket, used = filling.get(kind, (None, 0))
            if bucket is None or used + size > self.bucket_cap:
                bucket, used = Bucket([]), 0
                self._buckets.append(bucket)
            bucket.parameters.append(parameter)
            filling[kind] = (bucket, used + size)
        for handle in self._hooks:
            handle.remove()
        # Hooks live in C++, where Python's garbage collector sees no cycles. A hook that held the
        # wrapper would keep it alive for ever.
        ready = partial(_call, weakref.WeakMethod(self._gradient_ready))
        self._hooks = [p.register_post_accumulate_grad_hook(ready) for p in trainable]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, without buckets and hooks.

        A copy plans for its own parameters when it first runs.
        """
        return {**self.__dict__, "_buckets": [], "_hooks": [], "_leaf_hooks": []}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy that reduces the gradients of its own parameters."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(deepcopy(self.__getstate__(), memo))
        return twin

    # A step.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module, and prepare the reduction of the backward that follows.

        Inside `no_sync` no reduction is prepared.
        """
        if self._reducing:
            # The last backward raised half way. Other ranks may wait for its collectives.
            self._send_and_wait()
        if {id(p) for p in self._trainable()} != {
            id(p) for b in self._buckets for p in b.parameters
        }:
            # Parameters were frozen, unfrozen or replaced since the last plan.
            self._plan()
        syncing = torch.is_grad_enabled() and self._no_sync_depth == 0
        if syncing and self.training and self.broadcast_buffers:
            self._broadcast_state(self.module.buffers())
        result = self.module(*args, **kwargs)
        self._unhook_leaves()
        if syncing:
            tensors = list(_tensors(result))
            if not tensors:
                raise TypeError(
                    f"no tensor found in the module's result, a {type(result).__name__}: "
                    "its backward could not be synchronised; return tensors, or tuples, lists, "
                    "dicts or dataclasses of them"
                )
            for tensor in tensors:
                if tensor.requires_grad:
                    self._hook(tensor)
        return result

    def _hook(self, output: Tensor) -> None:
        """Open a reduction when a backward reaches an output, even if no parameter gets a gradient."""
        if output.is_leaf:
            begins = partial(_call, weakref.WeakMethod(self._backward_begins))
            self._leaf_hooks.append(output.register_hook(begins))
            return
        leaves = _leaves(output)

        def begin(gradient: Tensor) -> None:
            if _adds_gradients(leaves):
                self._backward_begins(gradient)

        output.register_hook(begin)

    def _unhook_leaves(self) -> None:
        """Remove the hooks on results that outlive their forward, such as a parameter.

        A later backward inside `no_sync` would run them.
        """
        for handle in self._leaf_hooks:
            handle.remove()
        self._leaf_hooks = []

    def _backward_begins(self, _gradient: Tensor) -> None:
        """Open a reduction."""
        if self._reducing:
            return
        self._reducing = True
        for bucket in self._buckets:
            bucket.waiting = set(bucket.parameters)
            bucket.flat = bucket.work = None
        # torch has no public way to run code at the end of a whole backward; FSDP2 uses this, too.
        Variable._execution_engine.queue_callback(self._finish)

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        """Count a gradient, and send the buckets that are full.

        Buckets are always sent in index order, so that all ranks send the same sequence.
        """
        if not self._reducing:
            return
        for bucket in self._buckets:
            if bucket.work is None and parameter in bucket.waiting:
                bucket.waiting.discard(parameter)
                break
        else:
            sent = (p for b in self._buckets if b.work is not None for p in b.parameters)
            if any(parameter is p for p in sent):
                raise RuntimeError(
                    "a parameter got another gradient after its gradient was sent: a backward "
                    "within backward computes it in parts, as with reentrant checkpoints; "
                    "pass use_reentrant=False to checkpoint"
                )
        for bucket in self._buckets:
            if bucket.waiting:
                break
            self._launch(bucket)

    def _launch(self, bucket: Bucket) -> None:
        """Start the sum of a bucket over the ranks."""
        if bucket.work is None:
            bucket.flat = self._packed(bucket)
            bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)

    def _packed(self, bucket: Bucket) -> Tensor:
        """Return the tensor to be sent: all gradients, made dense, then the flags.

        A parameter without a gradient counts as zero and has the flag 0.
        """
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in bucket.parameters
        ]
        # Made on the gradients' device, because the host would wait for a copy from the CPU.
        flags = gradients[0].new_ones(len(gradients))
        for number, parameter in enumerate(bucket.parameters):
            if parameter.grad is None:
                flags[number] = 0
        # Without autocast, under which a backward may run: torch.cat then refuses some dtypes.
        with torch.autocast(flags.device.type, enabled=False):
            return torch.cat([*(g.detach().reshape(-1) for g in gradients), flags])

    def _finish(self) -> None:
        """Finish the reduction at the end of backward.

        Send the remaining buckets, wait for all results, and write the means back.
        """
        self._send_and_wait()
        for bucket in self._buckets:
            self._write_back(bucket)

    def _send_and_wait(self) -> None:
        for bucket in self._buckets:
            self._launch(bucket)
        for bucket in self._buckets:
            self._wait(bucket)
        self._reducing = False
        self._unhook_leaves()

    def _wait(self, bucket: Bucket) -> None:
        assert bucket.work is not None
        bucket.work.wait()

    def _write_back(self, bucket: Bucket) -> None:
        """Write the means into the gradients.

        The gradient of a parameter that no rank used stays as it is.
        """
        assert bucket.flat is not None
        *sums, flags = bucket.flat.split(
            [*(p.numel() for p in bucket.parameters), len(bucket.parameters)]
        )
        for parameter, total, users in zip(bucket.parameters, sums, flags.tolist(), strict=True):
            if users == 0:
                continue
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            # torch 2.6 rounds when it divides a complex number, even by one.
            parts = torch.view_as_real(total) if total.is_complex() else total
            parts.div_(self.world_size)
            parameter.grad.detach().copy_(total.view_as(parameter))

    # Accumulation.

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let the gradients of forwards inside accumulate locally.

        The backward of the next forward outside synchronises their sum.
        """
        self._no_sync_depth += 1
        try:
            yield
        finally:
            self._no_sync_depth -= 1


def _call(method: "weakref.WeakMethod[Any]", tensor: Tensor) -> None:
    """Call a wrapper's method, unless the wrapper is gone: a hook on a tensor that may outlive it."""
    alive = method()
    if alive is not None:
        alive(tensor)


def _leaves(output: Tensor) -> list[Any]:
    """Return the nodes that add to gradients in a backward from an output."""
    leaves, found, waiting = [], {output.grad_fn}, [output.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if hasattr(node, "variable"):
            leaves.append(node)
        following = {after for after, _ in node.next_functions if after is not None} - found
        found |= following
        waiting += following
    return leaves


def _adds_gradients(leaves: list[Any]) -> bool:
    """Return whether the pass under way adds to gradients, as `torch.autograd.grad` does not.

    A reduction in a pass that adds nothing would average accumulated gradients too early.
    """
    try:
        # torch has no public way to ask; its own `register_multi_grad_hook` uses this, too.
        return any(map(torch._C._will_engine_execute_node, leaves))
    except RuntimeError:  # It returns the gradient of a leaf, instead of adding it.
        return False


def _tensors(result: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result, in nested tuples, lists, dicts and dataclasses."""
    if isinstance(result, Tensor):
        yield result
    elif is_dataclass(result):
        yield from _tensors(vars(result))
    elif isinstance(result, dict):
        for value in result.values():
            yield from _tensors(value)
    elif isinstance(result, list | tuple):
        for value in result:
            yield from _tensors(value)
