"""Forwards under autocast: casting a weight once, or once per use, is right."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.dtypes import Dtype
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.situations.autocast import Autocast

WRAPPERS = '''
import torch
from ddp_invariants.reference.ddp import DistributedDataParallel as Right

class CastsForEachUse(Right):
    """Its own autocast within the program's keeps no casts."""
    def forward(self, *args):
        with torch.autocast("cpu", torch.bfloat16, torch.is_autocast_enabled("cpu"), \
cache_enabled=False):
            return super().forward(*args)

class Exaggerates(CastsForEachUse):
    """Every gradient arrives as eight times itself."""
    def _packed(self, bucket):
        return super()._packed(bucket) * 8
'''
TIED = TrainingCase(
    model=Model(4, (Layer("linear", 4), Layer("linear", 4, tied=0), Layer("linear", 2, bias=True))),
    data=Data(samples=12, batch_size=3),
    steps=2,
    values="real",
    situations=(Autocast(),),
)
TWICE = replace(TIED, model=Model(4, (Layer("linear", 4, twice=True), Layer("linear", 2))))


def findings_of(
    make_trial: TrialMaker, folder: Path, name: str, case: TrainingCase
) -> dict[str, str]:
    """Return where a wrapper violates each rule that it violates."""
    path = folder / "wrappers.py"
    path.write_text(WRAPPERS, encoding="utf-8")
    findings = make_trial(ddp=f"{path}:{name}", scope=Scope()).findings(case)
    return {rule: finding.failure.where for rule, finding in findings.items() if finding.failure}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", [TIED, TWICE], ids=["tied", "twice"])
def test_gradients_of_several_casts_of_one_weight_are_right_too(
    make_trial: TrialMaker, tmp_path: Path, case: TrainingCase, ranks: int
) -> None:
    """Gradients through several casts of one weight violate no rule.

    Such gradients are added up in float32, and gradients through one cast in bfloat16. The two
    results differ in the last bits.
    """
    assert (
        findings_of(make_trial, tmp_path, "CastsForEachUse", replace(case, world_size=ranks)) == {}
    )


def test_what_is_wrong_about_them_shows_against_one_process(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """GRAD-3 reports a wrong gradient of a weight that is cast several times.

    The oracle's bounds hold for either order, and are no loose tolerance. GRAD-2 compares only
    weights that are used once with their twins.
    """
    places = findings_of(make_trial, tmp_path, "Exaggerates", TIED)
    assert "'layers.0.weight'" in places["GRAD-3"]
    assert "'layers.0.weight'" not in places["GRAD-2"]


def test_only_what_autocast_lowers_several_times_is_recast() -> None:
    """Only a weight that autocast casts several times is listed in `recast`.

    An embedding table, a layer in float64, and every weight without autocast are not listed.
    """
    assert TIED.recast == TWICE.recast == {"layers.0.weight"}
    assert TIED.without(Autocast).recast == frozenset()
    table = Model(4, (Layer("embedding"), Layer("linear", 4, tied=0)))
    wide = Model(4, (Layer("linear", 4, dtype="float64", twice=True),))
    assert replace(TIED, model=table).recast == replace(TIED, model=wide).recast == frozenset()


@pytest.mark.parametrize(
    "ddp", ["reference", "torch", "ddp_invariants.faults.lowered:EntersItAgain"]
)
def test_a_backward_under_autocast_changes_no_gradient(make_trial: TrialMaker, ddp: str) -> None:
    """Autograd computes each gradient in the dtype of its forward."""
    case = TIED.with_situation(Autocast(backward=True))
    findings = make_trial(ddp=ddp, scope=Scope()).findings(case)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert findings["GRAD-2"].compared


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_the_reference_packs_any_dtype_under_autocast(make_trial: TrialMaker, dtype: Dtype) -> None:
    """Under autocast to bfloat16, `torch.cat` raises for float16."""
    model = Model(4, (Layer("linear", 4, dtype=dtype),))
    case = replace(TIED, model=model).with_situation(Autocast(backward=True))
    findings = make_trial(ddp="reference", scope=Scope()).findings(case)
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert findings["GRAD-2"].compared


def test_a_reduction_that_autocast_lowers_is_seen(make_trial: TrialMaker) -> None:
    """It shows only if the backward, which ends with the reduction, runs under autocast."""
    trial = make_trial(ddp="ddp_invariants.faults.lowered:WeightsByAProduct", scope=Scope())
    assert trial.findings(TIED)["GRAD-2"].failure is None
    assert trial.findings(TIED.with_situation(Autocast(backward=True)))["GRAD-2"].failure
