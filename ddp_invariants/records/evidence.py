"""The ranks' evidence: plain frozen data, with bits rather than approximations, and no verdicts.

Suffixes: W world size (stacked ranks), P elements of all tensors of a record laid end to end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.formats import (
    ITEM_SIZE,
    LARGEST,
    PARTS,
    ROUNDOFF,
    SMALLEST_NORMAL,
    FloatArray,
)
from ddp_invariants.errors import EvidenceError
from ddp_invariants.records.trace import Call, LastCalls

for _table in (ROUNDOFF, SMALLEST_NORMAL, LARGEST):
    _table |= {whole: _table[part] for whole, part in PARTS.items()}


@dataclass(frozen=True)
class Slot:
    """One tensor of a record: its name, dtype and shape; dtype None if there was no tensor."""

    name: str
    dtype: str | None
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements; 0 if there was no tensor."""
        return 0 if self.dtype is None else prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; 0 if there was none."""
        return 0 if self.dtype is None else self.elements * ITEM_SIZE[self.dtype]

    @property
    def complex(self) -> bool:
        """True if its elements are complex."""
        return self.dtype in PARTS

    @property
    def numbers(self) -> int:
        """Count of real numbers: one for each element, or two if they are complex."""
        return self.elements * (1 + self.complex)

    @property
    def shape_of_numbers(self) -> tuple[int, ...]:
        """The tensor's shape, with a last dimension for complex parts as in torch.view_as_real."""
        return (*self.shape, 2) if self.complex else self.shape

    def place(self, number: int) -> str:
        """Return the position of a number: its element's index, and its part if complex."""
        element, part = divmod(number, 1 + self.complex)
        index = tuple(int(i) for i in np.unravel_index(element, self.shape))
        return f"{index}{('.real', '.imag')[part] if self.complex else ''}"


