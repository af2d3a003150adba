"""Tests of the variables of a launcher on several nodes."""

from dataclasses import replace

import pytest

from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.nodes import Nodes

FAULT = Ddp("ddp_invariants.faults.large:CountsEvenNodes")
THREE = replace(BASE, world_size=3, data=replace(BASE.data, samples=12))
UNEVEN = THREE.with_situation(Nodes(2))


def test_nodes_of_four_and_three_have_the_variables_of_torchrun() -> None:
    """The last node has the remainder of the ranks."""
    variables = [Nodes(4).variables(rank, 7) for rank in range(7)]
    assert [each["LOCAL_RANK"] for each in variables] == list("0123012")
    assert [each["LOCAL_WORLD_SIZE"] for each in variables] == list("4444333")
    assert [each["GROUP_RANK"] for each in variables] == list("0000111")
    assert {each["GROUP_WORLD_SIZE"] for each in variables} == {"2"}
    assert all(each["MASTER_ADDR"] and each["MASTER_PORT"] for each in variables)


@pytest.mark.parametrize("simulated", [True, False])
def test_a_world_size_made_of_even_nodes_shows_on_uneven_nodes_only(
    pool: Pool, *, simulated: bool
) -> None:
    """The fault is right on one node and on even nodes; the variables are set back."""
    run = pool.simulate if simulated else pool.train
    for case, fails in ((UNEVEN, True), (THREE, False), (BASE.with_situation(Nodes(1)), False)):
        evidence = run(case, FAULT)
        assert evidence is not None
        assert not evidence.ranks[0].changed
        findings = judge(evidence, Declarations())
        assert (findings["GRAD-1"].failure is not None) == fails
