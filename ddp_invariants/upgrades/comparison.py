"""Two sides' answers to one case, compared by rule, by exact values, and by numbers within bounds.

A side is the implementation under test, run under one interpreter: an older torch or a newer one,
for example. All functions are pure functions of evidence.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from ddp_invariants.cases.case import Case
from ddp_invariants.cases.features import features
from ddp_invariants.cases.fields import Strict
from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations
from ddp_invariants.invariants import judge
from ddp_invariants.records.evidence import RankEvidence, ShardEvidence, TrainingEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.upgrades.difference import WARNING, Difference, numberless, steady
from ddp_invariants.upgrades.numbers import OF_NO_NUMBERS, differing_numbers
from ddp_invariants.upgrades.sequences import parting


@dataclass(frozen=True)
class Offer(Strict):
    """The facts known of a side before any case is run.

    Attributes:
        ddp, sampler: The call of the implementation under test (`ranks.driving.ddp.Description`), with its
            defaults.
        capabilities: The probed result of each capability by name (right, refused, …), and its
            words.
        surface: The facts that a program meets before it trains, by name (`ranks.surface`).
    """

    ddp: dict[str, Any]
    sampler: dict[str, Any]
    capabilities: dict[str, tuple[str, str]]
    surface: dict[str, str]


def before_any_case(old: Offer, new: Offer) -> list[Difference]:
    """Return the differences in the call of both sides, in their capabilities and surfaces."""
    differences = [*described(old.ddp, new.ddp), *described(old.sampler, new.sampler)]
    for name in dict.fromkeys([*old.capabilities, *new.capabilities]):
        standings = [side.capabilities.get(name, ("not known", "")) for side in (old, new)]
        if standings[0][0] != standings[1][0]:
            before, now = (" ".join(standing).strip() for standing in standings)
            differences.append(
                Difference("discrete", f"capability {name}", "probed by a small case", before, now)
            )
    return [*differences, *_of_surface(old.surface, new.surface)]


def _of_surface(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Difference]:
    for name in dict.fromkeys([*old, *new]):
        if name.startswith("refusal") and not (name in old and name in new):
            continue  # The difference in the arguments says it.
        before, now = (steady(side.get(name, "none")) for side in (old, new))
        if before != now:
            yield Difference("discrete", f"surface {name}", "before any case", before, now)


def described(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences in the arguments of the implementation under test."""
    old_defaults, new_defaults = (
        {name: steady(str(text)) for name, text in side["defaults"].items()} for side in (old, new)
    )
    for name in dict.fromkeys([*old_defaults, *new_defaults]):
        if old_defaults.get(name) != new_defaults.get(name):
            before, now = (
                "not taken"
                if (default := side.get(name)) is None
                else f"default {default}"
                if default
                else "required"
                for side in (old_defaults, new_defaults)
            )
            yield Difference(
                "discrete", f"argument {name}", f"{old['target']}({name})", before, now
            )


def compared(
    old: TrainingEvidence | ShardEvidence,
    new: TrainingEvidence | ShardEvidence,
    declared: Declarations,
    sampler: SamplerDeclarations,
) -> list[Difference]:
    """Return all differences between two sides' answers: rules first, then in run order."""
    return [under(difference, old.case) for difference in _all(old, new, declared, sampler)]


def under(difference: Difference, case: Case) -> Difference:
    """Return a difference with the features of the case that shows it as its condition."""
    return replace(difference, condition=features(case)) if difference.depends else difference


def _all(
    old: TrainingEvidence | ShardEvidence,
    new: TrainingEvidence | ShardEvidence,
    declared: Declarations,
    sampler: SamplerDeclarations,
) -> list[Difference]:
    differences = [*_by_rule(old, new, declared, sampler), *_warned(old, new)]
    if isinstance(old, ShardEvidence) or isinstance(new, ShardEvidence):
        assert isinstance(old, ShardEvidence)
        assert isinstance(new, ShardEvidence)
        return [*differences, *_sampler_answers(old, new)]
    broken = any(
        difference.kind == "rule" and not difference.subject.startswith(OF_NO_NUMBERS)
        for difference in differences
    )
    return [
        *differences,
        *_exactly(old, new),
        *differing_numbers(old, new, declared, broken=broken),
    ]


