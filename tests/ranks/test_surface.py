"""Tests of the surface: the facts that a program meets before it trains."""

import re
from pathlib import Path

import pytest
from probed import Discover

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.upgrades.corpus import LARGE_SCALES, drawn_cases
from ddp_invariants.upgrades.difference import steady


def test_the_surface_of_torch_has_its_buckets_its_refusals_and_its_defaults(pool: Pool) -> None:
    """The facts name the default buckets of a large model, refused modules, and defaults."""
    facts = pool.surface(Ddp("torch"), Sampler("torch"))
    first, second = facts["the buckets of a large model"].split("; then ")
    assert "allreduce float32 x 8192000" in first
    sizes = [int(size) for size in re.findall(r"allreduce float32 x (\d+)", second)]
    assert len(sizes) > 1
    assert sum(sizes) == 8192000
    assert facts["refusal of a module whose parameters are all frozen"] == "raises RuntimeError"
    assert facts["refusal of bucket_cap_mb=object()"] == "raises TypeError"
    assert facts["output in a list"] == "the module's own list of Tensor, Tensor"
    assert facts["the moment when the sampler reads its epoch"] == "when iter is called"
    assert "('eps', 1e-08)" in facts["defaults of AdamW"]
    assert "max_norm" in facts["torch.nn.utils.clip_grad_norm_"]
    assert "torch.nn.parallel.distributed.DistributedDataParallel.no_sync" in facts
    name = "length of the sampler for 50000003 samples, 7 ranks, drop_last=False"
    assert facts[name] == "7142858"


HOLDING = """
from ddp_invariants.reference.ddp import DistributedDataParallel

class Attribute(DistributedDataParallel):
    def __init__(self, module):
        super().__init__(module)
        self.broadcasts = True

class Property(DistributedDataParallel):
    @property
    def broadcasts(self):
        return True

    @property
    def made(self):
        return str(id(self))

    @property
    def raises(self):
        raise ValueError
"""


def test_an_attribute_that_becomes_a_property_has_the_same_value(
    pool: Pool, tmp_path: Path
) -> None:
    """A program reads both alike. One that raises, or has a value for each object, is no fact."""
    (tmp_path / "holding.py").write_text(HOLDING)
    facts = [
        pool.surface(Ddp(f"{tmp_path}/holding.py:{name}"), Sampler())
        for name in ("Attribute", "Property")
    ]
    assert [each["attribute broadcasts of a wrapped module"] for each in facts] == ["True"] * 2
    assert "attribute raises of a wrapped module" not in facts[1]
    assert "attribute made of a wrapped module" not in facts[1]


def test_the_surface_is_the_same_in_every_process(pool: Pool) -> None:
    """A second process gives the same facts, so that two equal sides never differ."""
    facts = []
    for _ in range(2):
        facts.append(pool.surface(Ddp(), Sampler()))
        pool.anew()
    first, second = ({name: steady(text) for name, text in each.items()} for each in facts)
    assert first == second
    assert "torch.optim.AdamW" in first
    assert "torch.nn.parallel.distributed.DistributedDataParallel.no_sync" not in first


def test_a_long_run_has_samplers_at_large_scales(pool: Pool, discovered: Discover) -> None:
    """A tenth of the cases are samplers' cases at a large scale, and a short run has none."""
    discovery = discovered(pool, Ddp(), Sampler(), 2)
    scope = discovery.scope(2)
    assert not set(LARGE_SCALES) & set(drawn_cases(scope, 9, "0"))
    cases = drawn_cases(scope, 40, "0")
    assert len(cases) == 40
    assert cases[:4] == list(LARGE_SCALES[:4])


def test_a_run_of_the_default_size_has_every_situation_that_both_sides_offer() -> None:
    """Each capability is in some case, except refused ones and those that comparisons leave out."""
    scope = Scope(4, frozenset({"clipping"}))
    # The probes take half of a run at the most.
    assert len(TRAINING.keys() - {"own_buffers"}) <= 300 // 2
    cases = [case for case in drawn_cases(scope, 300, "0") if isinstance(case, TrainingCase)]
    missing = {
        name for name, each in TRAINING.items() if not any(each.present(case) for case in cases)
    }
    assert missing == {"clipping", "own_buffers"}


def test_a_surface_that_ends_its_process_is_a_fact(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that gives no answer leaves one fact, and the comparison goes on."""
    monkeypatch.setattr(pool, "patience_for_loading", 0.0)
    assert list(pool.surface(Ddp(), Sampler())) == ["all facts"]
