"""The places where a trial's cases run: most in a simulation, some over the real backend.

A simulated case costs a fraction of the time, and repeats exactly. Nothing is concluded from the
simulation alone: a failure counts once a run over the real backend has shown one of the same rule,
and a condition is met once a run over the real backend has met it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

from ddp_invariants.cases.case import Case, TrainingCase, to_json
from ddp_invariants.processes.backends import ON_THE_CPU, Backend
from ddp_invariants.records.verdict import Finding
from ddp_invariants.situations.turns import behind

SIMULATED_WORLD_SIZE = 16
"""The largest world of a session that simulates, unless another is asked for."""
REAL_WORLD_SIZE = 4
"""The largest world that runs over the real backend from the start."""
REAL_EVERY = 10
"""One in so many cases runs over the real backend from the start."""
FIRST_REAL = 3
"""The first cases of each situation that run over the real backend."""
MOST_UNREAL = 3
"""Cases that fail in the simulation alone, after which nothing more is simulated."""


class Places:
    """The places of one trial's cases.

    Args:
        backend: The real backend.
        why_not: Why nothing is simulated; empty if cases may be simulated.
        most_real: The largest number of training cases that run over the real backend instead of
            the simulation; None for no limit.

    Attributes:
        why_not: The same; it may become known during the trial.
        met: By rule that has judged a case of the real backend, the conditions it met there. Cases
            that the properties of other rules drew count as much as a rule's own.
    """

    def __init__(self, backend: Backend, why_not: str = "", most_real: int | None = None) -> None:
        self.why_not = why_not or (
            "" if backend == ON_THE_CPU else f"{backend} cannot be simulated"
        )
        self._believed: set[str] = set()
        self._unreal: dict[str, str] = {}
        self._really = Counter[str]()
        self._most_real, self._began_really = most_real, 0
        self.met: dict[str, set[str]] = {}

    def simulates(self, case: Case) -> bool:
        """Return whether a case runs in the simulation at first."""
        return (
            not self.why_not
            and isinstance(case, TrainingCase)
            and not case.kills
            and len(case.runs) == 1
            and (
                case.ranks_needed > REAL_WORLD_SIZE
                or behind(case) is not None
                or not self._is_real_first(case)
            )
        )

    @property
    def real_are_spent(self) -> bool:
        """True if no further training case may run over the real backend instead of the simulation."""
        return self._most_real is not None and self._began_really >= self._most_real

    def begins_really(self, case: Case) -> None:
        """Count a case that runs over the real backend instead of the simulation."""
        self._began_really += isinstance(case, TrainingCase)

    def _is_real_first(self, case: TrainingCase) -> bool:
        """Return whether a small case runs over the real backend from the start.

        The first cases of each situation do, because the ranks of a simulation share more than
        their modules: one hash seed, for example.
        """
        return not self.real_are_spent and (
            _digest(case) % REAL_EVERY == 0
            or any(self._really[situation.kind] < FIRST_REAL for situation in case.situations)
        )

    def ran_really(self, case: Case) -> None:
        """Count a case that ran over the real backend."""
        if isinstance(case, TrainingCase):
            self._really.update(situation.kind for situation in case.situations)

    def judged_really(self, findings: Iterable[Finding]) -> None:
        """Note the conditions that rules met in a case of the real backend."""
        for finding in findings:
            if not finding.unjudged:
                self.met.setdefault(finding.rule, set()).update(finding.met)

    def believes(self, rules: Iterable[str]) -> bool:
        """Return whether simulated failures of these rules have been seen for real, too."""
        return self._believed.issuperset(rules)

    def believe(self, rules: Iterable[str]) -> None:
        """Believe simulated failures of these rules from now on."""
        self._believed.update(rules)

    def disbelieve(self, case_id: str, rules: Iterable[str]) -> None:
        """Count a case whose simulated failures of some rules the real backend does not show."""
        self._unreal[case_id] = ", ".join(sorted(rules))
        if len(self._unreal) >= MOST_UNREAL:
            self.why_not = f"{len(self._unreal)} cases failed only in the simulation: " + "; ".join(
                f"{name} ({listed})" for name, listed in self._unreal.items()
            )


def _digest(case: Case) -> int:
    return int.from_bytes(hashlib.blake2b(to_json(case).encode(), digest_size=4).digest(), "big")
