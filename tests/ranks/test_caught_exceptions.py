"""Steps after an exception that the user's backward raised at a drawn parameter."""

from dataclasses import replace
from pathlib import Path

import pytest
from stored import stored_violation

from conftest import Run, TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.program import InjectedFailure, Unused
from ddp_invariants.cases.situation import Situation
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.export import script as export
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.capability import GENTLE
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.no_sync import NoSyncStyle
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


INTERRUPTED = replace(
    CASE, situations=(FailureInjection(InjectedFailure("forward error", interrupts=True)),)
)
NO_SYNC = replace(CASE, accumulation=2, situations=(NoSyncStyle("interrupt"),))


@pytest.mark.parametrize(
    ("ddp", "case", "rule"),
    [
        (f"{FAULTS}:CountsOpenForwards", INTERRUPTED, "LIVE-2"),
        ("ddp_invariants.faults.contexts:ExpectsExceptions", NO_SYNC, "GRAD-8"),
    ],
)
def test_a_wrapper_that_expects_only_exceptions_is_wrong_after_an_interruption(
    make_trial: TrialMaker, ddp: str, case: TrainingCase, rule: str
) -> None:
    """Right wrappers hold, and these two are right after an `Exception`."""
    for right in ("reference", "torch"):
        findings = make_trial(ddp=right, scope=Scope()).findings(case)
        failed = {name for name, each in findings.items() if each.failure}
        assert failed <= {"BUF-1", "COMM-4", "COMM-5"}
        assert findings[rule].compared > 0
    trial = make_trial(ddp=ddp, scope=Scope())
    assert trial.findings(case)[rule].failure is not None
    ordinary = Scope(without=frozenset({"interrupts", "no_sync_interrupt"})).fit(case)
    assert ordinary != case
    error = FailureInjection(InjectedFailure("forward error"))
    styles = (error,) if case is INTERRUPTED else (NoSyncStyle("error"),)
    assert trial.findings(ordinary.with_situation(*styles))[rule].failure is None


def test_a_dead_rank_interrupts_nothing() -> None:
    """A killed process raises no exception."""
    with pytest.raises(CaseError, match="interrupts is True, expected false if a rank dies"):
        InjectedFailure("death", 1, interrupts=True)


def test_a_script_catches_an_interruption_too(pool: Pool, run: Run) -> None:
    """The script shows the violation of a wrapper that expects an `Exception`."""
    stored = stored_violation(pool, INTERRUPTED, "LIVE-2", ddp=f"{FAULTS}:CountsOpenForwards")
    text = export.script(pool, stored)
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, "LIVE-2"), output
    assert run(text.replace("CountsOpenForwards", "Reference")) == (0, "not reproduced\n")


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
