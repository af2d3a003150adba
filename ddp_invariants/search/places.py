"""The places where a trial's cases run: most in a simulation, some over the real backend.

A simulated case costs a fraction of the time, and repeats exactly. Nothing is concluded from the
simulation alone: a failure counts once a run over the real backend has shown one of the same rule,
and a situation is met once it was met in both places.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

from ddp_invariants.cases.case import Case, TrainingCase, to_json
from ddp_invariants.processes.backends import ON_THE_CPU, Backend

REAL_EVERY = 10
"""One in so many cases runs over the real backend from the start."""
MOST_UNREAL = 3
"""Cases that fail in the simulation alone, after which nothing more is simulated."""


class Places:
    """The places of one trial's cases.

    Args:
        backend: The real backend.
        why_not: Why nothing is simulated; empty if cases may be simulated.

    Attributes:
        why_not: The same; it may become known during the trial.
        ran: The number of cases by place.
    """

    def __init__(self, backend: Backend, why_not: str = "") -> None:
        self.backend, self.ran = backend, Counter[str]()
        self.why_not = why_not or (
            "" if backend == ON_THE_CPU else f"{backend} cannot be simulated"
        )
        self._believed: set[str] = set()
        self._unreal = 0

    def simulates(self, case: Case) -> bool:
        """Return whether a case runs in the simulation at first."""
        return (
            not self.why_not
            and isinstance(case, TrainingCase)
            and not case.kills
            and case.rounds == 1
            and _digest(case) % REAL_EVERY != 0
        )

    def believes(self, rules: Iterable[str]) -> bool:
        """Return whether simulated failures of these rules have been seen for real, too."""
        return self._believed.issuperset(rules)

    def believe(self, rules: Iterable[str]) -> None:
        """Believe simulated failures of these rules from now on."""
        self._believed.update(rules)

    def disbelieve(self, rules: Iterable[str]) -> None:
        """Count a case whose simulated failures the real backend does not show."""
        self._unreal += 1
        if self._unreal >= MOST_UNREAL:
            self.why_not = f"{self._unreal} cases failed in the simulation alone, by {', '.join(sorted(rules))}"


def _digest(case: Case) -> int:
    return int.from_bytes(hashlib.blake2b(to_json(case).encode(), digest_size=4).digest(), "big")
