"""What cases may contain for what is on trial: its capabilities, its declarations, the machine.

Cases are fitted to the scope when they are drawn, rather than skipped inside a property, which
would let a property pass on nothing. A rule that is about something outside the scope is not
claimed, and listed with the reason.
"""

from dataclasses import dataclass, field, replace

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.discovery.capabilities import _REMOVED, RANKS, SAMPLING, SHOWN, TRAINING
from ddp_invariants.implementation.declarations import (
    CAPABILITIES,
    Declarations,
    SamplerDeclarations,
    Stack,
)
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes.backends import ON_THE_CPU, Backend
from ddp_invariants.situations.scaling import Scaling

assert {*TRAINING, *SAMPLING, *SHOWN} == set(CAPABILITIES)


@dataclass(frozen=True)
class Scope:
    """What cases may contain.

    Attributes:
        max_world_size: Largest W; also bounds the processes of a case.
        without: Capabilities that are not drawn.
        declared: What the DDP declares.
        sampler: What the sampler declares.
        deviating: Rules that the DDP is expected to breach, and why.
        backend: Over what ranks communicate, and where their tensors are.
        bounded: Why W is not larger.
    """

    max_world_size: int = 4
    without: frozenset[str] = frozenset()
    declared: Declarations = field(default_factory=Declarations)
    sampler: SamplerDeclarations = field(default_factory=SamplerDeclarations)
    deviating: tuple[tuple[str, str], ...] = ()
    backend: Backend = ON_THE_CPU
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
            self.backend.device != "cpu"
            and case.scaler is not None
            and any(one.dtype == "bfloat16" for one in case.model.layers)
        ):
            case = case.without(Scaling)  # Some versions of torch have no kernel for it there.
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
        return ALL_RULES[rule].why_excluded(self) if rule in ALL_RULES else ""


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
        situations=tuple(each for each in case.situations if each.in_whole_steps),
    )