@dataclass(frozen=True, eq=False)
class Layout:
    """The tensors of a record, end to end.

    All equal layouts of a case are one object, so that `is` compares them.
    """

    slots: tuple[Slot, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each slot among the record's P elements; a complex number counts as two."""
        return tuple(slot.numbers for slot in self.slots)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Index of each slot's first element in the record's P elements; the total at the end."""
        return tuple(np.concatenate([[0], np.cumsum(self.sizes)]).astype(int).tolist())

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the record."""
        return sum(slot.nbytes for slot in self.slots)

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """The dtypes of the tensors that exist."""
        return frozenset(slot.dtype for slot in self.slots if slot.dtype is not None)

    def per_element(self, table: Mapping[str, float]) -> FloatArray:
        """Return a per-dtype constant for each element. Shape (P,)."""
        return np.repeat([table.get(slot.dtype or "", np.nan) for slot in self.slots], self.sizes)

    @cached_property
    def roundoff_P(self) -> FloatArray:
        """Unit roundoff of each element's dtype. Shape (P,)."""
        return self.per_element(ROUNDOFF)

    @cached_property
    def smallest_P(self) -> FloatArray:
        """Smallest normal number of each element's dtype. Shape (P,)."""
        return self.per_element(SMALLEST_NORMAL)

    @cached_property
    def complex_P(self) -> NDArray[np.bool_]:
        """True for elements that are parts of complex numbers. Shape (P,)."""
        return np.repeat([slot.complex for slot in self.slots], self.sizes)

    def locate(self, element: int) -> tuple[Slot, str]:
        """Return the slot of one of the P elements, and the element's position in its tensor."""
        slot_number = int(np.searchsorted(self.starts, element, side="right")) - 1
        slot = self.slots[slot_number]
        return slot, slot.place(element - self.starts[slot_number])


@dataclass(frozen=True)
class Tensors:
    """The bits of some named tensors at one moment.

    Equality is bitwise. Equal layouts are one object.
    """

    layout: Layout
    bits: bytes

    @cached_property
    def values_P(self) -> FloatArray:
        """All elements as float64, complex ones as their parts. Shape (P,).

        float64 is exact for every dtype up to 53 bits.
        """
        if len(self.layout.dtypes) == 1:
            return _as_float64(self.bits, next(iter(self.layout.dtypes)))
        pieces, start = [np.empty(0)], 0
        for slot in self.layout.slots:
            if slot.dtype is not None:
                end = start + slot.nbytes
                pieces.append(_as_float64(self.bits[start:end], slot.dtype))
                start = end
        return np.concatenate(pieces)

    @cached_property
    def by_name(self) -> dict[str, FloatArray]:
        """Each existing tensor in its shape, with a last dimension for complex parts."""
        starts = self.layout.starts
        return {
            slot.name: self.values_P[starts[i] : starts[i + 1]].reshape(slot.shape_of_numbers)
            for i, slot in enumerate(self.layout.slots)
            if slot.dtype is not None
        }


def _as_float64(bits: bytes, dtype: str) -> FloatArray:
    if dtype == "bfloat16":
        return (
            (np.frombuffer(bits, np.uint16).astype(np.uint32) << np.uint32(16))
            .view(np.float32)
            .astype(np.float64)
        )
    # Signalling NaNs warn when cast. They are wanted here.
    with np.errstate(invalid="ignore"):
        return np.frombuffer(bits, np.dtype(PARTS.get(dtype, dtype))).astype(np.float64)


Moment = Literal[
    "built",
    "built buffers",
    "wrapped",
    "wrapped buffers",
    "forward",
    "forward buffers",
    "reduced",
    "local",
    "entries",
    "loss",
    "updated",
    "left buffers",
    "twin buffers",
    "state",
    "plain",
    "restored",
    "restored buffers",
    "restored state",
    "joined",
    "saved",
    "saved buffers",
    "saved state",
    "drawn",
    "evaluated",
    "written buffers",
]
"""The moments at which tensors are recorded.

built, wrapped: parameters before and after wrapping. forward: parameters when a step's forward
starts. reduced: gradients after synchronisation. local: the twin's gradients of one micro-step,
numbered t * accumulation + k. (The twin is the unwrapped module on the same batch.) entries: the
summands of each sparse local gradient, stacked. loss: the losses of the wrapper and of the twin,
numbered likewise. updated, left buffers, state: parameters, buffers and optimizer state after the
step. twin buffers: the twin's buffers then. plain: parameters after the step of training without a
wrapper (only at W = 1). restored, restored buffers, restored state: parameters, buffers and
optimizer state after they were loaded into new objects, before the step. joined: parameters once
all ranks have run out of batches. saved, saved buffers, saved state: the tensors of ranks that
trained before and saved the state that is loaded then. drawn: the factor by which each random layer
multiplied its input in the forward of one micro-step: 0 or 2, or 1 if it drew none. evaluated: the
same in a forward in evaluation before the step. written buffers: buffers after the program wrote to
them before the step.
"""


@dataclass(frozen=True)
class RankEvidence:
    """One rank's evidence.

    Attributes:
        tensors: By moment and step.
        structure_before: Rows [name, dtype, shape, requires_grad, first name of the tensor,
            parameter or buffer] before wrapping.
        structure_after: The same afterwards; empty when wrapping did not return.
        raised: An exception that ended the run: phase, step, type, message, traceback; None if
            there was none.
        sent: Per group, the collectives this rank issued.
        groups: Each group's ranks in the default group.
        changed: Names of process-wide settings the case left changed.
        in_flight: Withheld collectives that had a defect when a step's gradients should have been
            ready: [step, call, defect].
        marks: Per step, the number of collectives each group had sent at its start and at its end.
        quiet: Per step and backward under no_sync, the number each group had sent before and after
            it.
        backwards: Per step, three times of the synchronised backward, in seconds since the case
            began: its start, its end with synchronisation, and the computation of each parameter's
            gradient, as (name, time).
        surfaced: The type of the exception that a user got for an injected one (`case.InjectedFailure`);
            empty if there was none, and None if the case did not get there.
        left: Per round, the threads, open descriptors and child processes after it.
        held: Per step, bytes of the module's trained parameters, the optimizer's own copies, its
            state, and gradients; only for implementations that declare a stage of sharding.
        driven: The calls with which the implementation is driven, by moment.
        saved: The names in each saved state of the trained module.
        scales: Per step, the loss scaler's scale after it.
        warned: Warnings, each with its category and first line, once.
        slowed: The number of times its device was kept busy before a collective or a gradient.
        cost: Seconds from request to answer; resident bytes when the process began to serve, and
            the most since then. Empty if nothing was measured.
    """

    tensors: Mapping[tuple[str, int], Tensors]
    structure_before: list[list[Any]] = field(default_factory=list)
    structure_after: list[list[Any]] = field(default_factory=list)
    raised: dict[str, Any] | None = None
    sent: list[list[Call]] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    in_flight: list[list[Any]] = field(default_factory=list)
    marks: list[list[list[int]]] = field(default_factory=list)
    quiet: list[list[list[list[int]]]] = field(default_factory=list)
    backwards: list[tuple[float, float, list[tuple[str, float]]]] = field(default_factory=list)
    surfaced: str | None = None
    left: list[list[int]] = field(default_factory=list)
    held: list[list[int]] = field(default_factory=list)
    driven: Mapping[str, str] = field(default_factory=dict)
    saved: list[list[str]] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    slowed: int = 0
    cost: list[float] = field(default_factory=list)

    @cached_property
    def calls(self) -> list[Call]:
        """The collectives over all groups, in the order they were issued."""
        return sorted(
            (call for group in self.sent for call in group), key=lambda call: call.launched
        )

    def sent_between(self, starts: list[int], ends: list[int]) -> list[Call]:
        """Return the collectives sent between two marks, over all groups.

        A group made after the marks has none.
        """
        return [
            call
            for group, start, end in zip(self.sent, starts, ends, strict=False)
            for call in group[start:end]
        ]

    def at(self, moment: Moment, step: int = 0) -> Tensors | None:
        """Return the tensors of a moment; None if the run did not get there."""
        return self.tensors.get((moment, step))


@dataclass(frozen=True)
class Incident:
    """A run that did not end by itself on every rank.

    Attributes:
        kind: `hung` past the deadline, or `died` without an answer.
        ranks: The ranks concerned, with how they ended or where they were.
        stacks: The end of each rank's output, Python stacks included, by rank.
        seconds: The time that the harness waited.
        calls: The collectives that each silent rank is known to have issued; empty if groups were
            plain.
        statuses: Exit status of each rank whose process ended, negative for a signal; None for a
            rank that did not end but sent nonsense. A rank that is not among them hung.
    """

    kind: Literal["hung", "died"]
    ranks: dict[int, str]
    stacks: dict[int, str]
    seconds: float
    calls: dict[int, LastCalls] = field(default_factory=dict)
    statuses: dict[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingEvidence:
    """The evidence of all ranks of a training case.

    Attributes:
        case: The case they ran.
        ranks: Of the ranks that train, in order; an empty RankEvidence for one that never answered.
        incident: None if every rank answered.
        unperturbed: The evidence of the same case without its perturbation and its injected
            failure, if a rule compares the two.
    """

    case: TrainingCase
    ranks: tuple[RankEvidence, ...]
    incident: Incident | None = None
    unperturbed: "TrainingEvidence | None" = None

    def moment(self, moment: Moment, step: int = 0) -> tuple[Tensors, ...] | None:
        """Return the tensors of a moment on every rank; None unless all ranks got there."""
        tensors = [rank.at(moment, step) for rank in self.ranks]
        return tuple(t for t in tensors if t is not None) if None not in tensors else None


OWN, FOREIGN = -1, -2
"""Replacements of an index when data are scattered: the rank's own data, and nobody's data."""


@dataclass(frozen=True)
class ShardEvidence:
    """A sampler's answers, in two processes with different hash seeds and global random states.

    Attributes:
        case: The question.
        answers: Each process's answer (`ranks.sharding.shards`): lengths, shards[epoch
            number][rank], again[rank], afresh[rank], reseeded[rank], touched, batches, orders (of
            each epoch in a world of one rank) and resumed[rank], or raised; always refused:
            impossible arguments to exception type, None if none was raised.
        incident: None if both processes answered.
    """

    case: ShardCase
    answers: tuple[dict[str, Any], ...]
    incident: Incident | None = None


def together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the answers of a sampler's ranks, as if one process had asked for all shards.

    Args:
        parts: By rank, of `ranks.sharding.shards`.
    """
    shared = {"refused": {}, "warned": parts[0]["warned"]}
    raised = next((part["raised"] for part in parts if part.get("raised")), None)
    if raised is not None:
        return {**shared, "raised": raised}
    by_rank = {
        name: None if parts[0][name] is None else [part[name][0] for part in parts]
        for name in (
            "lengths",
            "again",
            "afresh",
            "reseeded",
            "batches",
            "promised",
            "worked",
            "resumed",
        )
    }
    return {
        **shared,
        **by_rank,
        "orders": None,
        "elsewhere": None,
        "shards": [
            [part["shards"][epoch][0] for part in parts] for epoch in range(len(parts[0]["shards"]))
        ],
        "touched": sorted({name for part in parts for name in part["touched"]}),
    }


def rank_evidence(
    header: dict[str, Any], blob: bytes, known: dict[tuple[Slot, ...], Layout]
) -> RankEvidence:
    """Decode a rank's frame.

    Args:
        header: Its plain part.
        blob: Its bits.
        known: Layouts of this case so far; new ones are added.

    Raises:
        EvidenceError: It is malformed.
    """
    try:
        layouts = []
        for rows in header["layouts"]:
            slots = tuple([Slot(name, dtype, tuple(shape or ())) for name, dtype, shape in rows])
            layouts.append(known.setdefault(slots, Layout(slots)))
        tensors = {}
        for moment, step, layout_number, start, size in header["records"]:
            layout = layouts[layout_number]
            if layout.nbytes != size or start + size > len(blob):
                raise EvidenceError(
                    f"the record of {moment!r} at step {step} has {size} bytes, its layout "
                    f"{layout.nbytes}"
                )
            tensors[moment, step] = Tensors(layout, blob[start : start + size])
        facts = header["facts"]
        return RankEvidence(
            tensors,
            facts.get("structure_before", []),
            facts.get("structure_after", []),
            facts.get("raised"),
            [[Call(*row) for row in group] for group in header["sent"]],
            header["groups"],
            header["changed"],
            [[step, Call(*row), defect] for step, row, defect in facts.get("in_flight", [])],
            facts.get("marks", []),
            facts.get("quiet", []),
            [
                (began, ended, [(name, at) for name, at in arrived])
                for began, ended, arrived in facts.get("backwards", [])
            ],
            facts.get("surfaced"),
            header["left"],
            facts.get("held", []),
            facts.get("driven", {}),
            facts.get("saved", []),
            facts.get("scales", []),
            facts.get("warned", []),
            int(facts.get("slowed", 0)),
            header.get("cost", []),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EvidenceError(
            f"a rank's frame is no evidence: {type(error).__name__}: {error}"
        ) from error
