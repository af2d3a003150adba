"""Hypothesis strategies for cases, simplest first: they shrink to two ranks, one parameter, one step.

What may be drawn at all is a `Scope`, taken from what the implementation on trial accepts and from the machine.
Bounding the strategies, rather than skipping inside a property, keeps a property from passing on nothing.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from ddp_invariants.case import (
    Data,
    Init,
    Layer,
    Layout,
    Model,
    Optimizer,
    Poison,
    ShardCase,
    TrainingCase,
)


@dataclass(frozen=True)
class Scope:
    """What cases may contain.

    Attributes:
        max_world_size: Largest W; also bounds the processes of a case.
        bucket_cap: Whether the implementation takes a bucket capacity.
        subgroup: Whether it takes a process group.
        init: Whether ranks are built different or, where the implementation declares it, equal.
        shuffle: Whether the sampler can shuffle.
        drop_last: Whether the sampler can drop the tail.
    """

    max_world_size: int = 4
    bucket_cap: bool = True
    subgroup: bool = True
    init: Init = "distinct"
    shuffle: bool = True
    drop_last: bool = True


_BUCKET_CAPS = (None, 1, 16, 64, 256, 1 << 20)
"""Bytes: every parameter alone, a few together, all in one, for models of 4 to some hundred bytes."""
_SEEDS = st.integers(0, 2**31 - 1)
_COINS = st.booleans()
_ONE_IN_FOUR = st.sampled_from((False, False, False, True))
_ONE_IN_EIGHT = st.sampled_from((False,) * 7 + (True,))
_WIDTHS = st.sampled_from((1, 2, 3, 4, 8))
_KINDS = st.sampled_from(("linear", "linear", "scale", "statistics", "empty"))
_DTYPES = st.sampled_from(("float32", "float32", "float32", "float64"))
_LAYOUTS: dict[bool, st.SearchStrategy[Layout]] = {
    False: st.sampled_from(("contiguous", "contiguous", "transposed", "strided")),
    True: st.sampled_from(("contiguous", "transposed", "strided", "channels_last")),
}
_OPTIMIZERS = st.sampled_from((
    Optimizer(), Optimizer(momentum=0.5), Optimizer(weight_decay=0.25), Optimizer("adamw", weight_decay=0.25),
    Optimizer(momentum=0.5, weight_decay=0.25), Optimizer("adamw"), Optimizer(log2_lr=-1),
))
"""Powers of two where torch allows it, so that SGD's arithmetic on integers is exact."""


@st.composite
def models(draw: st.DrawFn, *, buffers: bool = False) -> Model:
    """One to four layers, often of equal shapes, with at least one trainable parameter first; `buffers` adds one more."""
    inputs = draw(_WIDTHS)
    dtype = draw(_DTYPES)
    width = draw(_WIDTHS)
    layers = [Layer("linear", width, bias=draw(_COINS), relu=draw(_ONE_IN_FOUR), dtype=dtype,
                    layout=draw(_LAYOUTS[inputs % 4 == 0]))]
    owners = {(inputs, width): 0}
    for index in range(1, 1 + draw(st.integers(0, 3))):
        kind = draw(_KINDS)
        if kind != "linear":
            frozen = draw(_ONE_IN_EIGHT) if kind == "scale" else False
            layers.append(Layer(kind, dtype=dtype, frozen=frozen))
            continue
        fitting = [outputs for inputs_, outputs in owners if inputs_ == width]
        tied = owners[width, draw(st.sampled_from(fitting))] if fitting and draw(_COINS) else None
        outputs = draw(st.sampled_from((width, width, 1, 2, 4))) if tied is None else layers[tied].outputs
        layers.append(Layer(
            "linear", outputs, bias=draw(_COINS), relu=draw(_ONE_IN_FOUR), tied=tied,
            layout="contiguous" if tied is not None else draw(_LAYOUTS[width % 4 == 0]),
            # A tied weight has its owner's dtype; one layer in eight is bfloat16 beside the rest.
            dtype="bfloat16" if tied is None and draw(_ONE_IN_EIGHT) else dtype,
            frozen=tied is None and draw(_ONE_IN_FOUR)))
        if layers[-1].dtype == dtype and tied is None:
            owners.setdefault((width, outputs), index)
        width = outputs
    if buffers:
        layers.append(Layer("statistics"))
    return Model(inputs, tuple(layers))


