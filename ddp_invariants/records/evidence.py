"""The ranks' evidence: plain frozen data, with bits rather than approximations, and no verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.records.tensors import Layout, Slot, Tensors
from ddp_invariants.records.trace import Call, LastCalls

__all__ = [
    "DESTROYED",
    "FOREIGN",
    "OWN",
    "Backward",
    "Defect",
    "Incident",
    "Layout",
    "ModuleEvents",
    "ModuleTensor",
    "Moment",
    "ProgramDraw",
    "RaisedError",
    "RankEvidence",
    "ShapedCall",
    "ShardEvidence",
    "Slot",
    "Tensors",
    "TrainingEvidence",
]

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
    "written",
    "front",
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
same in a forward in evaluation before the step. written buffers, written: buffers, or parameters,
after the program wrote to them before the step. front: the gradient of a trained parameter before
the wrapper, and that of one before the twin.
"""


class ModuleTensor(NamedTuple):
    """A parameter or buffer of the module.

    Attributes:
        name: Its full name.
        dtype: Its dtype.
        shape: Its shape.
        requires_grad: True if it requires a gradient.
        first_name: The first name of the same tensor; another one if it is tied.
        kind: `parameter` or `buffer`.
    """

    name: str
    dtype: str
    shape: list[int]
    requires_grad: bool
    first_name: str
    kind: str


DESTROYED = "DestroyedGroup"
"""A kind of each exception that follows after an implementation destroyed a group lent to it."""


class RaisedError(NamedTuple):
    """An exception that ended a rank's run.

    Attributes:
        phase: The part of the run.
        step: The step.
        type: The name of the exception's class.
        message: Its text.
        traceback: Its traceback as text.
        kinds: The names of its class and of its bases; empty in older files.
        instruction: The interpreter's instruction in the innermost frame, such as `RAISE_VARARGS`.
        innermost: The owner of that frame: `implementation`, `harness` or `library`.
        caller: The owner of the innermost frame outside all libraries.
        limited: True if the rank asked for more memory than the suite lets it take.
    """

    phase: str
    step: int
    type: str
    message: str
    traceback: str
    kinds: Sequence[str] = ()
    instruction: str = ""
    innermost: str = ""
    caller: str = ""
    limited: bool = False

    @property
    def is_of_the_suite(self) -> bool:
        """True if the suite ended the run: a limit was reached, or evidence could not be noted."""
        return self.phase == "evidence" or self.limited


class Defect(NamedTuple):
    """A withheld collective with a defect when a step's gradients should have been ready.

    Attributes:
        step: The step.
        call: The collective.
        defect: The defect in words.
    """

    step: int
    call: Call
    defect: str


class ModuleEvents(NamedTuple):
    """The events of a use of the module, beside those of the same use of its twin.

    Attributes:
        use: The use, as `situations.module_use` names it.
        step: The step.
        got: The events of the module under test, in words.
        expected: The events of the twin.
    """

    use: str
    step: int
    got: list[str]
    expected: list[str]


class ShapedCall(NamedTuple):
    """A forward in a form of its own, in words.

    Attributes:
        number: The number of the micro-step.
        sent: The arguments with which the program called the wrapper.
        received: The arguments that the module's forward got; empty if it was not called.
        returned: The result of the module's forward.
        got: The result that the program got.
    """

    number: int
    sent: str
    received: str
    returned: str
    got: str


class ProgramDraw(NamedTuple):
    """Random numbers that the program itself drew at once.

    Attributes:
        step: The step before which it drew them; the number of steps for those after the last one.
        numbers: The numbers, each of `PROGRAM_BITS` random bits.
    """

    step: int
    numbers: list[int]


PROGRAM_BITS = 63
"""The random bits of one number of a `ProgramDraw`."""


class Backward(NamedTuple):
    """The times of one synchronised backward, in seconds since the case began.

    Attributes:
        began: Its start.
        ended: Its end, with synchronisation.
        computed: When each parameter's gradient was computed: (name, time).
    """

    began: float
    ended: float
    computed: list[tuple[str, float]]


