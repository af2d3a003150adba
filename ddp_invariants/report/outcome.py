"""The result of a session, and the word for each exit status."""

from dataclasses import dataclass

from ddp_invariants.discovery.probe import Discovery
from ddp_invariants.search.ledger import Ledger

ENDED = {
    0: "certified",
    1: "violated",
    2: "inconclusive",
    64: "cannot be put on trial",
    130: "interrupted",
}
"""The outcome of a session by exit status."""


@dataclass(frozen=True)
class SessionResult:
    """What came of a session.

    Attributes:
        status: Exit status.
        ledger: All rules' accounts; None where it ended before any rule was judged.
        discovery: What was found out about what is on trial; None likewise.
        of_sampler: Whether a sampler alone was judged.
    """

    status: int
    ledger: Ledger | None = None
    discovery: Discovery | None = None
    of_sampler: bool = False
