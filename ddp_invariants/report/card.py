"""The report card: a verdict for each level, before all details.

A violation belongs to the level of its rule, or to a less ordinary one if the smallest case needs a
situation of that level. A core rule that only strided parameters break is therefore certified at
the level `core` and violated at the level `extended`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ddp_invariants.cases.case import LARGEST_WORLD_SIZE
from ddp_invariants.cases.fields import Strict
from ddp_invariants.cases.levels import LEVELS, Level
from ddp_invariants.discovery.result import Discovery
from ddp_invariants.implementation.declarations import NEIGHBOURS
from ddp_invariants.invariants.rule import invariant_of
from ddp_invariants.report.accounts import RuleAccount, accounts
from ddp_invariants.search.ledger import Ledger

LevelVerdict = Literal["certified", "violated", "inconclusive", "partial", "not claimed"]
_MOST = 3
"""Groups of violations that a headline lists."""
_MOST_RULES = 4
"""Rules that a line lists by name."""


@dataclass(frozen=True)
class Broken(Strict):
    """Rules that the same subject breaks.

    Attributes:
        names: The reasons why their smallest cases are less ordinary; empty if the rules themselves are
            less ordinary, or if all is ordinary.
        rules: The rules.
        fact: The first failure of the first of them, in words.
    """

    names: tuple[str, ...]
    rules: tuple[str, ...]
    fact: str = ""


@dataclass(frozen=True)
class LevelAccount(Strict):
    """The result of a level.

    Attributes:
        level: The level.
        verdict: The verdict: `certified` if every rule holds that applies; `partial` if a rule was
            not tested; `not claimed` if no rule applies.
        cases: The fewest cases on which a rule was judged that holds: ordinary cases for `core`.
        holds: The rules that hold.
        broken: The violations.
        unsettled: The rules without a verdict: evidence is missing, or a failure did not repeat.
        untested: The rules whose own property did not run to its end.
    """

    level: Level
    verdict: LevelVerdict
    cases: int
    holds: tuple[str, ...]
    broken: tuple[Broken, ...]
    unsettled: tuple[str, ...]
    untested: tuple[str, ...]


def card(rules: Sequence[RuleAccount]) -> tuple[LevelAccount, ...]:
    """Return the results of all levels, the most ordinary one first."""
    return tuple(_level(level, rules) for level in LEVELS)


def card_of(ledger: Ledger, discovery: Discovery) -> tuple[LevelAccount, ...]:
    """Return the results of all levels of a session."""
    return card(accounts(ledger, discovery.scope(LARGEST_WORLD_SIZE).unclaimed))


def _level(level: Level, accounts: Sequence[RuleAccount]) -> LevelAccount:
    found = {account.rule: _at(level, account) for account in accounts}
    by_verdict = {
        verdict: tuple(rule for rule, result in found.items() if result == verdict)
        for verdict in ("holds", "unsettled", "untested", "violated")
    }
    holds, unsettled = by_verdict["holds"], by_verdict["unsettled"]
    judged = [
        account.ordinary if level == "core" else account.judged
        for account in accounts
        if account.rule in holds
    ]
    verdict: LevelVerdict = (
        "violated"
        if by_verdict["violated"]
        else "inconclusive"
        if unsettled
        else "partial"
        if by_verdict["untested"]
        else "certified"
        if holds
        else "not claimed"
    )
    broken = tuple(_broken(level, accounts))
    untested = by_verdict["untested"]
    return LevelAccount(level, verdict, min(judged, default=0), holds, broken, unsettled, untested)


def _at(level: Level, account: RuleAccount) -> str:
    """Return the result of a rule at a level: `holds`, another word, or empty if it has none."""
    if LEVELS.index(level) < LEVELS.index(account.level):
        return ""
    if any(blame.level == level for blame in account.blames):
        return "violated"
    if account.seen_at.get(level):
        return "unsettled"
    if account.verdict in ("not claimed", "observed"):
        return ""
    if account.verdict in ("not tested", "not finished", "not run"):
        return "untested" if level == account.level else ""
    if level == "core":
        return "holds" if account.proved_ordinarily else "unsettled"
    if account.verdict == "inconclusive" and not account.seen:
        # Ordinary cases may have proved what less ordinary ones left open.
        open_at = "extended" if account.level == "core" else account.level
        return "unsettled" if level == open_at else ""
    return "holds" if level == account.level and account.judged else ""


def _broken(level: Level, accounts: Iterable[RuleAccount]) -> Iterator[Broken]:
    """Yield the violations of a level, with the rules together that the same subject breaks."""
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for account in accounts:
        for blame in account.blames:
            if blame.level == level:
                fact = next(iter(account.failures.values()), "").partition("; ")[0]
                # A rule that ordinary cases break is told by its own fact.
                key = blame.names or (account.rule,)
                groups.setdefault(key, {})[account.rule] = fact
    for names, rules in groups.items():
        own = names == tuple(rules)
        yield Broken(() if own else names, tuple(rules), next(iter(rules.values())))


def within(levels: Sequence[LevelAccount], most: Level) -> list[LevelAccount]:
    """Return the levels up to one: those that decide if a session is asked for that level."""
    return [each for each in levels if LEVELS.index(each.level) <= LEVELS.index(most)]


def failing(levels: Iterable[LevelAccount]) -> set[str]:
    """Return the rules that some levels find violated, or give no verdict on."""
    return {
        rule
        for each in levels
        for rule in (*each.unsettled, *(rule for broken in each.broken for rule in broken.rules))
    }


def notes(levels: Iterable[LevelAccount], ledger: Ledger) -> dict[str, str]:
    """Return the level at which a rule holds, for the rules that do not hold at all levels."""
    return {
        rule: f"holds at the level {each.level}"
        for each in levels
        for rule in each.holds
        if ledger.verdict_of(rule) in ("inconclusive", "violated")
    }


def headline(levels: Sequence[LevelAccount]) -> str:
    """Return the verdicts of all levels in one line."""
    text = "; ".join(map(_in_brief, levels))
    first = levels[0].level if levels else ""
    return first.upper() + text.removeprefix(first)


def _in_brief(account: LevelAccount) -> str:
    """Return the verdict of a level, with a few of the subjects that are violated or open."""
    text = f"{account.level} {account.verdict}"
    if account.verdict == "inconclusive":
        return f"{text}: {_rules(account.unsettled)}"
    if account.verdict != "violated":
        return text
    more = len(account.broken) - _MOST
    listed = ", ".join(map(_brief, account.broken[:_MOST]))
    return f"{text}: {listed}" + (f" and {more} more" if more > 0 else "")


def _brief(broken: Broken) -> str:
    """Return the violations of a group in a few words."""
    rules = _rules(broken.rules)
    return f"{_names(broken.names)} ({rules})" if broken.names else rules


def _told(broken: Broken) -> str:
    """Return the violations of a group, with the fact if it needs nothing but the rule."""
    fact = f" ({broken.fact})" if broken.fact and not broken.names else ""
    return _brief(broken) + fact


def _names(names: Sequence[str]) -> str:
    return " with ".join(NEIGHBOURS.get(name, name.replace("_", " ")) for name in names)


def _rules(rules: Sequence[str]) -> str:
    """Return the ids of a few rules, or the number of the others."""
    more = len(rules) - _MOST_RULES
    return ", ".join(rules[:_MOST_RULES]) + (f" and {more} more" if more > 0 else "")


SUBJECTS: dict[Level, str] = {
    "core": "ordinary programs",
    "extended": "everything else that is offered",
    "robust": "bad arguments, exceptions, deaths and leaks",
}
"""The programs that the verdict of each level is about."""


def words(account: LevelAccount) -> str:
    """Return the result of a level in words."""
    parts = [", ".join(map(_told, account.broken))] if account.broken else []
    if account.unsettled:
        parts.append(f"no verdict on {_rules(account.unsettled)}")
    held = _held(account)
    if held:
        parts.append(
            f"{held} {'hold' if ',' in held else 'holds'} for {SUBJECTS[account.level]}, "
            f"each rule in {account.cases:,} cases or more"
        )
    if account.untested:
        parts.append(f"not tested: {_rules(account.untested)}")
    return f"{account.verdict}: {'; '.join(parts) or 'no rule applies'}"


def _held(account: LevelAccount) -> str:
    """Return the invariants all of whose rules hold, and the rules that hold of other invariants.

    An invariant with a rule that is violated, or has no verdict, is left out.
    """
    open_rules = [*account.unsettled, *(rule for each in account.broken for rule in each.rules)]
    failing = {invariant_of(rule) for rule in open_rules}
    untested = {invariant_of(rule) for rule in account.untested}
    held = [rule for rule in account.holds if invariant_of(rule) not in failing]
    whole = dict.fromkeys(map(invariant_of, held))
    parts = [rule for rule in held if invariant_of(rule) in untested]
    return ", ".join(
        filter(None, (*(each for each in whole if each not in untested), _rules(parts)))
    )
