"""Simulated ranks: each collective has the outcome that it has over gloo, and so has each rank."""

import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import rank_states
import torch
from collectives import SCRIPTS
from torch.distributed import ReduceOp

from ddp_invariants.ranks.groups.simulated import arithmetic

HELPERS = Path(__file__).parents[1] / "helpers"
ROUNDED = ("hooks", "training")
"""Scripts that divide by the number of ranks: their sums depend on the order for three ranks."""


@cache
def outcomes(module: str, size: int) -> dict[str, dict[str, list[Any]]]:
    """Return the outcomes of all scripts of a module in both worlds."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes"
        command = [sys.executable, str(HELPERS / "worlds.py"), str(size), str(out), module]
        if size == 3:
            command += [name for name in SCRIPTS if name not in ROUNDED]
        subprocess.run(command, check=True, timeout=280, capture_output=True)
        loaded: dict[str, dict[str, list[Any]]] = pickle.loads(out.read_bytes())  # noqa: S301 - its own
        return loaded


def tidied(rank: Any) -> Any:
    """Return a rank's outcomes without the messages of exceptions, which may differ."""
    return {
        name: outcome[:2] if outcome[0] == "raised" else outcome for name, outcome in rank.items()
    }


def compare(module: str, script: str, size: int) -> None:
    """Assert that a script has the same outcomes in both worlds."""
    both = outcomes(module, size)[script]
    assert all(isinstance(rank, dict) for world in both.values() for rank in world), both
    gloo, simulated = map(tidied, both["gloo"]), map(tidied, both["simulated"])
    for expected, actual in zip(gloo, simulated, strict=True):
        assert expected["the script"] == ("returned", None)
        assert actual == expected


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("script", SCRIPTS)
def test_collectives_have_the_outcomes_that_they_have_over_gloo(script: str, size: int) -> None:
    """Bits, types of exceptions, values of futures and answers of handles are the same."""
    if size == 3 and script in ROUNDED:
        pytest.skip("sums of thirds depend on the order")
    compare("collectives", script, size)


@pytest.mark.parametrize("script", rank_states.SCRIPTS)
def test_a_rank_has_a_state_of_its_own(script: str) -> None:
    """Generators, variables, warnings and settings of one rank do not reach another one."""
    compare("rank_states", script, 2)


def test_sums_add_in_the_order_of_the_ranks() -> None:
    """The result of a simulated sum is that of one addition after another."""
    values = [torch.tensor([value]) for value in (1e8, -1e8, 1.0)]
    assert arithmetic.reduced(ReduceOp.SUM, values).item() == 1.0
    assert arithmetic.reduced(ReduceOp.SUM, values[::-1]).item() == 0.0
