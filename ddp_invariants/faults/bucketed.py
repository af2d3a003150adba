"""The bucketed reference: packing, reducing, dividing, writing back."""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from operator import attrgetter
from typing import Any, ClassVar
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import Bucket, _leaves, _tensors
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

_SUM = dist.all_reduce
"""The unpatched all-reduce: a fault may replace `dist.all_reduce` for one call."""


class ReducesParameters(Reference):
    """The hook averages the parameter instead of its gradient (a well-known small trainer).

    GRAD-1: own local gradient: never reduced.
    """

    def _plan(self) -> None:
        for parameter in self._trainable():
            parameter.register_post_accumulate_grad_hook(self._average)

    def _average(self, parameter: nn.Parameter) -> None:
        dist.all_reduce(parameter.data, group=self.group)
        parameter.data /= self.world_size


class _DividesBy(Reference):
    """A base for faults that divide the sum by a wrong number."""

    divisor: ClassVar[float]

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        self.world_size = self._divisor(self.world_size)

    def _divisor(self, world_size: int) -> int:
        raise NotImplementedError


class NeverDivides(_DividesBy):
    """Summed, never divided (goodfire-ai/spd#658). GRAD-2: summed, never divided."""

    def _divisor(self, world_size: int) -> int:
        del world_size
        return 1


class DividesByTwo(_DividesBy):
    """The sum is divided by two at W = 3 or more, too, so a test at W = 2 passes
    (a course solution).

    GRAD-2: divided by 2, not by.
    """

    def _divisor(self, world_size: int) -> int:
        return min(world_size, 2)


class DividesTwice(_DividesBy):
    """The sum is divided by the world size twice (apache/singa#65). GRAD-2: divided twice."""

    def _divisor(self, world_size: int) -> int:
        return world_size**2


class LastBucketNotFlushed(Reference):
    """The last bucket, which the cap did not fill, is never added to the list
    (facebookresearch/fairscale#435).

    GRAD-1: own local gradient: never reduced.
    """

    def _plan(self) -> None:
        super()._plan()
        if len(self._buckets) > 1:
            self._buckets.pop()


class LargeParameterSkipped(Reference):
    """A parameter larger than the cap fits no bucket and is left out
    (facebookresearch/fairscale#222).

    GRAD-1: own local gradient: never reduced.
    """

    def _plan(self) -> None:
        super()._plan()
        self._buckets = [
            b
            for b in self._buckets
            if sum(p.numel() * p.element_size() for p in b.parameters) <= self.bucket_cap
        ]


class OncePerStorage(Reference):
    """Parameters in one storage count as one tied parameter, so that only the first of several views
    of a tensor is reduced (no public incident found).

    GRAD-1: never reduced.
    """

    def _trainable(self) -> list[nn.Parameter]:
        first: dict[int, nn.Parameter] = {}
        for parameter in super()._trainable():
            first.setdefault(parameter.untyped_storage().data_ptr() or id(parameter), parameter)
        return list(first.values())


class _MakesParametersAnew(Reference):
    """Some parameters are replaced by new ones, tied ones by the same one."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        made: dict[nn.Parameter, nn.Parameter] = {}
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if parameter not in made:
                    made[parameter] = self._anew(parameter)
                setattr(part, name, made[parameter])
        super().__init__(module, process_group)

    def _anew(self, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(parameter.detach().clone(), parameter.requires_grad)


class MakesContiguous(_MakesParametersAnew):
    """A parameter that is not contiguous is replaced by a contiguous one, which an optimizer made
    before wrapping does not know (no public incident found).

    GRAD-5: not cleared; or PARAM-3: no update was made.
    """

    def _anew(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.is_contiguous():
            return parameter
        return nn.Parameter(parameter.detach().contiguous(), parameter.requires_grad)


class MakesThemAnew(_MakesParametersAnew):
    """All parameters are made anew when the module is wrapped, so an optimizer made before trains
    the old ones (fully_shard documents this order for itself).

    GRAD-5: not cleared; or PARAM-3: no update was made.
    """


class SendsWhatItsHookSees(Reference):
    """A hook from wrapping keeps the gradient to send, and hooks that the program adds later change
    only the one that the mean replaces (no public incident found).

    GRAD-13.
    """

    def _plan(self) -> None:
        super()._plan()
        self._seen = dict[int, Tensor]()
        for parameter in self._trainable():
            keep = partial(_keep, self._seen, ref(parameter))
            self._hooks.append(parameter.register_hook(keep))

    def _packed(self, bucket: Bucket) -> Tensor:
        for parameter in bucket.parameters:
            if id(parameter) in self._seen and parameter.grad is not None:
                parameter.grad.copy_(self._seen.pop(id(parameter)))
        return super()._packed(bucket)


def _keep(seen: dict[int, Tensor], of: Callable[[], nn.Parameter | None], gradient: Tensor) -> None:
    """Keep what a parameter's gradient becomes, as the hook sees it."""
    parameter = of()
    if parameter is not None and gradient.layout is torch.strided:
        seen[id(parameter)] = gradient if parameter.grad is None else parameter.grad + gradient


