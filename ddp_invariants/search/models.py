"""Hypothesis strategies for models, simplest first: they shrink to one linear layer."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.dtypes import LOW_PRECISION, Dtype
from ddp_invariants.cases.layers import (
    ROWS,
    Activation,
    Layer,
    LayerKind,
    Layout,
    Model,
    Naming,
)

_SMALL = st.integers(0, 7)
_COINS = st.booleans()
_ONE_IN_FOUR = st.sampled_from((False, False, False, True))
_LONE: tuple[LayerKind, ...] = ("mixed", "summed", "parametrized")
"""The blocks of one layer, for any width."""
_BLOCKS = st.sampled_from(
    ("",) * 19
    + (
        "convolution",
        "norm",
        "attention",
        "transformer",
        "dropout",
        "batch_norm",
        "extremes",
        *_LONE,
    )
)
"""Blocks of layers, drawn rarely: they cost more to judge, and little around them stays exact."""
_EMBEDDINGS = st.sampled_from(("",) * 27 + ("dense", "sparse", "tied", "dense", "sparse"))
_COMPLEX = (
    Layer("linear", dtype="complex64"),
    Layer("scale", dtype="complex64"),
    Layer("linear", dtype="complex64", bias=True, layout="transposed"),
    Layer("linear", dtype="complex128", bias=True),
)
_RARELY_COMPLEX = st.sampled_from((None,) * 93 + _COMPLEX)
_ODD = st.sampled_from(
    (LOW_PRECISION[0], "sparse", *_COMPLEX[:1], LOW_PRECISION[-1], "sparse", *_COMPLEX[1::2])
)
_RARELY_LOW: SearchStrategy[Dtype | None] = st.sampled_from(
    (None,) * 7 * len(LOW_PRECISION) + LOW_PRECISION
)
_DRAWN = 96
"""The width at which one sample makes a forward draw enough numbers.

By chance the same numbers are then not drawn again (invariants/rng.py).
"""
_WIDTHS = st.sampled_from((1, 2, 3, 4, 8, 8))
_FIRST_OUTPUTS = st.sampled_from((0, 0, 0, 1, 2, 3, 4, 8))
"""The outputs of the first layer; 0 means as wide as the input.

A square first layer often has a second layer of the same shape. A defect can confuse two layers
only if their shapes are equal.
"""
_KINDS: SearchStrategy[LayerKind] = st.sampled_from(
    ("linear", "linear", "scale", "statistics", "empty") * 2
    + ("linear", "linear", "scale", "counter", "empty")
)
_NAMINGS: tuple[Naming, ...] = ("module", "underscored", "joined", "cased", "rooted")
_RARELY_NAMED: SearchStrategy[Naming] = st.sampled_from(("numbered",) * 92 + _NAMINGS)
_OFTEN_NAMED: SearchStrategy[Naming] = st.sampled_from(("numbered",) * 5 + _NAMINGS)
_DTYPES: SearchStrategy[Dtype] = st.sampled_from(("float32", "float32", "float32", "float64"))
_LAYOUTS: SearchStrategy[Layout] = st.sampled_from(
    ("contiguous", "contiguous", "transposed", "strided", "channels_last")
)
_ACTIVATIONS: SearchStrategy[Activation] = st.sampled_from(("none", "none", "none", "relu"))
_Plan = tuple[LayerKind, int, bool, Activation, Layout, Dtype | None, bool, bool, int]
"""The values that `_PLANS` draws."""
_PLANS: SearchStrategy[_Plan] = st.tuples(
    _KINDS,
    st.sampled_from((0, 0, 1, 2, 4)),
    _COINS,
    _ACTIVATIONS,
    _LAYOUTS,
    _RARELY_LOW,
    _ONE_IN_FOUR,
    _COINS,
    _SMALL,
)
"""The plan of one more layer.

