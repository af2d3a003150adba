"""Accepted changes: the differences that a team has reviewed, in a file of `[[accepted]]` tables."""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from ddp_invariants.cases.fields import Strict
from ddp_invariants.discovery.deviations import current, tables
from ddp_invariants.errors import DeviationError
from ddp_invariants.upgrades.difference import names_a_sort


@dataclass(frozen=True)
class Accepted(Strict):
    """A change that a team has reviewed and accepted.

    Attributes:
        change: Its name, as a report gives it:
            `discrete: collectives: one broadcast fewer; in every case`.
        reason: The reason.
        link: The public discussion; may be empty.
        expires: The day from which on the change must be reviewed again.
    """

    change: str
    reason: str
    expires: dt.date
    link: str = ""


def accepted_changes(path: Path, today: dt.date) -> tuple[Accepted, ...]:
    """Return the accepted changes in a file of `[[accepted]]` tables.

    Raises:
        DeviationError: The file cannot be read, an accepted change has expired, or its name lacks
            the cause or the condition.
    """
    changes = tables(path, "accepted", Accepted)
    terms = ((f"the accepted change {accepted.change!r}", accepted.expires) for accepted in changes)
    current(terms, path, today)
    for accepted in changes:
        if not names_a_sort(accepted.change):
            raise DeviationError(
                f"{path}: {accepted.change!r} names no cause and no condition, so it would hide "
                "every later change of that kind; run compare without it and copy the whole name, "
                "such as 'discrete: collectives: one broadcast fewer; in every case'"
            )
    return changes
