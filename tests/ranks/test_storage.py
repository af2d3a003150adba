"""Parameters that are parts of one tensor, and gradients that the wrapper clears."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import TrialMaker
from ddp_invariants.cases.case import ZeroGrad
from ddp_invariants.cases.layers import Layer, Layout, Model
from ddp_invariants.cases.program import BetweenSteps
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.ranks.training.effects.storage import _put_into_one
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.clearing import CLEARED_BY_MODULE, ClearedByModule
from ddp_invariants.situations.storage import ONE_STORAGE, OneStorage

LAYERS = (
    Layer("linear", 4, bias=True, layout="strided"),
    Layer("empty"),
    Layer("linear", 4, dtype="float64"),
    Layer("scale"),
)
MOVING = str(Path(__file__).parents[1] / "helpers" / "moving.py") + ":MovesItsParameters"
FROZEN = Actions((BetweenSteps("freeze", 1, 2),))


def test_parameters_keep_values_and_strides_in_one_storage() -> None:
    """Each dtype has one storage, in which parameters lie as torch aligns its own tensors."""
    model = Model(4, LAYERS)
    apart, together = (Replica(model, np.arange(1.0, 1.0 + model.numbers)) for _ in range(2))
    _put_into_one(list(together.parameters()))
    storages: dict[torch.dtype, set[int]] = {}
    for own, part in zip(apart.parameters(), together.parameters(), strict=True):
        assert torch.equal(own, part)
        assert own.stride() == part.stride()
        if part.numel():
            assert part.data_ptr() % 64 == 0
            storages.setdefault(part.dtype, set()).add(part.untyped_storage().data_ptr())
    assert {dtype: len(each) for dtype, each in storages.items()} == {
        torch.float32: 1,
        torch.float64: 1,
    }


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("ddp", ["reference", "ddp_invariants.faults.flattened:HandsBackViews"])
def test_right_wrappers_hold_with_one_storage(
    make_trial: TrialMaker, ddp: str, world_size: int
) -> None:
    """All rules hold, and GRAD-4 is judged."""
    case = replace(BASE, model=Model(4, LAYERS), world_size=world_size, steps=3)
    findings = make_trial(ddp=ddp, scope=Scope()).findings(case.with_situation(OneStorage()))
    failed = {rule: each.failure for rule, each in findings.items() if each.failure}
    assert failed.keys() <= {"COMM-5"}  # One of the two communicates at the end of backward.
    assert ONE_STORAGE in findings["GRAD-4"].met


@pytest.mark.parametrize("zero_grad", ["set_to_none", "zero", "mixed"])
def test_right_wrappers_clear_gradients_of_layers_frozen_later(
    make_trial: TrialMaker, zero_grad: ZeroGrad
) -> None:
    """A frozen layer keeps its last gradient until the wrapper clears it."""
    case = replace(BASE, steps=3, zero_grad=zero_grad, situations=(FROZEN, ClearedByModule()))
    findings = make_trial(ddp="reference", scope=Scope()).findings(case)
    assert not {rule: each.failure for rule, each in findings.items() if each.failure}
    assert CLEARED_BY_MODULE in findings["PARAM-5"].met


def test_an_old_main_gradient_is_no_gradient_where_grad_is_set(make_trial: TrialMaker) -> None:
    """The wrapper sets `.grad`, and keeps the `.main_grad` of a layer that was frozen since."""
    trial = make_trial(ddp="ddp_invariants.faults.main_grad:RoundsItsMainGradient", scope=Scope())
    findings = trial.findings(replace(BASE, steps=3, situations=(FROZEN,)))
    assert findings["GRAD-4"].failure is None
    assert findings["PARAM-5"].failure is None
    assert findings["GRAD-4"].compared > 0


@pytest.mark.parametrize("layout", ["transposed", "strided"])
def test_a_wrapper_may_move_parameters_between_steps(
    make_trial: TrialMaker, layout: Layout
) -> None:
    """Kernels round otherwise for other strides, so the twin's parameters move as well."""
    layers = tuple(Layer("linear", 8, bias=True, layout=layout) for _ in range(3))
    case = replace(BASE, model=Model(8, layers), steps=4, values="real")
    findings = make_trial(ddp=MOVING, scope=Scope()).findings(case)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert {"LOSS-1", "GRAD-2", "PARAM-3"} <= findings.keys()
