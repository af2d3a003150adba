"""One rank's part of a training case: train with the implementation on trial, note what was seen, judge nothing."""

import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddp_invariants import draws
from ddp_invariants.case import TrainingCase
from ddp_invariants.ranks.group import Session
from ddp_invariants.ranks.loading import Wrapper
from ddp_invariants.ranks.model import Replica, count_values, loss_of

_Slot = tuple[str, str, list[int]] | tuple[str, None, None]


class Record:
    """What one rank saw: tensors as raw bits by moment and step, everything else as plain data.

    A record of tensors is [moment, step, layout, offset, size]; layouts (names, dtypes, shapes) repeat and are
    stored once. A missing tensor (a parameter without a gradient) is a slot without dtype.
    """

    def __init__(self) -> None:
        self.blob = bytearray()
        self.records: list[tuple[str, int, int, int, int]] = []
        self.layouts: dict[tuple[Any, ...], int] = {}
        self.facts: dict[str, Any] = {}

    def tensors(self, moment: str, step: int, named: Iterable[tuple[str, Tensor | None]]) -> None:
        """Note tensors' bits, dtypes and shapes, in row-major order whatever their strides."""
        slots: list[tuple[Any, ...]] = []
        start = len(self.blob)
        for name, tensor in named:
            if tensor is None:
                slots.append((name, None, None))
                continue
            slots.append((name, tensor.dtype, tensor.shape))
            self.blob += _bits(tensor)
        layout = self.layouts.setdefault(tuple(slots), len(self.layouts))
        self.records.append((moment, step, layout, start, len(self.blob) - start))

    def header(self) -> dict[str, Any]:
        """Everything but the bits, ready for JSON."""
        layouts: list[list[_Slot]] = [
            [(name, None, None) if dtype is None else (name, str(dtype)[6:], list(shape)) for name, dtype, shape in slots]
            for slots in self.layouts
        ]
        return {"records": self.records, "layouts": layouts, "facts": self.facts}


def _bits(tensor: Tensor) -> bytes:
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)  # numpy has no bfloat16; the bits are what is asked for.
    bits: bytes = tensor.numpy().tobytes()
    return bits


def structure(module: nn.Module) -> list[list[Any]]:
    """Every name's [name, dtype, shape, requires_grad, first name of the same tensor, "parameter" or "buffer"]."""
    first: dict[Tensor, str] = {}
    rows = []
    for kind, named in (("parameter", module.named_parameters(remove_duplicate=False)),
                        ("buffer", module.named_buffers(remove_duplicate=False))):
        for name, tensor in named:
            rows.append([name, str(tensor.dtype)[6:], list(tensor.shape), tensor.requires_grad,
                         first.setdefault(tensor, name), kind])
    return rows


def train(case: TrainingCase, rank: int, wrapper: Wrapper, session: Session) -> Record:
    """Run the case on this rank.

    Whatever the implementation raises is noted in `facts["raised"]` and ends the run; what was seen before is kept.

    Args:
        case: The case.
        rank: Rank in the group that trains.
        wrapper: The implementation on trial.
        session: The process groups of the case.
    """
    run = _Run(case, rank, wrapper, session)
    try:
        run.all()
    except Exception as error:  # noqa: BLE001 - the implementation on trial may raise anything; it is evidence
        run.record.facts["raised"] = told(error, run.phase, run.step)
    return run.record


def told(error: BaseException, phase: str, step: int) -> dict[str, Any]:
    """An exception as plain data. `str` of a foreign exception may itself raise."""
    try:
        message = str(error)
    except Exception as unprintable:  # noqa: BLE001 - any code may stand in a foreign __str__
        message = f"(its message raised {type(unprintable).__name__})"
    return {"phase": phase, "step": step, "type": type(error).__name__, "message": message[:2000],
            "traceback": "".join(traceback.format_tb(error.__traceback__))[-4000:]}


