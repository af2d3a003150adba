"""The result of a session, and the word for each exit status."""

from dataclasses import dataclass

from ddp_invariants.discovery.result import Discovery, Probed
from ddp_invariants.report.card import LevelAccount, card_of
from ddp_invariants.search.ledger import Ledger

ENDED = {
    0: "certified",
    1: "violated",
    2: "inconclusive",
    64: "cannot be tested",
    73: "not written",
    130: "interrupted",
}
"""The outcome of a session by exit status; with 0 it may also be `PARTIAL`."""
PARTIAL = "partial"
"""The outcome of a session of which all holds that was tested, but not all rules were tested."""


@dataclass(frozen=True)
class SessionResult:
    """The result of a session.

    Attributes:
        status: Exit status.
        ledger: All rules' accounts; None if it ended before any rule was judged.
        discovery: The probed capabilities of the implementation; None likewise.
        of_sampler: True if only a sampler was judged.
    """

    status: int
    ledger: Ledger | None = None
    discovery: Discovery | None = None
    of_sampler: bool = False

    @property
    def levels(self) -> tuple[LevelAccount, ...]:
        """The results of all levels; empty if nothing was judged."""
        if self.ledger is None or self.discovery is None:
            return ()
        return card_of(self.ledger, self.discovery)

    @property
    def outcome(self) -> str:
        """The outcome in a word: one of `ENDED`, or `PARTIAL`."""
        if self.status == 0 and any(level.verdict == "partial" for level in self.levels):
            return PARTIAL
        return ENDED[self.status]

    @property
    def capabilities(self) -> tuple[Probed, ...]:
        """The probed capabilities of the implementation under test.

        Capabilities of the reference beside it are left out.
        """
        if self.discovery is None:
            return ()
        return (
            self.discovery.sampler_probes
            if self.of_sampler
            else (*self.discovery.ddp_probes, *self.discovery.sampler_probes)
        )
