"""The numbers of a case, each with the cases that differ in that number alone."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.errors import CaseError

PARAMETERS, RANKS = "the number of parameters", "the number of ranks"
SAMPLES = "the number of samples"
_SAMPLES = 24
"""Samples enough that no two shuffled shards are equal by chance, and for many ranks."""
_MOST_SAMPLES, _MOST_RANKS, _MOST_EPOCHS, _MOST_SEEDS, _MOST_ELEMENTS = (
    20_000,
    40,
    1000,
    5000,
    20_000,
)
_MOST_STEPS, _MOST_PARAMETERS, _MOST_BATCH, _MOST_ITERATIONS = 16, 40, 16, 8


@dataclass(frozen=True)
class Axis:
    """One number of a case.

    Attributes:
        noun: The number in words.
        change: A function that returns a case with another value of the number.
        start: The value of the smallest case.
        least: The smallest value.
        most: The largest value.
        is_size: True if a case with more room would hide the number.
        excludes: The noun of the axis that cannot be changed together with this one.
    """

    noun: str
    change: Callable[[Any, int], Case]
    start: int
    least: int
    most: int
    is_size: bool = False
    excludes: str = ""

    def at(self, case: Case, value: int) -> Case | None:
        """Return a case with another value; None if there is no such case."""
        try:
            return self.change(case, value) if self.least <= value <= self.most else None
        except CaseError:
            return None


def axes(case: Case, most_ranks: int) -> list[Axis]:
    """Return the numbers of a case.

    Args:
        case: The smallest case of a failure.
        most_ranks: The largest number of ranks of a training case.
    """
    found = _of_sampling(case) if isinstance(case, ShardCase) else _of_training(case, most_ranks)
    return [axis for axis in found if axis.least <= axis.start <= axis.most]


def roomy(case: Case) -> Case:
    """Return a case with samples enough for more ranks, whose shuffled orders differ."""
    ranks = case.world_size
    least = max(case.data.samples, _SAMPLES)
    # An even number of samples for each rank is added, so that what divides them stays the same.
    more = 2 * ranks * -(-(least - case.data.samples) // (2 * ranks))
    return replace(case, data=replace(case.data, samples=case.data.samples + more))


def _of_sampling(case: ShardCase) -> Iterator[Axis]:
    data = case.data
    yield Axis(RANKS, _with_ranks, case.world_size, 1, _MOST_RANKS)
    yield Axis(SAMPLES, _with_samples, data.samples, 1, _MOST_SAMPLES, is_size=True)
    last, several = "the last epoch", "the number of epochs"
    yield Axis(last, _with_epoch, case.epochs[-1], 0, _MOST_EPOCHS, excludes=several)
    yield Axis(several, _with_epochs, len(case.epochs), 1, _MOST_ITERATIONS, excludes=last)
    yield Axis("the seed", _with_seed, data.seed, 0, _MOST_SEEDS)
    yield Axis("the batch size", _with_batch_size, data.batch_size, 1, _MOST_BATCH)


def _of_training(case: TrainingCase, most_ranks: int) -> Iterator[Axis]:
    # One rank has nobody to disagree with, so that two ranks are no threshold.
    yield Axis(RANKS, _with_ranks, case.world_size, 2, most_ranks - case.outside)
    yield Axis("the number of steps", _with_steps, case.steps, 1, _MOST_STEPS)
    if case.accumulation > 1:
        yield Axis("the number of backwards per step", _with_backwards, case.accumulation, 1, 8)
    yield Axis("the batch size", _with_batch_size, case.data.batch_size, 1, _MOST_BATCH)
    elements = "the number of elements"
    shapes = list(_shapes(case.model))
    count = sum(map(prod, shapes))
    yield Axis(elements, _with_elements, count, 1, _MOST_ELEMENTS, excludes=PARAMETERS)
    yield Axis(PARAMETERS, _with_parameters, len(shapes), 1, _MOST_PARAMETERS, excludes=elements)


def ranks_in_proportion(axis: Axis) -> Axis:
    """Return a sampler's axis of ranks along which a dataset grows with the number of ranks.

    The samples of a rank stay as many, and W divides N as before.
    """
    return replace(axis, change=_with_ranks_in_proportion) if axis.noun == RANKS else axis


def padded(case: TrainingCase, plainer: TrainingCase) -> TrainingCase:
    """Return a plainer case with plain layers added, as many parameters as a case has.

    Their elements are as many as well, or more.

    Raises:
        CaseError: It has more parameters, or parameters of other dtypes.
    """
    missing = parameters(case) - parameters(plainer)
    if not missing:
        return plainer
    dtypes = [{layer.dtype for layer in each.model.layers} for each in (case, plainer)]
    kinds = {layer.kind for layer in case.model.layers}
    if missing < 0 or dtypes[0] != dtypes[1] or "mixed" in kinds:
        raise CaseError("plain layers do not make up for what is left out")
    model, count = plainer.model, sum(map(prod, _shapes(case.model)))
    layer = Layer("linear", outputs=count, dtype=model.layers[-1].dtype)
    return replace(plainer, model=replace(model, layers=(*model.layers, *(layer,) * missing)))


def widened(case: Case, most: int) -> Iterator[TrainingCase]:
    """Yield a training case with up to so many more outputs of its first or its last layer."""
    if not isinstance(case, TrainingCase):
        return
    layers = case.model.layers
    for place, more in product(sorted({0, len(layers) - 1}), range(1, most + 1)):
        if layers[place].kind == "linear" and layers[place].tied is None:
            wider = replace(layers[place], outputs=layers[place].outputs + more)
            changed = (*layers[:place], wider, *layers[place + 1 :])
            with suppress(CaseError):
                yield replace(case, model=replace(case.model, layers=changed))


def parameters(case: Case) -> int:
    """Return the number of parameters of a training case's model; 0 for a sampler's case."""
    return len(list(_shapes(case.model))) if isinstance(case, TrainingCase) else 0


def _shapes(model: Model) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a model's parameters."""
    for layer, width in zip(model.layers, model.widths(), strict=False):
        yield from layer.shapes(width).values()


