"""The report card: which level a verdict belongs to, and what decides the exit status."""

from collections import Counter
from typing import Any

import pytest

from ddp_invariants.cases.levels import LEVELS, Level
from ddp_invariants.discovery.levels import ENOUGH, uncommon
from ddp_invariants.invariants import ALL_RULES, SHIPPED
from ddp_invariants.records.verdict import Failure, Finding
from ddp_invariants.report.accounts import RuleAccount, account
from ddp_invariants.report.card import card, headline, words
from ddp_invariants.search.ledger import Entry, Ledger
from ddp_invariants.session.ending import exit_status
from ddp_invariants.situations.capability import BASE


def ledger(**entries: dict[str, Any]) -> Ledger:
    """Return the ledger of a session in which every rule holds, but for the changes given."""
    made = Ledger()
    for rule, row in ALL_RULES.items():
        met = Counter(dict.fromkeys(row.needs, 7))
        kept: dict[str, Any] = {"judged": 40, "compared": 40, "met": met, "ordinary": 9}
        changes = entries.get(rule.replace("-", ""), {})
        made.entries[rule] = Entry(**{**kept, "ordinary_met": met.copy(), **changes})
    made.tested, made.ended = set(ALL_RULES), set(ALL_RULES)
    return made


def accounts(made: Ledger) -> list[RuleAccount]:
    """Return the accounts of the rules that come with the package."""
    return [account(rule, made, frozenset()) for rule in SHIPPED]


def broken(level: Level, *names: str) -> dict[str, Any]:
    """Return the changes of an entry whose rule is violated at a level."""
    return {
        "seen": 2,
        "seen_at": Counter({level: 2}),
        "confirmed": 1,
        "blamed": [(level, names)],
        "failures": {"abc": "the gradient is not the mean; rank 0"},
    }


def verdicts(made: Ledger) -> list[str]:
    """Return the verdict of each level."""
    return [level.verdict for level in card(accounts(made))]


def test_a_session_in_which_all_holds_is_certified_at_every_level() -> None:
    """The line of a level names its invariants, and the fewest cases of a rule."""
    levels = card(accounts(ledger(GRAD2={"ordinary": 6})))
    assert [level.verdict for level in levels] == ["certified"] * 3
    assert headline(levels) == "CORE certified; extended certified; robust certified"
    assert words(levels[0]) == (
        "certified: INIT, SHARD, LOSS, GRAD, PARAM, COMM, LIVE hold for ordinary programs, each rule "
        "in 6 cases or more"
    )


@pytest.mark.parametrize(
    ("rule", "level", "names", "expected"),
    [
        ("GRAD-2", "core", (), ["violated", "certified", "certified"]),
        ("INIT-1", "extended", ("strided",), ["certified", "violated", "certified"]),
        ("GRAD-9", "extended", ("unused",), ["certified", "violated", "certified"]),
        ("SHARD-7", "robust", (), ["certified", "certified", "violated"]),
        ("GRAD-1", "robust", ("backward_error",), ["certified", "certified", "violated"]),
    ],
)
def test_a_violation_belongs_to_one_level(
    rule: str, level: Level, names: tuple[str, ...], expected: list[str]
) -> None:
    """A core rule that only an unusual program breaks leaves the core certified."""
    assert verdicts(ledger(**{rule.replace("-", ""): broken(level, *names)})) == expected


def test_what_the_same_subject_breaks_is_told_once() -> None:
    """The headline names the subject, and the rules in brackets; then the levels that hold."""
    levels = card(
        accounts(
            ledger(
                INIT1=broken("extended", "strided"),
                PARAM1=broken("extended", "strided"),
                GRAD9=broken("extended", "never_zeroed", "unused"),
                COMM4=broken("extended"),
                SHARD7=broken("robust"),
            )
        )
    )
    assert headline(levels) == (
        "CORE certified; extended violated: strided (INIT-1, PARAM-1), never zeroed with some "
        "parameters unused (GRAD-9), COMM-4; robust violated: SHARD-7"
    )
    assert "COMM-4 (the gradient is not the mean)" in words(levels[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"ordinary": ENOUGH - 1},
        {"ordinary_met": Counter({"more than one rank": 7})},
        {"seen": 1, "seen_at": Counter(core=1)},
    ],
)
def test_a_core_that_too_few_ordinary_cases_prove_is_inconclusive(changes: dict[str, Any]) -> None:
    """Cases of other programs, or a failure that did not repeat, certify no core."""
    core, extended, _ = card(accounts(ledger(GRAD2=changes)))
    assert (core.verdict, core.unsettled) == ("inconclusive", ("GRAD-2",))
    assert extended.verdict == "certified"


