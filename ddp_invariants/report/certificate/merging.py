"""The sum of the certificates of a session's parts, as one certificate.

A session that is split (`--shard 3/10`) writes one certificate for each part. The parts draw no case
twice (`search.split`), so counts add up. The sum does not depend on the order of the parts. A rule is
violated if it is violated in any part. A condition is met if any part met it, so a rule that lacks
another condition in each part holds in the sum.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from ddp_invariants.errors import MergeError
from ddp_invariants.report.accounts import RuleAccount, RuleVerdict
from ddp_invariants.report.card import card
from ddp_invariants.report.certificate.certificate import (
    INTERRUPTED,
    Certificate,
    Part,
    Properties,
    Setting,
    ViolationAccount,
    outcome,
    sealed,
    shortfall,
)
from ddp_invariants.search.split import in_order

MOST_FAILURES = 10
"""Failures of a rule that are listed."""
MOST_REASONS = 5
"""Reasons why a rule could not be judged that are listed."""


def merged(certificates: Sequence[Certificate]) -> Certificate:
    """Return the sum of the certificates of all parts of a session.

    Raises:
        MergeError: A part is missing or repeated, or belongs to another session.
    """
    parts = in_order([certificate.setting.shard for certificate in certificates], certificates)
    for certificate in parts[1:]:
        _check_kin(parts[0], certificate)
    rules = tuple(
        _shortened(reduce(added, accounts))
        for accounts in zip(*(part.rules for part in parts), strict=True)
    )
    properties = _common([part.properties for part in parts])
    interrupted = any(INTERRUPTED in part.partial for part in parts)
    order = [account.rule for account in rules]
    return sealed(
        replace(
            parts[0],
            outcome=outcome(rules),
            card=card(rules),
            partial=(*((INTERRUPTED,) if interrupted else ()), *shortfall(properties)),
            setting=_setting([part.setting for part in parts]),
            cases=sum(part.cases for part in parts),
            rules=rules,
            violations=tuple(
                sorted(_distinct(parts), key=lambda each: (order.index(each.failure.rule), each.id))
            ),
            properties=properties,
            sizes=_sum(part.sizes for part in parts),
            dimensions={
                name: _sum(part.dimensions.get(name, {}) for part in parts)
                for name in dict.fromkeys(name for part in parts for name in part.dimensions)
            },
            examples={
                kind: shown for part in reversed(parts) for kind, shown in part.examples.items()
            },
            places=_sum(part.places for part in parts),
            unreal={case: rules for part in parts for case, rules in part.unreal.items()},
            not_simulated=next((part.not_simulated for part in parts if part.not_simulated), ""),
            dealt=tuple(map(sum, zip(*(part.dealt for part in parts if part.dealt), strict=True))),
            schedules=tuple(count for part in parts for count in part.schedules),
            parts=tuple(
                Part(
                    part.setting.shard,
                    part.digest,
                    part.cases,
                    part.setting.began,
                    part.setting.command,
                )
                for part in parts
            ),
        )
    )


def _check_kin(first: Certificate, second: Certificate) -> None:
    """Refuse two certificates that are not parts of the same session.

    Raises:
        MergeError: They differ; the sentence says in what.
    """
    place = f"shards {first.setting.shard} and {second.setting.shard} differ in"
    for name in (
        "suite",
        "torch",
        "numpy",
        "hypothesis",
        "python",
        "backend",
        "seed",
        "cases",
        "max_world_size",
        "isolation",
    ):
        here, there = getattr(first.setting, name), getattr(second.setting, name)
        if here != there:
            raise MergeError(f"{place} {name.replace('_', ' ')}: {here} and {there}")
    for here, there in zip(first.subjects, second.subjects, strict=True):
        if here != there or not here.digest:
            subject = f"the implementation under test, {here.name} and {there.name}"
            raise MergeError(
                f"{place} {subject}: their source, version or declarations"
                if here != there
                else f"the source of {here.name} could not be read, so that nothing shows that all "
                "shards judged the same implementation"
            )
    if _standings(first) != _standings(second):
        names = sorted({name for name, *_ in _standings(first) ^ _standings(second)})
        raise MergeError(f"{place} the capabilities that probes showed: {', '.join(names)}")
    if first.deviations != second.deviations:
        raise MergeError(f"{place} the deviations that are expected")
    for own, added_to in zip(first.rules, second.rules, strict=False):
        if _fixed(own) != _fixed(added_to):
            raise MergeError(f"{place} the conditions of {own.rule}")
    if first.properties.planned != second.properties.planned:
        raise MergeError(f"{place} the rules that they list")


def _standings(certificate: Certificate) -> set[tuple[str, str, str, bool, str]]:
    return {
        (each.name, each.side, each.standing, each.declared, each.expected)
        for each in certificate.capabilities
    }


def _fixed(account: RuleAccount) -> tuple[object, ...]:
    """Return what a rule's account has in every part of a session."""
    return account.rule, account.requirement, account.needs.keys(), account.without


