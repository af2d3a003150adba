"""Torch's sharded wrappers are driven and judged by their shipped adapters."""

from dataclasses import replace

import pytest

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import BetweenSteps, Optimizer
from ddp_invariants.implementation.adapters.fsdp1 import FullyShardedDataParallel
from ddp_invariants.implementation.adapters.fsdp2 import FullyShard
from ddp_invariants.implementation.declarations import Declarations, declare
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.between_steps import Actions

LAYERS = (
    Layer("linear", 4),
    Layer("linear", 4, bias=True, tied=0),
    Layer("linear", 1, frozen=True),
    Layer("dropout"),
    Layer("statistics"),
)
CASE = TrainingCase(
    model=Model(4, LAYERS),
    steps=3,
    accumulation=2,
    optimizer=Optimizer(momentum=0.5),
    init="equal",
)
UNTIED = replace(CASE, model=Model(4, (LAYERS[0], Layer("linear", 4, bias=True), *LAYERS[3:])))
UNITS = (("layers", "True"),)
DECLARED = {"fsdp1": FullyShardedDataParallel.declares, "fsdp2": FullyShard.declares}


@pytest.mark.parametrize(
    ("ddp", "case"),
    [
        (Ddp("fsdp1"), CASE),
        (Ddp("fsdp1", arguments=(("use_orig_params", "False"),)), UNTIED),
        (Ddp("fsdp1", arguments=UNITS), UNTIED),
        (Ddp("fsdp2"), CASE),
        (Ddp("fsdp2", arguments=UNITS), UNTIED),
    ],
    ids=str,
)
def test_a_sharded_model_is_judged_in_its_forwards(
    pool: Pool, ddp: Ddp, case: TrainingCase
) -> None:
    """A rule about parameters compares them, and none is violated."""
    declared = declare(Declarations, DECLARED[ddp.name])
    findings = judge(pool.train(case, ddp), declared)
    assert not {rule: str(found.failure) for rule, found in findings.items() if found.failure}
    for rule in ("INIT-3", "INIT-4", "PARAM-1", "PARAM-3", "MEM-1"):
        assert findings[rule].compared > 0, rule


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("fsdp2", FullyShard.declares),
        ("torch.distributed._composable.replicate_with_fsdp:replicate", {"init": "seed"}),
    ],
)
def test_a_cast_after_an_evaluation_reaches_the_parameters(
    pool: Pool, name: str, declared: dict[str, object]
) -> None:
    """FSDP2 leaves whole parameters after a forward, and shards them again before a cast.

    So does its `replicate`, whose shards are whole parameters.
    """
    actions = Actions((BetweenSteps("evaluation", 1), BetweenSteps("cast", 1)))
    case = replace(CASE, model=Model(4, LAYERS[:1]), situations=(actions,))
    findings = judge(pool.train(case, Ddp(name)), declare(Declarations, declared))
    assert findings["PARAM-3"].compared > 0
    assert not [rule for rule, found in findings.items() if found.failure]
