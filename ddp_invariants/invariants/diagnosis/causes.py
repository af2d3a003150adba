"""Which causes to name: the only one that fits, or the two that cannot be told apart."""

from collections.abc import Iterable
from dataclasses import replace

from ddp_invariants.records.verdict import Cause, Failure


def words(causes: tuple[Cause, ...]) -> str:
    """The cause where there is one, both where there are two, and nothing where all is open.

    Causes of one kind, such as one rank or another left out, are one cause of which it is open
    which.
    """
    said = list(dict.fromkeys(cause.words for cause in causes))
    if not 0 < len(said) < 3:
        return ""
    told = f"either {said[0]}; or {said[1]}" if len(said) == 2 else said[0]
    return told + (
        f"; {causes[0].affected}"
        if causes[0].affected and len({cause.affected for cause in causes}) == 1
        else ""
    )


def caused(failure: Failure, causes: Iterable[Cause]) -> Failure:
    """A breach with what may have caused it."""
    fitting = tuple(dict.fromkeys(causes))
    return replace(failure, perhaps=words(fitting), causes=fitting)


def narrowed(failure: Failure, others: Iterable[Failure]) -> Failure:
    """A breach with those of its causes that fit other breaches of its rule by the same implementation as well.

    Where none fits them all, none is known: each fits by chance, or there is more than one thing
    wrong.
    """
    left = failure.causes
    for other in others:
        kinds, said = (
            {cause.kind for cause in other.causes},
            {cause.words for cause in other.causes},
        )
        left = tuple(cause for cause in left if cause.kind in kinds)
        # Which rank, or which slice: what another case says word for word is it.
        repeated = {cause.kind for cause in left if cause.words in said}
        left = tuple(cause for cause in left if cause.words in said or cause.kind not in repeated)
    return failure if left == failure.causes else caused(failure, left)
