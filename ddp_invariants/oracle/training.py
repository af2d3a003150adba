"""What single-process training on the global batch gives, with a bound on what a right implementation may differ by.

Plain numpy, so that nothing on trial (torch included) has a part in it. Every number is a ball
(balls.py).

Each step starts from the parameters the ranks held when its forward started, so that a fault shows
at the step it happens in, and radii do not pile up over steps. That all steps are right from a
right start is what makes the trajectory right.

Suffixes: W ranks, B batch, I and O widths in and out, P elements of all trainable parameters end to
end.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import PARAMETERS, PASSING, ROWS, Layer
from ddp_invariants.oracle import complexes
from ddp_invariants.oracle.balls import (
    OWN_ROUNDOFF,
    Ball,
    FloatArray,
    cast,
    exactly,
    gelu,
    masked,
    negated,
    plus,
    product,
    relu,
    summed,
    times,
    transposed,
)
from ddp_invariants.oracle.blocks import (
    Attended,
    Normed,
    attended,
    attended_back,
    batch_normed,
    batch_normed_back,
    convolved,
    convolved_back,
    normed,
    normed_back,
)


@dataclass(frozen=True)
class Batch:
    """Every rank's samples at one step: inputs (W, B, I), targets (W, B, O), tags (W, B), and their indices per rank.

    With the layers that each rank's forward passes by, none of any where that is empty; and what
    each that draws random numbers multiplied its input by, (W, B, D) each, by the layer's index.
    """

    inputs_WBI: FloatArray
    targets_WBO: FloatArray
    tags_WB: FloatArray
    indices: list[NDArray[np.intp]]
    passed_by: tuple[frozenset[int], ...] = ()
    drawn: Mapping[int, FloatArray] = field(default_factory=dict)

    @property
    def passed_by_all(self) -> frozenset[int]:
        """What every rank passes by, where they do not differ."""
        return self.passed_by[0] if self.passed_by else frozenset()

    def of(self, ranks: list[int]) -> "Batch":
        """Those of some ranks that pass the same layers by."""
        return Batch(
            self.inputs_WBI[ranks],
            self.targets_WBO[ranks],
            self.tags_WB[ranks],
            [self.indices[r] for r in ranks],
            (self.passed_by[ranks[0]],),
            {index: drawn_WBD[ranks] for index, drawn_WBD in self.drawn.items()},
        )

    def alike(self) -> Iterator[tuple[list[int], "Batch"]]:
        """The ranks in groups that pass the same layers by."""
        for one in dict.fromkeys(self.passed_by):
            ranks = [rank for rank, other in enumerate(self.passed_by) if other == one]
            yield ranks, self.of(ranks)


def batches(case: TrainingCase) -> list[Batch]:
    """The batches of all micro-steps, poison left out: whoever judges a poisoned step knows what not to compare."""
    dataset = numbers.Dataset(case)
    return [
        Batch(
            dataset.inputs_ND[np.stack(dealt)],
            dataset.targets_ND[np.stack(dealt)],
            dataset.tags_N[np.stack(dealt)],
            dealt,
            _passed_by(case, number),
        )
        for number, dealt in enumerate(numbers.batches(case))
    ]


def _passed_by(case: TrainingCase, number: int) -> tuple[frozenset[int], ...]:
    step, micro_step = divmod(number, case.accumulation)
    return (
        tuple(case.passed_by(rank, step, micro_step) for rank in range(case.world_size))
        if case.unused
        else ()
    )


def joined(parts: list[Batch]) -> Batch:
    """Batches of equal size, those of all ranks included, as one batch of one rank."""

    def one(arrays: list[FloatArray]) -> FloatArray:
        return np.concatenate([array.reshape(-1, *array.shape[2:]) for array in arrays])[None]

    return Batch(
        one([part.inputs_WBI for part in parts]),
        one([part.targets_WBO for part in parts]),
        one([part.tags_WB for part in parts]),
        [np.concatenate([i for part in parts for i in part.indices])],
        drawn={index: one([part.drawn[index] for part in parts]) for index in parts[0].drawn},
    )


@dataclass(frozen=True)
class Gradients:
    """Every rank's local gradients and losses at one step, as they must be.

    Attributes:
        by_name: Per trainable parameter, its gradient on each rank: weights (W, O, I) however they
            are stored.
        losses_W: Each rank's loss, float64.
        entries: Of a sparse gradient, the magnitudes of what it is kept as the sum of, added up.
    """

    by_name: Mapping[str, Ball]
    losses_W: Ball
    entries: Mapping[str, FloatArray] = field(default_factory=dict)


def gradients(
    case: TrainingCase, parameters: Mapping[str, FloatArray], batch: Batch, scale: float = 1.0
) -> Gradients:
    """Forward and backward of all ranks at once.

    Args:
        case: Its model.
        parameters: Values at the start of the step, by full name, in the parameters' shapes.
        batch: Every rank's samples.
        scale: What the loss is multiplied by before backward, a power of two. It rounds nothing by
            itself; what overflows, or becomes too small to be normal, on the way back is in the
            radii.
    """
    if len(set(batch.passed_by)) > 1:
        return _assembled(
            [(ranks, gradients(case, parameters, part, scale)) for ranks, part in batch.alike()]
        )
    model = _Stack(case, parameters, batch.passed_by_all, batch.drawn)
    outputs_WBO, dtype = model.forward(batch.inputs_WBI)
    losses_W, g = _head(case, outputs_WBO, batch, scale)
    model.backward(cast(g, "float64", dtype))
    if batch.passed_by:
        model.count_unused_as_zero()
    return Gradients(model.gradients, losses_W, model.magnitudes)


def _assembled(parts: list[tuple[list[int], Gradients]]) -> Gradients:
    """All ranks' from those of some at a time."""
    order = np.argsort([rank for ranks, _ in parts for rank in ranks])

    def joined(balls: list[Ball]) -> Ball:
        return Ball(
            np.concatenate([ball.centre for ball in balls])[order],
            np.concatenate([ball.radius for ball in balls])[order],
            min(float(ball.quantum) for ball in balls),
        )

    return Gradients(
        {name: joined([part.by_name[name] for _, part in parts]) for name in parts[0][1].by_name},
        joined([part.losses_W for _, part in parts]),
        {
            name: np.concatenate([part.entries[name] for _, part in parts])[order]
            for name in parts[0][1].entries
        },
    )


