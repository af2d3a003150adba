"""Two ranks' sequences of collectives, aligned: what one side issues more, less, or otherwise."""

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import NamedTuple

from ddp_invariants.records.evidence import RankEvidence
from ddp_invariants.records.trace import POINT_TO_POINT, Call


class Parting(NamedTuple):
    """The way in which two sequences of collectives part.

    Attributes:
        cause: The difference in words without numbers, such as "one broadcast fewer".
        where: The step and the number of the first call that differs.
        old: The calls of the old side there.
        new: The calls of the new side there.
    """

    cause: str
    where: str
    old: str
    new: str


def parting(old: RankEvidence, new: RankEvidence) -> Parting | None:
    """Return how two ranks' collectives part; None if they are the same, group by group."""
    for group, (first, second) in enumerate(zip_longest(old.sent, new.sent, fillvalue=())):
        before, after = _compared(first), _compared(second)
        if before == after:
            continue
        parts = [
            (before[at:to], after[start:end], at)
            for tag, at, to, start, end in SequenceMatcher(
                None, before, after, autojunk=False
            ).get_opcodes()
            if tag != "equal"
        ]
        removed, added, at = parts[0]
        return Parting(
            _cause(before, after),
            f"{_step(old, group, at)}call {at + 1}{f' of group {group}' if group else ''}",
            _listed(removed),
            _listed(added),
        )
    return None


class _Row(NamedTuple):
    """The fields of a collective that two sides must share."""

    kind: str
    dtype: str
    elements: int
    operation: str

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype} x {self.elements} {self.operation}".rstrip()


def _compared(calls: Sequence[Call]) -> list[_Row]:
    return [_Row(*call[:4]) for call in calls if call.kind not in POINT_TO_POINT]


def _listed(rows: Sequence[_Row]) -> str:
    more = f", and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"{', '.join(map(str, rows[:3])) or 'none'}{more}"


def _step(rank: RankEvidence, group: int, at: int) -> str:
    """Return the step in which a rank issued a call of a group; empty if it was in none."""
    for step, (starts, ends) in enumerate(rank.marks):
        if group < len(starts) and starts[group] <= at < ends[group]:
            return f"step {step}, "
    return ""


def _cause(before: list[_Row], after: list[_Row]) -> str:
    """Return the difference of two sequences in words without numbers."""
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    if not gone and not come:
        return "the same calls in another order"
    net = Counter(row.kind for row in come.elements())
    net.subtract(row.kind for row in gone.elements())
    changed = {kind: count for kind, count in net.items() if count}
    if not changed:
        kinds = ", ".join(sorted({row.kind for row in gone}))
        return f"other {_other(gone, come)} of {kinds}"
    if len(changed) == 1:
        ((kind, count),) = changed.items()
        if _elements(gone, kind) == _elements(come, kind):
            return f"the same elements in {'more' if count > 0 else 'fewer'} calls of {kind}"
    return ", ".join(
        f"{'one' if abs(count) == 1 else 'several'} {kind} {'more' if count > 0 else 'fewer'}"
        for kind, count in sorted(changed.items())
    )


def _other(gone: Counter[_Row], come: Counter[_Row]) -> str:
    """Return the fields in which calls of the same kinds differ."""
    columns = {"dtype": "types", "elements": "sizes", "operation": "operations"}
    differing = [
        plural
        for name, plural in columns.items()
        if Counter(getattr(row, name) for row in gone.elements())
        != Counter(getattr(row, name) for row in come.elements())
    ]
    return " and ".join(differing) or "calls"


def _elements(rows: Counter[_Row], kind: str) -> int:
    return sum(row.elements * count for row, count in rows.items() if row.kind == kind)
