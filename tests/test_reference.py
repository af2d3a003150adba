"""The reference keeps what it promises beyond the plain loop, and refuses clearly what it cannot do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scenarios import SCENARIOS

from ddp_invariants.reference.sampler import DistributedSampler

SCRIPT = Path(__file__).with_name("scenarios.py")


@pytest.fixture(scope="module")
def answers() -> dict[str, list[str]]:
    """What three ranks answered to every scenario; empty where all was right."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=True
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_reference(answers: dict[str, list[str]], scenario: str) -> None:
    """What the scenario's name says, on every rank."""
    assert answers[scenario] == ["", "", ""]


def test_a_saved_sampler_continues_with_exactly_the_rest() -> None:
    """Nothing is lost or repeated, and the epoch after starts from its beginning."""
    original = DistributedSampler(range(10), 2, 1, seed=3)
    original.set_epoch(4)
    whole = list(original)
    running = iter(original)
    taken = [next(running) for _ in range(2)]
    resumed = DistributedSampler(range(10), 2, 1, seed=3)
    resumed.load_state_dict(original.state_dict())
    assert taken + list(resumed) == whole
    assert list(resumed) == whole


def test_a_sampler_refuses_an_empty_dataset_unless_it_drops() -> None:
    """There is nothing to pad with."""
    with pytest.raises(ValueError, match="nothing to pad"):
        DistributedSampler([], 2, 0)
    assert list(DistributedSampler([], 2, 0, drop_last=True)) == []