def _head(
    case: TrainingCase, outputs_WBO: Ball, batch: Batch, scale: float = 1.0
) -> tuple[Ball, Ball]:
    """The losses (`model.loss_of`, in float64) and their gradient, scaled."""
    difference = plus(outputs_WBO, exactly(-batch.targets_WBO), "float64")
    errors_WB = summed(times(difference, difference, "float64"), (2,), "float64")
    tagged_WB = (
        plus(errors_WB, exactly(batch.tags_WB), "float64") if case.loss == "tagged" else errors_WB
    )
    totals_W = summed(tagged_WB, (1,), "float64")
    size = batch.inputs_WBI.shape[1] * (1 if case.loss == "tagged" else outputs_WBO.centre.shape[2])
    exact_share = size & (size - 1) == 0
    share = exactly(np.array(1.0 / size))
    share = Ball(share.centre, share.centre * (0.0 if exact_share else OWN_ROUNDOFF), share.quantum)
    doubled = Ball(2 * difference.centre, 2 * difference.radius, 2 * difference.quantum)
    # A micro-step's backward starts from 1 / K, which a mean divides once more.
    part = exactly(np.array(scale / (size * case.accumulation)))
    exact_part = exact_share and case.accumulation & (case.accumulation - 1) == 0
    part = Ball(part.centre, part.centre * (0.0 if exact_part else 3 * OWN_ROUNDOFF), part.quantum)
    return times(totals_W, share, "float64"), times(doubled, part, "float64")