def added(left: RuleAccount, right: RuleAccount) -> RuleAccount:
    """Return the sum of two accounts of one rule; the order and the grouping do not matter."""
    bounds = (*left.observed, *right.observed)
    total = replace(
        left,
        judged=left.judged + right.judged,
        compared=left.compared + right.compared,
        needs=_sum((left.needs, right.needs)),
        worst=None if None in (left.worst, right.worst) else max(_worst(left), _worst(right)),
        errors=tuple(map(sum, zip(left.errors, right.errors, strict=True))),
        observed=(min(bounds), max(bounds)) if bounds else (),
        seen=left.seen + right.seen,
        confirmed=left.confirmed + right.confirmed,
        why="; ".join(sorted({*left.why.split("; "), *right.why.split("; ")} - {""})),
        unjudged=_sum((left.unjudged, right.unjudged)),
        failures=dict(sorted({**left.failures, **right.failures}.items())),
        ordinary=left.ordinary + right.ordinary,
        ordinary_needs=_sum((left.ordinary_needs, right.ordinary_needs)),
        seen_at=_sum((left.seen_at, right.seen_at)),
        blames=tuple(
            sorted((*left.blames, *right.blames), key=lambda blame: (blame.level, blame.names))
        ),
        lacking=tuple(sorted({*left.lacking} & {*right.lacking})),
        doubtful=left.doubtful or right.doubtful,
        milliseconds=left.milliseconds + right.milliseconds,
    )
    return replace(total, verdict=_verdict(total, {left.verdict, right.verdict}))


def _worst(account: RuleAccount) -> float:
    return account.worst or 0.0


def _verdict(total: RuleAccount, verdicts: set[RuleVerdict]) -> RuleVerdict:
    """Return the verdict of a rule's sum, from its counts and the parts' verdicts."""
    if total.confirmed:
        return "violated"
    if total.seen or total.doubtful or total.lacking:
        return "inconclusive"
    if "not run" in verdicts:
        return "not run"
    if verdicts & {"not tested", "not finished"}:
        return "not tested" if verdicts == {"not tested"} else "not finished"
    if not total.judged:
        return "not claimed" if verdicts == {"not claimed"} else "inconclusive"
    return "observed" if "observed" in verdicts else "holds"


def _shortened(account: RuleAccount) -> RuleAccount:
    """Return an account with as many examples as that of a single session."""
    reasons = sorted(account.unjudged.items(), key=lambda reason: (-reason[1], reason[0]))
    return replace(
        account,
        unjudged=dict(reasons[:MOST_REASONS]),
        failures=dict([*account.failures.items()][:MOST_FAILURES]),
    )


def _common(properties: Sequence[Properties]) -> Properties:
    """Return the properties of the sum: those that ran, and were reported, in every part."""
    planned = properties[0].planned
    return Properties(
        planned,
        tuple(rule for rule in planned if all(rule in each.executed for each in properties)),
        tuple(rule for rule in planned if all(rule in each.reported for each in properties)),
    )


def _setting(settings: Sequence[Setting]) -> Setting:
    """Return the setting of the sum; its parts may have run on different machines."""
    return replace(
        settings[0],
        machine=", ".join(sorted({setting.machine for setting in settings})),
        processor=", ".join(sorted({setting.processor for setting in settings})),
        cores=min(setting.cores for setting in settings),
        command=f"ddp-invariants merge, of {len(settings)} parts",
        began=min(setting.began for setting in settings),
        seconds=round(sum(setting.seconds for setting in settings), 1),
        shard="",
    )


def _distinct(parts: Iterable[Certificate]) -> Iterable[ViolationAccount]:
    """Return the violations of all parts; several parts may have found the same one."""
    return {
        violation.id: violation for part in [*parts][::-1] for violation in part.violations
    }.values()


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of counts; a name without cases stays."""
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)
