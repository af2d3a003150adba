"""Larger cases, the opposite of shrinking: they separate causes that the smallest case cannot.

In the smallest case, one element on two ranks, a sum is also twice the mean, and the largest value
is some rank's. Larger cases separate these. With fractions instead of integers nothing is equal by
chance. With three or four ranks, numbers that are two by accident become different. With more
elements, an order and a range show.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.scaler import Scaler
from ddp_invariants.situations.unused import UnusedLayers

_SIZES = ((0, 1, 1), (1, 1, 1), (0, 4, 1), (1, 4, 16), (1, 4, 1), (2, 4, 16))
"""Ranks to add, and factors of widths and bucket cap. A parameter stays on its side of the cap."""
_SAMPLES = 48
"""Samples enough for the ranks' batches to differ at every step."""
_LARGE = 500
"""A number of a model's numbers from which the model is large enough."""
_DEALT = 240
"""Samples enough that no random shards are equal, or disjoint, by chance."""


def telling(case: Case, scope: Scope) -> Iterator[Case]:
    """Yield larger cases of the same kind; an implementation that fails the smaller may pass them."""
    if isinstance(case, ShardCase):
        few = ((11, 3), (9, 4), (13, 5)) if 2 * case.data.samples < case.world_size else ()
        # A fault about datasets far shorter than the world does not show on longer ones.
        for ranks, samples in few:
            yield scope.fit_shards(
                replace(case, world_size=ranks, data=replace(case.data, samples=samples))
            )
        for ranks, odd in ((0, 1), (1, 1), (0, 0), (2, 2)):
            size = case.world_size + ranks
            fewer = odd if case.data.samples % case.world_size else 0
            # Every share is 2 mod 3, so that batches of three leave a short one. A state saved
            # after three batches is then neither two batches, nor a batch of each of two or four
            # ranks.
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
            # The scope may take out everything that could be trained.
            with suppress(CaseError):
                yield scope.fit(_larger(case, number, ranks, widths, cap))
    with suppress(CaseError):
        for unequal in _with_unequal_layers(_larger(case, len(_SIZES) + 1, 0, 4, 16)):
            yield scope.fit(unequal)
    if case.ranks_needed + 2 <= scope.max_world_size:
        for recounted in (_with_a_micro_step_more, _with_a_rank_less_that_uses):
            with suppress(CaseError):
                more = recounted(_larger(case, len(_SIZES), 2, 1, 1), case.world_size)
                if more is not None:
                    yield scope.fit(more)


def _with_unequal_layers(case: TrainingCase) -> Iterator[TrainingCase]:
    """Yield the case with more and with fewer outputs of its last layer, if that is linear.

    Of two layers with as many elements, one may be zero only because both are exchanged.
    """
    *layers, last = case.model.layers
    if last.kind == "linear" and last.tied is None and layers:
        for more in (1, -1):
            resized = replace(last, outputs=last.outputs + more)
            yield replace(case, model=replace(case.model, layers=(*layers, resized)))


def _with_a_micro_step_more(case: TrainingCase, _rank: int) -> TrainingCase | None:
    """Return the case with another micro-step: two of them may be taken for two ranks."""
    return None if case.accumulation == 1 else replace(case, accumulation=case.accumulation + 1)


def _with_a_rank_less_that_uses(case: TrainingCase, rank: int) -> TrainingCase | None:
    """Return the case in which one more rank passes a layer by.

    If one rank does so, the others are as many as a divisor that is one too small.
    """
    unused = case.get(UnusedLayers)
    alone = [each for each in unused.layers if each.rank is not None] if unused else []
    more = [replace(each, rank=rank) for each in alone if each.rank == alone[0].rank]
    return case.with_situation(UnusedLayers((*unused.layers, *more))) if unused and more else None


def _larger(case: TrainingCase, number: int, ranks: int, widths: int, cap: int) -> TrainingCase:
    if case.model.numbers > _LARGE:
        widths = cap = 1
    # An embedding table keeps its number of rows.
    table = 0 if case.model.layers[0].kind == "embedding" else None
    layers = tuple(
        replace(
            layer,
            outputs=layer.outputs
            * (1 if layer.tied is not None and layer.tied == table else widths),
        )
        for layer in case.model.layers
    )
    if case.scaler is not None:  # Not a factor that two ranks or a repeated step could also make.
        case = case.with_situation(Scaler(replace(case.scaler, log2_growth=2)))
    larger = replace(
        case,
        world_size=case.world_size + ranks,
        steps=case.steps + 2 * ranks,
        model=replace(case.model, inputs=case.model.inputs * widths, layers=layers),
        values="real",
        bucket_cap=None if case.bucket_cap is None else case.bucket_cap * cap,
        data=replace(case.data, samples=max(case.data.samples, _SAMPLES)),
        seed=(case.seed + number) % 2**31,
    )
    if ranks and case.saved_by is not None:  # More than one, less than all.
        larger = larger.with_situation(Resized(2))
    return larger