def _by_rule(
    old: TrainingEvidence | ShardEvidence,
    new: TrainingEvidence | ShardEvidence,
    declared: Declarations,
    sampler: SamplerDeclarations,
) -> Iterator[Difference]:
    before, after = judge(old, declared, sampler), judge(new, declared, sampler)
    for rule in before:
        was, now = before[rule].failure, after[rule].failure
        if was is None and now is not None:
            yield Difference("rule", rule, now.where, "holds", _told(now), numberless(now.fact))
        elif was is not None and now is None:
            cause = f"no longer: {numberless(was.fact)}"
            yield Difference("rule", rule, was.where, _told(was), "holds", cause)


def _told(failure: Failure) -> str:
    return f"violated: {failure.fact}; {failure.got}"


def warnings_of(side: TrainingEvidence | ShardEvidence) -> dict[str, tuple[str, list[int]]]:
    """Return the warnings of a side.

    Returns:
        By the first sentence without numbers: the whole text, and the ranks or processes that gave
            the warning.
    """
    texts = (
        [rank.warned for rank in side.ranks]
        if isinstance(side, TrainingEvidence)
        else [answer.get("warned", []) for answer in side.answers]
    )
    warnings: dict[str, tuple[str, list[int]]] = {}
    for number, given in enumerate(texts):
        for text in map(steady, given):
            title = re.sub(r"\d+", "#", re.split(r"(?<=[.!?]) ", text)[0])[:120]
            warnings.setdefault(WARNING + title, (text, []))[1].append(number)
    return warnings


def _warned(
    old: TrainingEvidence | ShardEvidence, new: TrainingEvidence | ShardEvidence
) -> Iterator[Difference]:
    before, after = warnings_of(old), warnings_of(new)
    whose = (
        f"ranks, of {old.case.world_size},"
        if isinstance(old, TrainingEvidence)
        else "processes, of two,"
    )
    for title in dict.fromkeys([*before, *after]):
        sides = [side.get(title, ("", [])) for side in (before, after)]
        if sides[0][1] != sides[1][1]:
            first, second = (
                f"{', '.join(map(str, given))}: {text}" if given else "none"
                for text, given in sides
            )
            yield Difference("discrete", title, f"{whose} that give the warning", first, second)


def _exactly(old: TrainingEvidence, new: TrainingEvidence) -> Iterator[Difference]:
    """Yield differences in values that must match exactly on every machine."""
    ends = [_end(side) for side in (old, new)]
    if ends[0] != ends[1]:
        causes = [numberless(end.partition(": ")[0]) for end in ends]
        cause = " -> ".join(causes) if causes[0] != causes[1] else "another message"
        where = f"world size {old.case.world_size}"
        yield Difference("discrete", "end of the run", where, ends[0], ends[1], cause)
    if old.incident is not None or new.incident is not None:
        return  # A rank that did not answer has no records: all else follows from that.
    subjects = set[str]()
    for rank, (old_rank, new_rank) in enumerate(zip(old.ranks, new.ranks, strict=True)):
        for difference in _of_rank(old_rank, new_rank, f"rank {rank} of {len(old.ranks)}"):
            # One difference of a subject is told, on the first rank that shows it.
            if difference.subject not in subjects:
                yield difference
        subjects |= {difference.subject for difference in _of_rank(old_rank, new_rank, "")}


def _of_rank(old: RankEvidence, new: RankEvidence, where: str) -> Iterator[Difference]:
    """Yield the first difference of each subject between a rank's records."""
    parted = parting(old, new)
    if parted is not None:
        place = f"{where}, {parted.where}"
        yield Difference(
            "discrete", "collectives", place, parted.old, parted.new, cause=parted.cause
        )
    for subject, read in _READ.items():
        first, second = read(old), read(new)
        if first != second:
            pairs = enumerate(zip_longest(first, second))
            number, lines = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            before, now = (
                f"none: {len(side)} in all" if line is None else line
                for side, line in zip((first, second), lines, strict=True)
            )
            yield Difference("discrete", subject, f"{where}, number {number}", before, now)


