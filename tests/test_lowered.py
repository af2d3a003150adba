"""Forwards under autocast: who casts a weight for each of its uses is as right as who casts it once."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.scope import Scope

WRAPPERS = '''
import torch
from ddp_invariants.reference.ddp import DistributedDataParallel as Right

class CastsForEachUse(Right):
    """Its own autocast within the program's keeps no casts."""
    def forward(self, *args):
        with torch.autocast("cpu", torch.bfloat16, torch.is_autocast_enabled("cpu"), cache_enabled=False):
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
    autocast=True,
)
TWICE = replace(TIED, model=Model(4, (Layer("linear", 4, twice=True), Layer("linear", 2))))


def findings_of(
    make_trial: TrialMaker, folder: Path, name: str, case: TrainingCase
) -> dict[str, str]:
    """What each rule that is violated says of a wrapper."""
    path = folder / "wrappers.py"
    path.write_text(WRAPPERS, encoding="utf-8")
    findings = make_trial(ddp=f"{path}:{name}", scope=Scope()).findings(case)
    return {rule: one.failure.where for rule, one in findings.items() if one.failure}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", [TIED, TWICE], ids=["tied", "twice"])
def test_gradients_of_several_casts_of_one_weight_are_right_too(
    make_trial: TrialMaker, tmp_path: Path, case: TrainingCase, ranks: int
) -> None:
    """They are added up in float32, where those of one cast are in bfloat16: neither is the other's to the last bit."""
    assert (
        findings_of(make_trial, tmp_path, "CastsForEachUse", replace(case, world_size=ranks)) == {}
    )


def test_what_is_wrong_about_them_shows_against_one_process(
    make_trial: TrialMaker, tmp_path: Path
) -> None:
    """The oracle's bounds hold for either order, and are no tolerance; weights used once have their twins'."""
    found = findings_of(make_trial, tmp_path, "Exaggerates", TIED)
    assert "'layers.0.weight'" in found["GRAD-3"]
    assert "'layers.0.weight'" not in found["GRAD-2"]


def test_only_what_autocast_lowers_several_times_is_recast() -> None:
    """Not a table's one product, nor what is in float64, nor anything without autocast."""
    assert TIED.recast == TWICE.recast == {"layers.0.weight"}
    assert replace(TIED, autocast=False).recast == frozenset()
    table = Model(4, (Layer("embedding"), Layer("linear", 4, tied=0)))
    wide = Model(4, (Layer("linear", 4, dtype="float64", twice=True),))
    assert replace(TIED, model=table).recast == replace(TIED, model=wide).recast == frozenset()
