"""Tests of crossed cases: what is added is there, and nothing that was drawn is lost."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.search.crossing import CROSSED, MOST_COMPUTED, computed, crossed
from ddp_invariants.search.search import _shared, weight
from ddp_invariants.search.strategies import training_cases
from ddp_invariants.situations.capability import BASE, FOUR
from ddp_invariants.situations.poison import Poisoned

SCOPE = Scope(8)


def test_most_capabilities_can_be_added_to_most_cases() -> None:
    """A crossed case has the capability, all layers and all situations, and fits the scope."""
    tried, added = 0, 0

    @seed(0)
    @settings(
        max_examples=60,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(training_cases(SCOPE))
    def cross(case: TrainingCase) -> None:
        nonlocal tried, added
        for name in random.Random(case.seed).sample(CROSSED, 12):
            if TRAINING[name].present(case):
                continue
            tried += 1
            joint = crossed(case, name, SCOPE)
            if joint is case:
                continue
            added += 1
            assert TRAINING[name].present(joint)
            assert joint.model.layers[: len(case.model.layers)] == case.model.layers
            kinds = {situation.kind for situation in case.situations}
            assert kinds <= {situation.kind for situation in joint.situations}
            SCOPE.fit(joint)

    cross()
    assert added > tried * 0.6


def test_a_case_of_one_rank_is_told_with_two_ranks_where_that_is_possible() -> None:
    """Situations that allow no second rank, or no infinite gradient, lose no violation."""
    shared = dict.fromkeys(TRAINING, 0)
    for name, capability in TRAINING.items():
        try:
            alone = replace(capability.probe, world_size=1)
        except CaseError:
            continue
        for case in _shared(alone, SCOPE):
            assert isinstance(case, TrainingCase)
            assert case.world_size == 2
            shared[name] += 1
    assert shared["penalty"] == 1
    assert shared["sgd"] == 2


def test_an_infinite_gradient_meets_float16() -> None:
    """Two rare features are in one case."""
    case = crossed(crossed(BASE, "float16", SCOPE), "nonfinite", SCOPE)
    assert any(layer.dtype == "float16" for layer in case.model.layers)
    assert case.get(Poisoned) is not None


def test_a_case_that_cannot_have_more_stays_as_it_is() -> None:
    """Gradients that are left in place exclude clipping, and a model has a largest size."""
    kept = crossed(BASE, "never_zeroed", SCOPE)
    assert crossed(kept, "clipping", SCOPE) is kept
    long = TrainingCase(Model(4, (Layer("linear", 4),) * 12))
    assert crossed(long, "scalar", SCOPE) is long
    assert "few" not in CROSSED
    many = TrainingCase(Model(4, (*FOUR, Layer("terms", 60))))
    assert crossed(many, "anomaly", SCOPE) is many  # It would take half a minute.
    written = crossed(BASE, "buffers_written", SCOPE)
    assert crossed(written, "state", SCOPE) is written  # The state lacks what was written.


def test_a_case_with_a_large_tensor_stays_short() -> None:
    """An addition that makes it compute with many numbers in many micro-steps is left out."""
    wide = Model(1, (Layer("linear", 262_145), Layer("linear", 1)))
    large = replace(BASE, model=wide, world_size=3, steps=1)
    assert crossed(large, "momentum", SCOPE) is not large
    additions = [crossed(replace(large, steps=2), name, SCOPE) for name in CROSSED]
    assert max(map(computed, additions)) <= MOST_COMPUTED
    longer = [crossed(replace(BASE, steps=1), name, SCOPE).steps for name in CROSSED]
    assert max(longer) > 4


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (BASE, 1),
        (TrainingCase(BASE.model, world_size=16), 4),
        (TrainingCase(BASE.model, world_size=4, steps=40), 2),
        (TrainingCase(Model(100, (Layer("linear", 1000),))), 10),
        (ShardCase(), 1),
        (ShardCase(world_size=1024), 256),
        (ShardCase(data=Data(samples=100_003), epochs=(0, 1)), 10),
    ],
)
def test_a_large_case_counts_as_several(case: Case, expected: int) -> None:
    """Ranks, forwards, numbers or samples count, whichever is most."""
    assert weight(case) == expected
