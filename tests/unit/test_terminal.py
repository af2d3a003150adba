"""The lines of a session's summary that say what follows for the user."""

import pytest
from certificates import discovery, ledger

from ddp_invariants.discovery.result import Discovery, Probed, Standing
from ddp_invariants.implementation.declarations import CAPABILITIES, NEIGHBOURS
from ddp_invariants.report import terminal
from ddp_invariants.report.card import Broken, LevelAccount, notes
from ddp_invariants.search.ledger import Ledger

WHY = "simulated: it keeps a list. So"
REAL = "ran on real ranks: they take longer, and have at most 4 ranks"


def test_capabilities_with_similar_names_are_listed_with_what_tells_them_apart() -> None:
    """A list of names says what `few`, `unused` and `unreached` are; other names stand alone."""
    assert NEIGHBOURS.keys() <= CAPABILITIES.keys()
    names = ("few", "tied", "unused", "unreached")
    absent = Discovery({}, {}, tuple(Probed(name, Standing.ABSENT) for name in names))
    listed = (
        "few (fewer parameters than ranks), tied, unused (some parameters unused), unreached (all "
        "parameters of a rank unused)"
    )
    assert listed in " ".join(terminal.capabilities(absent).split())
    assert listed in " ".join(terminal.left_out_of(absent).split())


@pytest.mark.parametrize(
    ("simulated", "line"),
    [
        (0, f"not {WHY} all cases {REAL} unless --max-world-size says otherwise"),
        (9, f"no longer {WHY} all further cases {REAL}"),
    ],
)
def test_a_session_that_simulates_nothing_says_what_follows(simulated: int, line: str) -> None:
    """The line has the reason and the consequences; a session that simulates has no such line."""
    ledger = Ledger()
    ledger.ran.update(simulated=simulated, gloo=3)
    assert "simulated:" not in terminal.summary(ledger, [])
    ledger.not_simulated = "it keeps a list"
    summary = terminal.summary(ledger, [])
    assert f" {line} " in " ".join([*summary.split(), ""])
    assert all(len(row) <= 118 for row in summary.splitlines())


WRONG = Probed("crossed", Standing.WRONG, "GRAD-1: differ")
LEVELS = (
    LevelAccount("core", "certified", 9, ("GRAD-2",), (), (), ()),
    LevelAccount(
        "extended", "violated", 3, (), (Broken(("tied", "nodes"), ("LIVE-6", "GRAD-2")),), (), ()
    ),
)


def test_what_is_not_right_names_its_replay_and_its_rule() -> None:
    """A capability whose probe held is not right if a violation needs it."""
    probed = (Probed("tied", Standing.RIGHT), Probed("bias", Standing.RIGHT), WRONG)
    text = " ".join(
        terminal.faulty(discovery(probed=probed), LEVELS, {"crossed": "33e0b7"}).split()
    )
    assert "wrong crossed (" in text
    assert ": GRAD-1: differ (replay 33e0b7)" in text
    assert "violated tied (one parameter under two names): LIVE-6, GRAD-2" in text
    assert terminal.right(discovery(probed=probed), LEVELS).split()[:2] == ["right", "bias,"]


def test_an_implementation_without_faults_has_no_such_paragraph() -> None:
    """Only the list of what is right is left."""
    assert terminal.faulty(discovery(), (), {}) == ""
    assert terminal.right(discovery(), ()).split()[0] == "right"


def test_rules_that_were_not_tested_are_a_number_unless_asked_for() -> None:
    """After -x most rules have judged cases and no verdict."""
    account = ledger()
    account.tested = account.ended = {"GRAD-2"}
    order = ["GRAD-2", "GRAD-1", "LOSS-1"]
    short = terminal.summary(account, order, {"GRAD-2": "holds at the level core"}, verbose=False)
    assert "not tested: 2 other rules; -v lists" in short
    assert "LOSS-1" not in short
    assert "holds at the level core" in short
    whole = terminal.summary(account, order)
    assert "-v lists them" not in whole
    assert "LOSS-1" in whole


def test_a_rule_that_holds_only_at_a_level_says_so() -> None:
    """The card says that it holds there, and the table that it has no verdict or is violated."""
    account = ledger()
    assert notes(LEVELS, account) == {}
    account["GRAD-2"].inconclusive = True
    assert notes(LEVELS, account) == {"GRAD-2": "holds at the level core"}
