"""The sorts of differences that a comparison knows: rule and cause, each with its conditions."""

from collections import defaultdict

from ddp_invariants.upgrades.difference import Difference


class Sorts:
    """The known sorts.

    A sort under a condition explains the same sort in every case with at least the features of the
    condition.
    """

    def __init__(self) -> None:
        self._conditions: dict[str, list[frozenset[str]]] = defaultdict(list)

    def add(self, difference: Difference) -> None:
        """Enter a sort with its condition."""
        self._conditions[difference.sort].append(frozenset(difference.condition or ()))

    def explain(self, difference: Difference) -> bool:
        """Return whether a known sort explains a difference."""
        present = frozenset(difference.condition or ())
        return any(each <= present for each in self._conditions.get(difference.sort, ()))