def outputs(case: TrainingCase, parameters: Mapping[str, FloatArray], batch: Batch) -> Ball:
    """What the model makes of every rank's inputs. Shape (W, B, O)."""
    if len(set(batch.passed_by)) > 1:
        parts = [(ranks, outputs(case, parameters, part)) for ranks, part in batch.alike()]
        order = np.argsort([rank for ranks, _ in parts for rank in ranks])
        return Ball(
            np.concatenate([ball.centre for _, ball in parts])[order],
            np.concatenate([ball.radius for _, ball in parts])[order],
            0.0,
        )
    return _Stack(case, parameters, batch.passed_by_all, batch.drawn).forward(batch.inputs_WBI)[0]


def losses(case: TrainingCase, outputs_WBO: Ball, batch: Batch) -> Ball:
    """The losses of such outputs against every rank's own targets. Shape (W,)."""
    return _head(case, outputs_WBO, batch)[0]


def nothing(parameter: FloatArray, ranks: int) -> Ball:
    """A gradient of zero on so many ranks, of a parameter's shape: a weight's (W, O, I) however it is stored."""
    shape = parameter.shape
    return exactly(
        np.zeros((ranks, shape[0], int(np.prod(shape[1:]))))
        if len(shape) > 1
        else np.zeros((ranks, *shape))
    )


@dataclass(frozen=True)
class _Entered:
    """What a layer's backward needs of its forward: its input in its dtype, the dtype it came in, its activation's factor.

    And what a norm or an attention computed of it.
    """

    x: Ball
    source: str
    factor: Ball | None
    kept: Normed | Attended | None = None


