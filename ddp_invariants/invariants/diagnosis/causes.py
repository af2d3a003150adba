"""Which causes to name: the only one that fits, or the two that cannot be told apart."""

from collections.abc import Iterable
from dataclasses import replace

from ddp_invariants.verdict import Breach, Cause


def unique(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """One cause of each kind, the first."""
    return tuple({cause.kind: cause for cause in reversed(list(causes))}.values())[::-1]


def words(causes: tuple[Cause, ...]) -> str:
    """The cause where there is one, both where there are two, and nothing where all is open."""
    if not 0 < len(causes) < 3:
        return ""
    told = f"either {causes[0].words}; or {causes[1].words}" if len(causes) == 2 else causes[0].words
    return told + (f"; {causes[0].affected}" if causes[0].affected and causes[0].affected == causes[-1].affected else "")


def caused(breach: Breach, causes: Iterable[Cause]) -> Breach:
    """A breach with what may have caused it."""
    fitting = unique(causes)
    return replace(breach, perhaps=words(fitting), causes=fitting)


def narrowed(breach: Breach, others: Iterable[Breach]) -> Breach:
    """A breach with those of its causes that fit other breaches of its rule by the same implementation as well.

    Where none fits them all, none is known: each fits by chance, or there is more than one thing wrong.
    """
    left = breach.causes
    for other in others:
        kinds = {cause.kind for cause in other.causes}
        left = tuple(cause for cause in left if cause.kind in kinds)
    return breach if left == breach.causes else caused(breach, left)
