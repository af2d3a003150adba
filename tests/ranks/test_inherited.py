"""Tests of deviations that an implementation inherits from the wrapper that it is built on."""

import pytest

from ddp_invariants.discovery.inherited import inherited
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Standing
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool

TORCHS = {"retained", "in_parts", "forward_only_quiet", "unfreeze", "cast", "assign"}
KIN = "tests/helpers/kin.py"


@pytest.mark.parametrize(
    "ddp",
    [
        Ddp(f"{KIN}:Subclass"),
        Ddp(f"{KIN}:Holder", (("scale", "2.0"),)),
        Ddp(f"{KIN}:made"),
    ],
    ids=["subclass", "holder", "function"],
)
def test_what_is_built_on_torchs_ddp_shares_its_deviations(pool: Pool, ddp: Ddp) -> None:
    """A subclass, a module around torch's DDP and a function that returns it are excused alike."""
    probes = discover(pool, ddp, Sampler(), 4).ddp_probes
    wrong = {probe.capability for probe in probes if probe.standing is Standing.WRONG}
    assert wrong == TORCHS == {probe.capability for probe in probes if probe.expected}
    assert all(
        probe.expected.startswith("as in torch, which it is built on; expected until")
        for probe in probes
        if probe.expected
    )


def test_a_fault_of_ones_own_is_not_excused_by_the_base(pool: Pool) -> None:
    """A subclass is excused where it fails just as torch's DDP, and nowhere else."""
    discovery = discover(pool, Ddp(f"{KIN}:TriplesOnceCast"), Sampler(), 4)
    probes = {probe.capability: probe for probe in discovery.ddp_probes}
    assert probes["cast"].standing is Standing.WRONG
    assert not probes["cast"].expected
    assert {"retained", "unfreeze"} <= {name for name in probes if probes[name].expected} < TORCHS
    assert discovery.stale() == []


def test_a_relative_that_does_not_deviate_is_no_error(pool: Pool) -> None:
    """A deviation that a relative does not show is no error, and nothing is excused."""
    scope = discover(pool, Ddp(), Sampler(), 4).scope(4)
    probed = discover(pool, Ddp(), Sampler(), 4).ddp_probes
    assert inherited(pool, (Ddp(), [Ddp("torch")]), scope, probed, "2.13.0") == {}
