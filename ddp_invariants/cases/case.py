"""The input of a test: exactly the facts that fix a run.

A case is frozen data with one JSON form. The controller draws a case, the ranks set up their
processes from it, the oracle recomputes it, and a file of the case repeats the run. Two kinds
exist: a `TrainingCase` needs a process group, a `ShardCase` asks a sampler alone.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ddp_invariants.cases.dtypes import DTYPES
from ddp_invariants.cases.fields import Strict, between, one_of, require
from ddp_invariants.cases.layers import Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.shard_case import ShardCase
from ddp_invariants.cases.situated import NoSync, Passes, Situated
from ddp_invariants.cases.situation import KINDS, AnySituation, Situation
from ddp_invariants.cases.text import case_id, describe, to_json

__all__ = [
    "LARGEST_WORLD_SIZE",
    "Case",
    "Init",
    "Loss",
    "NoSync",
    "Passes",
    "ShardCase",
    "TrainingCase",
    "Values",
    "ZeroGrad",
    "case_id",
    "describe",
    "to_json",
]

ZeroGrad = Literal["set_to_none", "zero", "never", "mixed"]
Values = Literal["integer", "real", "faint", "scarce"]
Init = Literal["distinct", "equal", "rearranged", "unset"]
Loss = Literal["tagged", "mse"]

LARGEST_WORLD_SIZE = 64
"""The most ranks of a training case; a larger number on one machine is a typing error."""


@dataclass(frozen=True)
class TrainingCase(Situated, Strict):
    """A whole data-parallel training run of a few steps.

    Attributes:
        world_size: Ranks in the data-parallel group, W.
        outside: The number of ranks that train nothing. In the default group they are ranks 0, 2
            and so on. If there are any, the implementation gets a subgroup that does not contain
            rank 0. If there are two, and at least two ranks train, the subgroup's ranks do not
            follow one another.
        steps: Optimizer updates.
        accumulation: Backwards per step, K, each on its own batch (micro-steps). The loss is
            divided by K, so that a step trains on a global batch of K * W * B samples.
        loss: `tagged` adds each sample's tag to its squared error, summed over outputs; `mse` is
            the mean of squared errors over samples and outputs, as an implementation computes it
            that does whole training steps by itself.
        bucket_cap: Bucket capacity in bytes; None leaves the implementation's default.
        init: `distinct` if the ranks start from different parameters, `equal` if from equal ones,
            `rearranged` if from the same numbers in another order on each rank; `unset` if all
            ranks but the first hold NaN, as memory that nobody has set.
        values: `integer` draws small integers, so that most arithmetic is exact; `real` draws
            fractions; `faint` also draws zeros of both signs, subnormal and other tiny numbers;
            `scarce` draws fractions, and zeros for fifteen of sixteen numbers of the samples.
        log2_scale: Inputs are multiplied by 2**log2_scale (large magnitudes).
        zero_grad: The way in which gradients are cleared before each backward, or `never`. `mixed`
            sets every second parameter's gradient to None and zeroes the others in place; in the
            next step the two halves change places.
        situations: The other events of the run, at most one of each kind, in the order in which
            the kinds are registered (`ddp_invariants.situations`).
        rounds: The number of runs in the same processes; the evidence is that of the last run.
        seed: The seed of parameters, samples and targets.
    """

    model: Model
    world_size: int = 2
    outside: int = 0
    data: Data = Data()
    steps: int = 1
    accumulation: int = 1
    loss: Loss = "tagged"
    optimizer: Optimizer = Optimizer()
    bucket_cap: int | None = None
    init: Init = "distinct"
    values: Values = "integer"
    log2_scale: int = 0
    zero_grad: ZeroGrad = "set_to_none"
    situations: tuple[Situation, ...] = ()
    rounds: int = 1
    seed: int = 0
    kind: Literal["training"] = "training"

    def __post_init__(self) -> None:
        self._order_situations()
        between("world_size", self.world_size, 1, LARGEST_WORLD_SIZE)
        between("outside", self.outside, 0, 8)
        between("steps", self.steps, 1, 1000)
        between("accumulation", self.accumulation, 1, 64)
        one_of("loss", self.loss, Loss)
        between("log2_scale", self.log2_scale, -30, 30)
        between("seed", self.seed, 0, 2**31 - 1)
        between("data.seed", self.data.seed, 0, 2**31 - 1)
        require(
            self.bucket_cap is None or self.bucket_cap >= 1,
            "bucket_cap",
            self.bucket_cap,
            "null, or 1 byte or more",
        )
        one_of("init", self.init, Init)
        one_of("values", self.values, Values)
        one_of("zero_grad", self.zero_grad, ZeroGrad)
        least = self.world_size if self.data.drop_last else 1
        require(
            self.data.samples >= least,
            "data.samples",
            self.data.samples,
            f"at least {least}: with fewer, no rank has a batch",
        )
        between("rounds", self.rounds, 1, 100)
        require(
            self.optimizer.kernels != "fused" or self.fusible,
            "optimizer.kernels",
            self.optimizer.kernels,
            "other kernels if parameters are not contiguous, of low precision, complex, or sometimes "
            "without a gradient",
        )
        plain = replace(self.optimizer, log2_lr=Optimizer().log2_lr) == Optimizer()
        require(
            not self.sparse or plain,
            "optimizer",
            self.optimizer,
            "plain SGD if a gradient is sparse: momentum and weight decay accept no sparse gradient",
        )
        require(
            not self.sparse or self.zero_grad != "never",
            "zero_grad",
            self.zero_grad,
            "another value if a gradient is sparse: the terms of a gradient left in place are not "
            "known",
        )
        require(
            not self.optimizer.overwrites or self.zero_grad != "never",
            "optimizer.kernels",
            self.optimizer.kernels,
            "fused kernels for Nesterov momentum if gradients are left in place: torch writes the "
            "step into the gradients otherwise",
        )
        require(
            not self.model.has("loss_only") or self.penalty == "weights",
            "penalty",
            self.penalty,
            "'weights' if a layer is used by the loss only",
        )
        for situation in self.situations:
            situation.check(self)

    def _order_situations(self) -> None:
        """Sort the situations as their kinds are registered.

        Raises:
            CaseError: Two situations are of one kind.
        """
        kinds = [situation.kind for situation in self.situations]
        require(len(set(kinds)) == len(kinds), "situations", kinds, "at most one of each kind")
        order = list(KINDS)
        ordered = sorted(self.situations, key=lambda situation: order.index(situation.kind))
        object.__setattr__(self, "situations", tuple(ordered))

    def get(self, kind: type[AnySituation]) -> AnySituation | None:
        """Return the case's situation of a class, or None."""
        return next((each for each in self.situations if isinstance(each, kind)), None)

    def with_situation(self, *added: Situation) -> "TrainingCase":
        """Return the case with some situations, each in place of the one of its kind."""
        kinds = {situation.kind for situation in added}
        kept = (situation for situation in self.situations if situation.kind not in kinds)
        return replace(self, situations=(*kept, *added))

    def without(self, *removed: type[Situation]) -> "TrainingCase":
        """Return the case without its situations of some classes."""
        kept = tuple(each for each in self.situations if not isinstance(each, removed))
        return self if kept == self.situations else replace(self, situations=kept)

    def with_each(
        self, change: Callable[[Situation], Situation | None], **changes: Any
    ) -> "TrainingCase":
        """Return the case with every situation changed, or left out where the change gives None.

        Args:
            change: The change of a situation.
            changes: Other fields that change at the same time.
        """
        changed = map(change, self.situations)
        return replace(
            self, situations=tuple(each for each in changed if each is not None), **changes
        )

    @property
    def draws(self) -> tuple[int, ...]:
        """The indices of the layers that draw random numbers in the case's forwards."""
        return tuple(index for index in self.model.draws if index != self.evaluated_layer)

    @property
    def recast(self) -> frozenset[str]:
        """The weights that autocast casts for several uses.

        Autocast keeps the first cast of a leaf tensor of float32. The gradients of all uses are then added up
        before they are cast back. If the weight is a view of another tensor, or if autocast's
        cache is off, the gradients are added up after they are cast back.
        """
        uses = Counter(
            self.model.full(index if layer.tied is None else layer.tied, "weight")
            for index, layer in enumerate(self.model.layers)
            if self.autocast and layer.kind == "linear" and layer.dtype == "float32"
            for _ in range(1 + layer.twice)
        )
        return frozenset(name for name, count in uses.items() if count > 1)

    @property
    def scalable(self) -> bool:
        """True if torch's loss scaler supports the case's gradients and its optimizer."""
        return (
            all(DTYPES[layer.dtype].scaled for layer in self.model.layers)
            and not self.sparse
            and not (self.optimizer.kernels == "fused" and self.optimizer.momentum > 0)
        )

    def require_plain(self, where: str, **plain: object) -> None:
        """Raise if a case has another event that a situation excludes.

        Args:
            where: The end of the message's sentence, which says in which cases this is required.
            plain: Attributes of the case and the values they must have, besides the usual ones.

        Raises:
            CaseError: An attribute has another value.
        """
        for name, expected in {
            "poison": None,
            "injected_failure": None,
            "unused": (),
            "rounds": 1,
            **plain,
        }.items():
            require(
                getattr(self, name) == expected, name, getattr(self, name), f"{expected!r} {where}"
            )

    @property
    def in_parts(self) -> bool:
        """True if one backward computes a gradient in parts, each in its own inner backward."""
        return self.passes == "joint" and any(
            layer.checkpoint == "reentrant" for layer in self.model.layers
        )

    @property
    def sparse(self) -> bool:
        """True if a gradient is sparse."""
        return self.model.layers[0].sparse

    @property
    def fusible(self) -> bool:
        """True if torch's fused kernels can do the steps.

        On CPU the kernels ignore strides: they read a tensor's memory as its elements in order.
        The kernel of SGD refuses a parameter that gets its first momentum late. All kernels refuse complex parameters.
        """
        plain = all(
            (layer.layout == "contiguous" or not layer.parameters) and DTYPES[layer.dtype].fused
            for layer in self.model.layers
        )
        return (
            plain and not self.unused and not any(action.freezes for action in self.between_steps)
        )

    def at(self, step: int) -> "TrainingCase":
        """Return the case with the model and the optimizer as they are at a step."""
        case = self
        for situation in self.situations:
            case = situation.at(case, step)
        return case

    @property
    def sometimes_frozen(self) -> frozenset[str]:
        """Names of the parameters that are trained at some steps and frozen at others."""
        frozen = (
            [self.frozen(step) for step in range(self.steps)]
            if any(action.freezes for action in self.between_steps)
            else []
        )
        return frozenset.union(*frozen) - frozenset.intersection(*frozen) if frozen else frozenset()

    def frozen(self, step: int) -> frozenset[str]:
        """Return the names of the parameters that are frozen at a step."""
        model = self.at(step).model
        return frozenset(
            model.full(index, name)
            for index, layer in enumerate(model.layers)
            if layer.frozen
            for name in layer.parameters
        )

    def passed_by(self, rank: int, step: int, micro_step: int) -> frozenset[int]:
        """Return the indices of the layers that a rank's forward of a micro-step passes by."""
        return frozenset(
            unused.layer
            for unused in self.unused
            if unused.rank in (None, rank)
            and unused.step in (None, step)
            and unused.micro_step in (None, micro_step)
        )

    def never_used(self, rank: int, step: int) -> frozenset[int]:
        """Return the indices of the layers that all of a rank's forwards of a step pass by."""
        return frozenset.intersection(
            *(self.passed_by(rank, step, micro_step) for micro_step in range(self.accumulation))
        )

    @property
    def runs(self) -> tuple["TrainingCase", ...]:
        """The runs of the same processes in their order; the last one gives the evidence."""
        own = {name: getattr(self, name) for name in ("world_size", "outside", "init", "loss")}
        earlier = (
            replace(run, **own, data=replace(run.data, drop_last=False)) for run in self.earlier
        )
        return (*earlier, *(self,) * self.rounds)

    def steps_of(self, rank: int) -> int:
        """Return the number of steps for which a rank has batches."""
        return next((each.steps for each in self.exhausted if each.rank == rank), self.steps)

    @property
    def before(self) -> "TrainingCase":
        """The run of the ranks that saved the state which is loaded."""
        assert self.saved_by is not None
        return replace(
            self,
            world_size=self.saved_by,
            outside=0,
            situations=tuple(each for each in self.situations if each.in_earlier_run),
        )

    @property
    def forwards(self) -> int:
        """The number of forwards of all ranks, in all micro-steps and rounds."""
        return self.world_size * self.steps * self.accumulation * self.rounds

    @property
    def kills(self) -> bool:
        """True if the injected failure kills a rank."""
        return self.injected_failure is not None and self.injected_failure.kind == "death"

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the ranks that train in the default group, in order."""
        even_first = sorted(range(self.ranks_needed), key=lambda rank: (rank % 2, rank))
        return tuple(sorted(even_first[self.outside :]))

    @property
    def has_gaps(self) -> bool:
        """True if the ranks that train do not follow one another in the default group."""
        return self.members[-1] - self.members[0] >= self.world_size

    @property
    def ranks_needed(self) -> int:
        """The number of processes that the case needs."""
        return self.world_size + self.outside


Case = TrainingCase | ShardCase
"""A case of either kind."""