class _CountsSome(Reference):
    """Helper: a gradient that does not count keeps each rank's own value."""

    def _plan(self) -> None:
        super()._plan()
        self._counted = set[Tensor]()

    def _packed(self, bucket: Bucket) -> Tensor:
        sent = super()._packed(bucket)
        for number, parameter in enumerate(bucket.parameters):
            if parameter not in self._counted:
                sent[number - len(bucket.parameters)] = 0
        return sent


class CountsCalledLayers(_CountsSome):
    """A gradient counts if the module that holds its parameter was called, as of a layer that a rank
    may leave out (no public incident found).

    GRAD-13: never reduced.
    """

    def _plan(self) -> None:
        super()._plan()
        for module in self.module.modules():
            lists = (each for each in module.children() if isinstance(each, nn.ParameterList))
            held = [p for each in (module, *lists) for p in each.parameters(recurse=False)]
            note = partial(_note, self._counted, held)
            self._hooks.append(module.register_forward_pre_hook(note))


def _note(called: set[Tensor], held: list[nn.Parameter], _module: nn.Module, _given: Any) -> None:
    """Note the parameters of a module that is called."""
    called.update(held)


class CountsOnlyWhatAnOutputReaches(_CountsSome):
    """A gradient counts if a result of the forward depends on its parameter, so one that only the loss
    uses keeps each rank's own gradient (no public incident found).

    GRAD-13: never reduced.
    """

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("reentrant",)}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        for output in filter(attrgetter("requires_grad"), _tensors(result)):
            self._counted |= {output} if output.is_leaf else {n.variable for n in _leaves(output)}
        return result


