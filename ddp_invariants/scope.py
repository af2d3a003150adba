"""What cases may contain for what is on trial: its capabilities, its declarations, the machine.

Cases are fitted to the scope when they are drawn, rather than skipped inside a property, which
would let a property pass on nothing. A rule that is about something outside the scope is not
claimed, and listed with the reason.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ddp_invariants.backends import ON_THE_CPU, Way
from ddp_invariants.case import Case, Passes, ShardCase, TrainingCase
from ddp_invariants.declarations import CAPABILITIES, Declarations, SamplerDeclarations, Stack
from ddp_invariants.implementation import Ddp, Sampler
from ddp_invariants.layers import BUFFERS, Layer, Model
from ddp_invariants.program import (
    Data,
    Exhausted,
    Interlude,
    InterludeKind,
    LossScale,
    Mishap,
    MishapKind,
    Optimizer,
    Poison,
    Unused,
)
from ddp_invariants.simpler import interludes_without, unused_without, without_layer

_FOUR = (Layer("linear", 4),) * 4
BASE = TrainingCase(
    model=Model(4, _FOUR), world_size=2, steps=2, data=Data(samples=8, batch_size=2)
)
"""The simplest case a discovery starts from."""
_GENTLE = replace(BASE, values="real", optimizer=Optimizer(log2_lr=-12, momentum=0.5))
"""One that trains slowly: what blows up hides where it came from, and overflows where gradients travel in float16."""


@dataclass(frozen=True)
class Capability:
    """What a training case may contain, as the suite finds, removes and probes it.

    Attributes:
        present: Whether a case contains it.
        removed: The case without it.
        probe: A small case that contains it and little else.
        situations: What rules can meet only with it.
    """

    present: Callable[[TrainingCase], bool]
    removed: Callable[[TrainingCase], TrainingCase]
    probe: TrainingCase
    situations: frozenset[str] = frozenset()


def _changed(case: TrainingCase, change: Callable[[Layer], Layer]) -> TrainingCase:
    """The case with every layer changed."""
    return replace(
        case, model=replace(case.model, layers=tuple(change(layer) for layer in case.model.layers))
    )


def _dropped(case: TrainingCase, *kinds: str) -> TrainingCase:
    """The case without layers of some kinds."""
    layers, unused, interludes = case.model.layers, case.unused, case.interludes
    for index in reversed(range(len(layers))):
        if layers[index].kind in kinds:
            layers, unused = without_layer(layers, index), unused_without(unused, index)
            interludes = interludes_without(interludes, index)
    return replace(
        case, model=replace(case.model, layers=layers), unused=unused, interludes=interludes
    )


def _layers(
    holds: Callable[[Layer], bool],
    change: Callable[[Layer], Layer],
    probe: Iterable[Layer],
    *situations: str,
) -> Capability:
    """A capability about single layers."""
    return Capability(
        lambda case: any(holds(layer) for layer in case.model.layers),
        lambda case: _changed(case, change),
        replace(BASE, model=Model(4, (*_FOUR, *probe))),
        frozenset(situations),
    )


def _kind(kind: str, *situations: str) -> Capability:
    """A capability about a kind of layer."""
    layers = (*_FOUR, Layer(kind))  # type: ignore[arg-type]  # checked by the layer
    return Capability(
        lambda case: any(layer.kind == kind for layer in case.model.layers),
        lambda case: _dropped(case, kind),
        replace(BASE, model=Model(4, layers)),
        frozenset(situations),
    )


def _optimizer(
    holds: Callable[[Optimizer], bool],
    change: Callable[[Optimizer], Optimizer],
    probe: Optimizer,
    *situations: str,
) -> Capability:
    """A capability about the optimizer."""
    return Capability(
        lambda case: holds(case.optimizer),
        lambda case: replace(case, optimizer=change(case.optimizer)),
        replace(BASE, optimizer=probe),
        frozenset(situations),
    )


def _field(
    name: str, plain: object, probe: TrainingCase, *situations: str, value: object = None
) -> Capability:
    """A capability about one field of the case: present where it is not plain (or where it is a value)."""
    return Capability(
        lambda case: (
            getattr(case, name) == value if value is not None else getattr(case, name) != plain
        ),
        lambda case: replace(case, **{name: plain}),  # type: ignore[arg-type]  # checked by the case
        probe,
        frozenset(situations),
    )


def _mishap(kind: MishapKind, *situations: str) -> Capability:
    """A capability about what goes wrong on purpose; probed in the first step, where some are wrong who refuse it later."""
    return Capability(
        lambda case: case.mishap is not None and case.mishap.kind == kind,
        lambda case: replace(case, mishap=None),
        replace(BASE, mishap=Mishap(kind), steps=3),
        frozenset(situations),
    )


def _passes(passes: Passes, *situations: str) -> Capability:
    """A capability about how forwards and backwards follow one another."""
    return Capability(
        lambda case: case.passes == passes,
        lambda case: replace(case, passes="alternate"),
        replace(_GENTLE, accumulation=2, passes=passes),
        frozenset(situations),
    )


def _computed_once(layer: Layer) -> Layer:
    return replace(layer, checkpoint="none")


def _interlude(kind: InterludeKind, *situations: str) -> Capability:
    """A capability about what happens between steps."""
    layers = (*_FOUR[:2], Layer("linear", 4, frozen=kind == "unfreeze"), Layer("linear", 4))
    probe = replace(_GENTLE, model=Model(4, layers), steps=3, interludes=(Interlude(kind, 1, 2),))
    return Capability(
        lambda case: any(one.kind == kind for one in case.interludes),
        lambda case: replace(
            case, interludes=tuple(one for one in case.interludes if one.kind != kind)
        ),
        probe,
        frozenset(situations),
    )


def _trained(case: TrainingCase) -> int:
    """How many parameters with elements are trained, tied ones counted once."""
    return sum(
        size > 0
        for layer, width in zip(case.model.layers, case.model.widths(), strict=False)
        if not layer.frozen
        for size in layer.sizes(width)
    )


def _dense(case: TrainingCase) -> TrainingCase:
    return _changed(case, lambda layer: replace(layer, sparse=False))


def _enough(case: TrainingCase) -> TrainingCase:
    """The case with a parameter for every rank."""
    more = (Layer("linear", case.model.widths()[-1], dtype=case.model.layers[0].dtype),) * (
        case.world_size - _trained(case)
    )
    return replace(case, model=replace(case.model, layers=(*case.model.layers, *more)))


_FORWARDS = ("forward only", "evaluation with gradients")
"""Interludes in which a forward that autograd follows has no backward."""
_SPARSE = frozenset({"a sparse gradient"})
TRAINING: dict[str, Capability] = {
    "bucket_cap": _field(
        "bucket_cap",
        None,
        replace(BASE, bucket_cap=1),
        "every parameter above the cap",
        "cap between",
        "cap above the model",
    ),
    "accumulation": Capability(
        lambda case: case.accumulation > 1,
        lambda case: replace(
            case,
            accumulation=1,
            no_sync="plain",
            passes="alternate",
            unused=tuple(one for one in case.unused if one.micro_step is None),
        ),
        replace(BASE, accumulation=2),
        frozenset({"several micro-steps"}),
    ),
    "no_sync_nested": _field(
        "no_sync",
        "plain",
        replace(BASE, accumulation=2, no_sync="nested"),
        "a nested no_sync",
        value="nested",
    ),
    "no_sync_error": _field(
        "no_sync",
        "plain",
        replace(BASE, accumulation=2, no_sync="error"),
        "an exception inside no_sync",
        value="error",
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
        lambda layer: layer.layout in ("transposed", "strided"),
        lambda layer: (
            replace(layer, layout="contiguous") if layer.layout != "channels_last" else layer
        ),
        (Layer("linear", 2, layout="strided"),),
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
        lambda case: any(layer.buffers for layer in case.model.layers),
        lambda case: _dropped(case, *BUFFERS),
        replace(BASE, model=Model(4, (*_FOUR, Layer("statistics")))),
    ),
    "bias": _layers(
        lambda layer: layer.bias,
        lambda layer: replace(layer, bias=False),
        (Layer("linear", 2, bias=True),),
    ),
    "float64": Capability(
        lambda case: any(layer.dtype == "float64" for layer in case.model.layers),
        lambda case: _changed(
            case,
            lambda layer: replace(layer, dtype="float32") if layer.dtype == "float64" else layer,
        ),
        _changed(BASE, lambda layer: replace(layer, dtype="float64")),
    ),
    "bfloat16": _layers(
        lambda layer: layer.dtype == "bfloat16",
        lambda layer: replace(layer, dtype="float32") if layer.dtype == "bfloat16" else layer,
        (Layer("linear", 2, dtype="bfloat16"),),
        "a gradient of low precision",
        "gradients of several dtypes",
    ),
    "complex": _layers(
        lambda layer: layer.complex,
        lambda layer: replace(layer, dtype="float32") if layer.complex else layer,
        (Layer("linear", 2, dtype="complex64"),),
        "a complex gradient",
    ),
    "sparse": Capability(
        lambda case: case.sparse,
        _dense,
        replace(BASE, model=Model(4, (Layer("embedding", sparse=True), *_FOUR))),
        _SPARSE,
    ),
    "embedding": Capability(
        lambda case: case.model.layers[0].kind == "embedding",
        lambda case: _dropped(case, "embedding"),
        replace(BASE, model=Model(4, (Layer("embedding"), *_FOUR))),
        _SPARSE,
    ),
    "convolution": _kind("convolution"),
    "norm": _kind("norm"),
    "batch_norm": _kind("batch_norm", "a batch normed by itself"),
    "attention": _kind("attention"),
    "dropout": _kind("dropout"),
    "sgd": Capability(
        lambda case: case.optimizer.kind == "sgd",
        lambda case: replace(
            _dense(case),
            optimizer=replace(case.optimizer, kind="adam", momentum=0.0, nesterov=False),
        ),
        BASE,
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
        lambda plan: replace(plan, kind="sgd"),
        Optimizer("adamw"),
        "AdamW",
    ),
    "nesterov": _optimizer(
        lambda plan: plan.nesterov,
        lambda plan: replace(plan, nesterov=False),
        Optimizer(momentum=0.5, nesterov=True),
        "Nesterov momentum",
    ),
    "foreach": _optimizer(
        lambda plan: plan.way == "foreach",
        lambda plan: replace(plan, way="default"),
        Optimizer(momentum=0.5, way="foreach"),
    ),
    "fused": _optimizer(
        lambda plan: plan.way == "fused",
        lambda plan: replace(plan, way="default"),
        Optimizer(momentum=0.5, way="fused"),
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
        "zero_grad", "set_to_none", replace(BASE, zero_grad="never"), "no zero_grad", value="never"
    ),
    "nonfinite": _field("poison", None, replace(BASE, poison=Poison(1, 1)), "a NaN", "an infinity"),
    "one_rank": Capability(
        lambda case: case.world_size == 1,
        lambda case: replace(
            case, world_size=2, data=replace(case.data, samples=max(2, case.data.samples))
        ),
        replace(BASE, world_size=1),
        frozenset({"one rank"}),
    ),
    "forward_error": _mishap("forward error", "an exception in forward"),
    "backward_error": _mishap("backward error", "an exception in backward"),
    "joint": _passes("joint", "all forwards before one backward"),
    "retained": _passes("retained", "several backwards through one forward"),
    "penalty": _field(
        "penalty",
        BASE.penalty,
        replace(_GENTLE, penalty=True),
        "a penalty on gradients by the inputs",
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
            passes="joint",
            bucket_cap=1,
            model=Model(4, (*_FOUR, Layer("linear", 4, checkpoint="reentrant"))),
        ),
    ),
    "evaluation": _interlude("evaluation", "an evaluation"),
    "evaluation_with_gradients": _interlude(
        "evaluation with gradients", "an evaluation with gradients"
    ),
    "forward_only": _interlude("forward only", "a forward without a backward"),
    "forward_only_quiet": Capability(
        lambda case: (
            case.accumulation > 1
            and case.passes == "alternate"
            and any(one.kind in _FORWARDS for one in case.interludes)
        ),
        lambda case: replace(
            case, interludes=tuple(one for one in case.interludes if one.kind not in _FORWARDS)
        ),
        replace(_GENTLE, accumulation=2, interludes=(Interlude("forward only"),)),
    ),
    "learning_rate": _interlude("learning rate", "a new learning rate"),
    "decay": _interlude("decay", "less momentum and weight decay"),
    "freeze": _interlude("freeze", "a layer frozen", "frozen for a while"),
    "unfreeze": _interlude("unfreeze", "a layer trained from then on"),
    "cast": _interlude("cast", "parameters cast and cast back"),
    "copy": _interlude("copy", "a deep copy"),
    "assign": _interlude("assign", "parameters assigned"),
    "state": _interlude("reload", "saved and loaded"),
    "buffers_written": Capability(
        lambda case: any(one.kind == "buffers" for one in case.interludes),
        lambda case: replace(
            case, interludes=tuple(one for one in case.interludes if one.kind != "buffers")
        ),
        replace(
            _GENTLE,
            model=Model(4, (*_FOUR, Layer("statistics"))),
            steps=3,
            interludes=(Interlude("buffers"),),
        ),
        frozenset({"buffers written to between steps"}),
    ),
    # Last: what cannot do with these often hangs, and hangs are costly.
    "few": Capability(
        lambda case: _trained(case) < case.world_size,
        _enough,
        replace(BASE, model=Model(4, (Layer("linear", 2),))),
    ),
    "subgroup": Capability(
        lambda case: case.outside > 0,
        lambda case: replace(case, outside=0, saved_by=None),
        replace(BASE, outside=1),
        frozenset({"a group without rank 0"}),
    ),
    "clipping": _field("clip", None, replace(_GENTLE, clip=0.0625), "gradients clipped"),
    "scaler": _field(
        "scaler",
        None,
        replace(_GENTLE, steps=3, poison=Poison(1, 1, "inf"), scaler=LossScale(4, unscaled=True)),
        "a step skipped",
        "a step made after one that was skipped",
        "a scale that grew",
        "gradients unscaled before the step",
    ),
    "autocast": _field(
        "autocast",
        BASE.autocast,
        replace(BASE, values="real", steps=3, autocast=True),
        "a forward under autocast",
    ),
    "resized": _field(
        "saved_by",
        None,
        replace(_GENTLE, world_size=3, data=Data(samples=12, batch_size=2), saved_by=2),
        "fewer ranks saved",
        "more ranks saved",
    ),
    "join": _field(
        "exhausted",
        (),
        replace(
            _GENTLE,
            steps=3,
            world_size=3,
            data=Data(samples=18, batch_size=2),
            exhausted=(Exhausted(0, 1), Exhausted(2, 2)),
        ),
        "a rank without batches",
        "two ranks left at different steps",
    ),
    # On all ranks first: what is armed for whole backwards alone says so in the next, where on one
    # rank it would hang.
    "unused": _field(
        "unused",
        (),
        replace(BASE, steps=3, unused=(Unused(1, step=0), Unused(2, rank=1, step=1))),
        "unused on all ranks",
        "unused on some ranks",
        "used at one step and not at another",
        "used in some micro-steps alone",
    ),
    "crossed": _field(
        "crossed",
        None,
        replace(
            BASE, model=Model(4, (*_FOUR, Layer("branches"))), steps=3, bucket_cap=1, crossed=1
        ),
        "gradients ready in another order on one rank",
    ),
}
"""Training capabilities by name, in the order they are probed. `SHOWN` are none of them."""

_REMOVED = {
    name: order for order, name in enumerate([*(name for name in TRAINING if name != "few"), "few"])
}
"""When, of several, a capability is taken out of a case: what adds parameters last."""

SHOWN = ("no_sync", "bucketing", "overlap", "equal_buffers")
"""Training capabilities that no case contains: they show in how a case is driven, what is sent, what forwards start from."""

SAMPLING: dict[str, frozenset[str]] = {
    "shuffle": frozenset({"shuffle"}),
    "drop_last": frozenset({"drop_last"}),
    "given_rank": frozenset(),
    "uneven": frozenset({"N not divisible by W", "padding", "N < W", "last batch short"}),
    "short": frozenset({"N < W"}),
    "no_samples": frozenset(),
    "resume": frozenset(),
    "elastic": frozenset({"another world size"}),
    "workers": frozenset(),
}
"""Situations that rules about samplers can meet only with a capability."""

assert {*TRAINING, *SAMPLING, *SHOWN} == set(CAPABILITIES)


_OF_TWO_RANKS = (
    "more than one rank",
    "ranks differed before wrapping",
    "a group without rank 0",
    "batches differed",
    "ranks shared a batch",
    "local gradients differed between ranks",
    "gradients ready in another order on one rank",
    "unused on some ranks",
    "a rank without batches",
    "batches moved buffers apart",
    "results withheld",
    "collectives delayed",
    "one bucket",
    "several buckets",
    "two buckets",
    "a rank died",
    "fewer ranks saved",
    "more ranks saved",
    "several ranks drew",
    "a slow communication stream",
    "a slow computation stream",
)
RANKS = {
    **dict.fromkeys(_OF_TWO_RANKS, 2),
    "three ranks": 3,
    "two ranks left at different steps": 3,
}
"""Situations that take more ranks than one, and how many."""


@dataclass(frozen=True)
class Scope:
    """What cases may contain.

    Attributes:
        max_world_size: Largest W; also bounds the processes of a case.
        without: Capabilities that are not drawn.
        declared: What the DDP declares.
        sampler: What the sampler declares.
        deviating: Rules that the DDP is expected to breach, and why.
        way: Over what ranks communicate, and where their tensors are.
        bounded: Why W is not larger.
    """

    max_world_size: int = 4
    without: frozenset[str] = frozenset()
    declared: Declarations = field(default_factory=Declarations)
    sampler: SamplerDeclarations = field(default_factory=SamplerDeclarations)
    deviating: tuple[tuple[str, str], ...] = ()
    way: Way = ON_THE_CPU
    bounded: str = "more ranks were not asked for"

    def has(self, capability: str) -> bool:
        """Whether cases may contain it."""
        return capability not in self.without

    @property
    def unclaimed(self) -> frozenset[str]:
        """Situations of rules that what is on trial does not offer: no rule is asked to have met them."""
        missing: set[str] = set()
        for name in self.without:
            missing |= (
                TRAINING[name].situations if name in TRAINING else SAMPLING.get(name, frozenset())
            )
        if not self.has("adamw") and not self.has("momentum"):
            missing.add("optimizer with state")
        if self.sampler.padding == "batch":
            missing.add("last batch short")
        if not self.has("sgd"):
            missing |= {"momentum", "Nesterov momentum", "a sparse gradient"}
        return frozenset(missing)

    def beyond(self, rule: str) -> frozenset[str]:
        """Situations that take more ranks than there are: a rule that needs them is judged without, and is not proved."""
        # Of a sampler's ranks none is a process.
        ranks = self.max_world_size if not rule.startswith("SHARD") else max(RANKS.values())
        return frozenset(situation for situation, least in RANKS.items() if least > ranks)

    def fit(self, case: TrainingCase) -> TrainingCase:
        """The case as the implementation can be asked to run it."""
        if self.declared.stack is not None:
            case = _stacked(case, self.declared.stack)
        # Twice, in an order that no hash seed changes: one optimizer is replaced by another, Adam
        # by AdamW, AdamW by SGD, and SGD by Adam.
        for name in 2 * sorted(self.without & TRAINING.keys(), key=_REMOVED.__getitem__):
            if name == "few" and self.declared.stack is not None:
                continue  # Its number of parameters is fixed.
            if TRAINING[name].present(case):
                case = TRAINING[name].removed(case)
        if (
            self.way.device != "cpu"
            and case.scaler is not None
            and any(one.dtype == "bfloat16" for one in case.model.layers)
        ):
            case = replace(
                case, scaler=None
            )  # For which torch has no kernel there, in some versions.
        return replace(
            case,
            init="equal" if self.declared.init == "seed" else case.init,
            loss=self.declared.loss,
        )

    def fit_shards(self, case: ShardCase) -> ShardCase:
        """The question as the sampler can be asked it."""
        # What is scattered takes a process for each rank.
        w = (
            min(case.world_size, self.max_world_size)
            if self.sampler.layout == "scatter"
            else case.world_size
        )
        n, data = case.data.samples, case.data
        n = max(n, 0 if self.has("no_samples") else 1)
        n = max(n, 0 if self.has("short") or n == 0 else w)
        n = n if self.has("uneven") else w * -(-n // w)
        data = replace(
            data,
            samples=n,
            shuffle=data.shuffle and self.has("shuffle"),
            drop_last=data.drop_last and self.has("drop_last"),
        )
        return replace(
            case,
            world_size=w,
            data=data,
            saved_after=case.saved_after if self.has("resume") else None,
            resumed_by=case.resumed_by if self.has("resume") and self.has("elastic") else None,
            workers=case.workers if self.has("workers") else 0,
        )

    def excluded(self, rule: str) -> str:
        """Why a rule is not about what is on trial; empty where it is."""
        if rule in dict(self.deviating):
            return f"deviates as {dict(self.deviating)[rule]}"
        return next(
            (reason for rules, applies, reason in _EXCLUSIONS if rule in rules and applies(self)),
            "",
        )


def unclaimed_where(rule: str) -> list[str]:
    """The reasons there are for which a rule may not be about what is on trial."""
    return [reason for rules, _, reason in _EXCLUSIONS if rule in rules]


@dataclass(frozen=True)
class OnTrial:
    """What is judged.

    Attributes:
        ddp: The DDP.
        sampler: The sampler.
        scope: What cases may contain, from what the two accept and declare.
    """

    ddp: Ddp = field(default_factory=Ddp)
    sampler: Sampler = field(default_factory=Sampler)
    scope: Scope = field(default_factory=Scope)

    def named(self, case: Case) -> str:
        """The one a case is about."""
        return str(self.ddp if isinstance(case, TrainingCase) else self.sampler)

    def about(self, rule: str) -> str:
        """The one a rule is about."""
        return str(self.sampler if rule.startswith("SHARD") else self.ddp)


def _stacked(case: TrainingCase, stack: Stack) -> TrainingCase:
    """The case with a model of the one shape the implementation computes, and nothing but whole plain steps."""
    widths = [layer.outputs for layer in case.model.layers if layer.kind == "linear"]
    count = stack.layers or len(widths)
    widths = (widths * count)[:count]
    layers = tuple(
        Layer("linear", width, activation=stack.activation if number < count - 1 else stack.last)
        for number, width in enumerate(widths)
    )
    return replace(
        case,
        model=Model(case.model.inputs, layers),
        outside=0,
        bucket_cap=None,
        accumulation=1,
        zero_grad="set_to_none",
        unused=(),
        crossed=None,
        no_sync="plain",
        passes="alternate",
        interludes=(),
        exhausted=(),
        saved_by=None,
        clip=None,
        scaler=None,
        autocast=False,
        penalty=False,
    )


BETWEEN = (
    "evaluation",
    "evaluation_with_gradients",
    "forward_only",
    "learning_rate",
    "decay",
    "freeze",
    "unfreeze",
    "cast",
    "copy",
    "assign",
)
_VALUES = (
    "GRAD-2",
    "GRAD-3",
    "GRAD-5",
    "GRAD-6",
    "GRAD-7",
    "GRAD-8",
    "GRAD-9",
    "GRAD-10",
    "GRAD-11",
    "GRAD-12",
    "GRAD-13",
)
_BY_ITSELF = "it computes forward, backward and loss by itself"
_EXCLUSIONS: tuple[tuple[tuple[str, ...], Callable[[Scope], bool], str], ...] = (
    (
        ("INIT-1", "INIT-2"),
        lambda scope: scope.declared.init == "seed",
        "declares init = seed: it never synchronises anything (INIT-4)",
    ),
    (
        ("INIT-4",),
        lambda scope: scope.declared.init != "seed",
        "synchronises at the start (INIT-1)",
    ),
    (("INIT-2",), lambda scope: not scope.has("buffers"), "takes no buffers"),
    (("LOSS-1", "PARAM-4"), lambda scope: scope.declared.stack is not None, _BY_ITSELF),
    (
        ("LOSS-2",),
        lambda scope: scope.declared.loss != "tagged",
        "its loss holds no tags that tell batches apart",
    ),
    (("GRAD-9",), lambda scope: not scope.has("unused"), "takes no unused parameters"),
    (
        ("GRAD-1", "GRAD-4", *_VALUES),
        lambda scope: scope.declared.gradients == "hidden",
        "gradients are hidden: PARAM-3 carries the proof",
    ),
    (
        ("GRAD-1", "GRAD-4"),
        lambda scope: scope.declared.gradients == "owner",
        "only its owner holds a gradient",
    ),
    (
        (*_VALUES, "PARAM-3", "PARAM-6"),
        lambda scope: scope.declared.exactness == "lossy",
        "declares exactness = lossy",
    ),
    (("PARAM-6",), lambda scope: not scope.has("scaler"), "takes no loss scaler"),
    (
        ("PARAM-4",),
        lambda scope: scope.declared.exactness != "bitwise",
        "declares that gradients are rounded",
    ),
    (
        ("PARAM-4",),
        lambda scope: bool(scope.declared.main),
        "declares that the optimizer updates a copy",
    ),
    (("GRAD-6",), lambda scope: not scope.has("bucket_cap"), "takes no bucket capacity"),
    (("GRAD-7",), lambda scope: not scope.has("nonfinite"), "refuses values that are not finite"),
    (("GRAD-8", "GRAD-12"), lambda scope: not scope.has("accumulation"), "one backward per step"),
    (
        ("GRAD-8",),
        lambda scope: not scope.has("no_sync"),
        "has no no_sync: every micro-step is synchronised",
    ),
    (
        ("PARAM-2",),
        lambda scope: bool(scope.declared.zero) or scope.declared.optimizer == "own",
        "the optimizer's state is the implementation's own affair",
    ),
    (("PARAM-4",), lambda scope: not scope.has("one_rank"), "does not run in a world of one rank"),
    (("PARAM-5",), lambda scope: not scope.has("frozen"), "takes no frozen parameters"),
    (("BUF-1", "BUF-2"), lambda scope: not scope.has("buffers"), "takes no buffers"),
    (("BUF-1",), lambda scope: not scope.has("equal_buffers"), "leaves each rank its own buffers"),
    (
        ("COMM-4",),
        lambda scope: not scope.has("bucket_cap") or not scope.has("bucketing"),
        "fills no buckets to a capacity",
    ),
    (("COMM-5",), lambda scope: not scope.has("overlap"), "does not communicate during backward"),
    (
        ("COMM-4", "COMM-5"),
        lambda scope: scope.declared.gradients == "hidden",
        "gradients are hidden",
    ),
    (
        ("LIVE-2",),
        lambda scope: not scope.has("forward_error") and not scope.has("backward_error"),
        "does not go on after an exception",
    ),
    (
        ("LIVE-5",),
        lambda scope: not any(scope.has(one) for one in BETWEEN),
        "does nothing between steps",
    ),
    (("LIVE-5",), lambda scope: scope.declared.exactness == "lossy", "declares exactness = lossy"),
    (("STATE-1",), lambda scope: not scope.has("state"), "saves no state"),
    (
        ("GRAD-10",),
        lambda scope: not any(scope.has(one) for one in ("sparse", "bfloat16", "complex")),
        "takes neither sparse gradients nor complex ones, nor those of low precision",
    ),
    (
        ("GRAD-13",),
        lambda scope: (
            not any(
                scope.has(one)
                for one in ("joint", "retained", "penalty", "twice", "checkpointed", "reentrant")
            )
        ),
        "every forward is followed by its backward, which computes nothing again",
    ),
    (
        ("STATE-2",),
        lambda scope: not scope.has("resized"),
        "another number of ranks cannot go on from its state",
    ),
    (
        ("GRAD-11",),
        lambda scope: not scope.has("join"),
        "has no join: all ranks have as many batches",
    ),
    (
        ("RNG-1",),
        lambda scope: not scope.has("dropout"),
        "takes no layers that draw random numbers",
    ),
    (
        ("LIVE-3",),
        lambda scope: scope.way.carrier == "nccl",
        "NCCL tells nobody of a death before a timeout of minutes",
    ),
    (("MEM-1",), lambda scope: not scope.declared.zero, "shards nothing"),
    (
        ("GPU-1",),
        lambda scope: scope.way.device == "cpu",
        "the tensors are on the CPU, where nothing is queued",
    ),
    (("SHARD-5",), lambda scope: not scope.has("shuffle"), "cannot shuffle"),
    (
        ("SHARD-6",),
        lambda scope: scope.sampler.padding == "none",
        "declares padding = none: lengths differ",
    ),
    (("SHARD-7",), lambda scope: not scope.has("given_rank"), "is not told its rank"),
    (("SHARD-8",), lambda scope: not scope.sampler.layout, "declares no layout"),
    (
        ("SHARD-10",),
        lambda scope: not scope.has("workers"),
        "does not claim to deal to the workers of a DataLoader",
    ),
    (("SHARD-9",), lambda scope: not scope.has("resume"), "goes on from no saved state"),
)
"""Rules, when they are not about what is on trial, and why."""
