"""Two sides' answers to one case, compared: by rule, by what must match exactly, by numbers. Pure functions of evidence.

A side is what is on trial under one interpreter: an older torch and a newer one, say.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ddp_invariants.cases.fields import STRICT
from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.compare import parted
from ddp_invariants.invariants.rule import Unjudged
from ddp_invariants.invariants.view import EvidenceView, flat_by_name
from ddp_invariants.records.evidence import Moment, RankEvidence, ShardEvidence, TrainingEvidence
from ddp_invariants.records.trace import POINT_TO_POINT

Class = Literal["rule", "discrete", "rounding", "number"]
CLASSES: tuple[Class, ...] = get_args(Class)
"""What differs: which rule holds; what must match exactly; a number within the bound derived for both sides; one beyond it."""


@dataclass(frozen=True)
class Difference:
    """One way in which two sides answer a case differently.

    Attributes:
        kind: Which of the classes.
        what: What differs: a rule, `collectives`, `gradients that are None`, or the stage at which
            numbers part.
        where: Rank, step, tensor.
        old: The old side's, in words.
        new: The new side's.
    """

    kind: Class
    what: str
    where: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """What tells differences of one sort from others, as an accept-file names them."""
        return f"{self.kind}: {self.what}"

    @property
    def moves(self) -> bool:
        """Whether it may show in one case or in another: many warnings are given once a process."""
        return self.what.startswith(_WARNING)


STAGES: tuple[tuple[Moment, str], ...] = (
    ("built", "construction"),
    ("built buffers", "construction"),
    ("wrapped", "initialisation"),
    ("wrapped buffers", "initialisation"),
    ("forward", "forward"),
    ("forward buffers", "forward"),
    ("drawn", "random numbers"),
    ("loss", "forward"),
    ("local", "local gradient"),
    ("reduced", "reduced gradient"),
    ("updated", "optimizer"),
    ("left buffers", "forward"),
    ("state", "optimizer"),
    ("restored", "saving and loading"),
    ("restored buffers", "saving and loading"),
    ("restored state", "saving and loading"),
)
"""Moments in the order of a step, and the stage that made what was noted then."""
_OF_MICRO_STEPS = ("drawn", "loss", "local")


_UNSTEADY = re.compile(
    r" at 0x[0-9a-f]+| \(Triggered internally at .*|\[[^\]\s]*\]:\d+|[\w./-]+\.(?:cc|cpp|h|cu|py):\d+"
)


def steady(text: str) -> str:
    """A text without what differs from process to process and build to build: addresses, ports, lines of source."""
    return _UNSTEADY.sub("…", text)


@dataclass(frozen=True)
class Offer:
    """What is known of a side before any case is run.

    Attributes:
        ddp, sampler: How what is on trial is called (`driving.Description`), its defaults among it.
        capabilities: What was found of each, by name: right, refused, …; and the same in words.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    ddp: dict[str, Any]
    sampler: dict[str, Any]
    capabilities: dict[str, tuple[str, str]]


def before_any_case(old: Offer, new: Offer) -> list[Difference]:
    """What differs in how both sides are called, and in what they take."""
    found = [*described(old.ddp, new.ddp), *described(old.sampler, new.sampler)]
    for name in dict.fromkeys([*old.capabilities, *new.capabilities]):
        told = [one.capabilities.get(name, ("not known", "")) for one in (old, new)]
        if told[0][0] != told[1][0]:
            found.append(
                Difference(
                    "discrete",
                    f"capability {name}",
                    "probed by a small case",
                    *(" ".join(one).strip() for one in told),
                )
            )
    return found


