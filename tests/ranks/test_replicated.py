"""Parameters that are DTensors, of which every rank holds the whole."""

from dataclasses import replace

from conftest import TrialMaker
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.situations.capability import BASE


def test_a_wrapper_whose_parameters_are_replicated_dtensors_is_judged(
    make_trial: TrialMaker,
) -> None:
    """Such a wrapper shards nothing, so it declares no sharding, and its gradients are compared."""
    name = "torch.distributed._composable.replicate_with_fsdp:replicate"
    trial = make_trial(ddp=Ddp(name, declares={"init": "seed"}), scope=Scope(2))
    findings = trial.really(replace(BASE, init="equal"))
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert findings["GRAD-2"].compared
