"""Hypothesis strategies for cases, simplest first.

Cases shrink to two ranks, one parameter and one step. A `Scope` (discovery/scope.py) holds the
limits of the cases, and changes every case to fit them. Each situation draws its own part
(`situations`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import Init, ShardCase, TrainingCase, Values
from ddp_invariants.cases.dtypes import DTYPES, LOW_PRECISION
from ddp_invariants.cases.formats import ITEM_SIZE
from ddp_invariants.cases.layers import Model
from ddp_invariants.cases.program import (
    Data,
    Optimizer,
)
from ddp_invariants.cases.shard_situation import ShardSituation
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.draws import Draws, ShardDraws
from ddp_invariants.search.crossing import CROSSED, crossed
from ddp_invariants.search.lasting import LONG, lasting
from ddp_invariants.search.models import OPTIONS as OF_MODELS
from ddp_invariants.search.models import lowered, models
from ddp_invariants.search.scale import scaled
from ddp_invariants.situations import OPTIONS as OF_SITUATIONS
from ddp_invariants.situations import SITUATIONS
from ddp_invariants.situations.asking import WAYS
from ddp_invariants.situations.asking.unset_epoch import UnsetEpoch
from ddp_invariants.situations.draft import Draft

_BUCKET_CAPS = (None, 1, 16, 64, 256, 1 << 20)
"""Bucket capacities in bytes, from a bucket for each parameter to one bucket for all.

A model has from 4 to some 100 bytes.
"""
_SEEDS = st.integers(0, 2**31 - 1)
_BATCHES = st.sampled_from((1, 2, 3, 4) * 6 + (7, 64))
_SAMPLES = st.integers(0, 2) | st.integers(0, 29)
"""The number of samples beyond the fewest possible.

Short datasets are frequent, so that ranks share batches and shards consist of padding.
"""
_EPOCHS = (
    *((0,), (0, 1), (1, 0), (0, 1, 2, 3), (3, 0)) * 4,
    (0, 1, 0),
    (5, 5, 2),
    (0, 10),
    (0, 16),
    (0, 64),
    (2, 102),
    (1, 17, 33),
    (3, 131),
    (0, 256),
    (0, 2**16),
    (1, 2**16 + 1, 2**16),
    (1000, 1001),
    (2**24, 2**24 + 1),
    (2**31 - 1, 2**31, 0),
)
"""The epochs of a sampler's case.

Some differ by a power of two, which a mask takes away, or by a round number, as a period may be.
"""
# A program that gives no seed has seed 0, at which a product of seed and epoch is always the same.
_SHARD_SEEDS = st.sampled_from(
    (
        *(0,) * 8,
        *range(8),
        *range(8),
        256,
        2**16 - 1,
        2**16,
        2**31 - 1,
        2**32,
        2**63 - 1,
        *(-1, -2, -5),
        -(2**40),
    )
)
_MIRRORED = 8
"""Seeds down to the negative of this number have epochs of an opposite sum in some cases."""
_SEED_STEPS = st.sampled_from((1,) * 10 + (256, 2**16))
_SCALES = (
    *((0, 0),) * 184,
    *((99, 8), (999, 8), (4095, 4)) * 3,
    (65_535, 2),
    *((0, 62), (0, 62), (0, 127), (0, 255)),
    *((16, 99), (0, 511), (0, 1022)),
)
"""The fewest samples and the fewest ranks, less one: just below a number that may be a limit.

The first of them are small cases. Datasets of a million samples are rarer still: `_MILLION`.
"""
_MILLION = (0,) * 1999 + (999_970,)
_LONGER = st.sampled_from((0,) * 7 + (65, 101, 129, 190, 300, 700, 1025))
"""More samples of one case in two: buckets, files and chunks of samples have about such sizes."""
_COINS = st.booleans()
_ONE_IN_FOUR = st.sampled_from((False, False, False, True))
_OPTIMIZERS = (
    Optimizer(),
    Optimizer(momentum=0.5),
    Optimizer(weight_decay=0.25),
    Optimizer("adamw", weight_decay=0.25),
    Optimizer(momentum=0.5, weight_decay=0.25),
    Optimizer("adamw"),
    Optimizer(log2_lr=-2),
    Optimizer(momentum=0.5, nesterov=True),
    Optimizer("adam", weight_decay=0.25),
    Optimizer(momentum=0.5, weight_decay=0.25, kernels="fused"),
    Optimizer("adamw", weight_decay=0.25, kernels="fused"),
    Optimizer("adam", kernels="fused"),
    Optimizer(momentum=0.5, weight_decay=0.25, nesterov=True, kernels="foreach"),
    Optimizer("adam", beta_1=0.5, beta_2=0.75, epsilon=2.0**-6, amsgrad=True, kernels="fused"),
    Optimizer(momentum=0.5, maximize=True),
    Optimizer("adamw", weight_decay=0.25, beta_1=0.75, beta_2=0.5, maximize=True),
)
"""The optimizers. Their numbers are powers of two if torch allows it, so that steps are exact."""
_ANY_OPTIMIZER = st.sampled_from(_OPTIMIZERS)
_STATEFUL = st.sampled_from(
    (
        *(each for each in _OPTIMIZERS if each.stateful),
        Optimizer("adamw", weight_decay=0.25, beta_2=0.5, amsgrad=True),
        # Copies of higher precision keep updates that a format of low precision loses.
        Optimizer(log2_lr=-9, momentum=0.5),
    )
)
"""The optimizers with a state of their own, one of them with a small learning rate."""
_VALUES: tuple[Values, ...] = ("integer",) * 12 + ("real",) * 10 + ("faint", "scarce", "scarce")
_STARTS: SearchStrategy[Init] = st.sampled_from(("distinct",) * 14 + ("rearranged", "unset"))
_WITH_FAINT = frozenset({"linear", "scale", "convolution", "mixed", "empty"})
"""The kinds of layers that are drawn with tiny numbers, or with many zeros.