def test_ordinary_cases_settle_the_core_where_unusual_ones_leave_a_rule_open() -> None:
    """A core rule whose unusual conditions were never met is open at the level `extended` only."""
    for changes in (
        {"inconclusive": True},
        {"seen": 1, "seen_at": Counter(extended=1)},
    ):
        assert verdicts(ledger(GRAD4=changes)) == ["certified", "inconclusive", "certified"]


def test_a_session_of_one_rule_is_partial() -> None:
    """The rules that were not tested are counted, whatever other cases showed of them."""
    made = ledger()
    made.ended = made.tested = {"GRAD-2"}
    core, extended, _ = card(accounts(made))
    assert (core.verdict, core.holds) == ("partial", ("GRAD-2",))
    assert words(core).startswith("partial: GRAD-2 holds for ordinary programs")
    assert extended.verdict == "partial"


def test_a_ledger_counts_a_case_by_what_makes_it_less_ordinary() -> None:
    """A failure in an ordinary case is the core's; the same failure with more is not."""
    made = Ledger()
    failure = Failure("GRAD-2", "wrong", "rank 0", "1")
    finding = Finding("GRAD-2", 1, frozenset({"three ranks"}), failure)
    assert uncommon(BASE) == {}
    made.enter(BASE, [finding], "abc")
    made["GRAD-2"].add(finding, "def", {"strided": "extended"})
    entry = Ledger.from_plain(made.to_plain())["GRAD-2"]
    assert (entry.seen_at, entry.ordinary) == (Counter(core=1, extended=1), 1)
    assert entry.ordinary_met == Counter({"three ranks": 1})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (0, 0, 0)),
        ({"GRAD2": broken("core")}, (1, 1, 1)),
        ({"INIT1": broken("extended", "strided")}, (0, 1, 1)),
        ({"SHARD7": broken("robust")}, (0, 0, 1)),
        ({"GRAD9": {"seen": 1, "seen_at": Counter(extended=1)}}, (0, 2, 2)),
        ({"GRAD2": {"ordinary": 0}}, (2, 2, 2)),
    ],
)
def test_a_level_decides_the_exit_status(
    changes: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    """A result beyond the chosen level is reported, and decides nothing."""
    made = ledger(**changes)
    failed = {
        f"{name.rstrip('0123456789')}-{name.lstrip('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}"
        for name in changes
    }
    for level, status in zip(LEVELS, expected, strict=True):
        assert (
            exit_status(
                1 if changes else 0,
                made,
                card(accounts(made)),
                level,
                failed,
                other_test_failed=False,
            )
            == status
        )


def test_a_property_that_failed_without_a_verdict_counts_at_every_level() -> None:
    """A test that the harness ended is inconclusive: nothing says that it is about less."""
    made = ledger()
    levels = card(accounts(made))
    assert exit_status(1, made, levels, "core", {"GRAD-9"}, other_test_failed=False) == 2
    assert exit_status(1, made, levels, "core", (), other_test_failed=True) == 1
    assert exit_status(2, made, levels, "core", (), other_test_failed=False) == 2


def test_a_complete_session_that_proves_no_core_is_inconclusive_though_no_test_failed() -> None:
    """A session of some rules ends with 0 if they hold: it claims no more."""
    made = ledger(GRAD2={"ordinary": 0})
    unproved = card(accounts(made))
    assert exit_status(0, made, unproved, "robust", (), other_test_failed=False) == 2
    made.ended = made.tested = {"GRAD-2"}
    partial = card(accounts(made))
    assert exit_status(0, made, partial, "robust", (), other_test_failed=False) == 0