@dataclass
class _Stack:
    """A case's layers at one set of parameters: `ranks.model.Replica` again, in balls."""

    case: TrainingCase
    parameters: Mapping[str, FloatArray]
    passed_by: frozenset[int] = frozenset()
    drawn: Mapping[int, FloatArray] = field(default_factory=dict)
    entered: list[tuple[int, _Entered]] = field(default_factory=list)
    parts: Counter[str] = field(default_factory=Counter)
    gradients: dict[str, Ball] = field(default_factory=dict)
    magnitudes: dict[str, FloatArray] = field(default_factory=dict)
    chosen: Ball | None = None

    def _weight(self, index: int) -> tuple[str, bool, Ball]:
        """A linear layer's weight (O, I), or (O, 2 I) of a complex one: its name, whether it is frozen, its values."""
        layer = self.case.model.layers[index]
        owner = index if layer.tied is None else layer.tied
        name = f"layers.{owner}.weight"
        weight = self._as_used(layer, self.parameters[name].reshape(layer.outputs, -1))
        return name, self.case.model.layers[owner].frozen, weight

    def _vector(self, index: int, name: str) -> Ball:
        return self._as_used(
            self.case.model.layers[index], self.parameters[f"layers.{index}.{name}"]
        )

    def _as_used(self, layer: Layer, values: FloatArray) -> Ball:
        """A parameter's values in what its layer computes in."""
        return cast(exactly(values), layer.dtype, self._computed(layer))

    def _computed(self, layer: Layer) -> str:
        return layer.lowered if self.case.autocast else layer.dtype

    def _own(self, index: int) -> dict[str, FloatArray]:
        """A layer's own parameters."""
        layer = self.case.model.layers[index]
        return {name: self.parameters[f"layers.{index}.{name}"] for name in layer.parameters}

    def forward(self, inputs_WBI: FloatArray) -> tuple[Ball, str]:
        """The outputs (W, B, O) and their dtype."""
        layers = self.case.model.layers
        dtype = "float64" if layers[0].dtype == "float64" else "float32"
        x = cast(exactly(inputs_WBI), "float64", dtype)
        self.chosen = _chosen(inputs_WBI)
        called = [
            index
            for index, layer in enumerate(layers)
            if index not in self.passed_by
            for _ in range(1 + layer.twice)
        ]
        for index in called:
            layer, source = layers[index], dtype
            if layer.kind not in PASSING:
                x, dtype = self._entering(layer, x, dtype)
            entering, factor = x, None
            kept: Normed | Attended | None = None
            if layer.complex:
                bias = self._vector(index, "bias") if layer.bias else None
                x = (
                    complexes.linear(x, self._weight(index)[2], bias, dtype)
                    if layer.kind == "linear"
                    else complexes.scale(x, self._vector(index, "factor"), dtype)
                )
            elif layer.kind == "linear":
                bias = self._vector(index, "bias") if layer.bias else None
                x = product(x, transposed(self._weight(index)[2]), dtype, x.centre.shape[-1], bias)
            elif layer.kind == "scale":
                x = times(x, self._vector(index, "factor"), dtype)
            elif layer.kind == "embedding":
                # One row times one, and the others times zero: no sum, hence no rounding.
                x = plus(
                    x,
                    Ball(
                        self.chosen.centre @ self._vector(index, "weight").centre,
                        np.zeros_like(x.centre),
                        self._vector(index, "weight").quantum,
                    ),
                    dtype,
                )
            elif layer.kind == "branches":
                first, second = (
                    product(x, transposed(self._vector(index, name)), dtype, x.centre.shape[-1])
                    for name in PARAMETERS["branches"]
                )
                x = plus(first, negated(second), dtype)
            elif layer.kind == "convolution":
                bias = self._vector(index, "bias") if layer.bias else None
                x = convolved(x, self._vector(index, "kernel"), bias, dtype)
            elif layer.kind == "norm":
                own = self._own(index)
                x, kept = normed(x, own["gain"], own["shift"], dtype)
            elif layer.kind == "batch_norm":
                x, kept = batch_normed(
                    x, self._own(index)["weight"], self._own(index).get("bias"), dtype
                )
            elif layer.kind == "attention":
                x, kept = attended(x, self._own(index), dtype)
            elif layer.kind == "dropout":
                x = masked(x, self.drawn[index], dtype)
            if layer.activation != "none":
                x, factor = relu(x) if layer.activation == "relu" else gelu(x, dtype)
            self.entered.append((index, _Entered(entering, source, factor, kept)))
        return x, dtype

    def _entering(self, layer: Layer, x: Ball, dtype: str) -> tuple[Ball, str]:
        """A layer's input in what it computes in. What comes in that is not rounded by way of the layer's own dtype."""
        computed = self._computed(layer)
        return x if dtype == computed else cast(
            cast(x, dtype, layer.dtype), layer.dtype, computed
        ), computed

    def backward(self, g: Ball) -> None:
        """Collect every trainable parameter's gradient, from that of the outputs in their dtype."""
        for index, entered in reversed(self.entered):
            layer = self.case.model.layers[index]
            if layer.kind == "dropout":
                g = masked(g, self.drawn[index], entered.source)
            if layer.kind in PASSING:
                continue
            if entered.factor is not None:
                g = times(g, entered.factor, self._computed(layer))
            if layer.kind == "linear":
                g = self._linear(index, layer, g, entered.x)
            elif layer.kind == "scale" and layer.complex:
                g, of_factor = complexes.scale_back(
                    g, entered.x, self._vector(index, "factor"), layer.dtype
                )
                self._add(layer, f"layers.{index}.factor", of_factor)
            elif layer.kind == "scale":
                self._add(
                    layer,
                    f"layers.{index}.factor",
                    summed(times(g, entered.x, layer.dtype), (1, 2), layer.dtype),
                )
                g = times(g, self._vector(index, "factor"), layer.dtype)
            elif layer.kind == "branches":
                g = self._branches(index, layer, g, entered.x)
            elif layer.kind == "embedding":
                self._embedding(index, layer, g)
            elif layer.kind in ("convolution", "norm", "attention", "batch_norm"):
                g = self._block(index, layer, g, entered)
            else:
                nothing = np.zeros(
                    (len(g.centre), *self.parameters[f"layers.{index}.nothing"].shape)
                )
                self._add(layer, f"layers.{index}.nothing", Ball(nothing, nothing, 1.0))
            g = cast(g, self._computed(layer), entered.source)

    def count_unused_as_zero(self) -> None:
        """Give the trainable parameters that no layer used a gradient of zero."""
        model, ranks = self.case.model, len(next(iter(self.gradients.values())).centre)
        for name in model.used(frozenset()) - self.gradients.keys():
            if not model.layers[int(name.split(".")[1])].frozen:
                self.gradients[name] = nothing(self.parameters[name], ranks)

    def _linear(self, index: int, layer: Layer, g: Ball, x: Ball) -> Ball:
        """A linear layer's gradients; returns that of its input."""
        (name, frozen, weight), dtype = self._weight(index), self._computed(layer)
        if layer.complex:
            back, of_weight, of_bias = complexes.linear_back(g, x, weight, layer.dtype)
        else:
            back = product(g, weight, dtype, layer.outputs)
            of_weight = product(transposed(g), x, dtype, x.centre.shape[1])
            of_bias = summed(g, (1,), dtype)
        if not frozen:  # Autocast casts a weight once for all its uses, whose gradients are added up in the lower dtype.
            self._add(None, name, of_weight, dtype)
        if layer.bias:
            self._add(layer, f"layers.{index}.bias", of_bias, dtype)
        return back

    def _branches(self, index: int, layer: Layer, g: Ball, x: Ball) -> Ball:
        """The gradients of both branches; returns that of their input."""
        parts: list[Ball] = []
        dtype = self._computed(layer)
        for name, part in zip(PARAMETERS["branches"], (g, negated(g)), strict=True):
            self._add(
                layer,
                f"layers.{index}.{name}",
                product(transposed(part), x, dtype, x.centre.shape[1]),
            )
            parts.append(product(part, self._vector(index, name), dtype, part.centre.shape[-1]))
        return plus(parts[0], parts[1], dtype)

    def _block(self, index: int, layer: Layer, g: Ball, entered: _Entered) -> Ball:
        """The gradients of a convolution, a norm of either kind or an attention; returns that of its input."""
        own = self._own(index)
        if layer.kind == "convolution":
            g, found = convolved_back(
                g, entered.x, self._vector(index, "kernel"), self._computed(layer)
            )
        elif layer.kind == "batch_norm":
            assert isinstance(entered.kept, Normed)
            g, found = batch_normed_back(g, entered.x, entered.kept, own["weight"], layer.dtype)
        elif isinstance(entered.kept, Normed):
            g, found = normed_back(g, entered.x, entered.kept, own["gain"], layer.dtype)
        else:
            assert isinstance(entered.kept, Attended)
            g, found = attended_back(g, entered.kept, own, layer.dtype)
        for name in layer.parameters:
            self._add(layer, f"layers.{index}.{name}", found[name])
        return g

    def _embedding(self, index: int, layer: Layer, g: Ball) -> None:
        """The table's gradient: of each row the sum over the samples that chose it, in any order."""
        assert self.chosen is not None
        name, chosen = f"layers.{index}.weight", transposed(self.chosen)
        self._add(layer, name, product(chosen, g, layer.dtype, g.centre.shape[1]), layer.dtype)
        if layer.sparse and not layer.frozen:
            self.magnitudes[name] = chosen.centre @ g.most

    def _add(self, layer: Layer | None, name: str, gradient: Ball, dtype: str = "") -> None:
        """Take in a parameter's gradient, or a part of it, in a dtype, where it has several uses."""
        if layer is None or not layer.frozen:
            known = self.gradients.get(name)
            self.gradients[name] = (
                gradient if known is None else plus(known, gradient, dtype, self.parts[name])
            )
            self.parts[name] += 1


def _chosen(inputs_WBI: FloatArray) -> Ball:
    """Which row of an embedding's table each sample chooses, as ones among zeros: shape (W, B, ROWS)."""
    first_WB = inputs_WBI[:, :, 0]
    rows_WB = 2 * (first_WB < 0) + (np.frexp(first_WB)[1] & 1)
    return exactly((rows_WB[:, :, None] == np.arange(ROWS)).astype(np.float64))
