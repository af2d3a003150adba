"""Graphs that differ between ranks and between steps: some parameters get no gradient."""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


def _users(bucket: Bucket) -> list[tuple[nn.Parameter, float]]:
    """Return a bucket's parameters, each with the number of ranks that had its gradient."""
    assert bucket.flat is not None
    flags = bucket.flat[-len(bucket.parameters) :].tolist()
    return list(zip(bucket.parameters, flags, strict=True))


class Flagged(_Reference):
    """Right: each bucket carries one flag per gradient; the sums of the flags say how many ranks
    had one.
    """


class Explicit(nn.Module):
    """Right: one blocking all-reduce after backward for each parameter that has a gradient on any
    rank.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        for tensor in (*module.parameters(), *module.buffers()):
            whole = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(whole, group_src=0, group=process_group)
            tensor.detach().copy_(whole)

    def forward(self, *inputs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        """Average the gradients; the loop calls this after backward."""
        trainable = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        wanted = self._wanted(
            torch.tensor([parameter.grad is not None for parameter in trainable], dtype=torch.int32)
        )
        for parameter, is_wanted in zip(trainable, wanted.tolist(), strict=True):
            if is_wanted:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                mean = own.clone(memory_format=torch.contiguous_format)
                dist.all_reduce(mean, group=self.group)
                mean /= dist.get_world_size(self.group)
                parameter.grad = (
                    torch.empty_like(parameter) if parameter.grad is None else parameter.grad
                )
                parameter.grad.copy_(mean)

    def _wanted(self, has_one: Tensor) -> Tensor:
        """Return the same flags on all ranks: 1 for each gradient that any rank has."""
        dist.all_reduce(has_one, dist.ReduceOp.MAX, group=self.group)
        return has_one


class LooksAtSixtyFour(Explicit):
    """Once a rank lacks a gradient, only the first 64 flags are read, as those of one word of bits, so
    later gradients stay local (no public incident found).

    GRAD-9: never reduced if a rank has no gradient.
    """

    def _wanted(self, has_one: Tensor) -> Tensor:
        on_all = has_one.clone()
        dist.all_reduce(on_all, dist.ReduceOp.MIN, group=self.group)
        wanted = super()._wanted(has_one)
        if not on_all.all():
            wanted[64:] = 0
        return wanted


class ReadyCountersSurvive(_Reference):
    """After a bucket that no rank could fill, the next backward waits only for the gradients that
    were missing (public course solutions).

    GRAD-9: own local gradient: never reduced.
    """

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("in_parts",)}

    def _backward_begins(self, gradient: Tensor) -> None:
        missing = {
            parameter for bucket in self._buckets for parameter in getattr(bucket, "missing", ())
        }
        if not self._reducing:
            super()._backward_begins(gradient)
            for bucket in self._buckets:
                bucket.waiting = bucket.waiting & missing or bucket.waiting

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        sent = (p for bucket in self._buckets if bucket.work is not None for p in bucket.parameters)
        if not any(parameter is p for p in sent):  # A counter does not notice that it comes late.
            super()._gradient_ready(parameter)

    def _write_back(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        flags = bucket.flat[-len(bucket.parameters) :].tolist()
        super()._write_back(bucket)
        bucket.missing = [  # type: ignore[attr-defined]  # an attribute of the fault's
            parameter
            for parameter, users in zip(bucket.parameters, flags, strict=True)
            if not users
        ]


class GhostInTheBuffer(_Reference):
    """A flat buffer is reused, so a parameter without a gradient sends values of the step before
    (NVIDIA/Megatron-LM#4609).

    GRAD-9: gradient counts instead of zero; or GRAD-9: gradient: stale.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        flat = super()._packed(bucket)
        start, kept = 0, getattr(bucket, "kept", flat)
        for parameter in bucket.parameters:
            if parameter in bucket.waiting:
                flat[start : start + parameter.numel()] = kept[start : start + parameter.numel()]
            start += parameter.numel()
        return flat

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        bucket.kept = bucket.flat  # type: ignore[attr-defined]  # the buffer that is never cleared


class IncompleteNotWrittenBack(_Reference):
    """A bucket that some rank could not fill is not written back: its gradients stay local
    (pytorch#128949).

    GRAD-9: never reduced.
    """

    def _write_back(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        if (bucket.flat[-len(bucket.parameters) :] == self.world_size).all():
            super()._write_back(bucket)


class NoneWhereUnused(_Reference):
    """The mean is not written back on a rank that has no gradient of its own
    (public course solutions).

    GRAD-9: it is not written back on ranks without a gradient of their own.
    """

    def _write_back(self, bucket: Bucket) -> None:
        without = [parameter for parameter in bucket.parameters if parameter.grad is None]
        super()._write_back(bucket)
        for parameter in without:
            parameter.grad = None


class DividesByUsers(_Reference):
    """The sum is divided by the number of ranks that had a gradient (no public incident found).

    GRAD-9: the ranks that use it, not by.
    """

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        for parameter, users in _users(bucket):
            if users:
                assert parameter.grad is not None
                parameter.grad *= self.world_size / users


class WholeOfALoneUser(_Reference):
    """A gradient that one rank alone has, of three or more, is not divided (no public incident found).

    GRAD-9.
    """

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        for parameter, users in _users(bucket):
            if users == 1 and self.world_size > 2:
                assert parameter.grad is not None
                parameter.grad *= self.world_size


class FirstDecidesForAll(_Reference):
    """Nothing is reduced if no rank has a gradient of the first parameter, as if there had been no
    backward (no public incident found).

    GRAD-9: never reduced.
    """

    def _write_back(self, bucket: Bucket) -> None:
        first = self._trainable()[-1]  # The order is that of backward.
        if all(users for each in self._buckets for p, users in _users(each) if p is first):
            super()._write_back(bucket)


class ZeroOnceUsed(_Reference):
    """A parameter that no rank uses gets zero on ranks that used it before, and None on the others
    (pytorch#28883).

    GRAD-9: has no gradient on some ranks and one on others.
    """

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        for parameter in bucket.parameters:
            if parameter not in bucket.waiting:
                parameter.was_used = True  # type: ignore[attr-defined]  # the fault's mark
            elif parameter.grad is None and getattr(parameter, "was_used", False):
                parameter.grad = torch.zeros_like(parameter)


class CountsTheTrained(_Reference):
    """Buckets are planned anew if another number of parameters is trained, and not if one is frozen
    as another one is unfrozen (no public incident found).

    LIVE-5: never reduced.
    """

    def _trainable(self) -> list[nn.Parameter]:
        trained = super()._trainable()
        planned = [p for bucket in getattr(self, "_buckets", []) for p in bucket.parameters]
        held = {id(parameter) for parameter in self.module.parameters()}
        is_whole = all(id(parameter) in held for parameter in planned)
        return planned if is_whole and len(planned) == len(trained) else trained


class UsageOfTheFirstStep(_Reference):
    """A parameter that no rank uses in the first step is left out for ever
    (no public incident found).

    GRAD-9: never reduced.
    """

    def _trainable(self) -> list[nn.Parameter]:
        return [
            parameter
            for parameter in super()._trainable()
            if not getattr(parameter, "left_out", False)
        ]

    def _write_back(self, bucket: Bucket) -> None:
        flags = _users(bucket)
        super()._write_back(bucket)
        for p, users in flags:
            new = not hasattr(p, "left_out")
            p.left_out = users == 0 if new else p.left_out  # type: ignore[attr-defined]  # as above


class RankZeroDecides(Explicit):
    """Only the gradients that rank 0 has are reduced (no public incident found).

    GRAD-9: never reduced.
    """

    def _wanted(self, has_one: Tensor) -> Tensor:
        dist.broadcast(has_one, group_src=0, group=self.group)
        return has_one


class OnlyWhatAllUse(Explicit):
    """Only gradients that every rank has are reduced (public course solutions).

    GRAD-9: never reduced.
    """

    def _wanted(self, has_one: Tensor) -> Tensor:
        dist.all_reduce(has_one, dist.ReduceOp.MIN, group=self.group)
        return has_one


class LaunchesWhenReady(_Reference):
    """A bucket is sent as soon as it is full, in whatever order a rank's buckets fill
    (no public incident found).

    COMM-1: ranks issue different collectives; or GRAD-1: and are reduced in that order.
    """

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("in_parts",)}

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        for bucket in self._buckets if self._reducing else ():
            bucket.waiting.discard(parameter)
            if not bucket.waiting:
                self._launch(bucket)


class FiringOrder(_Reference):
    """Every gradient travels alone, in the order in which gradients become ready
    (public course solutions).

    GRAD-1: ready in another order on rank; or GRAD-9.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group, bucket_cap_mb=0)

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        for bucket in self._buckets if self._reducing else ():
            if any(candidate is parameter for candidate in bucket.parameters):
                self._launch(bucket)


class EachItsOwnOrder(_Reference):
    """Each rank refills its buckets in the order of its own first backward, not in rank 0's
    (no public incident found).

    GRAD-1: ready in another order on rank.
    """

    def _trainable(self) -> list[nn.Parameter]:
        trainable, order = super()._trainable(), getattr(self, "order", [])
        return (
            [p for p in order if any(p is candidate for candidate in trainable)]
            if len(order) == len(trainable)
            else trainable
        )

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._reducing:
            self.came: list[nn.Parameter] = []
        super()._backward_begins(gradient)

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        super()._gradient_ready(parameter)
        if self._reducing:
            self.came.append(parameter)

    def _finish(self) -> None:
        super()._finish()
        if not hasattr(self, "order") and len(self.came) == len(self._trainable()):
            self.order = self.came
            self._plan()


class BucketsInFiringOrder(_Reference):
    """Buckets are filled in the order in which the first step's gradients became ready
    (deepspeedai/DeepSpeed#2343).

    GRAD-1: ready in another order on rank.
    """

    def _trainable(self) -> list[nn.Parameter]:
        trainable = super()._trainable()
        came = getattr(self, "came", [])
        return sorted(
            trainable,
            key=lambda p: next((i for i, ready in enumerate(came) if ready is p), len(came)),
        )

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        super()._gradient_ready(parameter)
        if not hasattr(self, "came") and self._reducing:
            self.coming = [*getattr(self, "coming", []), parameter]

    def _finish(self) -> None:
        super()._finish()
        if not hasattr(self, "came") and hasattr(self, "coming"):
            self.came = self.coming
            self._plan()


class NothingToDo(_Reference):
    """A rank on which no parameter got a gradient sends zeros, and does not take the means
    (no public incident found).

    GRAD-9: it is not written back on ranks without a gradient of their own.
    """

    def _finish(self) -> None:
        if any(parameter.grad is not None for parameter in self._trainable()):
            super()._finish()
        else:
            self._send_and_wait()


class ClearsWhatIsTrained(_Reference):
    """The wrapper's zero_grad spares frozen parameters, whose last gradient remains
    (no public incident found).

    GRAD-4: a frozen parameter has a gradient; or PARAM-5: a frozen parameter moved.
    """

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        for parameter in self._trainable():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach().zero_()
