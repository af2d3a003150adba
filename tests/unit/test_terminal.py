"""The lines of a session's summary that say what follows for the user."""

import pytest

from ddp_invariants.discovery.result import Discovery, Probed, Standing
from ddp_invariants.implementation.declarations import CAPABILITIES, NEIGHBOURS
from ddp_invariants.report import terminal
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
