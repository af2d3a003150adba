"""Streams of random numbers that the program shares among the ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.program import InjectedFailure
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.shared_stream import SHARED, SharedStream

WRAPPERS = """
import random

import numpy as np
import torch.distributed as dist
from ddp_invariants.reference.ddp import DistributedDataParallel as Right

class Refuses(Right):
    def __init__(self, module):
        super().__init__(module)
        raise NotImplementedError("not today")

class DrawsOnOneRank(Right):
    def forward(self, *args):
        if dist.get_rank() == 1:
            self.draw()
        return super().forward(*args)
    def draw(self):
        random.random()

class DrawsFromNumpy(DrawsOnOneRank):
    def draw(self):
        np.random.random()

class DrawsEverywhere(DrawsOnOneRank):
    def forward(self, *args):
        self.draw()
        return Right.forward(self, *args)
"""
CASE = replace(GENTLE, steps=3, situations=(SharedStream(),))


@pytest.fixture
def wrappers(tmp_path: Path) -> Path:
    """Return a file with the wrappers."""
    path = tmp_path / "wrappers.py"
    path.write_text(WRAPPERS)
    return path


@pytest.mark.parametrize(
    ("name", "generator"), [("DrawsOnOneRank", "random"), ("DrawsFromNumpy", "numpy")]
)
def test_a_rank_that_draws_alone_is_seen(
    make_trial: TrialMaker, wrappers: Path, name: str, generator: str
) -> None:
    """The next numbers of the stream are others on that rank."""
    trial = make_trial(ddp=f"{wrappers}:{name}", scope=Scope())
    failure = trial.findings(CASE)["RNG-1"].failure
    assert failure is not None
    assert "from streams with one seed" in failure.fact
    assert f"from the generator of {generator}" in failure.got
    assert failure.where == "rank 1 of 2, before step 1"
    assert trial.findings(CASE.without(SharedStream))["RNG-1"].failure is None


@pytest.mark.parametrize("name", ["reference", "torch", "DrawsEverywhere"])
def test_ranks_that_draw_alike_are_right(make_trial: TrialMaker, wrappers: Path, name: str) -> None:
    """A wrapper may draw numbers, if it does so on all ranks."""
    trial = make_trial(ddp=f"{wrappers}:{name}" if name[0] == "D" else name, scope=Scope())
    finding = trial.findings(CASE)["RNG-1"]
    assert finding.failure is None
    assert SHARED in finding.met
    assert finding.compared


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("kind", ["forward error", "backward error"])
def test_a_step_that_is_made_twice_is_no_difference(
    make_trial: TrialMaker, kind: str, step: int
) -> None:
    """The program caught an exception, and draws once more."""
    injected = FailureInjection(InjectedFailure(kind, step))  # type: ignore[arg-type]  # parametrized
    trial = make_trial(ddp="reference", scope=Scope())
    assert trial.findings(CASE.with_situation(injected))["RNG-1"].failure is None


def test_a_run_that_never_began_shares_nothing(make_trial: TrialMaker, wrappers: Path) -> None:
    """The generators of ranks that refuse to wrap have other seeds."""
    trial = make_trial(ddp=f"{wrappers}:Refuses", scope=Scope())
    assert trial.findings(CASE)["RNG-1"].failure is None
