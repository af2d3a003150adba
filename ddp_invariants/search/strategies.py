"""Hypothesis strategies for cases, simplest first: they shrink to two ranks, one parameter, one step.

What may be drawn at all is a `Scope` (scope.py), to which every case is fitted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ddp_invariants.cases.case import NoSync, Passes, ShardCase, TrainingCase, ZeroGrad
from ddp_invariants.cases.formats import ITEM_SIZE
from ddp_invariants.cases.layers import PASSING, Checkpoint, Layer, Model
from ddp_invariants.cases.program import (
    BetweenSteps,
    BetweenStepsKind,
    Data,
    Exhausted,
    InjectedFailure,
    InjectedFailureKind,
    Optimizer,
    Perturbation,
    PerturbationKind,
    Poison,
    Unused,
)
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.draws import PERTURBATIONS, Draws, ShardDraws
from ddp_invariants.search.models import models, without_batch_norm
from ddp_invariants.situations.autocast import Autocast
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.crossed import Crossed
from ddp_invariants.situations.failing import Failing
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.penalty import Penalty
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.scaling import Scaling
from ddp_invariants.situations.timing import Disturbed
from ddp_invariants.situations.uneven import UnevenInputs
from ddp_invariants.situations.unused import UnusedLayers

_BUCKET_CAPS = (None, 1, 16, 64, 256, 1 << 20)
"""Bytes: every parameter alone, a few together, all in one, for models of 4 to some hundred bytes."""
_SEEDS = st.integers(0, 2**31 - 1)
_SMALL = st.integers(0, 7)
_SAMPLES = st.integers(0, 2) | st.integers(0, 29)
"""Beyond the fewest: short datasets often, so that ranks share batches and some shards are all padding."""
_COINS = st.booleans()
_ONE_IN_FOUR = st.sampled_from((False, False, False, True))
_ONE_IN_SIX = st.sampled_from((False,) * 5 + (True,))
_ONE_IN_EIGHT = st.sampled_from((False,) * 7 + (True,))
_OPTIMIZERS = st.sampled_from(
    (
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
    )
)
"""Powers of two where torch allows it, so that SGD's arithmetic on integers is exact."""
_WAYS: tuple[tuple[Passes, Checkpoint], ...] = (
    ("joint", "none"),
    ("retained", "none"),
    ("alternate", "plain"),
    ("alternate", "reentrant"),
    ("joint", "plain"),
    ("retained", "plain"),
    ("joint", "reentrant"),
    ("retained", "reentrant"),
)
"""How a step's passes may follow one another, and how one of the layers is computed in backward."""
_NEEDED_FOR = {
    "joint": "joint",
    "retained": "retained",
    "plain": "checkpointed",
    "reentrant": "reentrant",
}
"""The capability that each of them needs, and those two together that are most."""
_BETWEEN_STEPS = st.lists(
    st.tuples(st.integers(0, 63), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=4
)
"""What happens between steps: of which kind, before which step, to which layer."""
_EXHAUSTED = st.lists(st.tuples(_SMALL, _SMALL), min_size=1, max_size=3)
"""Ranks that run out of batches, and after which step."""
_OTHERS = st.none() | st.integers(1, 6)
"""World sizes that go on from a state which others saved."""
_NO_SYNC: SearchStrategy[NoSync] = st.sampled_from(("plain", "plain", "nested", "error"))
_UNUSED = st.lists(
    st.tuples(st.sampled_from((0, 0, 0, 1, 2, 3)), _COINS, _SMALL, _COINS, _SMALL),
    min_size=1,
    max_size=4,
)
"""A layer to pass by: which (often the same), on one rank alone, which rank, at every step, which step."""


def _bytes(model: Model) -> Iterator[int]:
    """Bytes of each trained parameter, in the order of registration."""
    for layer, width in zip(model.layers, model.widths(), strict=False):
        if not layer.frozen:
            yield from (size * ITEM_SIZE[layer.dtype] for size in layer.sizes(width) if size)


@st.composite
def training_cases(
    draw: st.DrawFn,
    scope: Scope,
    *,
    world_sizes: tuple[int, ...] = (2, 3, 4, 1),
    least_steps: int = 1,
    capped: bool = False,
    poisoned: bool = False,
    buffers: bool = False,
    every_kind: bool = False,
    perturbed: tuple[PerturbationKind, ...] = PERTURBATIONS,
    accumulated: bool = False,
    injected_failures: tuple[InjectedFailureKind, ...] = (),
    rounds: int = 1,
    unused: bool = False,
    crossed: bool = False,
    passes: bool = False,
    between_steps: tuple[BetweenStepsKind, ...] = (),
    uneven: bool = False,
    resized: bool = False,
    odd: bool = False,
    clipped: bool = False,
    scaled: int = 0,
    autocast: int = 0,
    drawing: bool = False,
    written: bool = False,
) -> TrainingCase:
    """Training runs within a scope.

    What is drawn does not depend on what was drawn before (only what is made of it does), so that
    Hypothesis can shrink the world size without losing the rest.

    Args:
        draw: Hypothesis'.
        scope: What may be drawn.
        world_sizes: Those to choose from, simplest first; the scope's maximum still holds.
        least_steps: Fewest optimizer updates.
        capped: Always set a bucket capacity.
        poisoned: Always put a value that is not finite into one rank's batch.
        buffers: Always have a layer with buffers.
        every_kind: Have every kind of parameter in every other case.
        perturbed: Perturbations of the collectives' timing to choose from, simplest first.
        accumulated: Always have several backwards per step.
        injected_failures: What may go wrong on purpose; always one of them, where the scope allows any.
        rounds: How often to repeat the whole run in the same processes.
        unused: Always pass a layer by, on some rank, at some step; where `accumulated`, in one of
            four, in some micro-steps.
        crossed: In one of four, have branches that one rank computes in the other order.
        passes: Always have passes that do not alternate, or layers that are computed again.
        between_steps: What may happen between steps; always some of it, where the scope allows any,
            and layers that are passed by and several backwards per step beside it.
        uneven: Always have ranks that run out of batches.
        clipped: In one of four, have gradients clipped.
        scaled: In one of so many, have a loss scaler; in none where 0. Where it is in all, every
            other one has a value that is not finite as well.
        autocast: In one of so many, have forwards run under autocast; in none where 0.
        resized: Always start from a state that ranks of another number saved, where the scope
            allows.
        odd: Always have gradients that are sparse, or of a dtype of their own.
        drawing: Always have a layer that draws random numbers, enough of them.
        written: In one of four, have the program write to buffers between steps; of a rule with
            steps enough.
    """
    world_size = draw(
        st.sampled_from(
            [w for w in world_sizes if w <= scope.max_world_size] or [scope.max_world_size]
        )
    )
    steps = draw(st.integers(least_steps, least_steps + 3))
    cap, fitting = (
        draw(st.sampled_from(_BUCKET_CAPS[1:] if capped else _BUCKET_CAPS)),
        draw(st.sampled_from((0, 0, 2, 3))),
    )
    # Of their own properties only, since what is wrong about accumulation would otherwise be told
    # of every rule; but of all where gradients are hidden, and no rule of its own can judge it.
    micro_steps = (
        (2, 4, 3) if accumulated else (1, 1, 2, 3) if scope.declared.gradients == "hidden" else (1,)
    )
    if between_steps:  # A whole program: of other things, too.
        accumulated, unused, micro_steps = True, draw(_ONE_IN_FOUR), (1, 1, 2, 3)
    accumulation = draw(st.sampled_from(micro_steps))
    no_sync = draw(_NO_SYNC) if accumulated else "plain"
    no_sync = no_sync if accumulation > 1 else "plain"
    poison = None
    if poisoned:
        poison = Poison(
            draw(_SMALL) % world_size,
            draw(_SMALL) % steps,
            draw(st.sampled_from(("nan", "inf", "-inf"))),
        )
    scaler = Scaling.drawn(draw, scaled) if scaled and scope.has("scaler") else None
    if scaler is not None and scaled == 1 and draw(_COINS):
        poison = Poison(
            draw(_SMALL) % world_size, draw(_SMALL) % steps, draw(st.sampled_from(("inf", "nan")))
        )
    injected_failures = tuple(
        kind for kind in injected_failures if kind == "death" or scope.has(kind.replace(" ", "_"))
    )
    between_steps = tuple(kind for kind in between_steps if scope.has(_NEEDED.get(kind, kind)))
    injected_failure = None
    if injected_failures:
        kind, step = draw(st.sampled_from(injected_failures)), draw(_SMALL)
        # What is set up in a first step may wait for everybody as long as it likes.
        step = step % steps if kind != "death" else 1 + step % max(steps - 1, 1)
        steps = max(steps, step + 1)
        injected_failure = InjectedFailure(kind, step, draw(_SMALL) % world_size)
    clearing: tuple[ZeroGrad, ...] = (
        ("set_to_none", "zero", "never") if injected_failure is None else ("set_to_none", "zero")
    )
    outside = draw(_ONE_IN_EIGHT) and world_size < scope.max_world_size
    drop_last = draw(_ONE_IN_FOUR)
    data = Data(
        samples=(world_size if drop_last else 1) + draw(_SAMPLES),
        batch_size=draw(st.integers(1, 4)),
        drop_last=drop_last,
    )
    # Of a complex number that is not finite it is not fixed which part is no number, nor to the
    # last bit what comes of it.
    model = draw(
        models(
            buffers=buffers,
            every_kind=every_kind,
            odd=odd,
            real=poison is not None,
            drawing=drawing,
        )
    )
    other = None
    if crossed and draw(_ONE_IN_FOUR) and scope.has("crossed"):
        model = replace(
            model, layers=(*model.layers, Layer("branches", dtype=model.layers[0].dtype))
        )
        other = draw(_SMALL) % world_size
    passed: tuple[Unused, ...] = ()
    if unused and not (accumulated and not between_steps):
        model = _extended(model)
        passed = _unused(draw, model, world_size, steps)
    elif unused and accumulation > 1 and draw(_ONE_IN_FOUR):
        # What some micro-steps use and others, often the last, pass by is sent all the same.
        model, rank = _extended(model), draw(_SMALL) % world_size if draw(_COINS) else None
        skipped = draw(
            st.sets(st.integers(0, accumulation - 1), min_size=1, max_size=accumulation - 1)
        )
        passed = tuple(
            Unused(len(model.layers) - 1, rank, None, micro_step) for micro_step in sorted(skipped)
        )
    offered = (
        [
            kernels
            for kernels in _WAYS
            if all(scope.has(_NEEDED_FOR[one]) for one in kernels if one in _NEEDED_FOR)
            and (scope.has("in_parts") or kernels != ("joint", "reentrant"))
        ]
        if passes
        else []
    )
    ways, again = draw(st.sampled_from(offered)) if offered else ("alternate", "none")
    penalty = passes and scope.has("penalty") and draw(_ONE_IN_SIX)
    ways, again, clearing = (
        ("alternate", "none", clearing[:2]) if penalty else (ways, again, clearing)
    )
    if offered:
        accumulation = 2 if ways != "alternate" else 1
        # Before its backward nobody may write a BatchNorm's buffers.
        model = model if ways != "joint" else without_batch_norm(model)
        last = Layer(
            "linear",
            model.widths()[-1],
            dtype=model.layers[0].dtype,
            twice=draw(_ONE_IN_FOUR) and scope.has("twice"),
        )
        pair = (last, replace(last, checkpoint=again, twice=False))
        model = replace(model, layers=(*model.layers, *(pair if draw(_COINS) else pair[::-1])))
        # Parts of a gradient round otherwise when they are added to what is left than when they are
        # added up first.
        clearing = clearing[:2] if (ways, again) == ("joint", "reentrant") else clearing
    between: tuple[BetweenSteps, ...] = ()
    zero_grad = draw(st.sampled_from(clearing))
    if between_steps:
        # A layer to freeze or unfreeze is there in every case: tied to none, and not the only one
        # that is trained.
        model = _extended(model, frozen=draw(_COINS))
        between, steps = _between(draw(_BETWEEN_STEPS), between_steps, model, steps)
        zero_grad = (
            "zero" if zero_grad == "never" and any(one.clears for one in between) else zero_grad
        )
    between = _writing(draw, steps) if written and scope.has("buffers_written") else between
    exhausted: tuple[Exhausted, ...] = ()
    if (
        uneven and world_size > 1
    ):  # Who has no batch cannot know which rows others' sparse gradients have.
        model = replace(model, layers=(replace(model.layers[0], sparse=False), *model.layers[1:]))
        steps = max(steps, 2)
        ends = {
            rank % world_size: 1 + step % (steps - 1)
            for rank, step in draw(_EXHAUSTED)[: world_size - 1]
        }
        exhausted = tuple(Exhausted(rank, step) for rank, step in sorted(ends.items()))
        zero_grad = "zero" if zero_grad == "never" else zero_grad
    clip = Clipping.drawn(draw) if clipped else None
    saved_by = None
    if resized:
        saved_by = 1 + draw(_SMALL) % scope.max_world_size
        outside = (
            saved_by - world_size if saved_by > world_size else outside and scope.has("subgroup")
        )
        data = replace(data, drop_last=False)
    if capped and fitting:
        # What just fits into a bucket tells a capacity that is a little less, as MB for MiB.
        cap = max(1, sum(list(_bytes(model))[-fitting:]))
    optimizer = draw(_OPTIMIZERS)
    if model.layers[0].sparse:  # Which plain SGD takes, and nothing that is left in place.
        optimizer, zero_grad = (
            Optimizer(log2_lr=optimizer.log2_lr),
            "zero" if zero_grad == "never" else zero_grad,
        )
    case = TrainingCase(
        model=model,
        world_size=world_size,
        outside=0
        if any(one.kind == "copy" for one in between)
        else int(outside),  # Process groups have no copies.
        data=data,
        steps=steps,
        accumulation=accumulation if poison is None else 1,
        bucket_cap=cap,
        values=draw(st.sampled_from(("integer", "real"))),
        log2_scale=draw(st.sampled_from((0, 0, 0, 8, -8))),
        zero_grad=zero_grad,
        situations=tuple(
            situation
            for situation in (
                None if poison is None else Poisoned(poison),
                _disturbed(draw, perturbed, world_size),
                None if injected_failure is None else Failing(injected_failure),
                None if no_sync == "plain" or poison is not None else NoSyncStyle(no_sync),
                UnusedLayers(passed) if passed else None,
                None if other is None else Crossed(other),
                None if ways == "alternate" else PassOrder(ways),
                Penalty() if penalty else None,
                Actions(between) if between else None,
                UnevenInputs(exhausted) if exhausted else None,
                None if saved_by is None else Resized(saved_by),
                None if zero_grad == "never" or model.layers[0].sparse else clip,
                Autocast.drawn(draw, autocast, model) if autocast else None,
            )
            if situation is not None
        ),
        rounds=rounds,
        seed=draw(_SEEDS),
    )
    kernels = optimizer.kernels if optimizer.kernels != "fused" or case.fusible else "default"
    case = replace(case, optimizer=replace(optimizer, kernels=kernels))
    return scope.fit(case if scaler is None else scaler.fitted(case))


def _disturbed(
    draw: st.DrawFn, perturbed: tuple[PerturbationKind, ...], world_size: int
) -> Disturbed | None:
    """Draw the timing of collectives; None for the usual timing."""
    perturbation = _in_time(
        Perturbation(
            draw(st.sampled_from(perturbed)),
            draw(st.sampled_from(("finite", "finite", "nan"))),
            draw(_SMALL) % world_size,
            draw(st.sampled_from((1, 1, 2, 20))),
        )
    )
    return None if perturbation == Perturbation() else Disturbed(perturbation)


def _in_time(plan: Perturbation) -> Perturbation:
    """A device is kept busy longer than the program takes to get to what it did not wait for."""
    return replace(plan, milliseconds=20) if plan.on_device else plan


def _writing(draw: st.DrawFn, steps: int) -> tuple[BetweenSteps, ...]:
    """In one of four, a program that writes to buffers before a step from the second on."""
    step = 1 + draw(_SMALL) % (steps - 1)
    return (BetweenSteps("buffers", step),) if draw(_ONE_IN_FOUR) else ()


def _extended(model: Model, *, frozen: bool = False) -> Model:
    """The model with one more layer, tied to none and as wide out as in."""
    last = Layer("linear", model.widths()[-1], dtype=model.layers[0].dtype, frozen=frozen)
    return replace(model, layers=(*model.layers, last))


def _unused(draw: st.DrawFn, model: Model, world_size: int, steps: int) -> tuple[Unused, ...]:
    """Layers to pass by: the last may be, the first never is, so that something is trained."""
    widths = model.widths()
    square = [
        index
        for index, layer in enumerate(model.layers)
        if index and layer.kind not in PASSING and widths[index] == widths[index + 1]
    ][::-1]
    passed = tuple(
        Unused(
            square[layer % len(square)],
            rank % world_size if alone else None,
            None if always else step % steps,
        )
        for layer, alone, rank, always, step in draw(_UNUSED)
    )
    if draw(_ONE_IN_FOUR):  # What one rank never uses, and the others not in the end.
        passed = (
            Unused(square[0], rank=draw(_SMALL) % world_size),
            Unused(square[0], step=steps - 1),
        )
    return passed


def _between(
    drawn: list[tuple[int, int, int]], kinds: tuple[BetweenStepsKind, ...], model: Model, steps: int
) -> tuple[tuple[BetweenSteps, ...], int]:
    """What happens between steps, by what was drawn, and how many steps there are so that each is followed by one."""
    last = len(model.layers) - 1
    alone = [
        index
        for index, layer in enumerate(model.layers)
        if layer.tied is None
        and layer.kind in ("linear", "scale")
        and all(other.tied != index for other in model.layers)
        and index
    ][::-1]
    steps = max(steps, 2)
    if any(
        layer.tied is not None for layer in model.layers
    ):  # What is assigned to two names would be two tensors.
        kinds = tuple(kind for kind in kinds if kind != "assign") or ("evaluation",)
    found = []
    for kind, step, layer in drawn:
        one = kinds[kind % len(kinds)]
        freezing = one in ("freeze", "unfreeze")
        found.append(
            BetweenSteps(
                one,
                1 + step % (steps - 1),
                (alone or [last])[layer % len(alone or [last])] if freezing else 0,
            )
        )
    return tuple(sorted(found, key=lambda one: one.step)), steps


@st.composite
def shard_cases(
    draw: st.DrawFn,
    scope: Scope,
    *,
    loader: bool = False,
    saved: bool = False,
    least_samples: int = 0,
    worked: bool = False,
) -> ShardCase:
    """Questions to a sampler: dataset lengths dense in 0 … 3W and beyond, one to three epochs.

    Args:
        draw: Hypothesis'.
        scope: What the sampler takes.
        loader: Always run a DataLoader over it as well.
        saved: Always save a state in the middle of the last epoch, and load it.
        least_samples: Shortest dataset.
        worked: Always have workers of a DataLoader iterate it.
    """
    # No process is needed for a rank of a sampler: twice as many are asked for.
    world_size = draw(st.integers(1, 2 * scope.max_world_size))
    drop_last, size = draw(_ONE_IN_FOUR), draw(st.integers(1, 4))
    saved_after = draw(st.integers(1, 3)) if saved else None
    if saved_after is not None:  # So many that something is left to go on with.
        least_samples = max(least_samples, world_size * (saved_after * size + 1))
    data = Data(
        samples=least_samples + draw(_SAMPLES),
        batch_size=size,
        shuffle=draw(_COINS),
        drop_last=drop_last,
        seed=draw(_SMALL),
    )
    epochs = draw(st.sampled_from(((0,), (0, 1), (1, 0), (0, 1, 2), (3, 0))))
    return scope.fit_shards(
        ShardCase(
            world_size=world_size,
            data=data,
            epochs=epochs,
            loader=loader,
            saved_after=saved_after,
            resumed_by=draw(_OTHERS) if saved else None,
            workers=draw(st.integers(1, 3)) if worked else 0,
        )
    )


_NEEDED: dict[BetweenStepsKind, str] = {
    "evaluation with gradients": "evaluation_with_gradients",
    "forward only": "forward_only",
    "learning rate": "learning_rate",
    "reload": "state",
}
"""The capability that an interlude needs, where it has another name."""


def cases_for(rule: str, scope: Scope) -> SearchStrategy[TrainingCase] | SearchStrategy[ShardCase]:
    """Return the cases that the property of a rule draws from, as the rule's row says."""
    draws = ALL_RULES[rule].draws
    if isinstance(draws, ShardDraws):
        return shard_cases(scope, **draws.options)
    return training_cases(scope, **draws.options)


def unlike(rules: Iterable[str]) -> list[str]:
    """Return the first of all rules whose properties draw alike.

    A search for any failure need not draw the same cases twenty times.
    """
    first: dict[Draws | ShardDraws, str] = {}
    for rule in rules:
        first.setdefault(ALL_RULES[rule].draws, rule)
    return list(first.values())