Others choose by an input's sign or exponent, which a number below the smallest of a format loses,
or multiply by a number that may have become zero.
"""
_NARROW = 2.0**20
"""The largest number of a dtype in which most runs on large inputs would overflow."""
_SAVED_AFTER = st.sampled_from((1, 0, 2, 3, 1, 2, 1, 2, 5, 8, 13, 21))
"""The batches of a rank before its sampler's state is saved."""
_OTHERS = st.none() | st.integers(1, 6)
"""The world sizes of ranks that load a state of other ranks."""


def _bytes(model: Model) -> Iterator[int]:
    """Yield the bytes of each trained parameter, in the order of registration."""
    for layer, width in zip(model.layers, model.widths(), strict=False):
        if not layer.frozen:
            yield from (size * ITEM_SIZE[layer.dtype] for size in layer.sizes(width) if size)


_MANY = 4
"""Ranks that a rule must ask for to get larger worlds, too."""
_LARGER = (0,) * 86 + (5, 6, 8, 7) * 3 + (16, 9)
"""Larger worlds in place of the drawn size: one in eight has 5 to 8 ranks, one in fifty more."""
_ADDITIONS = st.sampled_from(("",) * (4 * len(CROSSED)) + CROSSED)
"""A capability that one case in five has besides all that is drawn."""
_LASTING = st.sampled_from((0,) * 192 + (1, 2, 3, 4) * 2 + (LONG,))
"""The number by which one case in twenty-two lasts; 0 for the others."""
_OUTSIDE = (0,) * 14 + (1, 2)
"""The numbers of ranks that train nothing."""


@st.composite
def training_cases(
    draw: st.DrawFn,
    /,
    scope: Scope,
    *,
    world_sizes: tuple[int, ...] = (2, 3, 4, 1),
    least_steps: int = 1,
    capped: bool = False,
    accumulated: bool = False,
    rounds: int = 1,
    stateful: bool = False,
    **options: Any,
) -> TrainingCase:
    """Draw training runs within a scope.

    Args:
        draw: Hypothesis' `draw`.
        scope: The limits of the cases.
        world_sizes: The world sizes to choose from, simplest first, up to the scope's maximum.
        least_steps: The least number of optimizer updates.
        capped: Always set a bucket capacity.
        accumulated: Always have several backwards per step.
        rounds: The number of runs in the same processes.
        stateful: Only optimizers with a state of their own.
        options: Options of models (`search.models.models`) and of situations (`options` of each
            class in `situations.SITUATIONS`).

    Raises:
        TypeError: There is no such option.
    """
    of_models = {name: options.pop(name) for name in OF_MODELS if name in options}
    sizes = [size for size in world_sizes if size <= scope.max_world_size]
    size = draw(st.sampled_from(sizes or [scope.max_world_size]))
    larger = draw(st.sampled_from(_LARGER))
    if max(world_sizes) >= _MANY and larger <= scope.max_world_size:
        size = larger or size
    draft = Draft(
        draw,
        st,
        scope,
        {**_options(options), "accumulated": accumulated},
        world_size=size,
        steps=draw(st.integers(least_steps, least_steps + 3)),
    )
    cap = draft.choice(_BUCKET_CAPS[1:] if capped else _BUCKET_CAPS)
    fitting = draft.choice((0, 0, 2, 3))
    _draw_accumulation(draft, hidden=scope.declared.gradients == "hidden")
    _draw_situations(draft, "accumulation", "values", "failures")
    draft.outside = min(draft.choice(_OUTSIDE), max(scope.max_world_size - draft.world_size, 0))
    draft.data = _drawn_data(draft)
    draft.model = draw(models(real=draft.real, **of_models))
    low = [dtype for dtype in LOW_PRECISION if scope.has(dtype)]
    if scope.declared.main and low and draft.coin():
        # Otherwise an optimizer that updates copies would seldom have a copy.
        draft.model = lowered(draft.model, draft.choice(low))
    _draw_situations(draft, "branches", "layers")
    draft.zero_grad = draft.choice(draft.clearings)
    _draw_situations(draft, "program")
    if capped and fitting:
        # Parameters that just fill a bucket expose a slightly smaller capacity, as MB for MiB.
        cap = max(1, sum(list(_bytes(draft.model))[-fitting:]))
    optimizer = draw(_STATEFUL if stateful else _ANY_OPTIMIZER)
    case = scaled(_drawn_case(draft, optimizer, bucket_cap=cap, rounds=rounds), draw)
    addition = draw(_ADDITIONS)
    case = crossed(case, addition, scope) if addition else case
    number = draw(_LASTING)
    case = lasting(case, number) if number else case
    # A rule about capacities judges no case without one.
    return scope.fit(replace(case, bucket_cap=case.bucket_cap or cap) if capped else case)


