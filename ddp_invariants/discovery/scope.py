"""The limits of the cases for an implementation: capabilities, declarations and the machine.

A drawn case is changed until it fits the scope. If a property skipped cases instead, the property
could pass without judging any case. A rule about something outside the scope is not claimed; the
certificate lists the rule with the reason.
"""

from dataclasses import dataclass, field, replace

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.discovery.capabilities import REMOVED, SHOWN, TRAINING
from ddp_invariants.discovery.required import RANKS, SAMPLING
from ddp_invariants.implementation.declarations import (
    CAPABILITIES,
    Declarations,
    SamplerDeclarations,
    Stack,
)
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.rule import invariant_of
from ddp_invariants.processes.backends import ON_THE_CPU, Backend
from ddp_invariants.situations.earlier import EarlierRuns
from ddp_invariants.situations.scaler import Scaler

_COUNTED = 4
"""The epochs of a sampler that counts its iterations: a later one takes so many iterations."""
_SHORT = 4096
"""The samples of a dataset up to which such a sampler has more epochs than one."""
assert {*TRAINING, *SAMPLING, *SHOWN} == set(CAPABILITIES)


@dataclass(frozen=True)
class Scope:
    """The limits within which cases are drawn.

    Attributes:
        max_world_size: The largest world size W; also the limit on the processes of a case.
        without: The capabilities that no case contains.
        declared: The declarations of the DDP.
        sampler: The declarations of the sampler.
        deviating: The rules that the DDP is expected to violate, each with the reason.
        backend: The backend over which ranks communicate, and the device of their tensors.
        bounded: The reason why W is not larger.
        not_simulated: The reason why no case is simulated; empty if cases may be.
        most_samples: The length of the longest dataset of a sampler's case; None for no limit.
    """

    max_world_size: int = 4
    without: frozenset[str] = frozenset()
    declared: Declarations = field(default_factory=Declarations)
    sampler: SamplerDeclarations = field(default_factory=SamplerDeclarations)
    deviating: tuple[tuple[str, str], ...] = ()
    backend: Backend = ON_THE_CPU
    bounded: str = "--max-world-size allows no more ranks"
    not_simulated: str = ""
    most_samples: int | None = None

    @property
    def simulated(self) -> bool:
        """True if cases may be simulated."""
        return not self.not_simulated

    def has(self, capability: str) -> bool:
        """Return whether cases may contain a capability."""
        return capability not in self.without

    @property
    def unclaimed(self) -> frozenset[str]:
        """The conditions that the implementation under test cannot meet.

        A rule is proved without them, too.
        """
        missing: set[str] = set()
        for name in self.without:
            missing |= (
                TRAINING[name].conditions if name in TRAINING else SAMPLING.get(name, frozenset())
            )
        if not self.has("adamw") and not self.has("adam"):
            missing.add("other constants of Adam")
        if not any(self.has(name) for name in ("adam", "adamw", "momentum")):
            missing |= {"optimizer with state", "the optimizer's state"}
        if self.declared.zero or self.declared.optimizer == "own":
            missing.add("the optimizer's state")  # Its form is the implementation's own affair.
        if self.sampler.padding == "batch":
            missing.add("a short last batch")
        if self.sampler.padding == "endless":
            missing |= {"padding", "N divisible by W", "even"}
            missing -= {"drop_last"}
        if not self.has("sgd"):
            missing |= {"momentum", "Nesterov momentum", "a sparse gradient"}
        return frozenset(missing)

    def beyond(self, rule: str) -> frozenset[str]:
        """Return the conditions that need more ranks than there are.

        A rule that needs such a condition is judged without the condition, and is not proved.
        """
        # A sampler's ranks are no processes, so their number has no limit.
        ranks = max(RANKS.values()) if invariant_of(rule) == "SHARD" else self.max_world_size
        return frozenset(condition for condition, least in RANKS.items() if least > ranks)

    def fit(self, case: TrainingCase) -> TrainingCase:
        """Return the case, changed so that the implementation can run it."""
        if self.declared.stack is not None:
            case = _stacked(case, self.declared.stack)
        # Go through the capabilities twice, because a replaced optimizer may be missing, too: Adam
        # is replaced by AdamW, AdamW by SGD, and SGD by Adam. The order does not depend on the
        # hash seed.
        for name in 2 * sorted(self.without & TRAINING.keys(), key=REMOVED.__getitem__):
            if name == "few" and self.declared.stack is not None:
                continue  # The stack fixes the number of parameters.
            if TRAINING[name].present(case):
                case = TRAINING[name].removed(case)
        if (
            self.backend.device != "cpu"
            and case.scaler is not None
            and any(layer.dtype == "bfloat16" for layer in case.model.layers)
        ):
            # Some versions of torch cannot unscale bfloat16 gradients on a device.
            case = case.without(Scaler)
        earlier = case.get(EarlierRuns)
        if earlier is not None:
            case = case.with_situation(earlier.each(self.fit))
        return replace(
            case,
            init="equal" if self.declared.init == "seed" else case.init,
            loss=self.declared.loss,
        )

    def _fit_epoch(self, epoch: int, samples: int) -> int:
        """Return the epoch, or one that a sampler which counts its iterations reaches soon."""
        epoch = epoch if self.has("large_epoch") else min(epoch, 2**16)
        soon = epoch % _COUNTED if samples <= _SHORT else 0
        return epoch if self.has("set_epoch") else soon

    def fit_shards(self, case: ShardCase) -> ShardCase:
        """Return the case, changed so that the sampler can be asked it."""
        # A sampler that scatters needs a process for each rank.
        w = (
            min(case.world_size, self.max_world_size)
            if self.sampler.layout == "scatter"
            else case.world_size
        )
        n, data = case.data.samples, case.data
        n = n if self.most_samples is None else min(n, self.most_samples)
        n = max(n, 0 if self.has("no_samples") else 1)
        n = max(n, 0 if self.has("short") or n == 0 else w)
        n = n if self.has("uneven") else w * -(-n // w)
        seed = abs(data.seed) if not self.has("negative_seed") else data.seed
        data = replace(
            data,
            samples=n,
            seed=seed % 2**31 if not self.has("large_seed") and abs(seed) >= 2**31 else seed,
            shuffle=(data.shuffle or not self.has("in_order")) and self.has("shuffle"),
            # An epoch of a stream without end holds what drop_last would leave.
            drop_last=self.sampler.padding == "endless"
            or (data.drop_last and self.has("drop_last")),
        )
        fitted = replace(case, data=data)
        return replace(
            case,
            world_size=w,
            data=data,
            epochs=tuple(self._fit_epoch(epoch, n) for epoch in case.epochs),
            saved_after=case.saved_after if self.has("resume") else None,
            resumed_by=case.resumed_by if self.has("resume") and self.has("elastic") else None,
            workers=case.workers if self.has("workers") else 0,
            situations=tuple(
                situation
                for situation in case.situations
                if self.has(situation.capability)
                and self.sampler.layout != "scatter"
                and self._takes(situation.samples(fitted), w)
            ),
        )

    def allows(self, case: Case) -> bool:
        """Return whether a case contains nothing that the scope leaves out."""
        if isinstance(case, ShardCase):
            return self.fit_shards(case) == case
        return case.ranks_needed <= self.max_world_size and self.fit(case) == case

    def _takes(self, samples: int, world_size: int) -> bool:
        """Return whether the sampler deals a number of samples to a number of ranks."""
        if samples == 0:
            return self.has("no_samples")
        return (samples >= world_size or self.has("short")) and (
            samples % world_size == 0 or self.has("uneven")
        )

    def excluded(self, rule: str) -> str:
        """Return why a rule does not apply to the implementation under test; empty if it does."""
        if rule in dict(self.deviating):
            return f"deviates as {dict(self.deviating)[rule]}"
        return ALL_RULES[rule].why_excluded(self) if rule in ALL_RULES else ""


@dataclass(frozen=True)
class UnderTest:
    """The implementations under test: a DDP and a sampler, with the scope of their cases.

    Attributes:
        ddp: The DDP.
        sampler: The sampler.
        scope: The limits of the cases, from what the two accept and declare.
    """

    ddp: Ddp = field(default_factory=Ddp)
    sampler: Sampler = field(default_factory=Sampler)
    scope: Scope = field(default_factory=Scope)

    def named(self, case: Case) -> str:
        """Return the name of the implementation that a case is about."""
        return str(self.ddp if isinstance(case, TrainingCase) else self.sampler)

    def about(self, rule: str) -> str:
        """Return the name of the implementation that a rule is about."""
        return str(self.sampler if invariant_of(rule) == "SHARD" else self.ddp)


def _stacked(case: TrainingCase, stack: Stack) -> TrainingCase:
    """Return the case with whole plain steps and a model of the one shape that a stack computes."""
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