def described(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """What differs in how what is on trial is called."""
    ours, theirs = (
        {name: steady(str(text)) for name, text in side["defaults"].items()} for side in (old, new)
    )
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            told = [side.get(name) for side in (ours, theirs)]
            yield Difference(
                "discrete",
                f"argument {name}",
                f"{old['target']}({name})",
                *(
                    "not taken" if one is None else f"default {one}" if one else "required"
                    for one in told
                ),
            )


def compared(
    old: TrainingEvidence | ShardEvidence,
    new: TrainingEvidence | ShardEvidence,
    declared: Declarations,
    sampler: SamplerDeclarations,
) -> list[Difference]:
    """Everything in which two sides' answers to the same case differ, rules first, then as a run goes."""
    found = [*_by_rule(old, new, declared, sampler), *_warned(old, new)]
    if isinstance(old, ShardEvidence) or isinstance(new, ShardEvidence):
        assert isinstance(old, ShardEvidence)
        assert isinstance(new, ShardEvidence)
        return [*found, *_dealt(old, new)]
    broken = any(one.kind == "rule" and not one.what.startswith(_OF_NO_NUMBERS) for one in found)
    return [*found, *_exactly(old, new), *_numbers(old, new, declared, broken=broken)]


def _by_rule(
    old: TrainingEvidence | ShardEvidence,
    new: TrainingEvidence | ShardEvidence,
    declared: Declarations,
    sampler: SamplerDeclarations,
) -> Iterator[Difference]:
    before, after = judge(old, declared, sampler), judge(new, declared, sampler)
    for rule in before:
        failures = before[rule].failure, after[rule].failure
        if (failures[0] is None) != (failures[1] is None):
            failure = failures[0] or failures[1]
            assert failure is not None
            words = [
                "holds" if one is None else f"violated: {one.fact}; {one.got}" for one in failures
            ]
            yield Difference("rule", rule, failure.where, *words)


_WARNING = "warning "
"""What begins a difference in warnings: each is a sort of its own, so that one that is accepted hides no other."""


def warnings_of(side: TrainingEvidence | ShardEvidence) -> dict[str, tuple[str, list[int]]]:
    """What was warned of: by its first sentence without numbers, the whole text, and which ranks or processes gave it."""
    texts = (
        [rank.warned for rank in side.ranks]
        if isinstance(side, TrainingEvidence)
        else [answer.get("warned", []) for answer in side.answers]
    )
    found: dict[str, tuple[str, list[int]]] = {}
    for number, given in enumerate(texts):
        for text in map(steady, given):
            title = re.sub(r"\d+", "#", re.split(r"(?<=[.!?]) ", text)[0])[:120]
            found.setdefault(_WARNING + title, (text, []))[1].append(number)
    return found


def _warned(
    old: TrainingEvidence | ShardEvidence, new: TrainingEvidence | ShardEvidence
) -> Iterator[Difference]:
    before, after = warnings_of(old), warnings_of(new)
    whose = (
        f"ranks, of {old.case.world_size},"
        if isinstance(old, TrainingEvidence)
        else "processes, of two,"
    )
    for what in dict.fromkeys([*before, *after]):
        found = [side.get(what, ("", [])) for side in (before, after)]
        if found[0][1] != found[1][1]:
            yield Difference(
                "discrete",
                what,
                f"{whose} that give it",
                *(
                    f"{', '.join(map(str, given))}: {text}" if given else "none"
                    for text, given in found
                ),
            )


def _exactly(old: TrainingEvidence, new: TrainingEvidence) -> Iterator[Difference]:
    """What must match exactly, whatever the machine."""
    ends = [_end(side) for side in (old, new)]
    if ends[0] != ends[1]:
        yield Difference("discrete", "how the run ends", f"world size {old.case.world_size}", *ends)
    for rank, (ours, theirs) in enumerate(zip(old.ranks, new.ranks, strict=True)):
        where = f"rank {rank} of {len(old.ranks)}"
        for what, read in _READ.items():
            first, second = read(ours), read(theirs)
            if first != second:
                number = next(
                    (
                        at
                        for at, (one, other) in enumerate(zip(first, second, strict=False))
                        if one != other
                    ),
                    min(len(first), len(second)),
                )
                told = [
                    side[number] if number < len(side) else f"none: {len(side)} in all"
                    for side in (first, second)
                ]
                yield Difference("discrete", what, f"{where}, number {number}", *told)
                break  # What comes later follows from it.


def _end(side: TrainingEvidence) -> str:
    if side.incident is not None:
        return f"it {side.incident.kind}"
    raised = [rank.raised for rank in side.ranks if rank.raised is not None]
    if not raised:
        return "by itself"
    first = raised[0]
    return (
        f"{first['type']} in {first['phase']} of step {first['step']} on {len(raised)} of {len(side.ranks)} ranks: "
        f"{steady(str(first['message']).partition(chr(10))[0])[:200]}"
    )


def _called(rank: RankEvidence) -> list[str]:
    return [
        f"{call.kind} {call.dtype} x {call.elements} {call.operation}".rstrip()
        for group in rank.sent
        for call in group
        if call.kind not in POINT_TO_POINT
    ]


def _none(rank: RankEvidence) -> list[str]:
    return [
        f"step {step}: {', '.join(slot.name for slot in tensors.layout.slots if slot.dtype is None) or 'none'}"
        for (moment, step), tensors in rank.tensors.items()
        if moment == "reduced"
    ]


def _typed(rank: RankEvidence) -> list[str]:
    return [
        f"step {step}: {slot.name} {slot.dtype} {slot.shape}"
        for (moment, step), tensors in rank.tensors.items()
        if moment == "reduced"
        for slot in tensors.layout.slots
        if slot.dtype is not None
    ]


def _structured(rank: RankEvidence) -> list[str]:
    return [
        f"{kind} {name} {dtype} {tuple(shape)}{' trained' if trained else ''}{f' is {first}' if first != name else ''}"
        for name, dtype, shape, trained, first, kind in rank.structure_after
    ]


_READ: dict[str, Callable[[RankEvidence], list[str]]] = {
    "the wrapped module": _structured,
    "how it is driven": lambda rank: [f"{key}: {rank.driven[key]}" for key in sorted(rank.driven)],
    "collectives": _called,
    "gradients that are None": _none,
    "gradients' types": _typed,
    "the loss scale": lambda rank: [
        f"after step {step}: {scale:g}" for step, scale in enumerate(rank.scales)
    ],
    "names in a saved state": lambda rank: [name for names in rank.saved for name in names],
}
"""What must match exactly, as lists of lines, a rank's of each."""


def _numbers(
    old: TrainingEvidence, new: TrainingEvidence, declared: Declarations, *, broken: bool
) -> Iterator[Difference]:
    """The first tensors whose bits differ, in the order of a run.

    Where no bound is known (what is not finite, what ranks disagree on before), it is the rules
    that say whether numbers may
    differ: `broken`, if one holds on one side alone. A rounding is told once a stage, and what
    comes after it is looked at, too.
    """
    rounded: set[str] = set()
    for step in range(old.case.steps):
        for moment, stage in STAGES:
            numbers = (
                range(step * old.case.accumulation, (step + 1) * old.case.accumulation)
                if moment in _OF_MICRO_STEPS
                else (step,)
            )
            for number in numbers:
                first, second = old.moment(moment, number), new.moment(moment, number)
                if first is None or second is None:
                    continue  # That one did not get there is told by how the runs end.
                for rank, (ours, theirs) in enumerate(zip(first, second, strict=True)):
                    difference = parted(ours, theirs, "the old side has")
                    if difference is None:
                        continue
                    if [slot.dtype for slot in ours.layout.slots] != [
                        slot.dtype for slot in theirs.layout.slots
                    ]:
                        continue  # What is there at all is told above.
                    within = _both_within(old, new, declared, moment, step)
                    within = not broken if within is None else within
                    if within and stage in rounded:
                        continue
                    rounded.add(stage)
                    words = difference.words.partition(", the old side has ")
                    yield Difference(
                        "rounding" if within else "number",
                        stage,
                        f"rank {rank} of {len(old.ranks)}, step {step}, {difference.place}",
                        words[2].partition(";")[0] or "other bits",
                        words[0],
                    )
                    if not within:
                        return


_OF_NO_NUMBERS = ("COMM", "LIVE", "MEM", "RNG", "GPU")
"""Rules that say nothing of values: where one holds on one side alone, roundings are roundings still."""
_LEFT: dict[Moment, Moment] = {
    "forward": "updated",
    "forward buffers": "left buffers",
    "restored": "updated",
    "restored buffers": "left buffers",
    "restored state": "state",
}
"""What the step before left, by where it is seen again."""


def _both_within(
    old: TrainingEvidence, new: TrainingEvidence, declared: Declarations, moment: Moment, step: int
) -> bool | None:
    """Whether both sides' values lie within what the oracle allows for that step, which makes it a matter of rounding.

    None where that is not known. A loss or local gradient is taken for one where the gradients that
    come of it are. What a step starts from, or is loaded before it, is what the step before left;
    before the first nothing is computed, so nothing can be rounded.
    """
    if step > 0 and moment in _LEFT:
        moment, step = _LEFT[moment], step - 1
    if moment == "left buffers":
        return (
            None  # Computed from what a forward makes of its inputs, for which no bound is derived.
        )
    if moment not in ("loss", "local", "reduced", "updated", "state"):
        return False
    for side in (old, new):
        view = EvidenceView(side, declared)
        try:
            with np.errstate(all="ignore"):
                truth, layout = view.truth(step), view.layout(step)
                ball = truth.updated if moment in ("updated", "state") else truth.gradient
                held = view.every_rank(
                    "updated" if moment in ("updated", "state") else "reduced", step
                )
                values = [flat_by_name(tensors, layout) for tensors in held]
        except (Unjudged, KeyError, ValueError):
            return None
        if not all(np.isfinite(one).all() for one in values):
            return None  # Of a run that overflows; whether it may is for the rules.
        if any(
            one.shape != ball.centre.shape or not (np.abs(one - ball.centre) <= ball.radius).all()
            for one in values
        ):
            return False
    return True


def _dealt(old: ShardEvidence, new: ShardEvidence) -> Iterator[Difference]:
    """A sampler's answers, all of which must match exactly."""
    ends = [
        f"it {side.incident.kind}" if side.incident is not None else "by itself"
        for side in (old, new)
    ]
    if ends[0] != ends[1]:
        yield Difference("discrete", "how the sampler ends", "", *ends)
        return
    if old.incident is not None:
        return
    for ours, theirs in zip(old.answers, new.answers, strict=False):
        for what, key in (
            ("an exception", "raised"),
            ("arguments refused", "refused"),
            ("indices", "shards"),
            ("lengths", "lengths"),
            ("batches of a DataLoader", "batches"),
            ("what workers yield", "worked"),
            ("what follows a saved state", "resumed"),
        ):
            first, second = ours.get(key), theirs.get(key)
            if _short(first) != _short(second) or (key != "raised" and first != second):
                yield Difference(
                    "discrete",
                    what,
                    f"W={old.case.world_size}, N={old.case.data.samples}",
                    _short(first),
                    _short(second),
                )
                return


def _short(answer: Any) -> str:
    if isinstance(answer, dict) and "type" in answer:
        return f"{answer['type']} in {answer['phase']}: {steady(str(answer['message']).partition(chr(10))[0])[:200]}"
    return str(answer)[:400]