def _options(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the options of all situations.

    Raises:
        TypeError: An option is wanted that no situation has.
    """
    unknown = sorted(wanted.keys() - OF_SITUATIONS.keys())
    if unknown:
        raise TypeError(f"training_cases() has no option {unknown[0]!r}")
    return OF_SITUATIONS | wanted


def _draw_situations(draft: Draft, *moments: str) -> None:
    """Draw the situations of some moments."""
    for moment in moments:
        for kind in SITUATIONS:
            if kind.moment == moment:
                kind.drawn(draft)


def _draw_accumulation(draft: Draft, *, hidden: bool) -> None:
    """Draw the number of backwards per step.

    Few rules draw several; otherwise every rule would report the defects of accumulation. If
    gradients are hidden, all rules do, because the rules about accumulation then cannot judge it.
    """
    if draft.wanted["accumulated"]:
        draft.micro_steps = (2, 4, 3)
    elif hidden:
        draft.micro_steps = (1, 1, 2, 3)
    for kind in SITUATIONS:
        kind.prepare(draft)
    draft.accumulation = draft.choice(draft.micro_steps)


def _drawn_data(draft: Draft) -> Data:
    """Draw a dataset from which every rank gets a batch."""
    drop_last = draft.one_in(4)
    return Data(
        samples=(draft.world_size if drop_last else 1) + draft.draw(_SAMPLES),
        batch_size=draft.draw(st.integers(1, 4)),
        drop_last=drop_last,
    )


def _drawn_case(draft: Draft, optimizer: Optimizer, **fields: Any) -> TrainingCase:
    """Draw the rest of a case, and return the case with all situations that it can be in."""
    # A sparse gradient needs plain SGD, and must not be left in place from step to step.
    if draft.model.layers[0].sparse:
        optimizer = Optimizer(log2_lr=optimizer.log2_lr)
    if draft.model.layers[0].sparse or optimizer.overwrites:
        draft.clear_gradients()
    values: Values = draft.choice(_VALUES)
    log2_scale = draft.choice((0, 0, 0, 8, -8))
    narrow = min(DTYPES[layer.dtype].largest for layer in draft.model.layers) < _NARROW
    if narrow:
        log2_scale = min(log2_scale, 0)
    # In a narrow format, the rounding of tiny numbers depends on the moment at which an
    # implementation divides.
    if (narrow and values == "faint") or not _WITH_FAINT.issuperset(
        layer.kind for layer in draft.model.layers
    ):
        values = "real" if values in ("faint", "scarce") else values
    _draw_situations(draft, "timing", "forwards")
    case = TrainingCase(
        model=draft.model,
        world_size=draft.world_size,
        outside=draft.outside,
        data=draft.data,
        steps=draft.steps,
        accumulation=draft.accumulation,
        values=values,
        log2_scale=log2_scale,
        init=draft.draw(_STARTS),
        zero_grad=draft.zero_grad,
        seed=draft.draw(_SEEDS),
        **fields,
    )
    for situation in sorted(draft.situations, key=lambda each: SITUATIONS.index(type(each))):
        case = situation.fitted(case)
    layers = (*case.model.layers, *draft.last_layers)
    case = replace(case, model=replace(case.model, layers=layers))
    try:
        return replace(case, optimizer=optimizer)
    except CaseError:  # Fused kernels support few cases.
        return replace(case, optimizer=replace(optimizer, kernels="default"))


@st.composite
def shard_cases(
    draw: st.DrawFn,
    scope: Scope,
    *,
    loader: bool = False,
    saved: bool = False,
    least_samples: int = 0,
    worked: bool = False,
    scaled: bool = False,
    asked: bool = False,
    few: bool = False,
) -> ShardCase:
    """Draw cases of samplers: every dataset length from 0 to 3W and beyond, one to three epochs.

    Args:
        draw: Hypothesis' `draw`.
        scope: The limits of the cases.
        loader: Always run a DataLoader over the sampler as well.
        saved: Always save a state in the middle of the last epoch, and load it.
        least_samples: The least number of samples.
        worked: Always have workers of a DataLoader iterate the sampler.
        scaled: Have long datasets and many ranks in a few cases.
        asked: Have a program ask in another way in most cases.
        few: Have one to three ranks, and batches of one sample, in every other case.
    """
    # A rank of a sampler needs no process, so a case may have twice as many ranks.
    world_size = draw(st.integers(1, 2 * scope.max_world_size))
    drop_last, size = draw(_ONE_IN_FOUR), draw(_BATCHES)
    if few and draw(_COINS):
        world_size, size = 1 + (world_size - 1) % 3, 1
    if scaled:
        least_samples, world_size = _scaled(draw, least_samples, world_size)
    least_samples = max(least_samples, draw(_LONGER))
    saved_after = draw(_SAVED_AFTER) if saved else None
    at_the_end = bool(saved_after) and draw(_ONE_IN_FOUR)
    if saved_after is not None and not at_the_end:
        # Leave samples for the batches after the saved state.
        least_samples = max(least_samples, world_size * (saved_after * size + 1))
    samples = least_samples + draw(_SAMPLES)
    if saved_after is not None and at_the_end:
        # The last batch is whole, or one short, which ends the iteration before the state is saved.
        share = saved_after * size
        samples = world_size * (share - int(share > 1 and draw(_COINS)))
    workers = draw(st.integers(1, 3)) if worked else 0
    if worked and draw(_COINS):
        # One of several workers gets no sample.
        samples = min(samples, world_size * max(1, workers - 1))
    shuffle = draw(_COINS) or (asked and draw(_COINS))  # Most ways to ask show only in an order.
    data = Data(
        samples=samples,
        batch_size=size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=draw(_SHARD_SEEDS),
    )
    epochs = draw(st.sampled_from(_EPOCHS))
    if -_MIRRORED <= data.seed < 0 and draw(_COINS):  # The sum of seed and epoch changes its sign.
        epochs = (0, -2 * data.seed)
    return scope.fit_shards(
        ShardCase(
            world_size=world_size,
            data=data,
            epochs=epochs,
            loader=loader,
            saved_after=saved_after,
            resumed_by=draw(_OTHERS) if saved else None,
            workers=workers,
            seed_step=draw(_SEED_STEPS),
            situations=_drawn_situations(draw, saved_after, asked=asked),
        )
    )


def _drawn_situations(
    draw: st.DrawFn, saved_after: int | None, *, asked: bool
) -> tuple[ShardSituation, ...]:
    """Return the other ways to ask a sampler: at most one."""
    # A state that is saved before the first index may be saved before any epoch is set, too.
    if saved_after == 0:
        return (UnsetEpoch(),)
    if saved_after is not None:
        return _drawn_way(draw, "SHARD-9")
    return _drawn_way(draw, "SHARD-4") if asked else ()


def _drawn_way(draw: st.DrawFn, rule: str) -> tuple[ShardSituation, ...]:
    """Draw at most one way to ask a sampler, of those that a rule judges."""
    kind = draw(st.sampled_from((None, None, *(way for way in WAYS if way.rule == rule))))
    return () if kind is None else (kind.drawn(lambda values: draw(st.sampled_from(values))),)


def _scaled(draw: st.DrawFn, least_samples: int, world_size: int) -> tuple[int, int]:
    """Draw the fewest samples and the number of ranks at a large scale, in a few cases."""
    samples, ranks = draw(st.sampled_from(_SCALES))
    million = draw(st.sampled_from(_MILLION))
    if million or not (samples or ranks):
        return max(least_samples, million), min(world_size, 2) if million else world_size
    if samples > ranks:  # A long dataset, and at most so many ranks.
        return max(least_samples, samples), min(world_size, ranks)
    return max(least_samples, samples), ranks + world_size


def cases_for(rule: str, scope: Scope) -> SearchStrategy[TrainingCase] | SearchStrategy[ShardCase]:
    """Return the cases that the property of a rule draws from, as the rule's row says."""
    draws = ALL_RULES[rule].draws
    if isinstance(draws, ShardDraws):
        return shard_cases(scope, **draws.options)
    return training_cases(scope, **draws.options)


def unlike(rules: Iterable[str]) -> list[str]:
    """Return the first of all rules whose properties draw the same cases as a rule's property.

    A search for any failure need not draw the same cases twenty times.
    """
    first: dict[Draws | ShardDraws, str] = {}
    for rule in rules:
        first.setdefault(ALL_RULES[rule].draws, rule)
    return list(first.values())
