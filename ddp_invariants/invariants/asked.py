"""The comparison of a sampler's indices when a program asks for them in another way."""

from typing import Any

from ddp_invariants.cases.shard_situation import ShardSituation
from ddp_invariants.invariants.crashes import crash, read
from ddp_invariants.invariants.dealing import first_wrong
from ddp_invariants.invariants.lengths import misfit, misfit_at_the_start
from ddp_invariants.invariants.rule import Tally, Unjudged
from ddp_invariants.invariants.sampler_view import ShardView, brief
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.asking.changed_length import ChangedLength
from ddp_invariants.situations.asking.vast import Vast


def differs_when_asked(view: ShardView, tally: Tally, rule: str = "") -> Failure | None:
    """Return a failure if a sampler that is asked in another way yields other indices.

    A sampler may refuse a way, if it raises on all ranks.

    Args:
        view: The answers.
        tally: Counts what is compared.
        rule: The rule whose ways are judged; empty for all.

    Raises:
        Unjudged: The sampler raised in one of the two processes, or an iteration is missing.
    """
    raised = view.evidence.answers[1].get("raised")
    if raised is not None:
        raise Unjudged(f"the sampler raised {raised['type']} in the second process alone")
    second = view.evidence.answers[1].get("asked", [])
    # A sampler whose ranks communicate is not asked in other ways.
    answers = [
        (number, situation, first)
        for number, (situation, first) in enumerate(
            zip(view.case.situations, view.answer["asked"], strict=False)
        )
        if rule in ("", situation.rule)
    ]
    for number, situation, first in answers:
        failure = _refused_in_part(view, situation, first) or _crashed(view, situation, first)
        if failure is not None:
            return failure
        if None in first["got"]:
            continue
        tally.compared += sum(len(part) for parts in first["got"] for part in parts)
        failure = _different(view, situation, first, second[number])
        if failure is not None:
            return failure
    missing = [reason for _, _, first in answers for reason in first.get("missing", ()) if reason]
    if missing:
        raise Unjudged(missing[0])
    return None


def _refused_in_part(
    view: ShardView, situation: ShardSituation, answer: dict[str, Any]
) -> Failure | None:
    raised = {rank: text for rank, text in enumerate(answer["raised"]) if text}
    # A rank that could not be asked so neither answers nor raises.
    answered = any(got is not None for got in answer["got"])
    if not raised or not answered:
        return None
    rank, text = next(iter(raised.items()))
    return Failure(
        situation.rule,
        "some ranks raise on a program that other ranks answer",
        f"rank {rank}, {situation.words}, {view.where(view.case.epochs[-1])}",
        text,
    )


def _crashed(view: ShardView, situation: ShardSituation, answer: dict[str, Any]) -> Failure | None:
    """Return the failure if all ranks crash when they are asked so."""
    errors = enumerate(answer.get("errors", ()))
    raised = {rank: read(error) for rank, error in errors if error is not None}
    if situation.may_crash or view.case.data.samples == 0:
        return None
    return crash(situation.rule, raised, view.where(view.case.epochs[-1]))


def _different(
    view: ShardView, situation: ShardSituation, first: dict[str, Any], second: dict[str, Any]
) -> Failure | None:
    places = situation.expected(view.case)
    for rank, (got, wanted) in enumerate(zip(first["got"], first["wanted"], strict=True)):
        expected = wanted or [view.answer["shards"][place][rank] for place in places]
        for number, (part, right) in enumerate(zip(got, expected, strict=bool(places))):
            if part != right:
                return Failure(
                    situation.rule,
                    situation.fact,
                    f"rank {rank}, {situation.words}, {view.where(view.case.epochs[-1])}",
                    f"{brief(part)}, expected {brief(right)}"
                    + (f", in iteration {number}" if number else ""),
                )
    if not places:
        failure = _unfit(view, situation, first["got"])
        if failure is not None:
            return failure
    for rank, (got, again) in enumerate(zip(first["got"], second["got"], strict=True)):
        if isinstance(situation, Vast) and (again is None or got[2] or again[2]):
            continue  # It was stopped, and processes differ in what they reach by then.
        if got != again:
            return Failure(
                situation.rule,
                "another process gets other indices from the same arguments",
                f"rank {rank}, {situation.words}, {view.where(view.case.epochs[-1])}",
                f"{brief(again or [])}, the first process {brief(got)}",
            )
    return None


def _unfit(
    view: ShardView, situation: ShardSituation, got: list[list[list[int]]]
) -> Failure | None:
    # A sampler that is always wrong fails another rule by itself.
    if first_wrong(view.case, view.padding, view.answer["shards"][-1]):
        return None
    if isinstance(situation, ChangedLength):
        return _of_a_changed_length(view, situation, got)
    if isinstance(situation, Vast):
        starts, lengths, stopped = map(list, zip(*got, strict=True))
        # A rank whose part begins far from the start may reach no index in the time that it has.
        starts = [[] for _ in starts] if any(stopped) else starts
        return _of_reason(
            view, situation, starts, misfit_at_the_start(view, situation.length, starts, lengths)
        )
    # A rank that raises when it loads a state has no last iteration.
    for number, shards in enumerate(zip(*got, strict=False)):
        rule = first_wrong(view.case, view.fit(shards), shards)
        if rule:
            return Failure(
                "SHARD-4",
                situation.fact,
                f"{situation.words}, iteration {number}, {view.where(view.case.epochs[-1])}",
                f"{brief(shards)}: they violate {rule}",
            )
    return None


def _of_a_changed_length(
    view: ShardView, situation: ChangedLength, got: list[list[list[int]]]
) -> Failure | None:
    lasting = zip(view.answer["lengths"], view.answer["shards"][-1], strict=True)
    # A len that is always wrong fails SHARD-1.
    if any(length not in (None, len(shard)) for length, shard in lasting):
        return None
    shards, lengths = map(list, zip(*got, strict=True))
    reason = misfit(view, situation.samples(view.case), shards, lengths)
    return _of_reason(view, situation, shards, reason)


def _of_reason(
    view: ShardView, situation: ShardSituation, shards: list[list[int]], reason: str
) -> Failure | None:
    if not reason:
        return None
    return Failure(
        "SHARD-4",
        situation.fact,
        f"{situation.words}, {view.where(view.case.epochs[-1])}",
        f"{brief(shards)}: {reason}",
    )
