"""The fixed parts of one rank's run: its case, implementation, process groups and data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.distributed import CaseGroups
from ddp_invariants.ranks.training.groups import ParameterGroups
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.shaped import ShapedReplica
from ddp_invariants.ranks.training.warm_up import optimizer_plan
from ddp_invariants.situations.call_shape import CallShape
from ddp_invariants.situations.group_options import GroupOptions
from ddp_invariants.situations.own_buffers import OwnBuffers


@dataclass(frozen=True)
class Saved:
    """The states saved by ranks that trained before.

    Attributes:
        states: The state of the trained model, and that of its optimizer.
        own: The tensors this rank held when they were saved, by moment; empty if it did not save.
        error: The exception that ended the training before; None if it succeeded.
    """

    states: tuple[Any, Any]
    own: Mapping[str, list[tuple[str, Tensor | None]]]
    error: BaseException | None = None


@dataclass(frozen=True)
class Setup:
    """The fixed parts of one rank's run.

    Attributes:
        case: The case.
        rank: This rank's number in the group that trains.
        driver: The implementation under test.
        session: The process groups of the case.
        saved: The states to load before the first step; None for none.
    """

    case: TrainingCase
    rank: int
    driver: Driver
    session: CaseGroups
    saved: Saved | None = None

    @property
    def declared(self) -> Declarations:
        """The declarations of the implementation."""
        return self.driver.declared

    @property
    def rank_device(self) -> RankDevice:
        """The device of this rank."""
        return self.session.rank_device

    @cached_property
    def dataset(self) -> numbers.Dataset:
        """The samples, targets and tags of the case."""
        return numbers.Dataset(self.case)

    @cached_property
    def dealt(self) -> list[list[Any]]:
        """The indices of every micro-step's batch, by micro-step and rank."""
        return numbers.batches(self.case)

    @cached_property
    def context(self) -> Context:
        """The facts that an adapter gets."""
        case = self.case
        kind, arguments = optimizer_plan(case)
        found = case.get(GroupOptions)
        return Context(
            self.rank,
            case.world_size,
            self.session.subgroup,
            case.bucket_cap,
            case.seed,
            case.optimizer.lr,
            kind,
            arguments,
            self.rank_device.device,
            None if found is None else ParameterGroups(case, found),
            case.get(OwnBuffers) is not None,
        )

    def replica(self, *, step: int = 0, rank: int | None = None) -> Replica:
        """Return a new copy of the model with a rank's initial values.

        Args:
            step: The step whose model is built; freezing between steps changes it.
            rank: The rank whose initial values are taken; None for this one.
        """
        case = self.case
        values_P = self._values_P
        if rank is not None:
            values_P = numbers.parameters(case, rank, case.model.numbers)
        kind = Replica if case.get(CallShape) is None else ShapedReplica
        model = case.at(step).model if step else case.model
        replica = kind(model, values_P, self.rank_device.device)
        if case.get(GroupOptions) is not None:
            ParameterGroups.mark(replica)
        return replica

    @cached_property
    def _values_P(self) -> numbers.FloatArray:
        """This rank's initial values. Shape (P,)."""
        return numbers.parameters(self.case, self.rank, self.case.model.numbers)


@dataclass
class Position:
    """The place a run has reached; an exception is reported with it.

    Attributes:
        phase: The current action, in words.
        step: The current step.
    """

    phase: str = "wrap"
    step: int = 0
