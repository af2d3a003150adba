"""Tests of capabilities that a signature promises."""

import pytest

from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.promises import promised
from ddp_invariants.discovery.result import Standing
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool

FORGETS = "tests/helpers/promising.py:EqualisesInEvaluationAlone"


@pytest.mark.parametrize(
    ("ddp", "standing"),
    [
        (Ddp(FORGETS), Standing.WRONG),
        (Ddp(FORGETS, (("broadcast_buffers", "False"),)), Standing.ABSENT),
        (Ddp("reference"), Standing.RIGHT),
    ],
    ids=["promised", "switched off", "reference"],
)
def test_buffers_that_the_signature_promises_to_equalise_are_judged(
    pool: Pool, ddp: Ddp, standing: Standing
) -> None:
    """An argument that is on by default claims equal buffers; one that is off claims nothing."""
    probes = discover(pool, ddp, Sampler(), 4).ddp_probes
    standings = {probe.capability: probe.standing for probe in probes}
    assert standings["equal_buffers"] is standing


def test_an_argument_given_counts_before_its_default() -> None:
    """A given argument decides, and an unknown signature promises nothing."""
    on = {"defaults": {"broadcast_buffers": "True"}}
    off: dict[str, dict[str, str]] = {"defaults": {}}
    assert promised(Ddp(), on) == {"equal_buffers"}
    assert promised(Ddp(), off) == set()
    assert promised(Ddp(arguments=(("broadcast_buffers", "False"),)), on) == set()
