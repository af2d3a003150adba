"""The features of a case: all that the simplest case has not.

The features of the smallest case that shows a difference are the condition of the difference. Every
case with these features may show it for the same reason; a case without one of them may not.
"""

from collections.abc import Iterator
from dataclasses import asdict, fields

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer
from ddp_invariants.cases.program import Optimizer

_SIZES = ("kind", "outputs", "heads", "groups")
"""Fields of a layer that say how large it is, or that have a feature of their own."""


def features(case: Case) -> tuple[str, ...]:
    """Return the features of a case, in alphabetical order."""
    found = _of_training(case) if isinstance(case, TrainingCase) else _of_a_sampler(case)
    return tuple(sorted(set(found)))


def _of_training(case: TrainingCase) -> Iterator[str]:
    yield from _counted(
        {
            "one rank": case.world_size == 1,
            "several ranks": case.world_size > 2,
            "a group without rank 0": case.outside > 0,
            "several steps": case.steps > 1,
            "accumulation": case.accumulation > 1,
            "a bucket cap": case.bucket_cap is not None,
            f"{case.model.naming} names": case.model.naming != "numbered",
            f"{case.init} starts": case.init != "distinct",
            f"{case.values} numbers": case.values != "integer",
            "scaled inputs": case.log2_scale != 0,
            f"gradients cleared by {case.zero_grad}": case.zero_grad != "set_to_none",
            "several runs": case.rounds > 1,
            "drop_last": case.data.drop_last,
            "batches": case.data.batch_size > 1,
        }
    )
    yield from _of_optimizer(case.optimizer)
    for layer in case.model.layers:
        yield from _of_layer(layer)
    yield from (situation.kind for situation in case.situations)
    yield from (action.kind for action in case.between_steps)


def _of_optimizer(optimizer: Optimizer) -> Iterator[str]:
    yield from _counted(
        {
            optimizer.kind: optimizer.kind != "sgd",
            "momentum": optimizer.momentum > 0,
            "weight decay": optimizer.weight_decay > 0,
            "nesterov": optimizer.nesterov,
            "other constants of Adam": bool(optimizer.differing_constants),
            "AMSGrad": optimizer.amsgrad,
            "maximize": optimizer.maximize,
            f"{optimizer.kernels} kernels": optimizer.kernels != "default",
        }
    )


def _of_layer(layer: Layer) -> Iterator[str]:
    if layer.kind != "linear":
        yield layer.kind
    plain = {field.name: field.default for field in fields(layer)}
    for name, value in asdict(layer).items():
        if name not in _SIZES and value != plain[name]:
            yield str(value) if isinstance(value, str) else name


def _of_a_sampler(case: ShardCase) -> Iterator[str]:
    data, ranks = case.data, case.world_size
    yield from _counted(
        {
            "shuffle": data.shuffle,
            "drop_last": data.drop_last,
            "padding": data.samples % ranks != 0,
            "fewer samples than ranks": 0 < data.samples < ranks,
            "no samples": data.samples == 0,
            "a DataLoader": case.loader,
            "batches": data.batch_size > 1,
            "a saved state": case.saved_after is not None,
            "another world size": case.resumed_by is not None,
            "workers": case.workers > 0,
            "several epochs": len(case.epochs) > 1,
            "a seed": data.seed != 0,
            "a large seed": not 0 <= data.seed < _LARGE,
            "a later epoch": max(case.epochs) > 0,
            "a large epoch": max(case.epochs) >= _LARGE,
            "many ranks": ranks >= _MANY,
            "a long dataset": data.samples >= _LONG,
        }
    )
    yield from (situation.kind for situation in case.situations)


_LARGE, _MANY, _LONG = 256, 60, 64
"""Sizes above those of most cases: a difference that needs one has a threshold as its cause."""


def _counted(holds: dict[str, bool]) -> Iterator[str]:
    return (name for name, is_so in holds.items() if is_so)
