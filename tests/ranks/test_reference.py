"""The reference keeps its promises beyond the plain loop, and refuses the rest clearly."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scenarios import SCENARIOS

from ddp_invariants.reference.sampler import DistributedSampler

SCRIPT = Path(__file__).parents[1] / "helpers" / "scenarios.py"


@pytest.fixture(scope="module")
def answers() -> dict[str, list[str]]:
    """Return the answers of three ranks to every scenario; an empty answer means right."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=True
    )
    by_scenario: dict[str, list[str]] = json.loads(done.stdout)
    return by_scenario


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_reference(answers: dict[str, list[str]], scenario: str) -> None:
    """The fact in the scenario's name holds on every rank."""
    assert answers[scenario] == ["", "", ""]


def test_a_saved_sampler_continues_with_exactly_the_rest() -> None:
    """A loaded sampler yields exactly the rest of its epoch; the next epoch is complete."""
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
    """An empty dataset is refused without drop_last, because there is nothing to pad with."""
    with pytest.raises(ValueError, match="nothing to pad"):
        DistributedSampler([], 2, 0)
    assert list(DistributedSampler([], 2, 0, drop_last=True)) == []
