"""The table of capabilities: how a case contains a capability, loses it, and probes it."""

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.dtypes import LOW_PRECISION, Dtype
from ddp_invariants.cases.layers import BUFFERS, Layer, LayerKind, Model, Naming
from ddp_invariants.cases.levels import Level
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.shrink import without_kinds
from ddp_invariants.situations import SITUATIONS
from ddp_invariants.situations.capability import BASE, FOUR, GENTLE, Capability
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.penalty import Penalty
from ddp_invariants.situations.resized import Resized


def _changed(case: TrainingCase, change: Callable[[Layer], Layer]) -> TrainingCase:
    """Return the case with every layer changed."""
    return replace(
        case, model=replace(case.model, layers=tuple(change(layer) for layer in case.model.layers))
    )


def _layers(
    holds: Callable[[Layer], bool],
    change: Callable[[Layer], Layer],
    probe: Iterable[Layer],
    *conditions: str,
    level: Level = "extended",
) -> Capability:
    """Return a capability that a single layer shows."""
    return Capability(
        lambda case: any(holds(layer) for layer in case.model.layers),
        lambda case: _changed(case, change),
        replace(BASE, model=Model(4, (*FOUR, *probe))),
        frozenset(conditions),
        level=level,
    )


def _kind(
    kind: LayerKind, *conditions: str, level: Level = "extended", base: TrainingCase = BASE
) -> Capability:
    """Return the capability to train a kind of layer, which a probe adds to a simple case."""
    return Capability(
        lambda case: case.model.has(kind),
        lambda case: without_kinds(case, kind),
        replace(base, model=Model(4, (*FOUR, Layer(kind)))),
        frozenset(conditions),
        level=level,
    )


def _named(naming: Naming, condition: str, *more: Layer) -> Capability:
    """Return the capability to train a model whose layers have other names."""
    return Capability(
        lambda case: (
            case.model.naming == naming and (naming != "rooted" or case.model.rooted is not None)
        ),
        lambda case: replace(case, model=replace(case.model, naming="numbered")),
        replace(BASE, model=Model(4, (*FOUR, *more), naming)),
        frozenset({condition}),
    )


def _low(dtype: Dtype) -> Capability:
    """Return the capability to train layers of a dtype of low precision beside others."""
    # An implementation that takes the first such dtype meets these situations without the others.
    met = (
        ("a gradient of low precision", "gradients of several dtypes")
        if dtype == LOW_PRECISION[0]
        else ()
    )
    return _layers(
        lambda layer: layer.dtype == dtype,
        lambda layer: replace(layer, dtype="float32") if layer.dtype == dtype else layer,
        (Layer("linear", 2, dtype=dtype),),
        *met,
    )


def _optimizer(
    holds: Callable[[Optimizer], bool],
    change: Callable[[Optimizer], Optimizer],
    probe: Optimizer,
    *conditions: str,
) -> Capability:
    """Return a capability that the optimizer shows."""
    return Capability(
        lambda case: holds(case.optimizer),
        lambda case: replace(case, optimizer=change(case.optimizer)),
        replace(BASE, optimizer=probe),
        frozenset(conditions),
        level="core",
    )


def _field(
    name: str,
    plain: object,
    probe: TrainingCase,
    *conditions: str,
    value: object = None,
    level: Level = "core",
) -> Capability:
    """Return a capability that one field of the case shows.

    A case contains the capability if the field differs from `plain`, or, if `value` is given, if
    the field equals `value`.
    """
    return Capability(
        lambda case: (
            getattr(case, name) == value if value is not None else getattr(case, name) != plain
        ),
        lambda case: replace(case, **{name: plain}),  # type: ignore[arg-type]  # the case checks it
        probe,
        frozenset(conditions),
        level=level,
    )


def _computed_once(layer: Layer) -> Layer:
    return replace(layer, checkpoint="none")


def _trained(case: TrainingCase) -> int:
    """Return the number of trained parameters with elements; a tied parameter counts once."""
    return sum(
        size > 0
        for layer, width in zip(case.model.layers, case.model.widths(), strict=False)
        if not layer.frozen
        for size in layer.sizes(width)
    )


def _keeps_one_buffer_equal(case: TrainingCase) -> bool:
    """Return whether a forward must make the model's only buffer equal on several ranks again."""
    count = sum(len(layer.buffers) for layer in case.model.layers)
    return count == 1 and case.world_size > 1 and case.steps > 1


