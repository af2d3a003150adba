"""Tests of the last line of a violation: the declaration that would exclude it, and its price."""

import re
from dataclasses import replace

import pytest

from conftest import TrialMaker, fault_of
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.lacking import NEVER, without_one
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.records.verdict import Violation
from ddp_invariants.search.confirm import excluding
from ddp_invariants.situations.second import SecondWrapper

SMALLEST = TrainingCase(model=Model(1, (Layer("linear"),)), world_size=2, data=Data(samples=2))

EAGER = "examples/per_parameter_hook.py:AsDescribed"
"""A wrapper that sends each gradient at once: it needs all of them, in one order, on all ranks."""


def test_each_such_capability_can_be_left_out_of_its_probe() -> None:
    """Every listed capability is one of training, and its probe has a case without it."""
    assert NEVER.keys() <= TRAINING.keys()
    for name in NEVER:
        left_out = dict(without_one(TRAINING[name].probe, Scope()))
        assert name in left_out
        assert not TRAINING[name].present(left_out[name])


@pytest.mark.parametrize(
    ("ddp", "rule", "named", "never"),
    [
        (
            "StridedBroadcast",
            "INIT-1",
            "strided",
            "wrap a model with a parameter that is not conti",
        ),
        (EAGER, "GRAD-9", "unused", "leave a parameter unused"),
    ],
)
def test_the_last_line_names_the_declaration_and_its_price(
    make_trial: TrialMaker, ddp: str, rule: str, named: str, never: str
) -> None:
    """A violation that shows only with such a capability ends with the declaration.

    The declaration does exclude the violation: its cases no longer contain the capability.
    """
    # The example takes no capacity, and so fails COMM-4 in cases with one.
    scope = Scope(4, without=frozenset({"bucket_cap"}))
    trial = make_trial(ddp=ddp if ":" in ddp else fault_of(ddp), scope=scope)
    with pytest.raises(Violation) as violated:
        trial.certify(rule)
    last = re.sub(r"\s+", " ", violated.value.report[violated.value.report.rindex("\n  unless") :])
    assert f'unsupported = ["{named}"]' in last
    assert f"users of the wrapper must then never {never}" in last
    declared = replace(scope, without=scope.without | {named})
    assert isinstance(violated.value.case, TrainingCase)
    case = declared.fit(violated.value.case)
    assert not trial.failures(trial.findings(case), case)


def test_no_declaration_is_offered_for_what_every_wrapper_must_do(make_trial: TrialMaker) -> None:
    """No line is added if the failure stays without the capability, or if the wrapper claims it."""
    trial = make_trial(ddp=fault_of("NeverDivides"), scope=Scope(4))
    case = TRAINING["strided"].probe
    assert trial.failures(trial.findings(case), case)
    assert excluding(trial, "GRAD-2", case) == ""
    claimed = Scope(4, declared=Declarations(supports=("strided",)))
    assert "strided" not in dict(without_one(case, claimed))


def test_no_declaration_is_offered_for_a_leak_that_no_simulation_shows(
    make_trial: TrialMaker,
) -> None:
    """A deleted wrapper that still communicates does so in a larger model, too, on real ranks."""
    ddp = "ddp_invariants.faults.several:HooksOutliveTheWrapper"
    trial = make_trial(ddp=ddp, scope=Scope(4))
    case = replace(SMALLEST, situations=(SecondWrapper("again"),))
    assert trial.findings(case, confirming=True, rule="LIVE-6")["LIVE-6"].failure is not None
    assert excluding(trial, "LIVE-6", case) == ""
