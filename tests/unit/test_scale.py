"""Tests of large cases: how they are drawn, made smaller, counted, and recomputed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import Phase, find, settings
from hypothesis import strategies as st

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.kinds import share
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.shrink import lower, simpler
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.oracle import balls
from ddp_invariants.ranks.training.layers.terms import Terms
from ddp_invariants.search import scale
from ddp_invariants.search.coverage import Drawn
from ddp_invariants.search.strategies import training_cases
from ddp_invariants.situations.capability import BASE


def is_large(axis: str, case: TrainingCase) -> bool:
    """Return whether a case is larger along an axis than cases that no axis makes large."""
    layers = case.model.layers
    sizes = [
        size
        for layer, width in zip(layers, case.model.widths(), strict=False)
        for size in layer.sizes(width)
    ]
    return {
        "parameters": any(layer.kind == "terms" for layer in layers) and len(sizes) > 10,
        "layers": len(layers) > 10,
        "square": layers[0].outputs == case.model.inputs > 8,
        "length": any(layer.bias and layer.outputs > 8 for layer in layers),
        "elements": max(sizes) > 1000,
        "mebibytes": max(sizes) > 30_000,
        "steps": case.steps >= 12,
        "backwards": case.accumulation > 10,
        "batch": case.data.batch_size >= 16,
    }[axis]


@pytest.mark.parametrize("axis", scale._GROWN)
def test_every_axis_makes_cases_large(axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An axis that is drawn makes a case large that suits it."""
    monkeypatch.setattr(scale, "AXES", st.just(axis))
    cases = training_cases(Scope(), accumulated=axis == "backwards")
    # The first one found will do: nothing is made simpler.
    options = settings(database=None, derandomize=True, phases=[Phase.generate])
    found = find(cases, lambda case: is_large(axis, case), settings=options)
    assert is_large(axis, found)


def test_a_case_in_anomaly_mode_is_not_made_large() -> None:
    """Autograd would write down the stack of each of hundreds of operations."""
    plain, anomaly = BASE, TRAINING["anomaly"].probe
    assert scale.grown(plain, "parameters", lambda _: 0) != plain
    assert scale.grown(anomaly, "parameters", lambda _: 0) == anomaly


@pytest.mark.parametrize("threshold", [2, 9, 65, 1025, 262_145])
def test_a_threshold_is_found_in_few_tries(threshold: int) -> None:
    """Numbers are made smaller by bisection, so that the smallest one that fails is found."""
    number, tries = 524_289, 0
    while True:
        for candidate in lower(number):
            tries += 1
            if candidate >= threshold:
                number = candidate
                break
        else:
            break
    assert number == threshold
    assert tries < 400


def test_a_large_tensor_becomes_smaller_in_steps() -> None:
    """The search for the smallest case tries fewer outputs, not only one."""
    case = replace(BASE, model=Model(1, (Layer("linear", 1000), Layer("linear", 1))))
    outputs = {each.model.layers[0].outputs for each in simpler(case)}  # type: ignore[union-attr]  # all train
    assert {1, 501, 999} <= outputs


def test_the_coverage_counts_large_cases() -> None:
    """The table has the number of parameters and the elements of the largest one."""
    drawn = Drawn()
    model = Model(1, (Layer("linear", 1000), Layer("linear", 1), Layer("terms", 65)))
    drawn.add(replace(BASE, model=model))
    assert drawn.dimensions["parameters"] == {"128": 1}
    assert drawn.dimensions["largest tensor"] == {"1024 elements": 1}


def test_terms_have_the_shares_of_the_oracle() -> None:
    """The ranks' layer, whose source is part of scripts, repeats the shares of `kinds.share`."""
    ones = [torch.nn.Parameter(torch.ones(1)) for _ in range(30)]
    for number, factor in enumerate(ones):
        factor.data.fill_(2.0)
        result = float(Terms(*ones)(torch.ones(1, 1)).detach())
        factor.data.fill_(1.0)
        assert result == sum(map(share, range(30))) + share(number)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_missing_rank_shows_in_every_dtype(dtype: str) -> None:
    """The bound of a mean over four ranks excludes the mean without one of them."""
    values_WP = np.array([[1.0], [1.0], [1.0], [1.25]])
    zero = np.zeros_like(values_WP)
    form = balls.FORMATS[dtype]
    mean = balls.mean_over_ranks(values_WP, zero, np.abs(values_WP), 0.0, form, 1)
    without = values_WP[:3].sum(0) / 4
    assert np.abs(without - mean.centre) > 5 * mean.radius
