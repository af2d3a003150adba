"""Tests of probes in several positions: a capability is refused only if it is refused everywhere."""

from pathlib import Path

import pytest

from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.elsewhere import elsewhere
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Standing
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool

WRAPPERS = """
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

class RefusesTheLast(Reference):
    def __init__(self, module):
        self.odd = [p for p in module.parameters() if not p.is_contiguous()]
        if self.odd and any(self.odd[-1] is p for p in [*module.parameters()][-1:]):
            raise ValueError("a parameter is not contiguous")
        super().__init__(module)
    def finish_gradient_synchronization(self):
        for parameter in self.odd:
            parameter.grad.zero_()

class RefusesAll(Reference):
    def __init__(self, module):
        if any(not p.is_contiguous() for p in module.parameters()):
            raise ValueError("a parameter is not contiguous")
        super().__init__(module)
"""


@pytest.mark.parametrize(
    ("name", "standing"),
    [("RefusesTheLast", Standing.WRONG), ("RefusesAll", Standing.REFUSED)],
)
def test_a_capability_is_refused_only_if_it_is_refused_everywhere(
    pool: Pool, tmp_path: Path, name: str, standing: Standing
) -> None:
    """A wrapper that refuses a strided parameter in the last place alone trained others wrongly."""
    path = tmp_path / "wrappers.py"
    path.write_text(WRAPPERS)
    probes = discover(pool, Ddp(f"{path}:{name}"), Sampler(), 4).ddp_probes
    assert next(probe for probe in probes if probe.capability == "strided").standing is standing


def test_an_error_after_a_wrong_result_is_no_refusal(pool: Pool) -> None:
    """The program raises because the wrapper replaced None, which the module returned, by a tensor."""
    probes = discover(pool, Ddp("ddp_invariants.faults.calls:ZeroForNone"), Sampler(), 4).ddp_probes
    probe = next(probe for probe in probes if probe.capability == "mixed_outputs")
    assert probe.standing is Standing.WRONG
    assert probe.words == "CALL-1: the wrapper does not return what the module returns"


def test_variants_of_probes_contain_the_capability() -> None:
    """Every capability of layers has a variant in which it stands first or in the middle."""
    for name, capability in TRAINING.items():
        variants = [*elsewhere(capability.probe, capability)]
        assert all(capability.present(variant) for variant in variants), name
    strided = TRAINING["strided"]
    positions = {
        [layer.layout for layer in variant.model.layers].index("strided")
        for variant in elsewhere(strided.probe, strided)
    }
    assert positions == {0, 2, 4}
