"""The choice of causes to name: the only cause that fits, or a few that cannot be told apart."""

from collections.abc import Iterable
from dataclasses import replace

from ddp_invariants.records.verdict import Cause, Failure

_MOST = 3
"""The most causes that are named together."""


def words(causes: tuple[Cause, ...]) -> str:
    """Return the only cause, or up to three causes, in words; empty for any other number.

    Causes of one kind count as one: for example, one rank left out, without knowing which rank.
    """
    texts = list(dict.fromkeys(cause.words for cause in causes))
    if not 0 < len(texts) <= _MOST:
        return ""
    named = f"either {'; or '.join(texts)}" if len(texts) > 1 else texts[0]
    return named + (
        f"; {causes[0].affected}"
        if causes[0].affected and len({cause.affected for cause in causes}) == 1
        else ""
    )


def caused(failure: Failure, causes: Iterable[Cause]) -> Failure:
    """Return a failure with its possible causes."""
    fitting = tuple(dict.fromkeys(causes))
    return replace(failure, perhaps=words(fitting), causes=fitting)


def narrowed(failure: Failure, failures: Iterable[Failure]) -> Failure:
    """Return a failure with only those of its causes that also fit other failures.

    The other failures are failures of the same rule by the same implementation. If no cause fits
    all of them, no cause is known: each fits by chance, or more than one thing is wrong.
    """
    left = failure.causes
    for larger in failures:
        kinds = {cause.kind for cause in larger.causes}
        texts = {cause.words for cause in larger.causes}
        left = tuple(cause for cause in left if cause.kind in kinds)
        # Among causes of one kind (which rank, which slice), keep those that another case states in
        # the same words.
        repeated = {cause.kind for cause in left if cause.words in texts}
        left = tuple(cause for cause in left if cause.words in texts or cause.kind not in repeated)
    return failure if left == failure.causes else caused(failure, left)