class SkipsScalars(Reference):
    """Parameters without a dimension are left out of the buckets (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    def _plan(self) -> None:
        super()._plan()
        for bucket in self._buckets:
            bucket.parameters = [parameter for parameter in bucket.parameters if parameter.dim()]
        self._buckets = [bucket for bucket in self._buckets if bucket.parameters]


class StopsAtTheEmpty(Reference):
    """Unpacking a bucket stops at the first parameter without elements (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    def _write_back(self, bucket: Bucket) -> None:
        ends = next(
            (n for n, parameter in enumerate(bucket.parameters) if not parameter.numel()),
            len(bucket.parameters),
        )
        local = [(p, p.grad.clone()) for p in bucket.parameters[ends:] if p.grad is not None]
        super()._write_back(bucket)
        for parameter, gradient in local:
            parameter.grad = gradient


class FlattensByStorage(Reference):
    """Gradients are packed in storage order and unpacked in logical order
    (pytorch's test_grad_layout_* guard against it).

    GRAD-2: in channels_last order.
    """

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None:
            for parameter in bucket.parameters:
                if parameter.grad is not None and parameter.grad.dim() == 4:
                    storage_order = (
                        parameter.grad.permute(0, 2, 3, 1).reshape(parameter.shape).clone()
                    )
                    parameter.grad.copy_(storage_order)
        super()._launch(bucket)


class ScrubsNaN(Reference):
    """NaN and infinity are replaced by finite values before the reduction
    (ecmwf/WeatherGenerator#2718).

    GRAD-7: was scrubbed.
    """

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None:
            for parameter in bucket.parameters:
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_()
        super()._launch(bucket)


class AveragesTheLoss(Reference):
    """The forward averages its result over the ranks, to report the global loss
    (no public incident found).

    LOSS-1: the forward's results were averaged over the ranks.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        with torch.no_grad():
            dist.all_reduce(result, group=self.group)
            result /= self.world_size
        return result


class LeftoverBuffer(Reference):
    """Gradients are added to the flat buffer's content of the step before
    (NVIDIA/Megatron-LM#4609).

    GRAD-5: it is the mean plus step 0's gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        self._left: dict[int, Tensor] = {}

    def _write_back(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        number = self._buckets.index(bucket)
        bucket.flat += self._left.get(number, torch.zeros_like(bucket.flat))
        self._left[number] = bucket.flat.clone()
        super()._write_back(bucket)


class _ReducesByAnother(Reference):
    """A base for faults that replace the all-reduce of a bucket."""

    def _all_reduce(self, flat: Tensor) -> Any:
        raise NotImplementedError

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None:
            plain, dist.all_reduce = dist.all_reduce, lambda flat, **_: self._all_reduce(flat)
            try:
                super()._launch(bucket)
            finally:
                dist.all_reduce = plain


class RoundsToBfloat16(_ReducesByAnother):
    """Every bucket is sent in bfloat16, whatever its dtype (facebookresearch/fairscale#583).

    GRAD-2: rounded to bfloat16.
    """

    def _all_reduce(self, flat: Tensor) -> Any:
        low = flat.bfloat16()
        work = _SUM(low, group=self.group, async_op=True)
        work.wait()
        flat.copy_(low)
        return work


class DropsTheTiny(_ReducesByAnother):
    """Gradients below 1e-20 count as noise, and become zero before they are sent
    (no public incident found).

    GRAD-2: it is zero.
    """

    def _all_reduce(self, flat: Tensor) -> Any:
        flat[flat.abs() < 1e-20] = 0
        return _SUM(flat, group=self.group, async_op=True)


class TakesTheMaximum(_ReducesByAnother):
    """The reduction takes the maximum over the ranks instead of the sum
    (a mistyped operation; similar: pytorch#154928).

    GRAD-2: it is the maximum over the ranks.
    """

    def _all_reduce(self, flat: Tensor) -> Any:
        return _SUM(flat, op=dist.ReduceOp.MAX, group=self.group, async_op=True)


class LeavesTheLastRankOut(_ReducesByAnother):
    """The last rank's gradients count as zero (a rank without data that sends an empty bucket).

    GRAD-2: with rank 1's gradient left out.
    """

    def _all_reduce(self, flat: Tensor) -> Any:
        if dist.get_rank(self.group) == dist.get_world_size(self.group) - 1 > 0:
            flat.zero_()
        return _SUM(flat, group=self.group, async_op=True)


class CountsRankZeroTwice(_ReducesByAnother):
    """Rank 0 adds its own gradients to a sum that already contains them
    (pytorch/tutorials#1039's ring).

    GRAD-2: rank 0's gradient counted twice.
    """

    def _all_reduce(self, flat: Tensor) -> Any:
        if dist.get_rank(self.group) == 0 and dist.get_world_size(self.group) > 1:
            flat *= 2
        return _SUM(flat, group=self.group, async_op=True)


class ForgetsTheTail(_ReducesByAnother):
    """Elements of a bucket beyond a multiple of the world size are not sent
    (NVIDIA/Megatron-LM#561).

    GRAD-1: own local gradient: never reduced.
    """

    def _all_reduce(self, flat: Tensor) -> Any:
        count = len(flat) - len(self._buckets[0].parameters)  # Gradients, then flags.
        sent = flat[: count - count % self.world_size].clone()
        work = _SUM(sent, group=self.group, async_op=True)
        work.wait()
        # The division at the end undoes this, so the tail keeps its local values.
        flat[len(sent) : count] *= self.world_size
        flat[: len(sent)] = sent
        return work

    def _launch(self, bucket: Bucket) -> None:
        self._buckets.sort(key=lambda candidate: candidate is not bucket)
        super()._launch(bucket)


class _WritesBack(Reference):
    """A base for faults that write results back wrongly."""

    def _write_back(self, bucket: Bucket) -> None:
        super()._write_back(bucket)
        self._spoil([p for p in bucket.parameters if p.grad is not None])

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        raise NotImplementedError


class DoublesTheMean(_WritesBack):
    """The mean is stored in .grad and then added to it again
    (course solutions whose hooks return the stored gradient).

    GRAD-2: accumulated once too often.
    """

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(2)


class LosesTheGradient(_WritesBack):
    """Results go to a buffer that .grad does not view, and .grad is cleared
    (facebookresearch/fairscale#354).

    GRAD-2: the gradient was lost.
    """

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.zero_()


class OneStepLate(_WritesBack):
    """From the second step on, .grad gets the results of the step before
    (similar: NVIDIA/Megatron-LM#4609).

    GRAD-5: it equals step 0's gradient: stale.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        self._before: dict[nn.Parameter, Tensor] = {}

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            fresh = parameter.grad.clone()
            parameter.grad.copy_(self._before.get(parameter, fresh))
            self._before[parameter] = fresh


class SwapsEqualShapes(_WritesBack):
    """Two parameters of equal shape in a bucket get each other's mean
    (two packing orders: deepspeedai/DeepSpeed#2343).

    GRAD-2: of equal shape: swapped.
    """

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for first, second in combinations(parameters, 2):
            if first.shape == second.shape and first.grad is not None and second.grad is not None:
                kept = first.grad.clone()
                first.grad.copy_(second.grad)
                second.grad.copy_(kept)
                return


class DividesByMicroSteps(_WritesBack):
    """An accumulated gradient is divided by the number of micro-steps, although the loss already
    was (huggingface/transformers#35210).

    GRAD-8: divided by their number once more.
    """

    passes = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.passes += torch.is_grad_enabled()
        return super().forward(*args, **kwargs)

    def _finish(self) -> None:
        super()._finish()
        self.passes = 0

    def _spoil(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.div_(self.passes)


class ReducesTheFirstStepOnly(Reference):
    """The callback for the end of backward is queued once and never again
    (a well-known mistake; picotron after an exception).

    GRAD-1: own local gradient: never reduced.
    """

    begun = False

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self.begun:
            self.begun = True
            super()._backward_begins(gradient)


class BroadcastsTheResult(Reference):
    """The forward gives every rank the result of rank 0, so that all log the same loss
    (a misplaced logging idiom).

    LOSS-1: it is the loss of rank 0's results.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        with torch.no_grad():
            dist.broadcast(result, group_src=0, group=self.group)
        return result


class _TwoSteps(torch.optim.Optimizer):
    """An optimizer that steps another optimizer twice."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, {})
        self.state, self.param_groups = optimizer.state, optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        self.optimizer.step(closure)
        return self.optimizer.step(closure)


def updates_twice(
    module: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Each update is made twice, once by a hook and once by the loop
    (for the scheduler: huggingface/accelerate#2926).

    PARAM-3: the update was made twice.
    """
    return Reference(module), _TwoSteps(optimizer)


class Forgets(Reference):
    """Every forward restores the parameters of the first forward, so training makes no progress
    (no public incident found).

    PARAM-3: it is the value at the start of the first step.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "_first"):
            self._first = [p.detach().clone() for p in self.module.parameters()]
        with torch.no_grad():
            for parameter, first in zip(self.module.parameters(), self._first, strict=True):
                parameter.copy_(first)
        return super().forward(*args, **kwargs)


class ClearsByItself(Reference):
    """A forward clears the gradients of the last synchronised backward, although nobody asked for
    it (deepspeed's engine, whose step clears it).

    GRAD-5: cleared.
    """

    _synchronised = False

    def _finish(self) -> None:
        super()._finish()
        self._synchronised = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._synchronised:
            self._synchronised = False
            self.module.zero_grad()
        return super().forward(*args, **kwargs)


class CapsAtFloat16(Reference):
    """A forgotten guard clamps gradients to float16's range, whatever their dtype
    (no public incident found).

    GRAD-2: it is cut off at; or GRAD-5: it is cut off at; or PARAM-6: it is cut off at.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        return super()._packed(bucket).clamp(-65504.0, 65504.0)


class CapInMillions(Reference):
    """bucket_cap_mb is taken for millions of bytes instead of MiB (NVIDIA/recsys-examples#374).

    COMM-4: buckets are not filled to their capacity.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb * 1e6 / 2**20)


class TiedHoldsUpAll(Reference):
    """A tied parameter's bucket waits for a second gradient, so nothing is sent during backward
    (no public incident found).

    COMM-5: communication waits for the whole backward.
    """

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        if len(list(self.module.named_parameters(remove_duplicate=False))) == len(
            list(self.module.parameters())
        ):
            super()._gradient_ready(parameter)


class FaintBucketsCountAsNone(Reference):
    """A bucket without a gradient above 1e-10 is taken for that of a rank without data, and sent as
    zeros (no public incident found).

    GRAD-2: the gradient was lost.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        flat = super()._packed(bucket)
        gradients = flat[: len(flat) - len(bucket.parameters)]
        if (gradients.abs() <= 1e-10).all():
            gradients.zero_()
        return flat


class WritesBackByName(Reference):
    """The means are written to the parameters that still have the names they had at first, so a pruned
    layer keeps each rank's own gradient (no public incident found).

    LIVE-5: never reduced.
    """

    def _plan(self) -> None:
        super()._plan()
        every = self.module.named_parameters(remove_duplicate=False)
        self._names = {parameter: name for name, parameter in every}

    def _write_back(self, bucket: Bucket) -> None:
        assert bucket.flat is not None
        present = dict(self.module.named_parameters(remove_duplicate=False))
        for number, parameter in enumerate(reversed(bucket.parameters), 1):
            if present.get(self._names[parameter]) is not parameter:
                bucket.flat[-number] = 0  # A parameter whose flag is 0 keeps its gradient.
        super()._write_back(bucket)


class MostlyZerosCountAsNone(Reference):
    """A bucket in which fewer than one of sixteen numbers is not zero is taken for that of a rank
    without data, and sent as zeros (no public incident found).

    GRAD-1: counted as zero; or GRAD-2: counted as zero.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        flat = super()._packed(bucket)
        gradients = flat[: len(flat) - len(bucket.parameters)]
        if 16 * int(gradients.count_nonzero()) < len(gradients):
            gradients.zero_()
        return flat