def _end(side: TrainingEvidence) -> str:
    if side.incident is not None:
        return f"it {side.incident.kind}"
    raised = [rank.raised for rank in side.ranks if rank.raised is not None]
    if not raised:
        return "by itself"
    first = raised[0]
    return (
        f"{first.type} in {first.phase} of step {first.step} on {len(raised)} of "
        f"{len(side.ranks)} ranks: {steady(str(first.message).partition(chr(10))[0])[:200]}"
    )


def _none(rank: RankEvidence) -> list[str]:
    return [
        (
            f"step {step}: "
            f"{', '.join(s.name for s in tensors.layout.slots if s.dtype is None) or 'none'}"
        )
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
        (
            f"{tensor.kind} {tensor.name} {tensor.dtype} "
            f"{tuple(tensor.shape)}{' trained' if tensor.requires_grad else ''}"
            f"{f' is {tensor.first_name}' if tensor.first_name != tensor.name else ''}"
        )
        for tensor in rank.structure_after
    ]


_READ: dict[str, Callable[[RankEvidence], list[str]]] = {
    "the wrapped module": _structured,
    "calls that drive it": lambda rank: [
        f"{key}: {rank.driven[key]}" for key in sorted(rank.driven)
    ],
    "gradients that are None": _none,
    "gradients' types": _typed,
    "the loss scale": lambda rank: [
        f"after step {step}: {scale:g}" for step, scale in enumerate(rank.scales)
    ],
    "names in a saved state": lambda rank: [name for names in rank.saved for name in names],
}
"""Readers of the values that must match exactly: each returns a list of lines of a rank."""


_FROM_INDICES = {
    "indices": "shards",
    "lengths": "lengths",
    "batches of a DataLoader": "batches",
    "indices of workers": "worked",
    "indices after a saved state": "resumed",
}
"""What follows from the indices of a sampler, and the keys of its answers; each may follow from the
one before."""
_OF_A_SAMPLER = ({"arguments refused": "refused"}, {"an exception": "raised"}, _FROM_INDICES)


def _sampler_answers(old: ShardEvidence, new: ShardEvidence) -> Iterator[Difference]:
    """Yield differences in a sampler's answers, all of which must match exactly.

    Of subjects that follow from one another, the first difference is told. A side that raised an
    exception has no indices, so none are compared if the exceptions differ.
    """
    ends = [
        f"it {side.incident.kind}" if side.incident is not None else "by itself"
        for side in (old, new)
    ]
    if ends[0] != ends[1]:
        yield Difference("discrete", "end of the sampler", "", ends[0], ends[1])
        return
    if old.incident is not None:
        return
    answers = list(zip(old.answers, new.answers, strict=False))
    for keys in _OF_A_SAMPLER:
        found = next(
            (
                Difference(
                    "discrete",
                    subject,
                    f"W={old.case.world_size}, N={old.case.data.samples}",
                    _short(old_answer.get(key)),
                    _short(new_answer.get(key)),
                )
                for old_answer, new_answer in answers
                for subject, key in keys.items()
                if _differ(key, old_answer.get(key), new_answer.get(key))
            ),
            None,
        )
        if found is not None:
            yield found
            if found.subject == "an exception":
                return


def _differ(key: str, first: Any, second: Any) -> bool:
    return _short(first) != _short(second) or (key != "raised" and first != second)


def _short(answer: Any) -> str:
    if isinstance(answer, dict) and "type" in answer:
        return (
            f"{answer['type']} in {answer['phase']}: "
            f"{steady(str(answer['message']).partition(chr(10))[0])[:200]}"
        )
    return str(answer)[:400]