def _with_usual_constants(plan: Optimizer) -> Optimizer:
    """Return an optimizer whose constants of Adam are torch's defaults."""
    usual = Optimizer()
    return replace(plan, **{name: getattr(usual, name) for name in plan.differing_constants})


def _has_a_short_batch(case: TrainingCase) -> bool:
    """Return whether a run comes to a last batch of an epoch that is smaller than the others."""
    batches, rest = divmod(case.data.of_a_rank(case.world_size), case.data.batch_size)
    if batches and rest and case.steps * case.accumulation > batches:
        return True
    return case.saved_by is not None and _has_a_short_batch(case.before)


def _of_whole_batches(case: TrainingCase) -> TrainingCase:
    ranks = math.lcm(case.world_size, case.saved_by or 1)
    batches = max(1, case.data.samples // (ranks * case.data.batch_size))
    samples = batches * case.data.batch_size * ranks
    return replace(case, data=replace(case.data, samples=samples))


def _dense(case: TrainingCase) -> TrainingCase:
    return _changed(case, lambda layer: replace(layer, sparse=False))


def _enough(case: TrainingCase) -> TrainingCase:
    """Return the case with at least as many trained parameters as ranks."""
    more = (Layer("linear", case.model.widths()[-1], dtype=case.model.layers[0].dtype),) * (
        case.world_size - _trained(case)
    )
    return replace(case, model=replace(case.model, layers=(*case.model.layers, *more)))


_SPARSE = frozenset({"a sparse gradient"})

_OWN: dict[str, Capability] = {
    "bucket_cap": _field(
        "bucket_cap",
        None,
        replace(BASE, bucket_cap=1),
        "every parameter above the cap",
        "cap between a parameter and the model",
        "cap above the model",
    ),
    "accumulation": Capability(
        lambda case: case.accumulation > 1,
        lambda case: case.with_each(operator.methodcaller("in_one_backward"), accumulation=1),
        replace(BASE, accumulation=2),
        frozenset({"several micro-steps"}),
    ),
    "tied": _layers(
        lambda layer: layer.tied is not None,
        lambda layer: replace(layer, tied=None),
        (Layer("linear", 4, tied=0),),
        "tied parameter",
    ),
    "frozen": _layers(
        lambda layer: layer.frozen,
        lambda layer: replace(layer, frozen=False),
        (Layer("linear", 4, frozen=True),),
        "frozen parameter",
    ),
    "scalar": _kind("scale", "0-d parameter"),
    "empty": _kind("empty", "zero-element parameter"),
    "strided": _layers(
        lambda layer: bool(layer.parameters) and layer.layout in ("transposed", "strided"),
        lambda layer: (
            replace(layer, layout="contiguous")
            if layer.parameters and layer.layout != "channels_last"
            else layer
        ),
        (Layer("linear", 2, layout="strided"),),
    ),
    "strided_buffers": _layers(
        lambda layer: bool(layer.buffers) and layer.layout == "strided",
        lambda layer: replace(layer, layout="contiguous") if layer.buffers else layer,
        (Layer("statistics", layout="strided"),),
    ),
    "channels_last": _layers(
        lambda layer: layer.layout == "channels_last",
        lambda layer: (
            replace(layer, layout="contiguous") if layer.layout == "channels_last" else layer
        ),
        (Layer("linear", 2, layout="channels_last"),),
        "channels_last parameter",
    ),
    "buffers": Capability(
        lambda case: case.model.has_buffers,
        lambda case: without_kinds(case, *BUFFERS),
        replace(BASE, model=Model(4, (*FOUR, Layer("statistics")))),
        varieties={"a single one": _keeps_one_buffer_equal},
    ),
    "extremes": _kind("extremes"),
    "shared_buffer": _kind("shared_buffer"),
    "bias": _layers(
        lambda layer: layer.bias,
        lambda layer: replace(layer, bias=False),
        (Layer("linear", 2, bias=True),),
        level="core",
    ),
    "float64": Capability(
        lambda case: any(
            "float64" in (layer.dtype, *layer.of_kind.parameter_dtypes.values())
            for layer in case.model.layers
        ),
        lambda case: _changed(
            without_kinds(case, "mixed"),
            lambda layer: replace(layer, dtype="float32") if layer.dtype == "float64" else layer,
        ),
        _changed(BASE, lambda layer: replace(layer, dtype="float64")),
        level="core",
    ),
    "short_batch": Capability(
        _has_a_short_batch,
        _of_whole_batches,
        replace(BASE, data=Data(samples=6, batch_size=2)),
        level="core",
    ),
    **{name: _low(name) for name in LOW_PRECISION},
    "complex": _layers(
        lambda layer: layer.complex,
        lambda layer: replace(layer, dtype="float32") if layer.complex else layer,
        (Layer("linear", 2, dtype="complex64"),),
        "a complex gradient",
    ),
    "sparse": Capability(
        lambda case: case.sparse,
        _dense,
        replace(BASE, model=Model(4, (Layer("embedding", sparse=True), *FOUR))),
        _SPARSE,
    ),
    "embedding": Capability(
        lambda case: case.model.layers[0].kind == "embedding",
        lambda case: without_kinds(case, "embedding"),
        replace(BASE, model=Model(4, (Layer("embedding"), *FOUR))),
        _SPARSE,
        level="core",
    ),
    "convolution": _kind("convolution", level="core"),
    "norm": _kind("norm", level="core"),
    "batch_norm": _kind("batch_norm", "a batch normalised by itself"),
    "attention": _kind("attention", level="core"),
    "dropout": _kind("dropout", level="core"),
    "terms": _kind("terms", level="core"),
    "loss_only": replace(
        _kind(
            "loss_only",
            "a parameter that only the loss uses",
            base=GENTLE.with_situation(Penalty("weights")),
        ),
        after="weight_penalty",
    ),
    "named_module": _named("module", "a submodule called module"),
    "alike_underscored": _named("underscored", "names equal with underscores for dots"),
    "alike_joined": _named("joined", "names equal without dots"),
    "alike_cased": _named("cased", "names equal in lower case"),
    "rooted": _named("rooted", "a parameter of the whole module", Layer("scale")),
    # Small integers round in no dtype.
    "mixed": replace(
        _kind("mixed"),
        probe=replace(BASE, values="real", model=Model(4, (*FOUR, Layer("mixed")))),
    ),
    "summed": _kind("summed"),
    "parametrized": _kind("parametrized"),
    "sgd": Capability(
        lambda case: case.optimizer.kind == "sgd",
        lambda case: replace(
            _dense(case),
            optimizer=replace(case.optimizer, kind="adam", momentum=0.0, nesterov=False),
        ),
        BASE,
        level="core",
    ),
    "momentum": _optimizer(
        lambda plan: plan.momentum > 0,
        lambda plan: replace(plan, momentum=0.0, nesterov=False),
        Optimizer(momentum=0.5),
        "momentum",
    ),
    "weight_decay": _optimizer(
        lambda plan: plan.weight_decay > 0,
        lambda plan: replace(plan, weight_decay=0.0),
        Optimizer(weight_decay=0.25),
        "weight decay",
    ),
    "adam": _optimizer(
        lambda plan: plan.kind == "adam",
        lambda plan: replace(plan, kind="adamw"),
        Optimizer("adam", weight_decay=0.25),
        "Adam",
    ),
    "adamw": _optimizer(
        lambda plan: plan.kind == "adamw",
        lambda plan: replace(_with_usual_constants(plan), amsgrad=False, kind="sgd"),
        Optimizer("adamw"),
        "AdamW",
    ),
    "nesterov": _optimizer(
        lambda plan: plan.nesterov,
        lambda plan: replace(plan, nesterov=False),
        Optimizer(momentum=0.5, nesterov=True),
        "Nesterov momentum",
    ),
    "adam_constants": _optimizer(
        lambda plan: bool(plan.differing_constants),
        _with_usual_constants,
        Optimizer("adam", beta_1=0.5, beta_2=0.75, epsilon=2.0**-6),
        "other constants of Adam",
    ),
    "amsgrad": _optimizer(
        lambda plan: plan.amsgrad,
        lambda plan: replace(plan, amsgrad=False),
        Optimizer("adam", amsgrad=True),
    ),
    "maximize": _optimizer(
        lambda plan: plan.maximize,
        lambda plan: replace(plan, maximize=False),
        Optimizer(momentum=0.5, maximize=True),
        "steps that maximise",
    ),
    "foreach": _optimizer(
        lambda plan: plan.kernels == "foreach",
        lambda plan: replace(plan, kernels="default"),
        Optimizer(momentum=0.5, kernels="foreach"),
    ),
    "fused": _optimizer(
        lambda plan: plan.kernels == "fused",
        lambda plan: replace(plan, kernels="default"),
        Optimizer(momentum=0.5, kernels="fused"),
        "a fused step",
    ),
    "zero_in_place": _field(
        "zero_grad",
        "set_to_none",
        replace(BASE, zero_grad="zero"),
        "zero_grad(set_to_none=False)",
        value="zero",
    ),
    "never_zeroed": _field(
        "zero_grad",
        "set_to_none",
        replace(BASE, zero_grad="never"),
        "no zero_grad",
        value="never",
        level="extended",
    ),
    "zero_mixed": _field(
        "zero_grad",
        "set_to_none",
        replace(BASE, steps=3, zero_grad="mixed"),
        "some gradients set to None and others zeroed in place",
        value="mixed",
        level="extended",
    ),
    "one_rank": Capability(
        lambda case: case.world_size == 1,
        lambda case: replace(
            case, world_size=2, data=replace(case.data, samples=max(2, case.data.samples))
        ),
        replace(BASE, world_size=1),
        frozenset({"one rank"}),
        level="core",
    ),
    "twice": _layers(
        lambda layer: layer.twice,
        lambda layer: replace(layer, twice=False),
        (Layer("linear", 4, twice=True),),
        "a layer called twice",
    ),
    "checkpointed": _layers(
        lambda layer: layer.checkpoint == "plain",
        _computed_once,
        (Layer("linear", 4, checkpoint="plain"), Layer("linear", 4)),
        "a layer computed again in backward",
    ),
    "reentrant": _layers(
        lambda layer: layer.checkpoint == "reentrant",
        _computed_once,
        (Layer("linear", 4, checkpoint="reentrant"), Layer("linear", 4)),
        "a backward within backward",
    ),
    "in_parts": Capability(
        lambda case: case.in_parts,
        lambda case: _changed(
            case,
            lambda layer: replace(
                layer, checkpoint="none" if layer.checkpoint == "none" else "plain"
            ),
        ),
        replace(
            BASE,
            accumulation=2,
            situations=(PassOrder("joint"),),
            # With nothing else to wait for, even a bucket for all parameters is full after one part.
            model=Model(4, (Layer("linear", 4, bias=True, checkpoint="reentrant"),)),
        ),
    ),
    # These two come last: an implementation that lacks them often hangs, and a hang takes long.
    "few": Capability(
        lambda case: _trained(case) < case.world_size,
        _enough,
        replace(BASE, model=Model(4, (Layer("linear", 2),))),
    ),
    "subgroup": Capability(
        lambda case: case.outside > 0,
        lambda case: replace(case.without(Resized), outside=0),
        replace(BASE, outside=1),
        frozenset({"a group without rank 0"}),
        varieties={"with gaps": lambda case: case.has_gaps},
    ),
}
"""Capabilities that are about the model, the optimizer and the other fields of a case."""


def _placed(own: dict[str, Capability]) -> dict[str, Capability]:
    """Return the capabilities with those of all situations, each after the capability it names."""
    table = {name: capability for name, capability in own.items() if not capability.after}
    waiting = {name: capability for name, capability in own.items() if capability.after}
    for situation in SITUATIONS:
        waiting |= situation.capabilities()
    while waiting:
        name = next(name for name, each in waiting.items() if each.after in table)
        capability = waiting.pop(name)
        rows = list(table.items())
        at = 1 + list(table).index(capability.after)
        table = dict([*rows[:at], (name, capability), *rows[at:]])
    return table


TRAINING = _placed(_OWN)
"""The training capabilities by name, in the order of probing, without those of `SHOWN`."""

REMOVED = {
    name: order for order, name in enumerate([*(name for name in TRAINING if name != "few"), "few"])
}
"""The order in which capabilities are removed from a case; the removal that adds parameters is
last."""

SHOWN = ("no_sync", "bucketing", "overlap", "equal_buffers")
"""The training capabilities that no case contains.

They show in the way a case is driven, in the messages sent, and in the values forwards start from.
"""