Its parts are kind, outputs (0: as wide as the input), bias, activation, layout, a dtype of low
precision, frozen, tied, and the number of the layer it is tied to.
"""


OPTIONS = ("buffers", "some_buffers", "every_kind", "odd", "drawing", "prefixed", "named")
"""The options of `models` that `search.strategies.training_cases` passes on."""


@st.composite
def models(
    draw: st.DrawFn,
    *,
    buffers: bool = False,
    some_buffers: bool = False,
    every_kind: bool = False,
    odd: bool = False,
    real: bool = False,
    drawing: bool = False,
    prefixed: bool = False,
    named: bool = False,
) -> Model:
    """One to four layers, often of equal shapes, with at least one trainable parameter first.

    Args:
        draw: Hypothesis'.
        buffers: Add a layer with buffers, and in every other case a BatchNorm beside it.
        some_buffers: Do so in three of four cases.
        every_kind: Add, each in every other case, a tied pair, a frozen, a 0-d and a zero-element
            parameter. For rules
            about them: left to the layers above, a short run would often never meet them all.
        odd: Always have gradients that are sparse, or of a dtype of their own.
        real: Have no complex parameter.
        drawing: Have a layer that draws random numbers, so wide that every forward draws enough of
            them to be told from chance.
        prefixed: Have names with `module.` in their middle in one of four cases. Many wrappers put
            that prefix before all names, and may strip it elsewhere.
        named: Name the layers in another way (`Model.naming`) in half of the cases, and not in five
            of ninety-seven.
    """
    inputs, outputs, dtype = draw(_WIDTHS), draw(_FIRST_OUTPUTS), draw(_DTYPES)
    layers = [_first(draw, inputs, outputs or inputs, dtype)]
    width = _add_plans(layers, draw(st.lists(_PLANS, max_size=3)), inputs)
    if every_kind:
        layers += _every_kind(draw, layers, width, dtype)
    block = draw(_BLOCKS)
    if block:
        layers += _block(block, width, dtype, _convolution(draw, dtype))
        width = Model(inputs, tuple(layers)).widths()[-1]
    if prefixed and draw(_ONE_IN_FOUR):
        layers.append(Layer("terms", 2, dtype=dtype))
    layers = _with_odd(draw, layers, inputs, width, odd=odd, real=real)
    if drawing:
        layers += [
            Layer("linear", _DRAWN, dtype=dtype),
            Layer("dropout"),
            Layer("linear", width, dtype=dtype),
        ]
    if buffers or (some_buffers and not draw(_ONE_IN_FOUR)):
        layers += _with_buffers(draw, block, width, dtype)
    naming = draw(_OFTEN_NAMED if named else _RARELY_NAMED)
    model = Model(inputs, tuple(layers), naming)
    if naming == "rooted" and model.rooted is None:
        return replace(model, layers=(*layers, Layer("scale", dtype=dtype)))
    return model


def lowered(model: Model, dtype: Dtype) -> Model:
    """Return a model whose layers of float32 are of low precision, where their kinds may be."""
    return replace(
        model,
        layers=tuple(
            replace(layer, dtype=dtype)
            if layer.of_kind.low and layer.dtype == "float32" and not layer.sparse
            else layer
            for layer in model.layers
        ),
    )


def _with_buffers(draw: st.DrawFn, block: str, width: int, dtype: Dtype) -> list[Layer]:
    """Draw layers with buffers, after a block: a single buffer, or buffers of several dtypes."""
    if draw(_ONE_IN_FOUR):
        return [Layer("shared_buffer" if draw(_ONE_IN_FOUR) else "counter")]
    more = draw(_COINS) and block != "batch_norm"
    return [
        *(_block("batch_norm", width, dtype, Layer("convolution", bias=True)) if more else ()),
        Layer("statistics", layout="strided" if draw(_ONE_IN_FOUR) else "contiguous"),
        *((Layer("extremes"),) if draw(_ONE_IN_FOUR) else ()),
    ]


def _first(draw: st.DrawFn, inputs: int, width: int, dtype: Dtype) -> Layer:
    """Draw the first layer, which is always a trainable linear one."""
    return Layer(
        "linear",
        width,
        bias=draw(_COINS),
        activation=draw(_ACTIVATIONS),
        dtype=dtype,
        layout=_fitting(draw(_LAYOUTS), inputs),
    )


def _add_plans(layers: list[Layer], plans: list[_Plan], inputs: int) -> int:
    """Append the planned layers to the first one.

    Args:
        layers: The first layer alone; the list is extended.
        plans: The plans, in order.
        inputs: The width of the model's inputs.

    Returns:
        The width of the last layer's outputs.
    """
    width, dtype = layers[0].outputs, layers[0].dtype
    owners: dict[int, list[int]] = {inputs: [0]}
    for kind, outputs, bias, activation, layout, low, frozen, tied, owner in plans:
        if kind != "linear":
            strided = kind == "statistics" and layout == "strided"
            layers.append(
                Layer(
                    kind,
                    dtype=dtype,
                    frozen=frozen and kind == "scale",
                    layout="strided" if strided else "contiguous",
                )
            )
            continue
        fitting = owners.setdefault(width, [])
        made = Layer("linear", outputs or width, bias=bias, activation=activation, dtype=dtype)
        if tied and fitting:
            index = fitting[owner % len(fitting)]
            layers.append(replace(made, outputs=layers[index].outputs, tied=index))
        else:
            fitted = _fitting(layout, width)
            layers.append(replace(made, frozen=frozen, dtype=low or dtype, layout=fitted))
            if not low:
                fitting.append(len(layers) - 1)
        width = layers[-1].outputs
    return width


def _every_kind(draw: st.DrawFn, layers: list[Layer], width: int, dtype: Dtype) -> list[Layer]:
    """Draw which layers of the rarer kinds follow, each with a probability of one half."""
    tied = Layer("linear", width, dtype=dtype, tied=len(layers))
    extras = draw(st.tuples(_COINS, _COINS, _COINS, _COINS))
    pairs = (
        (replace(tied, tied=None), tied),
        (Layer("linear", width, dtype=dtype, frozen=True),),
        (Layer("scale", dtype=dtype),),
        (Layer("empty", dtype=dtype),),
    )
    return [layer for pair, wanted in zip(pairs, extras, strict=True) if wanted for layer in pair]


def _convolution(draw: st.DrawFn, dtype: Dtype) -> Layer:
    """Draw the convolution of a block, which also gives a batch norm its bias."""
    return Layer(
        "convolution",
        bias=draw(_COINS),
        dtype=dtype,
        layout="channels_last" if draw(_COINS) else "contiguous",
    )


def _with_odd(
    draw: st.DrawFn, layers: list[Layer], inputs: int, width: int, *, odd: bool, real: bool
) -> list[Layer]:
    """Draw which layers with gradients of another dtype or layout are added, rarely any.

    Args:
        draw: Hypothesis'.
        layers: The layers so far.
        inputs: The width of the model's inputs.
        width: The width of the last layer's outputs.
        odd: As in `models`.
        real: As in `models`.

    Returns:
        The layers, old and new.
    """
    embedding, turned, low, rare = (
        draw(_EMBEDDINGS),
        draw(_RARELY_COMPLEX),
        draw(_RARELY_LOW),
        draw(_ODD) if odd else None,
    )
    embedding, turned = (
        "sparse" if rare == "sparse" else embedding,
        rare if isinstance(rare, Layer) else turned,
    )
    # The last layer's gradient comes first, and decides what is decided by the first.
    added = [replace(turned, outputs=width)] if turned is not None and not real else []
    low = rare if rare in LOW_PRECISION else low
    if low is not None:
        added.append(Layer("linear", width, dtype=low))
    together = [*layers, *added]
    return _with_embedding(draw, together, inputs, embedding) if embedding else together


def _with_embedding(
    draw: st.DrawFn, layers: list[Layer], inputs: int, embedding: str
) -> list[Layer]:
    """Put an embedding first, and if it is `tied`, a layer that shares its table last."""
    dtype = layers[0].dtype
    moved = [
        Layer("embedding", dtype=dtype, sparse=embedding == "sparse"),
        *(layer if layer.tied is None else replace(layer, tied=layer.tied + 1) for layer in layers),
    ]
    if embedding == "tied":  # In and out share a table, as language models' do.
        if Model(inputs, tuple(moved)).widths()[-1] != inputs:
            moved.append(Layer("linear", inputs, dtype=dtype))
        moved.append(Layer("linear", ROWS, bias=draw(_COINS), dtype=dtype, tied=0))
    return moved


def _block(name: str, width: int, dtype: Dtype, convolution: Layer) -> list[Layer]:
    """Return layers of a kind that needs a certain width, after a layer that makes this width."""
    least = {
        "convolution": 4,
        "batch_norm": 4,
        "norm": 1,
        "dropout": 1,
        "extremes": 1,
    }.get(name, 1 if name in _LONE else 2)
    first = [] if width % least == 0 else [Layer("linear", 4, dtype=dtype)]
    width = 4 if first else width
    if name == "convolution":
        return [*first, replace(convolution, outputs=width // 4)]
    if name == "dropout":
        return [Layer("dropout"), Layer("linear", width, dtype=dtype)]
    if name == "extremes":
        return [Layer("extremes")]
    for kind in _LONE:
        if kind == name:
            return [Layer(kind, dtype=dtype)]
    if name == "batch_norm":
        return [*first, Layer("batch_norm", bias=convolution.bias, dtype=dtype)]
    norm, attention = Layer("norm", dtype=dtype), Layer("attention", dtype=dtype)
    if name == "transformer":
        return [
            *first,
            norm,
            attention,
            norm,
            Layer("linear", width, bias=True, activation="gelu", dtype=dtype),
            Layer("linear", width, dtype=dtype),
        ]
    return [*first, norm if name == "norm" else attention]


def _fitting(layout: Layout, inputs: int) -> Layout:
    return "contiguous" if layout == "channels_last" and inputs % 4 else layout