class _Run:
    """The state of one rank's run through a case."""

    def __init__(self, case: TrainingCase, rank: int, wrapper: Wrapper, session: Session) -> None:
        self.case, self.rank, self.wrapper, self.session = case, rank, wrapper, session
        self.record = Record()
        self.phase, self.step = "wrap", 0
        values_P = draws.parameters(case, rank, count_values(case.model))
        self.replica = Replica(case.model, values_P)
        self.twin = Replica(case.model, values_P)
        self.twin_named = list(self.twin.named_parameters())
        self.twin_state = [*(p for _, p in self.twin_named), *self.twin.buffers()]
        self.dataset = draws.Dataset(case)
        self.watching = False

    def __deepcopy__(self, _memo: object) -> "_Run":
        """A wrapper may deep-copy the replica, which calls back into this run: one run remains."""
        return self

    def all(self) -> None:
        case, record, replica = self.case, self.record, self.replica
        record.facts["structure_before"] = structure(replica)
        record.tensors("built", 0, replica.named_parameters())
        record.tensors("built buffers", 0, replica.named_buffers())
        replica.at_forward = self._at_forward
        wrapped = self.wrapper.wrap(replica, case, self.session.subgroup)
        record.facts["structure_after"] = structure(replica)
        record.tensors("wrapped", 0, replica.named_parameters())
        record.tensors("wrapped buffers", 0, replica.named_buffers())
        self._require_own_parameters(wrapped)
        self.named = list(replica.named_parameters())
        self.buffers = list(replica.named_buffers())
        self.finish = self.wrapper.finisher(wrapped)
        self.optimizer = optimizer_of(case, wrapped)
        if case.world_size == 1:
            self._plain_training()
        for self.step, dealt in enumerate(draws.batches(case)):
            self._one_step(wrapped, dealt[self.rank])
        self.phase = "last forward"
        # One forward more: torch DDP reports an unused parameter of the last backward only then.
        wrapped(self._batch(dealt[self.rank], self.step)[0])

    def _require_own_parameters(self, wrapped: Any) -> None:
        """Insist that what is watched is what is trained.

        Raises:
            TypeError: The wrapper trains a copy: nothing it does would be seen.
        """
        theirs = {id(p) for p in wrapped.parameters()}
        if not theirs & {id(p) for p in self.replica.parameters()}:
            raise TypeError("the wrapper's parameters() are not those of the module it was given, so nothing it does can be "
                            "seen: it trains a copy, or hides them; an adapter is needed")

    def _plain_training(self) -> None:
        """The same steps without any wrapper, for the world of one rank, in which a wrapper may change nothing."""
        plain = Replica(self.case.model, draws.parameters(self.case, self.rank, count_values(self.case.model)))
        _lay_out_like(self.replica, plain)
        optimizer = optimizer_of(self.case, plain)
        for step, dealt in enumerate(draws.batches(self.case)):
            inputs, targets, tags = self._batch(dealt[0], step)
            if self.case.zero_grad != "never":
                optimizer.zero_grad(set_to_none=self.case.zero_grad == "set_to_none")
            loss_of(plain(inputs), targets, tags).backward()
            optimizer.step()
            self.record.tensors("plain", step, plain.named_parameters())

    def _one_step(self, wrapped: Any, indices: Any) -> None:
        inputs, targets, tags = self._batch(indices, self.step)
        if self.case.zero_grad != "never":
            self.optimizer.zero_grad(set_to_none=self.case.zero_grad == "set_to_none")
        self.phase, self.watching = "forward", True
        rng = torch.get_rng_state()
        loss = loss_of(wrapped(inputs), targets, tags)
        self.phase = "backward"
        loss.backward()
        self.phase = "synchronisation"
        self.finish()
        if self.case.withheld:
            in_flight = self.record.facts.setdefault("in_flight", [])
            in_flight += [[self.step, *found] for found in self.session.in_flight()]
        self.record.tensors("reduced", self.step, ((name, p.grad) for name, p in self.named))
        self.phase = "twin"
        torch.set_rng_state(rng)
        twin_loss = loss_of(self.twin(inputs), targets, tags)
        self.twin.zero_grad(set_to_none=True)
        twin_loss.backward()
        self.record.tensors("local", self.step, ((name, p.grad) for name, p in self.twin_named))
        self.record.tensors("loss", self.step, (("loss", loss), ("twin", twin_loss)))
        self.phase = "optimizer step"
        self.optimizer.step()
        self.record.tensors("updated", self.step, self.named)
        self.record.tensors("state", self.step, self._optimizer_state())

    def _at_forward(self) -> None:
        """Note what the forward starts from, and have the twin start from the same."""
        if not self.watching:
            return
        self.watching = False
        self.record.tensors("forward", self.step, self.named)
        self.record.tensors("forward buffers", self.step, self.buffers)
        if self.step == 0:
            _lay_out_like(self.replica, self.twin)
        with torch.no_grad():
            for ours, theirs in zip(self.twin_state, [*self.named, *self.buffers], strict=True):
                ours.copy_(theirs[1])

    def _batch(self, indices: Any, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (B, D in) in the first dtype of the model, targets (B, D out) and tags (B,) in float64."""
        inputs_BD = self.dataset.inputs_ND[indices]
        poison = self.case.poison
        if poison is not None and (poison.rank, poison.step) == (self.rank, step):
            inputs_BD[0, 0] = float(poison.value)
        inputs = torch.from_numpy(inputs_BD)
        if self.case.model.layers[0].dtype != "float64":
            inputs = inputs.float()
        return inputs, torch.from_numpy(self.dataset.targets_ND[indices]), torch.from_numpy(self.dataset.tags_N[indices])

    def _optimizer_state(self) -> Iterator[tuple[str, Tensor | None]]:
        for name, parameter in self.named:
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor):
                    yield f"{name}/{key}", value


_CACHE_LINE = 64
"""Bytes; torch aligns its own tensors to it, and its kernels choose their way by alignment."""


def _lay_out_like(module: nn.Module, other: nn.Module) -> None:
    """Give a replica's parameters the strides and alignment another's have, values unchanged.

    Kernels add up in another order for other strides or alignment, so a wrapper that keeps parameters in one flat buffer
    is bitwise comparable only with a twin whose tensors lie alike.
    """
    for theirs, ours in zip(module.parameters(), other.parameters(), strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            continue
        offset = theirs.data_ptr() % _CACHE_LINE
        if (ours.stride(), ours.data_ptr() % _CACHE_LINE) == (theirs.stride(), offset) or not ours.numel():
            continue
        extent = 1 + sum((size - 1) * stride for size, stride in zip(theirs.shape, theirs.stride(), strict=True))
        start = offset // theirs.element_size()
        laid_out = torch.zeros(start + extent, dtype=theirs.dtype).as_strided(theirs.shape, theirs.stride(), start)
        ours.data = laid_out.copy_(ours.detach())


def optimizer_of(case: TrainingCase, wrapped: Any) -> torch.optim.Optimizer:
    """The case's optimizer over a module's parameters."""
    plan = case.optimizer
    if plan.kind == "sgd":
        return torch.optim.SGD(wrapped.parameters(), lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay)
    return torch.optim.AdamW(wrapped.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)


def warm_up() -> None:
    """Pay in the host, once, what torch and numpy import or build on first use."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    for optimizer in (torch.optim.SGD([parameter], lr=1.0, momentum=0.5), torch.optim.AdamW([parameter], lr=1.0)):
        optimizer.step()
        optimizer.zero_grad()
    np.argsort(draws.words(0, "warm up", 2), kind="stable")
