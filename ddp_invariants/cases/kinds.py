"""The kinds of layers: one row each, with all that a case must know of a kind.

`oracle/layers/` and `ranks/training/layers/` have one module for each kind.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ddp_invariants.cases.layers import Layer

LayerKind = Literal[
    "linear",
    "scale",
    "empty",
    "statistics",
    "branches",
    "embedding",
    "convolution",
    "norm",
    "attention",
    "batch_norm",
    "dropout",
    "terms",
    "extremes",
    "mixed",
    "summed",
    "counter",
    "shared_buffer",
    "loss_only",
    "parametrized",
]

Shape = tuple[int, ...]

ROWS = 4
"""Rows of an embedding's table: so few that samples share them, so many that batches omit some."""


SHARES = 13
"""The terms of a `terms` layer that follow one another and have different shares."""


def share(term: int) -> float:
    """Return the factor of a term of a `terms` layer: exact, and unlike its neighbours'."""
    return (term % SHARES + 1) / 16


@dataclass(frozen=True)
class Kind:
    """A kind of layer.

    Attributes:
        parameters: Names and shapes of its parameters at an input width, in the order of
            registration. A layer without a bias has no `bias`.
        parameter_dtypes: The dtypes of parameters that have not their layer's.
        buffers: The same of its buffers; each forward in training changes all of them.
        buffer_dtypes: The dtypes of buffers that have not their layer's.
        unsaved: The names of buffers that a saved state leaves out (`persistent=False`).
        width: The width of its result, given the layer and its input width.
        divisor: The number that divides its input width.
        passing: True if it passes its input on in the dtype it has.
        trains: True if it has a parameter with elements that a forward uses.
        product: True if it is a product, which autocast lowers.
        complex: True if its parameters may be complex.
        low: True if its parameters may be of low precision. Of norms and attention in such a dtype
            no result could be judged.
        twice: True if a forward may call it a second time.
        sparse: True if its gradient may be sparse.
        first: True if it must be the first layer.
        layouts: The memory layouts it may have; empty for any.
        draws: True if it draws random numbers.
        norms_batches: True if a sample's result depends on the other samples of a rank's batch.
        owns: True if a later linear layer may use its weight.
    """

    parameters: Callable[["Layer", int], dict[str, Shape]] = lambda _layer, _width: {}
    parameter_dtypes: Mapping[str, str] = field(default_factory=dict)
    buffers: Callable[[int], dict[str, Shape]] = lambda _width: {}
    buffer_dtypes: Mapping[str, str] = field(default_factory=dict)
    unsaved: frozenset[str] = frozenset()
    width: Callable[["Layer", int], int] = lambda _layer, width: width
    divisor: int = 1
    passing: bool = False
    trains: bool = True
    product: bool = False
    complex: bool = False
    low: bool = True
    twice: bool = False
    sparse: bool = False
    first: bool = False
    layouts: tuple[str, ...] = ()
    draws: bool = False
    norms_batches: bool = False
    owns: bool = False


KINDS: dict[LayerKind, Kind] = {
    "linear": Kind(
        parameters=lambda layer, width: {
            "weight": (layer.outputs, width),
            "bias": (layer.outputs,),
        },
        width=lambda layer, _width: layer.outputs,
        product=True,
        complex=True,
        twice=True,
        owns=True,
    ),
    "scale": Kind(parameters=lambda _layer, _width: {"factor": ()}, complex=True),
    "empty": Kind(parameters=lambda _layer, width: {"nothing": (0, width)}, trains=False),
    "statistics": Kind(
        buffers=lambda width: {"running": (width,), "count": (), "seen": (width,)},
        buffer_dtypes={"running": "float32", "count": "int64", "seen": "bool"},
        unsaved=frozenset({"seen"}),
        passing=True,
        trains=False,
    ),
    "branches": Kind(
        parameters=lambda _layer, width: dict.fromkeys(("first", "second"), (width, width)),
        product=True,
    ),
    "embedding": Kind(
        parameters=lambda _layer, width: {"weight": (ROWS, width)},
        sparse=True,
        first=True,
        owns=True,
    ),
    "convolution": Kind(
        parameters=lambda layer, width: {
            "kernel": (layer.outputs, width // 4, 2, 2),
            "bias": (layer.outputs,),
        },
        width=lambda layer, _width: 4 * layer.outputs,
        divisor=4,
        product=True,
        layouts=("contiguous", "channels_last"),
    ),
    "norm": Kind(
        parameters=lambda _layer, width: dict.fromkeys(("gain", "shift"), (width,)),
        low=False,
    ),
    "attention": Kind(
        parameters=lambda _layer, width: dict.fromkeys(
            ("query", "key", "value"), (width // 2, width // 2)
        ),
        divisor=2,
        low=False,
    ),
    "batch_norm": Kind(
        parameters=lambda _layer, width: dict.fromkeys(("weight", "bias"), (width // 4,)),
        buffers=lambda width: {
            **dict.fromkeys(("running_mean", "running_var"), (width // 4,)),
            "num_batches_tracked": (),
        },
        buffer_dtypes={"num_batches_tracked": "int64"},
        divisor=4,
        low=False,
        norms_batches=True,
    ),
    "terms": Kind(
        parameters=lambda layer, width: {
            f"module.{number}": (width,) for number in range(layer.outputs)
        },
    ),
    "extremes": Kind(
        buffers=lambda width: {
            **dict.fromkeys(("total", "level", "code", "mask"), (width,)),
            "steps": (),
            **dict.fromkeys(("edges", "far"), (3,)),
        },
        buffer_dtypes={
            "total": "int64",
            "level": "int8",
            "code": "uint8",
            "mask": "bool",
            "steps": "int32",
            "edges": "float32",
            "far": "float64",
        },
        passing=True,
        trains=False,
    ),
    "mixed": Kind(
        parameters=lambda _layer, width: dict.fromkeys(("gain", "shift"), (width,)),
        parameter_dtypes={"shift": "float64"},
        low=False,
    ),
    "summed": Kind(
        parameters=lambda _layer, width: dict.fromkeys(("base", "delta"), (width,)),
        low=False,
    ),
    "parametrized": Kind(
        parameters=lambda _layer, width: {"inner.parametrizations.factor.original": (width,)},
        low=False,
    ),
    "dropout": Kind(passing=True, trains=False, draws=True),
    "counter": Kind(
        buffers=lambda _width: {"count": ()},
        buffer_dtypes={"count": "int64"},
        passing=True,
        trains=False,
    ),
    "shared_buffer": Kind(
        buffers=lambda _width: {"count": ()},
        buffer_dtypes={"count": "int64"},
        passing=True,
        trains=False,
    ),
    "loss_only": Kind(
        parameters=lambda _layer, width: {"coefficient": (width,)},
        passing=True,
        trains=False,
        low=False,
    ),
}