@st.composite
def _data(draw: st.DrawFn, world_size: int, scope: Scope, *, most: int) -> Data:
    drop_last = scope.drop_last and draw(_ONE_IN_FOUR)
    return Data(samples=draw(st.integers(world_size if drop_last else 1, most)), batch_size=draw(st.integers(1, 4)),
                shuffle=scope.shuffle and draw(_COINS), drop_last=drop_last, seed=draw(st.integers(0, 3)))


@st.composite
def training_cases(draw: st.DrawFn, scope: Scope, *, world_sizes: tuple[int, ...] = (2, 3, 4, 1), least_steps: int = 1,
                   capped: bool = False, poisoned: bool = False, buffers: bool = False) -> TrainingCase:
    """Training runs within a scope.

    Args:
        draw: Hypothesis'.
        scope: What may be drawn.
        world_sizes: Those to choose from, simplest first; the scope's maximum still holds.
        least_steps: Fewest optimizer updates.
        capped: Always set a bucket capacity.
        poisoned: Always put a value that is not finite into one rank's batch.
        buffers: Always have a layer with buffers.
    """
    world_size = draw(st.sampled_from([w for w in world_sizes if w <= scope.max_world_size] or [scope.max_world_size]))
    steps = draw(st.integers(least_steps, least_steps + 3))
    cap = draw(st.sampled_from(_BUCKET_CAPS[1:] if capped else _BUCKET_CAPS)) if scope.bucket_cap else None
    poison = None
    if poisoned:
        poison = Poison(draw(st.integers(0, world_size - 1)), draw(st.integers(0, steps - 1)),
                        draw(st.sampled_from(("nan", "inf", "-inf"))))
    has_room = scope.subgroup and world_size < scope.max_world_size
    return TrainingCase(
        model=draw(models(buffers=buffers)),
        world_size=world_size,
        outside=1 if has_room and draw(_ONE_IN_EIGHT) else 0,
        data=draw(_data(world_size, Scope(), most=3 * world_size + 4)),
        steps=steps,
        optimizer=draw(_OPTIMIZERS),
        bucket_cap=cap,
        init=scope.init,
        values=draw(st.sampled_from(("integer", "real"))),
        log2_scale=draw(st.sampled_from((0, 0, 0, 8, -8))),
        zero_grad=draw(st.sampled_from(("set_to_none", "zero", "never"))),
        poison=poison,
        seed=draw(_SEEDS),
    )


@st.composite
def shard_cases(draw: st.DrawFn, scope: Scope, *, loader: bool = False, least_samples: int = 0) -> ShardCase:
    """Questions to a sampler: dataset lengths dense in 0 … 3W and beyond, one to three epochs.

    Args:
        draw: Hypothesis'.
        scope: What the sampler takes.
        loader: Always run a DataLoader over it as well.
        least_samples: Shortest dataset.
    """
    world_size = draw(st.integers(1, 8))
    data = Data(samples=draw(st.integers(least_samples, least_samples + 3 * world_size + 5)),
                batch_size=draw(st.integers(1, 4)) if loader else 1, shuffle=scope.shuffle and draw(_COINS),
                drop_last=scope.drop_last and draw(_ONE_IN_FOUR), seed=draw(st.integers(0, 3)))
    epochs = draw(st.sampled_from(((0,), (0, 1), (1, 0), (0, 1, 2), (3, 0))))
    return ShardCase(world_size=world_size, data=data, epochs=epochs, loader=loader)
