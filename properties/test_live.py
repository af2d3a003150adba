"""LIVE: training ends. A rank that hangs or dies is a violation of its own, told with its stack."""

from ddp_invariants.strategies import training_cases
from ddp_invariants.trial import Trial


def test_live1_every_case_ends_on_every_rank(trial: Trial) -> None:
    """Within the harness's deadline, by itself."""
    trial.certify("LIVE-1", training_cases(trial.scope))
