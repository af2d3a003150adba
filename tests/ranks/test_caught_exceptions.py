"""Steps after an exception that the user's backward raised at a drawn parameter."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.program import InjectedFailure, Unused
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.unused import UnusedLayers

FAULTS = "ddp_invariants.faults.timing"
CASE = replace(GENTLE, steps=3, bucket_cap=64)


def failing(parameter: int | None, step: int = 1) -> Situation:
    """Return an exception in the backward of a step."""
    return FailureInjection(InjectedFailure("backward error", step, parameter=parameter))


@pytest.mark.parametrize("parameter", [None, 0, 1, 3, 7])
def test_the_step_after_an_exception_is_right_wherever_it_was_raised(
    make_trial: TrialMaker, parameter: int | None
) -> None:
    """The reference starts anew, whichever gradients it had counted or sent."""
    findings = make_trial(scope=Scope()).findings(CASE.with_situation(failing(parameter)))
    assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
    assert "an exception in backward" in findings["LIVE-2"].met


@pytest.mark.parametrize("step", [0, 1])
def test_results_of_a_failed_backward_do_not_pass_for_those_of_the_step(
    make_trial: TrialMaker, step: int
) -> None:
    """The step takes another batch than the attempt that failed."""
    trial = make_trial(ddp=f"{FAULTS}:WritesTheFailedResult", scope=Scope())
    finding = trial.findings(CASE.with_situation(failing(None, step)))["LIVE-2"]
    assert finding.failure is not None
    assert f"step {step}" in finding.failure.where


def test_a_backward_may_fail_before_its_first_gradient(make_trial: TrialMaker) -> None:
    """This wrapper is wrong only where no gradient was computed before the exception."""
    trial = make_trial(ddp=f"{FAULTS}:FailsOnlyHalfWay", scope=Scope())
    for parameter, wrong in ((0, False), (None, False), (len(CASE.model.layers) - 1, True)):
        finding = trial.findings(CASE.with_situation(failing(parameter)))["LIVE-2"]
        assert (finding.failure is not None) == wrong, parameter


def test_only_a_backward_has_a_parameter_that_raises() -> None:
    """A forward computes no gradient, and ranks that pass a layer by compute fewer."""
    with pytest.raises(CaseError, match="unless a backward raises"):
        InjectedFailure("forward error", parameter=0)
    for parameter in (0, None):
        with pytest.raises(CaseError, match="only the other ranks would raise"):
            CASE.with_situation(UnusedLayers((Unused(1, rank=0),))).with_situation(
                failing(parameter)
            )


STUCK = """
from ddp_invariants.reference.ddp import DistributedDataParallel


class Stuck:
    stuck = False

    def wrap(self, module, context):
        return DistributedDataParallel(module)

    def backward(self, wrapped, optimizer, loss):
        if not self.stuck:
            self.stuck = True
            loss.backward()
            self.stuck = False


class Recovers(Stuck):
    def recover(self, wrapped):
        self.stuck = False
"""
"""An adapter that runs no backward after an exception, unless its program recovers."""


@pytest.mark.parametrize(("name", "right"), [("Stuck", False), ("Recovers", True)])
def test_a_program_recovers_after_it_caught_an_exception(
    make_trial: TrialMaker, tmp_path: Path, name: str, right: bool
) -> None:
    """The adapter's `recover` is called once the exception is caught on all ranks."""
    path = tmp_path / "stuck.py"
    path.write_text(STUCK)
    findings = make_trial(ddp=f"{path}:{name}", scope=Scope()).findings(
        CASE.with_situation(failing(None))
    )
    assert (findings["LIVE-2"].failure is None) == right
    assert findings["PARAM-3"].compared > 0


def test_fsdp2_is_recovered_as_it_documents(make_trial: TrialMaker) -> None:
    """The program calls the method of the wrapper, and the session says so."""
    trial = make_trial(ddp="fsdp2", scope=Scope())
    evidence = trial.pool.train(replace(CASE, init="equal"), trial.under_test.ddp)
    assert evidence.ranks[0].driven["after a caught exception"] == "reset_iter_state()"
