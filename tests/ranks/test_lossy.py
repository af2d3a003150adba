"""Tests of wrappers that declare that their gradients are rounded at will."""

from pathlib import Path

import pytest

from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.scope import UnderTest
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.trial import Options, Trial


@pytest.mark.parametrize("name", ["EightBits", "LargestHalf"])
def test_a_right_compressor_is_judged_by_the_agreement_of_its_ranks(
    pool: Pool, tmp_path: Path, name: str
) -> None:
    """Rules that compare values ask a declared lossy wrapper only that the ranks agree.

    These include rules that judge the steps after something else: a loaded state, an exception.
    """
    ddp = Ddp(f"tests/helpers/lossy.py:{name}")
    discovery = discover(pool, ddp, Sampler(), 4)
    standings = {probe.capability: probe for probe in discovery.ddp_probes}
    for capability in ("resized", "forward_error", "backward_error", "state"):
        assert standings[capability].standing is Standing.RIGHT, standings[capability]
    wrong = [probe for probe in discovery.ddp_probes if probe.standing is Standing.WRONG]
    assert all(probe.declared for probe in wrong), wrong
    trial = Trial(
        pool,
        UnderTest(ddp, Sampler(), discovery.scope(4)),
        Options(seed=1, cases=40, store=tmp_path),
    )
    trial.certify("STATE-2")
    trial.certify("LIVE-2")