def _with_ranks(case: Any, number: int) -> Case:
    changed: Case = replace(case, world_size=number)
    return changed


def _with_ranks_in_proportion(case: ShardCase, number: int) -> Case:
    share, rest = divmod(case.data.samples, case.world_size)
    if rest and number == 1:
        raise CaseError("one rank divides every number of samples")
    samples = share * number + min(rest, number - 1)
    return replace(case, world_size=number, data=replace(case.data, samples=samples))


def _with_samples(case: Any, number: int) -> Case:
    changed: Case = replace(case, data=replace(case.data, samples=number))
    return changed


def _with_batch_size(case: Any, number: int) -> Case:
    changed: Case = replace(case, data=replace(case.data, batch_size=number))
    return changed


def _with_seed(case: ShardCase, number: int) -> Case:
    return replace(case, data=replace(case.data, seed=number))


def _with_epoch(case: ShardCase, number: int) -> Case:
    return replace(case, epochs=(*case.epochs[:-1], number))


def _with_epochs(case: ShardCase, number: int) -> Case:
    further = tuple(case.epochs[-1] + ahead for ahead in range(1, number + 1))
    return replace(case, epochs=(*case.epochs, *further)[:number])


def _with_steps(case: TrainingCase, number: int) -> Case:
    return replace(case, steps=number)


def _with_backwards(case: TrainingCase, number: int) -> Case:
    return replace(case, accumulation=number)


def _with_elements(case: TrainingCase, number: int) -> Case:
    """Return the case with one parameter of so many elements."""
    first = case.model.layers[0]
    layer = first if first.kind == "linear" else Layer("linear", dtype=first.dtype)
    layers = (replace(layer, outputs=1, bias=False),)
    return replace(case, model=replace(case.model, inputs=number, layers=layers))


def _with_parameters(case: TrainingCase, number: int) -> Case:
    """Return the case with so many parameters of one element."""
    layer = Layer("linear", dtype=case.model.layers[0].dtype)
    return replace(case, model=replace(case.model, inputs=1, layers=(layer,) * number))