@dataclass(frozen=True)
class RankEvidence:
    """One rank's evidence.

    Attributes:
        tensors: By moment and step.
        structure_before: The module's parameters and buffers before wrapping.
        structure_after: The same afterwards; empty when wrapping did not return.
        raised: The exception that ended the run; None if there was none.
        sent: Per group, the collectives this rank issued.
        groups: Each group's ranks in the default group.
        changed: Names of process-wide settings the case left changed.
        in_flight: Withheld collectives that had a defect when a step's gradients should have been
            ready.
        marks: Per step, the number of collectives each group had sent at its start and at its end.
        quiet: Per step and backward under no_sync, the number each group had sent before and after
            it.
        backwards: Per step, the times of the synchronised backward.
        surfaced: The type of the exception that a user got for an injected one (`cases.program.InjectedFailure`);
            empty if there was none, and None if the case did not get there.
        left: Per round, the threads, open descriptors and child processes after it; then those
            that remain after a wait.
        held: Per step, bytes of the module's trained parameters, the optimizer's own copies, its
            state, and gradients; only for implementations that declare a stage of sharding.
        driven: The calls with which the implementation is driven, by moment.
        saved: The names in each saved state of the trained module.
        scales: Per step, the loss scaler's scale after it.
        closures: Per step that was given a closure: how often it was called, and whether the step
            returned the closure's loss.
        warned: Warnings, each with its category and first line, once.
        replayed: Micro-steps whose forward drew random numbers, each with True if the module drew
            those that the default generator gave next when the program called the wrapper.
        program_draws: The random numbers that the program drew.
        shared_draws: Those that it drew from generators with one seed on all ranks: of Python, and
            of numpy.
        shaped: The forwards in forms of their own.
        uses: The uses of the module besides training.
        slowed: The number of times its device was kept busy before a collective or a gradient.
        beside: The evidence of the other model that the program trains, if there is one.
        cost: Seconds from request to answer; resident bytes when the process began to serve, and
            the most since then. Empty if nothing was measured.
        flights: In a simulation, for each collective that the rank started without waiting at
            once: the numbers of the rank's calls that started it and that took its result. None
            over a real backend, and for a rank whose course depends on the turns of others.
    """

    tensors: Mapping[tuple[str, int], Tensors]
    structure_before: list[ModuleTensor] = field(default_factory=list)
    structure_after: list[ModuleTensor] = field(default_factory=list)
    raised: RaisedError | None = None
    sent: list[list[Call]] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    in_flight: list[Defect] = field(default_factory=list)
    marks: list[list[list[int]]] = field(default_factory=list)
    quiet: list[list[list[list[int]]]] = field(default_factory=list)
    backwards: list[Backward] = field(default_factory=list)
    surfaced: str | None = None
    left: list[list[int]] = field(default_factory=list)
    held: list[list[int]] = field(default_factory=list)
    driven: Mapping[str, str] = field(default_factory=dict)
    saved: list[list[str]] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    closures: list[tuple[int, bool]] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    replayed: list[tuple[int, bool]] = field(default_factory=list)
    program_draws: list[ProgramDraw] = field(default_factory=list)
    shared_draws: list[ProgramDraw] = field(default_factory=list)
    shaped: list[ShapedCall] = field(default_factory=list)
    uses: list[ModuleEvents] = field(default_factory=list)
    slowed: int = 0
    cost: list[float] = field(default_factory=list)
    flights: list[tuple[int, int]] | None = None
    beside: "RankEvidence | None" = None

    @property
    def answered(self) -> bool:
        """True if the rank recorded anything; False for a rank that never answered."""
        return bool(self.tensors) or self.raised is not None

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
        kind: `hung`, if ranks wait for ever or take too long, or `died` without an answer.
        ranks: The ranks concerned, with how they ended or where they were.
        stacks: The end of each rank's output, Python stacks included, by rank.
        seconds: The time that the harness waited.
        calls: The collectives that each silent rank is known to have issued; empty if groups were
            plain.
        statuses: Exit status of each rank whose process ended, negative for a signal; None for a
            rank that did not end but sent nonsense. A rank that is not among them hung.
        seen: How the ranks are known to hang, in words; empty if nobody could look at them.
        costly: True if the incident cost seconds although no real rank hung: the host was started
            anew, or a simulation met its deadline.
        overload: The overload of the machine in words, if that may be why ranks were silent.
    """

    kind: Literal["hung", "died"]
    ranks: dict[int, str]
    stacks: dict[int, str]
    seconds: float
    calls: dict[int, LastCalls] = field(default_factory=dict)
    statuses: dict[int, int | None] = field(default_factory=dict)
    seen: str = ""
    costly: bool = False
    overload: str = ""


@dataclass(frozen=True)
class TrainingEvidence:
    """The evidence of all ranks of a training case.

    Attributes:
        case: The case they ran.
        ranks: Of the ranks that train, in order; an empty RankEvidence for one that never answered.
        incident: None if every rank answered.
        unperturbed: The evidence of the same case without some of its situations, such as its
            perturbation, if a rule compares the two.
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
        answers: Each process's answer (`ranks.shards.shards`): lengths, shards[epoch
            number][rank], again[rank], afresh[rank], reseeded[rank], equal_seeds,
            equal_epochs, epoch_intervals, lone_epochs, touched, batches, orders (of each epoch in a world of one
            rank) and resumed[rank], or raised; always refused: impossible arguments to exception
            type, None if none was raised.
        incident: None if both processes answered.
    """

    case: ShardCase
    answers: tuple[dict[str, Any], ...]
    incident: Incident | None = None
