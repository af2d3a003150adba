"""One rank's part of a training case: seeded, with its own groups, trained and noted."""

import random
from dataclasses import dataclass

import numpy as np
import torch

from ddp_invariants.cases import case as cases
from ddp_invariants.cases import numbers
from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.distributed import CaseGroups
from ddp_invariants.ranks.groups.observed import Connections, Timing
from ddp_invariants.ranks.groups.works import Log
from ddp_invariants.ranks.training import recorder, resume, run


@dataclass(frozen=True)
class Round:
    """One training of a case by one rank.

    Attributes:
        case: The case.
        driver: The implementation under test.
        everyone: The rank's connections to all ranks.
        training: Its connections to the ranks that train, if not all do.
        log: The log of its collectives.
        name: Of the round, so that no two rounds share keys of the store.
        plain: True for plain groups, which record nothing.
    """

    case: cases.TrainingCase
    driver: Driver
    everyone: Connections
    training: Connections | None
    log: Log
    name: str
    plain: bool = False

    def train(self) -> tuple[recorder.Record, CaseGroups, bool]:
        """Train; return the record, the groups and whether the connections may be reused."""
        case, everyone = self.case, self.everyone
        members = list(case.members)
        _seed(numbers.seed(case, everyone.rank), everyone.rank_device)
        groups = CaseGroups(
            everyone,
            self.training,
            members,
            self.name,
            self.log,
            _timing(case, everyone.rank),
            plain=self.plain,
        )
        record, saved = recorder.Record(), None
        if case.saved_by is not None:
            saved = resume.train(case, everyone.rank, self.driver, groups)
        if everyone.rank in members:
            rank = members.index(everyone.rank)
            record = run.train(case, rank, self.driver, groups, saved)
        groups.end()
        # Plain groups close their connections when destroyed, which would end another rank's wait
        # with an error. The controller ends their processes once all ranks have answered.
        return record, groups, not self.plain and closed(groups)


def closed(groups: CaseGroups) -> bool:
    """Close the groups, and return whether nothing was in flight.

    The implementation may have broken the functions that closing needs.
    """
    try:
        return groups.close()
    except Exception:  # noqa: BLE001 - any error: these processes are not used again
        return False


def _timing(case: cases.TrainingCase, rank: int) -> Timing:
    """Return the changes to the timing of a rank's collectives.

    The rank is its number in the default group.
    """
    plan, members = case.perturbation, case.members
    sentinel = float("nan") if plan.sentinel == "nan" else SENTINEL
    return Timing(
        plan.kind == "withheld",
        sentinel,
        numbers.delays(case, members.index(rank) if rank in members else -1),
        plan.milliseconds / 1000 if plan.kind == "slow communication" else 0.0,
    )


def _seed(number: int, rank_device: RankDevice) -> None:
    """Seed the global generators from case and rank, so that code that draws from them replays."""
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002 - implementations use this global generator
    # For each device that is absent torch.manual_seed formats a stack.
    torch.default_generator.manual_seed(number)
    if rank_device.on_device:
        torch.cuda.manual_seed(number)
