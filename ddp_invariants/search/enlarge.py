"""Shrinking's opposite: larger cases, in which causes that the smallest cannot tell apart predict different things.

In the smallest case, one element on two ranks, a sum is as well twice the mean, and the largest
value is some rank's. With fractions instead of integers nothing is equal by chance; with three or
four ranks, numbers that are two by accident part; with more elements, an order and a range show.
"""

from collections.abc import Iterator
from dataclasses import replace

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Model
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError

_SIZES = ((0, 1, 1), (1, 1, 1), (0, 4, 1), (1, 4, 16), (1, 4, 1), (2, 4, 16))
"""Ranks more, widths times, bucket cap times: so that a parameter stays above the cap or below it, whichever it was."""
_SAMPLES = 48
"""Enough for the ranks' batches to differ at every step."""
_DEALT = 240
"""Enough for nothing random to be equal, or disjoint, by chance."""


def telling(case: Case, scope: Scope) -> Iterator[Case]:
    """Larger cases of the same kind, which an implementation may pass even where it breaks a rule on the smaller one."""
    if isinstance(case, ShardCase):
        few = ((11, 3), (9, 4), (13, 5)) if 2 * case.data.samples < case.world_size else ()
        for (
            ranks,
            samples,
        ) in few:  # What is about datasets far shorter than the world shows on no longer one.
            yield scope.fit_shards(
                replace(case, world_size=ranks, data=replace(case.data, samples=samples))
            )
        for ranks, odd in ((0, 1), (1, 1), (0, 0), (2, 2)):
            size = case.world_size + ranks
            fewer = odd if case.data.samples % case.world_size else 0
            # Every share is 2 mod 3, so that batches of three leave a short one; what is saved
            # after three of them is neither two batches, nor a batch of each of two or four ranks.
            share = _DEALT // size + (2 - _DEALT // size) % 3
            data = replace(case.data, samples=size * share - fewer, batch_size=3)
            epochs = tuple(dict.fromkeys((*case.epochs, 0, 1, 2)))
            saved_after = None if case.saved_after is None else 3
            yield scope.fit_shards(
                replace(case, world_size=size, data=data, epochs=epochs, saved_after=saved_after)
            )
        return
    for number, (ranks, widths, cap) in enumerate(_SIZES):
        if case.ranks_needed + ranks <= scope.max_world_size:
            try:
                yield scope.fit(_larger(case, number, ranks, widths, cap))
            except CaseError:
                continue  # What the scope takes out may leave nothing to train.


def _larger(case: TrainingCase, number: int, ranks: int, widths: int, cap: int) -> TrainingCase:
    table = (
        0 if case.model.layers[0].kind == "embedding" else None
    )  # Whose rows are as many as before.
    layers = tuple(
        replace(
            layer,
            outputs=layer.outputs
            * (1 if layer.tied is not None and layer.tied == table else widths),
        )
        for layer in case.model.layers
    )
    return replace(
        case,
        world_size=case.world_size + ranks,
        steps=case.steps + 2 * ranks,
        model=Model(case.model.inputs * widths, layers),
        values="real",
        bucket_cap=None if case.bucket_cap is None else case.bucket_cap * cap,
        scaler=case.scaler
        and replace(
            case.scaler, log2_growth=2
        ),  # No factor that two ranks make, or a step made twice.
        saved_by=2
        if ranks and case.saved_by is not None
        else case.saved_by,  # More than one, less than all.
        data=replace(case.data, samples=max(case.data.samples, _SAMPLES)),
        seed=(case.seed + number) % 2**31,
    )
