"""Hypothesis strategies for models, simplest first: they shrink to one linear layer."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.layers import ROWS, Activation, Dtype, Layer, LayerKind, Layout, Model

_SMALL = st.integers(0, 7)
_COINS = st.booleans()
_ONE_IN_FOUR = st.sampled_from((False, False, False, True))
_ONE_IN_EIGHT = st.sampled_from((False,) * 7 + (True,))
_BLOCKS = st.sampled_from(
    ("",) * 20 + ("convolution", "norm", "attention", "transformer", "dropout", "batch_norm")
)
"""Blocks of layers, drawn rarely: they cost more to judge, and little around them stays exact."""
_EMBEDDINGS = st.sampled_from(("",) * 27 + ("dense", "sparse", "tied", "dense", "sparse"))
_COMPLEX = (
    Layer("linear", dtype="complex64"),
    Layer("scale", dtype="complex64"),
    Layer("linear", dtype="complex64", bias=True, layout="transposed"),
)
_RARELY_COMPLEX = st.sampled_from((None,) * 93 + _COMPLEX)
_ODD = st.sampled_from(("bfloat16", "sparse", *_COMPLEX[:1], "bfloat16", "sparse", *_COMPLEX[1:2]))
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
    ("linear", "linear", "scale", "statistics", "empty")
)
_DTYPES: SearchStrategy[Dtype] = st.sampled_from(("float32", "float32", "float32", "float64"))
_LAYOUTS: SearchStrategy[Layout] = st.sampled_from(
    ("contiguous", "contiguous", "transposed", "strided", "channels_last")
)
_ACTIVATIONS: SearchStrategy[Activation] = st.sampled_from(("none", "none", "none", "relu"))
_PLANS = st.tuples(
    _KINDS,
    st.sampled_from((0, 0, 1, 2, 4)),
    _COINS,
    _ACTIVATIONS,
    _LAYOUTS,
    _ONE_IN_EIGHT,
    _ONE_IN_FOUR,
    _COINS,
    _SMALL,
)
"""The plan of one more layer.

Its parts are kind, outputs (0: as wide as the input), bias, activation, layout, bfloat16, frozen,
tied, and the number of the layer it is tied to.
"""


OPTIONS = ("buffers", "every_kind", "odd", "drawing")
"""The options of `models` that `search.strategies.training_cases` passes on."""


@st.composite
def models(
    draw: st.DrawFn,
    *,
    buffers: bool = False,
    every_kind: bool = False,
    odd: bool = False,
    real: bool = False,
    drawing: bool = False,
) -> Model:
    """One to four layers, often of equal shapes, with at least one trainable parameter first.

    Args:
        draw: Hypothesis'.
        buffers: Add a layer with buffers, and in every other case a BatchNorm beside it.
        every_kind: Add, each in every other case, a tied pair, a frozen, a 0-d and a zero-element
            parameter. For rules
            about them: left to the layers above, a short run would often never meet them all.
        odd: Always have gradients that are sparse, or of a dtype of their own.
        real: Have no complex parameter.
        drawing: Have a layer that draws random numbers, so wide that every forward draws enough of
            them to be told from chance.
    """
    inputs, outputs, dtype = draw(_WIDTHS), draw(_FIRST_OUTPUTS), draw(_DTYPES)
    width = outputs or inputs
    layers = [
        Layer(
            "linear",
            width,
            bias=draw(_COINS),
            activation=draw(_ACTIVATIONS),
            dtype=dtype,
            layout=_fitting(draw(_LAYOUTS), inputs),
        )
    ]
    owners: dict[int, list[int]] = {inputs: [0]}
    for kind, outputs, bias, activation, layout, low, frozen, tied, owner in draw(
        st.lists(_PLANS, max_size=3)
    ):
        if kind != "linear":
            layers.append(Layer(kind, dtype=dtype, frozen=frozen and kind == "scale"))
            continue
        fitting = owners.setdefault(width, [])
        if tied and fitting:
            index = fitting[owner % len(fitting)]
            layers.append(
                Layer(
                    "linear",
                    layers[index].outputs,
                    bias=bias,
                    activation=activation,
                    dtype=dtype,
                    tied=index,
                )
            )
        else:
            layers.append(
                Layer(
                    "linear",
                    outputs or width,
                    bias=bias,
                    activation=activation,
                    frozen=frozen,
                    dtype="bfloat16" if low else dtype,
                    layout=_fitting(layout, width),
                )
            )
            if not low:
                fitting.append(len(layers) - 1)
        width = layers[-1].outputs
    if every_kind:
        tied, extras = (
            Layer("linear", width, dtype=dtype, tied=len(layers)),
            draw(st.tuples(_COINS, _COINS, _COINS, _COINS)),
        )
        pairs = (
            (replace(tied, tied=None), tied),
            (Layer("linear", width, dtype=dtype, frozen=True),),
            (Layer("scale", dtype=dtype),),
            (Layer("empty", dtype=dtype),),
        )
        layers += [
            layer for pair, wanted in zip(pairs, extras, strict=True) if wanted for layer in pair
        ]
    block = draw(_BLOCKS)
    if block:
        layers += _block(
            block,
            width,
            dtype,
            Layer(
                "convolution",
                bias=draw(_COINS),
                dtype=dtype,
                layout="channels_last" if draw(_COINS) else "contiguous",
            ),
        )
        width = Model(inputs, tuple(layers)).widths()[-1]
    embedding, turned, low, one = (
        draw(_EMBEDDINGS),
        draw(_RARELY_COMPLEX),
        draw(_ONE_IN_EIGHT),
        draw(_ODD) if odd else None,
    )
    embedding, turned = (
        "sparse" if one == "sparse" else embedding,
        one if isinstance(one, Layer) else turned,
    )
    # The last layer's gradient comes first, and decides what is decided by the first.
    if turned is not None and not real:
        layers.append(replace(turned, outputs=width))
    if low or one == "bfloat16":
        layers.append(Layer("linear", width, dtype="bfloat16"))
    if embedding:
        layers = [
            Layer("embedding", dtype=dtype, sparse=embedding == "sparse"),
            *(
                layer if layer.tied is None else replace(layer, tied=layer.tied + 1)
                for layer in layers
            ),
        ]
    if embedding == "tied":  # In and out share a table, as language models' do.
        layers += [
            *(
                []
                if Model(inputs, tuple(layers)).widths()[-1] == inputs
                else [Layer("linear", inputs, dtype=dtype)]
            ),
            Layer("linear", ROWS, bias=draw(_COINS), dtype=dtype, tied=0),
        ]
    if drawing:
        layers += [
            Layer("linear", _DRAWN, dtype=dtype),
            Layer("dropout"),
            Layer("linear", width, dtype=dtype),
        ]
    if buffers:
        more = draw(_COINS) and block != "batch_norm"
        layers += [
            *(_block("batch_norm", width, dtype, Layer("convolution", bias=True)) if more else ()),
            Layer("statistics"),
        ]
    return Model(inputs, tuple(layers))


def _block(name: str, width: int, dtype: Dtype, convolution: Layer) -> list[Layer]:
    """Return layers of a kind that needs a certain width, after a layer that makes this width."""
    least = {"convolution": 4, "batch_norm": 4, "norm": 1, "dropout": 1}.get(name, 2)
    first = [] if width % least == 0 else [Layer("linear", 4, dtype=dtype)]
    width = 4 if first else width
    if name == "convolution":
        return [*first, replace(convolution, outputs=width // 4)]
    if name == "dropout":
        return [Layer("dropout"), Layer("linear", width, dtype=dtype)]
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
