"""One rank's run of a training case: it trains under the implementation and notes the evidence."""

import warnings
from contextlib import ExitStack
from typing import Any

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.ranks.driving.ddp import Driver
from ddp_invariants.ranks.groups.distributed import CaseGroups
from ddp_invariants.ranks.training.recorder import EvidenceError, Record, exception_data, warned
from ddp_invariants.ranks.training.setup import Saved, Setup
from ddp_invariants.ranks.training.stepper import Stepper
from ddp_invariants.records.evidence import DESTROYED


def train(
    case: TrainingCase, rank: int, driver: Driver, session: CaseGroups, saved: Saved | None = None
) -> Record:
    """Run the case on this rank.

    An exception of the implementation ends the run. It is noted in `facts["raised"]`, beside all
    that was noted before.

    Args:
        case: The case.
        rank: This rank's number in the group that trains.
        driver: The implementation under test.
        session: The process groups of the case.
        saved: The states to load before the first step.
    """
    stepper = Stepper(Setup(case, rank, driver, session, saved))
    record, position = stepper.record, stepper.position
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            stepper.run()
        except EvidenceError as error:
            record.facts["raised"] = exception_data(error, "evidence", position.step)
        except BaseException as error:  # noqa: BLE001 - any exception is evidence
            raised = exception_data(error, position.phase, position.step)
            record.facts["raised"] = _without_group(raised) if session.destroyed else raised
    record.facts["warned"] = warned(caught)
    with ExitStack() as ends:  # Each effect ends, even if another's end raises.
        for effect in reversed(stepper.effects):
            ends.callback(effect.end, record)
    return record


def _without_group(raised: dict[str, Any]) -> dict[str, Any]:
    """Return an exception that follows from the end of the group, as that and as no refusal."""
    return {
        **raised,
        "message": f"the implementation had destroyed the default process group, which was lent to "
        f"it; {raised['message']}",
        "kinds": [*raised["kinds"], DESTROYED],
    }
