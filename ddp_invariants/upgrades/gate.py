"""The gate of an upgrade: the same cases under two interpreters.

Each sort of difference is shrunk to its smallest case.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.upgrades.accepted import Accepted
from ddp_invariants.upgrades.comparison import compared, under
from ddp_invariants.upgrades.corpus import drawn_cases
from ddp_invariants.upgrades.difference import Difference
from ddp_invariants.upgrades.outcome import REPEATS, Gated, ShrunkDifference, gated
from ddp_invariants.upgrades.pace import Cost, ratios
from ddp_invariants.upgrades.progress import Event, Found, Ran, Shrunk, Tried
from ddp_invariants.upgrades.shift import RUNS, Movement, movement, other_numbers, shifted
from ddp_invariants.upgrades.sides import Pair, Sides
from ddp_invariants.upgrades.sorts import Sorts

SHRINK_RUNS = 150
"""Largest number of cases run on both sides to shrink the case of a new sort of difference."""
SHRINK_HANGS = 6
"""Real runs among them that may hang: each costs a deadline."""


class Gate:
    """Two sides, with the implementation under test on both.

    Args:
        sides: The sides.
        listen: A function that the gate calls with each event (`progress`), as soon as it occurs.
    """

    def __init__(self, sides: Sides, listen: Callable[[Event], None] = lambda _: None) -> None:
        self.sides, self._listen = sides, listen
        self._unreal: dict[str, Case] = {}
        self._known = Sorts()

    def differences(
        self, case: Case, *, fresh: bool = False, real: bool = True
    ) -> list[Difference]:
        """Run a case on both sides, and compare.

        Args:
            case: The case.
            fresh: Run it in new processes.
            real: Run it over the real backend, even if it can be simulated.
        """
        return self._compared(self.sides.answers(case, fresh=fresh, real=real))

    def run(self, count: int, number: int, allowed: Sequence[Accepted] = ()) -> Gated:
        """Search for every sort of difference. An interrupt ends the search, and loses nothing.

        Args:
            count: Number of cases to draw in all.
            number: The seed.
            allowed: The accepted changes.

        Raises:
            HarnessError: The harness failed.
        """
        why = {change.change: change.reason for change in allowed}
        entries = [
            ShrunkDifference(difference, None, accepted=why.get(difference.name, ""))
            for difference in self.sides.at_once
        ]
        for entry in entries:
            self._known.add(entry.difference)
            self._listen(Found(entry.difference, None, 0))
        costs: list[tuple[Cost, Cost]] = []
        try:
            self._search(count, number, entries, why, costs)
            entries += self._only_warned(why)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        ran = self.sides.ran
        return replace(
            gated(entries, ran.total(), () if interrupted else allowed),
            pace=tuple(ratios(costs)),
            simulated=ran["simulated"],
            unreal=tuple(self._unreal.items()),
            interrupted=interrupted,
        )

    def _search(
        self,
        count: int,
        number: int,
        entries: list[ShrunkDifference],
        why: dict[str, str],
        costs: list[tuple[Cost, Cost]],
    ) -> None:
        """Draw cases and compare both sides on each.

        Args:
            count: Number of cases to draw in all.
            number: The seed.
            entries: The known sorts; receives each new sort at once, before it is shrunk.
            why: The reasons of the accepted changes, by name.
            costs: Receives the costs of each real case.
        """
        for drawn, case in enumerate(drawn_cases(self.sides.scope, count, str(number)), start=1):
            pair = self.sides.answers(case, counted=True)
            costs += [] if pair.simulated else pair.costs()
            self._listen(Ran(drawn, count))
            for difference in self._another(case, pair):
                if self._known.explain(difference):
                    continue  # The smallest case of a difference before has shown it, too.
                self._listen(Found(difference, case, drawn))
                # Entered before it is shrunk: an interrupt loses no difference.
                entries.append(ShrunkDifference(difference, case, 0))
                shrunk = self._shrunk(case, difference, why, simulated=pair.simulated)
                entries[-1:] = shrunk
                for entry in shrunk:
                    self._listen(Shrunk(entry))

    def _compared(self, pair: Pair) -> list[Difference]:
        scope = self.sides.scope
        return compared(pair.old, pair.new, scope.declared, scope.sampler)

    def _another(self, case: Case, pair: Pair) -> list[Difference]:
        """Return the differences of new sorts.

        A simulated difference must also show over the real backend, and a difference that may move
        to another case must also show in new processes.
        """
        fresh = self._unknown(self._compared(pair))
        fresh = {sort: each for sort, each in fresh.items() if sort not in self._unreal}
        if fresh and pair.simulated:
            real = {difference.sort: difference for difference in self.differences(case)[::-1]}
            self._unreal |= {
                sort: case
                for sort, difference in fresh.items()
                if sort not in real and not difference.moves
            }
            fresh = self._unknown(list(real.values())[::-1])
        if any(difference.moves for difference in fresh.values()):
            alone = self._unknown(self.differences(case, fresh=True))
            fresh = {
                sort: alone.get(sort, difference)
                for sort, difference in fresh.items()
                if not difference.moves or sort in alone
            }
        return list(fresh.values())

    def _unknown(self, differences: Sequence[Difference]) -> dict[str, Difference]:
        """Return the first difference of each sort that no known sort explains."""
        return {each.sort: each for each in differences[::-1] if not self._known.explain(each)}

    def _only_warned(self, why: dict[str, str]) -> list[ShrunkDifference]:
        """Return the warnings that only one side gave, if no drawn case has reported them."""
        entries: list[ShrunkDifference] = []
        for warned, opposite in (self.sides.warned, self.sides.warned[::-1]):
            for title, case in warned.items():
                if title not in opposite:
                    again = self._another(case, self.sides.answers(case, fresh=True))
                    for difference in again:
                        if difference.subject == title and not self._known.explain(difference):
                            entries += self._shrunk(case, difference, why)
        return entries

    def _shrunk(
        self, case: Case, difference: Difference, why: dict[str, str], *, simulated: bool = False
    ) -> list[ShrunkDifference]:
        """Return a sort of difference with the smallest case that still shows it.

        A simulated case costs less, so simpler cases run there first; the repeated runs are real.
        The sorts that every repeated run shows beside it follow.
        """
        smallest = self._smallest(case, difference, real=not simulated)
        runs, varying = self._again(smallest, difference)
        if simulated and len(_shown(runs, difference)) < REPEATS:
            smallest = self._smallest(case, difference, real=True)
            runs, varying = self._again(smallest, difference)
        again = _shown(runs, difference)
        named = again[0] if again else under(difference, smallest)
        self._known.add(named)
        varies = named.sort in varying
        named = named if varies else self._systematic(named, smallest)
        beside = [
            each
            for each in self._unknown(runs[0]).values()
            if len(_shown(runs, each)) == REPEATS and not each.moves
        ]
        for each in beside:
            self._known.add(each)
        return [
            ShrunkDifference(each, smallest, seen, why.get(each.name, ""), differs)
            for each, seen, differs in (
                (named, len(again), varies),
                *((each, REPEATS, each.sort in varying) for each in beside),
            )
        ]

    def _systematic(self, difference: Difference, case: Case) -> Difference:
        """Return a rounding as a shift if it moves numbers the same way in many runs."""
        if difference.kind != "rounding" or not isinstance(case, TrainingCase):
            return difference
        movements = list[Movement | None]()
        for variant in other_numbers(case):
            self._listen(Tried(difference, len(movements) + 1, RUNS))
            pair = self.sides.answers(variant)
            assert isinstance(pair.old, TrainingEvidence)
            assert isinstance(pair.new, TrainingEvidence)
            movements.append(movement(pair.old, pair.new, difference.subject))
        return shifted(difference, movements) or difference

    def _again(self, case: Case, difference: Difference) -> tuple[list[list[Difference]], set[str]]:
        """Run a case again, always over the real backend.

        Returns:
            The differences between the sides in each repeated run, and the sorts of those between
                two runs of the old side. A new side alone that varies is a change.
        """
        pairs = [
            self.sides.answers(case, fresh=difference.moves, real=True) for _ in range(REPEATS)
        ]
        first, *others = pairs
        of_the_old = [
            self._compared(Pair(first.old, other.old, simulated=False)) for other in others
        ]
        runs = [self._compared(pair) for pair in pairs]
        return runs, {each.sort for shown in of_the_old for each in shown}

    def _smallest(self, case: Case, difference: Difference, *, real: bool) -> Case:
        """Return the smallest case seen to show a sort of difference."""
        runs, hangs, smaller = 0, 0, True
        while smaller:
            smaller = False
            for candidate in simpler(case):
                if runs == SHRINK_RUNS or hangs == SHRINK_HANGS:
                    return case
                runs += 1
                self._listen(Tried(difference, runs, SHRINK_RUNS))
                pair = self.sides.answers(candidate, fresh=difference.moves, real=real)
                hangs += pair.hung and not pair.simulated
                if _shown([self._compared(pair)], difference):
                    case, smaller = candidate, True
                    break
        return case


def _shown(runs: Sequence[Sequence[Difference]], difference: Difference) -> list[Difference]:
    """Return a sort of difference as each of some runs shows it."""
    first_of_each = (
        next((each for each in run if each.sort == difference.sort), None) for run in runs
    )
    return [each for each in first_of_each if each is not None]
