"""The result of a session, and the word for each exit status."""

from dataclasses import dataclass

from ddp_invariants.discovery.result import Discovery, Probed
from ddp_invariants.search.ledger import Ledger

ENDED = {
    0: "certified",
    1: "violated",
    2: "inconclusive",
    64: "cannot be tested",
    73: "not written",
    130: "interrupted",
}
"""The outcome of a session by exit status."""


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
